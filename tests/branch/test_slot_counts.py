"""Records by slot, counted over the slot index."""

from collections import Counter

import pytest

from anabranch.branch.slot_counts import SlotCounts
from anabranch.branch.slots import DEFAULT_RULE, slot_of_key
from anabranch.branch.split import index_batches
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange
from anabranch.wire.record_batch import Record, build_batch

KEYS = [b"k%d" % (number % 7) for number in range(40)]


def counts_of(end_offset: int, batch: int = 10) -> SlotCounts:
    """The blocks of all keys, in batches."""
    found = SlotCounts(end_offset)
    for first in range(0, len(KEYS), batch):
        records = [Record(i, 0, KEYS[i], b"") for i in range(first, first + batch)]
        built = build_batch(records, base_offset=first)
        found.add([memoryview(index_batches(memoryview(built), DEFAULT_RULE))])
    return found


@pytest.mark.parametrize(("first", "end"), [(0, 40), (3, 40), (0, 17), (12, 28), (40, 40)])
def test_records_between_two_offsets(first: int, end: int) -> None:
    """Each slot has the records of its keys; slots without any are left out."""
    found = counts_of(end).counts([(ALL_SLOTS, first)])
    assert found == Counter(slot_of_key(key) for key in KEYS[first:end])


def test_every_range_of_slots_has_its_own_watermark() -> None:
    """Records below that of their slot are done."""
    half = SLOT_COUNT // 2
    low, high = SlotRange(0, half), SlotRange(half, SLOT_COUNT)
    found = counts_of(40).counts([(low, 35), (high, 5)])
    expected = Counter(
        slot
        for offset, slot in enumerate(map(slot_of_key, KEYS))
        if offset >= (35 if slot < half else 5)
    )
    assert found == expected
    assert len({slot < half for slot in map(slot_of_key, KEYS)}) == 2


def test_watermarks_are_of_all_slots() -> None:
    """Anything else is a mistake of the caller."""
    with pytest.raises(ValueError, match="of 5 slots"):
        counts_of(40).counts([(SlotRange(0, 5), 0)])


def test_nothing_is_nothing() -> None:
    """A part of a log without batches."""
    assert SlotCounts(10).counts([(ALL_SLOTS, 0)]) == {}
