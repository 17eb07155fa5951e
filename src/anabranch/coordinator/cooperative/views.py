"""Progress as people and members want to see it: by range, with who works on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from anabranch.coordinator.cooperative.commands import NO_OFFSET
from anabranch.coordinator.cooperative.holdings import NO_EPOCH, OwnedSlots
from anabranch.coordinator.cooperative.progress import Interval, PartitionProgress, intersect
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import ALL_SLOTS, SlotRange


@dataclass(frozen=True, slots=True)
class RangeView:
    """Slots that are equally far and have one owner, or none; a watermark of -1 is not known."""

    slots: SlotRange
    watermark: int
    done: OffsetRanges = EMPTY
    owner: str | None = None
    epoch: int = NO_EPOCH


def ranges_with_owners(
    progress: PartitionProgress | None, owners: Sequence[OwnedSlots]
) -> list[RangeView]:
    """All slots in their order, cut wherever progress or owner change.

    Owners are in the order of their slots, of which nobody has any that another one has.
    """
    intervals = (Interval(ALL_SLOTS, NO_OFFSET),) if progress is None else progress.intervals
    views = []
    # Hundreds of owners may have hundreds of intervals: those that are passed are not asked again.
    passed = 0
    for interval in intervals:
        position = interval.slots.first
        while passed < len(owners) and owners[passed].slots.end <= position:
            passed += 1
        for owned in islice(owners, passed, None):
            if owned.slots.first >= interval.slots.end:
                break
            part = intersect(owned.slots, interval.slots)
            assert part is not None, "it ends behind the first slot and begins before the last"
            if position < part.first:
                views.append(_view(interval, SlotRange(position, part.first)))
            views.append(_view(interval, part, owned.owner, owned.epoch))
            position = part.end
        if position < interval.slots.end:
            views.append(_view(interval, SlotRange(position, interval.slots.end)))
    return views


def _view(
    interval: Interval, slots: SlotRange, owner: str | None = None, epoch: int = NO_EPOCH
) -> RangeView:
    return RangeView(slots, interval.watermark, interval.done, owner, epoch)
