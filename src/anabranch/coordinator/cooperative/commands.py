"""What can be asked about individual commits, and what is answered.

Commands bring the facts that the core cannot know: what the log holds, and how far the member was
shown it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.coordinator.cooperative.acks import Ack, AckOutcome, LogFacts
from anabranch.coordinator.cooperative.progress import Attempt
from anabranch.coordinator.cooperative.records import Place
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode

NO_OFFSET = -1
# Of a failure: no more tries are wanted.
NO_RETRY = -1


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that could not be processed, and how long it shall rest at least."""

    offset: int
    slot: int
    retry_after_ms: int = 0
    reason: str = ""


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
    """Individual commits of a member, or of nobody in particular (a negative epoch)."""

    group_id: str
    member_id: str
    member_epoch: int
    partitions: tuple[PartitionAcks, ...]


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


CooperativeCommand = TakeAcks | LogsFound
