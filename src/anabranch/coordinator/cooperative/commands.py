"""What can be asked about individual commits, and what is answered.

Commands bring the facts that the core cannot know: what the log holds, and how far the member was
shown it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from anabranch.coordinator.cooperative.acks import Ack, AckOutcome, LogFacts
from anabranch.coordinator.cooperative.progress import Attempt
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.runtime.result import WaiterId
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import slot_of_hash

NO_OFFSET = -1
NO_HASH = -1
# Of a failure: no more tries are wanted; and: it was not tried, because its key is diverted.
NO_RETRY = -1
DIVERTED = -2


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that could not be processed, and how long it shall rest at least."""

    offset: int
    key_hash: int
    retry_after_ms: int = 0
    reason: str = ""

    @property
    def slot(self) -> int:
        return slot_of_hash(self.key_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAcks:
    """What a member did of one partition. `leader_epoch` is that of the log now."""

    topic: str
    topic_id: bytes
    partition: int
    facts: LogFacts
    leader_epoch: int
    acks: tuple[Ack, ...] = ()
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeAcks:
    """Individual commits of a member, or of nobody in particular (a negative epoch).

    With a producer, its id and epoch, they are part of its transaction, and have no failures. They
    may have to wait for others then (see `txn_order`), until `wait_until_ms` at the latest.
    """

    group_id: str
    member_id: str
    member_epoch: int
    partitions: tuple[PartitionAcks, ...]
    producer: tuple[int, int] | None = None
    waiter: WaiterId | None = None
    wait_until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAcks:
    """See whether acknowledgements that wait for others can be taken by now."""

    waiter: WaiterId


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureOutcome:
    """What became of a failure: its attempts so far, unless it was refused or is done."""

    failure: Failure
    error_code: ErrorCode = ErrorCode.NONE
    sub_code: SubCode = SubCode.NONE
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """What became of each part of the acks, and of each failure in the order of the command."""

    stable_offset: int = NO_OFFSET
    outcomes: tuple[AckOutcome, ...] = ()
    failures: tuple[FailureOutcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksAnswer:
    """One error for all, or an answer for each partition in the order of the command."""

    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[PartitionAnswer, ...] = ()


class Action(IntEnum):
    """What shall become of a record that waits for somebody to decide about it."""

    RELEASE = 0
    SKIP = 1
    DLQ = 2


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a record, or about a key and all its records that wait (offset -1).

    Who says `DLQ` has the record in the dead-letter topic already. `diverts` has later records of
    the key follow it there.
    """

    action: Action
    offset: int = NO_OFFSET
    key_hash: int = NO_HASH
    diverts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeDecisions:
    """Decisions about records of one partition; they need no member and fence nobody."""

    group_id: str
    topic: str
    topic_id: bytes
    partition: int
    log_start_offset: int
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """What became of a decision, and why not if it was not taken."""

    error_code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionsAnswer:
    """What became of each decision, in their order."""

    error: ErrorCode = ErrorCode.NONE
    stable_offset: int = NO_OFFSET
    outcomes: tuple[DecisionOutcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CountStuck:
    """Count one more failed attempt at a record, for it is stuck at a member."""

    group_id: str
    topic_id: bytes
    partition: int
    offset: int
    key_hash: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A log as it was found at the start; `epoch_ends` says where leader epochs ended in it."""

    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    epoch_ends: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsFound:
    """The journals were read: see what of the progress is still true of the logs.

    Partitions that are not there have no state.
    """

    logs: Mapping[Place, LogState]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactions:
    """Work for the broker: a member is gone, and what it did in transactions shall not count.

    Nobody can have the records that it acknowledged before these have ended. The producers come
    with their epochs, and whose transactions have ended meanwhile are left alone.
    """

    group_id: str
    member_id: str
    producers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAcksAgain:
    """Work for the broker: `ResumeAcks` for these, in this order, when the decision counts."""

    waiters: tuple[WaiterId, ...]


CooperativeCommand = TakeAcks | ResumeAcks | TakeDecisions | CountStuck | LogsFound
