"""What changes a shard: the records that `replay` takes.

Durable records are Kafka's own (types 1 and 2 of `__consumer_offsets`, a None value being the
tombstone, and the markers that end transactions there), those of consumer groups (see
`consumer_records`) and those of individual commits, which have a journal of their own (see
`cooperative.records`); `ClassicGroupChanged`, `ImageChanged`, `AcksParked` and `AcksUnparked` are
soft, and no journal ever sees them.
"""

from dataclasses import dataclass
from typing import ClassVar

from anabranch.coordinator.cooperative.records import ProgressRecord
from anabranch.coordinator.cooperative.txn_order import AcksParked, AcksUnparked
from anabranch.coordinator.group.classic_state import ClassicGroup
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.consumer_records import ConsumerGroupRecord, ImageChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitted:
    """Type 1: the committed offset of one partition, or None when it is forgotten."""

    is_durable: ClassVar[bool] = True
    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPending:
    """Type 1 in a transactional batch: an offset that counts if the transaction is committed."""

    is_durable: ClassVar[bool] = True
    producer_id: int
    producer_epoch: int
    offset: OffsetCommitted


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """A marker: whatever a producer has pending in this shard counts now, or is forgotten."""

    is_durable: ClassVar[bool] = True
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWritten:
    """Type 2: a classic group without its soft state, or None when it is forgotten."""

    is_durable: ClassVar[bool] = True
    group_id: str
    group: ClassicGroup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupChanged:
    """A group with its soft state, as the living process knows it."""

    is_durable: ClassVar[bool] = False
    group: ClassicGroup


GroupRecord = (
    OffsetCommitted
    | OffsetPending
    | TransactionEnded
    | GroupWritten
    | ClassicGroupChanged
    | ConsumerGroupRecord
    | ImageChanged
    | ProgressRecord
    | AcksParked
    | AcksUnparked
)
