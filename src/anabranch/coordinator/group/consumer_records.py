"""The records of consumer groups (KIP-848), types 3, 5-8 and 16 of `__consumer_offsets`.

All but the last are durable; a None in the place of the value is the tombstone.
"""

from dataclasses import dataclass, field
from typing import ClassVar, assert_never

from anabranch.coordinator.group.assignors.index import Target
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_state import ConsumerMember, ResolvedRegex
from anabranch.model.cluster_image import ClusterImage


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpochWritten:
    """Type 3: the group epoch and the hash of the topics it was computed for."""

    is_durable: ClassVar[bool] = True
    group_id: str
    epoch: int | None
    metadata_hash: int = 0
    # Why the epoch grew, for metrics; the journal has no place for it.
    cause: Cause | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWritten:
    """Type 5: how a member describes itself; its epochs and units are not looked at."""

    is_durable: ClassVar[bool] = True
    group_id: str
    member_id: str
    member: ConsumerMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpochWritten:
    """Type 6: the group epoch that the target assignment belongs to, and when it was made."""

    is_durable: ClassVar[bool] = True
    group_id: str
    epoch: int | None
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWritten:
    """Type 7: what one member should own."""

    is_durable: ClassVar[bool] = True
    group_id: str
    member_id: str
    target: Target | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentWritten:
    """Type 8: the epochs, state and units of one member; its description is not looked at."""

    is_durable: ClassVar[bool] = True
    group_id: str
    member_id: str
    member: ConsumerMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexWritten:
    """Type 16: the topics that a regular expression matched."""

    is_durable: ClassVar[bool] = True
    group_id: str
    regex: str
    resolved: ResolvedRegex | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageChanged:
    """The cluster looks different; known to the living process only, which sees it at its start."""

    is_durable: ClassVar[bool] = False
    image: ClusterImage


ConsumerGroupRecord = (
    GroupEpochWritten
    | MemberWritten
    | TargetEpochWritten
    | TargetWritten
    | CurrentWritten
    | RegexWritten
)


def is_tombstone(record: ConsumerGroupRecord) -> bool:
    """Whether a record says that something is forgotten."""
    match record:
        case GroupEpochWritten() | TargetEpochWritten():
            return record.epoch is None
        case MemberWritten() | CurrentWritten():
            return record.member is None
        case TargetWritten():
            return record.target is None
        case RegexWritten():
            return record.resolved is None
        case _:
            assert_never(record)
