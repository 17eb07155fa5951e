"""Ranges as people see them: cut where progress or owners change, and nowhere else."""

import itertools
import random

from anabranch.coordinator.cooperative.holdings import OwnedSlots
from anabranch.coordinator.cooperative.progress import Interval, PartitionProgress
from anabranch.coordinator.cooperative.views import RangeView, ranges_with_owners
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange


def cut(dice: random.Random, parts: int) -> list[SlotRange]:
    """All slots in so many parts."""
    edges = [0, *sorted(dice.sample(range(1, SLOT_COUNT), parts - 1)), SLOT_COUNT]
    return [SlotRange(first, end) for first, end in itertools.pairwise(edges)]


def at(views: list[RangeView], slot: int) -> RangeView:
    (found,) = [view for view in views if view.slots.first <= slot < view.slots.end]
    return found


def test_each_slot_has_its_progress_and_its_owner() -> None:
    """Whatever the cuts, a slot's view has the watermark and the owner that the slot has."""
    dice = random.Random(7)
    for _ in range(50):
        intervals = [
            Interval(slots, number)
            for number, slots in enumerate(cut(dice, dice.choice([1, 2, 9, 40])))
        ]
        owners = [
            OwnedSlots(slots, f"m{number}", number)
            for number, slots in enumerate(cut(dice, dice.choice([1, 3, 30])))
            if dice.random() < 0.7
        ]
        views = ranges_with_owners(PartitionProgress(tuple(intervals)), owners)
        assert [view.slots.first for view in views] == [0, *(one.slots.end for one in views[:-1])]
        assert views[-1].slots.end == SLOT_COUNT
        edges = {edge for one in (*intervals, *owners) for edge in one.slots}
        for slot in {*edges, *(edge - 1 for edge in edges)} & set(range(SLOT_COUNT)):
            view = at(views, slot)
            (interval,) = [one for one in intervals if slot in range(*one.slots)]
            owned = next((one for one in owners if slot in range(*one.slots)), None)
            assert view.watermark == interval.watermark
            assert view.owner == (owned.owner if owned is not None else None)


def test_nothing_done_and_nobody_there() -> None:
    """Without progress and owners there is one range, of which nothing is known."""
    assert ranges_with_owners(None, []) == [RangeView(ALL_SLOTS, -1)]
