"""What changes a shard: the records that `replay` takes.

Durable records are Kafka's own (types 1 and 2 of `__consumer_offsets`, a None value being the
tombstone), those of consumer groups (see `consumer_records`) and those of individual commits, which
have a journal of their own (see `cooperative.records`); `ClassicGroupChanged` and `ImageChanged`
are soft, and no journal ever sees them.
"""

from dataclasses import dataclass
from typing import ClassVar

from anabranch.coordinator.cooperative.records import ProgressRecord
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
    | GroupWritten
    | ClassicGroupChanged
    | ConsumerGroupRecord
    | ImageChanged
    | ProgressRecord
)
