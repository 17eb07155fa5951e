"""What changes the progress of groups: the records that a shard replays.

`ProgressWritten` and `ProgressForgotten` are durable, in a journal of their own beside that of the
groups, and so are `AcksPending` and `AcksForgotten`, of transactions that are open;
`ProgressSettled` and `AcksSettled` are soft: what the living process knows about the logs is looked
at again after each start.

Most records are deltas, so that an acknowledgement costs what it says and not what was said before.
Every 64th is a snapshot. Sequences are consecutive; a delta that does not follow what is known is
of an earlier life, whose snapshot is gone from the journal, and says nothing.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from anabranch.coordinator.cooperative.progress import Attempt, PartitionProgress
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import SlotRange

# The topic's id and the number of the partition.
Place = tuple[bytes, int]

SNAPSHOT_EVERY = 64


@dataclass(frozen=True, slots=True)
class AckedRange:
    """Records of some slots that were done: those below the watermark, and those in the set."""

    slots: SlotRange
    watermark: int
    done: OffsetRanges = EMPTY


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A record that failed, as often as its attempt says."""

    offset: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class DivertedKey:
    """A key whose records go to the dead-letter topic, from an offset on."""

    key_hash: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressDelta:
    """What came to a partition's progress, in this order.

    `forgiven` are the offsets of records whose attempts are forgotten, `released` the hashes of
    keys that are not diverted any more.
    """

    leader_epoch: int
    acked: tuple[AckedRange, ...] = ()
    failed: tuple[FailedAttempt, ...] = ()
    forgiven: tuple[int, ...] = ()
    diverted: tuple[DivertedKey, ...] = ()
    released: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressWritten:
    """A group's progress on a partition: all of it, or what came to it."""

    is_durable: ClassVar[bool] = True
    group_id: str
    topic_id: bytes
    partition: int
    sequence: int
    value: PartitionProgress | ProgressDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressForgotten:
    """Nothing is known any more of a group's progress on a partition.

    `sequence` is the last one, by which the journal knows what it may have of it.
    """

    is_durable: ClassVar[bool] = True
    group_id: str
    topic_id: bytes
    partition: int
    sequence: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSettled:
    """What is left of the progress that was read, after a look at the log; None when nothing is."""

    is_durable: ClassVar[bool] = False
    group_id: str
    topic_id: bytes
    partition: int
    progress: PartitionProgress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksPending:
    """All that a member has acknowledged of a partition in a transaction, while that is open.

    `leader_epoch` is that of the log when it did so last.
    """

    is_durable: ClassVar[bool] = True
    group_id: str
    topic_id: bytes
    partition: int
    producer_id: int
    member_id: str
    producer_epoch: int
    leader_epoch: int
    acked: tuple[AckedRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksForgotten:
    """Nothing is pending any more of what a member acknowledged in a transaction."""

    is_durable: ClassVar[bool] = True
    group_id: str
    topic_id: bytes
    partition: int
    producer_id: int
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksSettled:
    """What is left of the acknowledgements that are pending, after a look at the log."""

    is_durable: ClassVar[bool] = False
    group_id: str
    topic_id: bytes
    partition: int
    producer_id: int
    member_id: str
    acked: tuple[AckedRange, ...]


DurableProgressRecord = ProgressWritten | ProgressForgotten | AcksPending | AcksForgotten
ProgressRecord = DurableProgressRecord | ProgressSettled | AcksSettled
