"""What can be asked of the group coordinator, and what it answers.

Commands are facts of a request; whoever makes them has checked nothing but the form. Errors are
values: an `ErrorCode` in the answer.
"""

from dataclasses import dataclass

from anabranch.coordinator.cooperative.commands import CooperativeCommand
from anabranch.coordinator.group.classic_state import Protocol
from anabranch.coordinator.group.consumer_commands import (
    ClusterChanged,
    ConsumerHeartbeat,
    MoveRanges,
    RegexesResolved,
)
from anabranch.coordinator.runtime.result import TimerKey, WaiterId
from anabranch.model.errors import ErrorCode

NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    # From version 4 on a new dynamic member is told its id first and joins with it (KIP-394).
    requires_known_member_id: bool
    # From version 9 on a returning static leader can be told not to assign again (KIP-814).
    can_skip_assignment: bool
    waiter: WaiterId
    # The source of a new member id: the core has no randomness of its own.
    unique: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    error: ErrorCode = ErrorCode.NONE
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]
    waiter: WaiterId


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMember:
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAnswer:
    error: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """An offset with what a client may store beside it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    # Only from version 1 records, written when a client asked for its own retention.
    expire_timestamp_ms: int = -1
    topic_id: bytes = bytes(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id: int
    # Version 2 to 4 requests may bring a retention of their own; -1 means the broker's.
    retention_ms: int
    # From version 9 on an unknown group is GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION.
    knows_group_id_not_found: bool
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    """One error for all, or one for each offset in the order of the command."""

    error: ErrorCode = ErrorCode.NONE
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTxnOffsets:
    """Commit offsets with the transaction of a producer."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id: int
    offsets: tuple[OffsetToCommit, ...]
    producer_id: int
    producer_epoch: int
    # From version 6 on member epochs and unknown groups have errors of their own (KIP-1319).
    knows_member_epochs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """A producer's transaction is decided: its offsets in this shard are too."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedOffset:
    """An offset that follows from what the group committed elsewhere.

    `newest_commit_ms` is the time of the newest of those commits, `read_ms` when they were read.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    newest_commit_ms: int
    read_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectOffsets:
    """Commit what follows from other commits; nobody asked for it, and nobody is fenced."""

    group_id: str
    offsets: tuple[ProjectedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    group_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsetsAnswer:
    error: ErrorCode = ErrorCode.NONE
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupAnswer:
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicOffsets:
    """A topic is gone: forget what was committed for it, in every group of the shard."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """The periodic look for offsets that nobody wants any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    key: TimerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The journal was read to its end: start the timers that a living shard has."""


Command = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | CommitOffsets
    | CommitTxnOffsets
    | EndTransaction
    | ProjectOffsets
    | DeleteOffsets
    | DeleteGroup
    | DeleteTopicOffsets
    | ExpireOffsets
    | TimerFired
    | Loaded
    | ConsumerHeartbeat
    | ClusterChanged
    | RegexesResolved
    | MoveRanges
    | CooperativeCommand
)
