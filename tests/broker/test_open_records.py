"""The first record that nobody has finished, and the hash by which members know its key."""

import pytest

from anabranch.branch.slots import DEFAULT_RULE, SlotRule, slot_of_key, slot_of_offset
from anabranch.broker.open_records import OpenRecord, find_open
from anabranch.client.ordering import hash_of, order_of
from anabranch.coordinator.cooperative.progress import new_progress, with_done
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import ALL_SLOTS, SlotRange, slot_of_hash
from anabranch.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, Record, build_batch

KEYS = [b"k%d" % i for i in range(10)]
Headers = tuple[tuple[str, bytes | None], ...]


def batch(*records: Record, base_offset: int = 100, **header: int) -> bytes:
    return build_batch(records, base_offset=base_offset, **header)


def records(*keys: bytes | None, headers: Headers = ()) -> list[Record]:
    return [Record(100 + i, 0, key, b"v", headers) for i, key in enumerate(keys)]


def test_the_first_one_that_is_open() -> None:
    """Below watermarks and in ranges they are done, for the slots that it is said of."""
    content = memoryview(batch(*records(*KEYS)))
    progress = new_progress(100)
    found, covered = find_open(content, DEFAULT_RULE, 100, progress)
    assert found is not None
    assert (found.offset, found.slot, covered) == (100, slot_of_key(b"k0"), 100)
    assert slot_of_hash(found.key_hash) == found.slot
    assert find_open(content, DEFAULT_RULE, 104, progress)[1] == 104
    done = with_done(progress, ALL_SLOTS, 102, OffsetRanges([(102, 103), (105, 109)]))
    found, _ = find_open(content, DEFAULT_RULE, 100, done)
    assert found is not None
    assert found.offset == 104
    slot = slot_of_key(b"k4")
    done = with_done(done, SlotRange(slot, slot + 1), -1, OffsetRanges([(104, 104)]))
    assert find_open(content, DEFAULT_RULE, 100, done) == (None, 110)


def test_slots_that_nobody_has_spoken_of() -> None:
    """They hold nobody back, whatever they have."""
    slot = slot_of_key(b"k1")
    progress = with_done(new_progress(-1), SlotRange(slot, slot + 1), 100, EMPTY)
    found, _ = find_open(memoryview(batch(*records(*KEYS))), DEFAULT_RULE, 100, progress)
    assert found is not None
    assert found.offset == 101


def test_control_batches_have_no_records() -> None:
    """Nobody finishes a marker."""
    content = batch(*records(b"\0\0\0\1"), attributes=CONTROL_FLAG)
    assert find_open(memoryview(content), DEFAULT_RULE, 100, new_progress(100)) == (None, 101)


@pytest.mark.parametrize(
    ("rule", "key", "headers"),
    [
        (DEFAULT_RULE, b"key", ()),
        (DEFAULT_RULE, b"", ()),
        (DEFAULT_RULE, None, ()),
        (SlotRule(is_null_key_ordered=True), None, ()),
        (SlotRule(ordering_header=b"h"), b"key", (("h", b"one"), ("h", b"two"), ("x", b"three"))),
        (SlotRule(ordering_header=b"h"), b"key", (("h", b"one"), ("h", None))),
        (SlotRule(ordering_header=b"h"), b"key", (("x", b"one"),)),
        (SlotRule(ordering_header=b"h"), None, ()),
    ],
)
def test_hashes_are_those_of_the_client(
    rule: SlotRule, key: bytes | None, headers: Headers
) -> None:
    """An attempt that the broker counts and one that a member reports are of one key."""
    content = memoryview(batch(*records(key, headers=headers)))
    expected = hash_of(order_of(key, headers, rule), 100)
    found, _ = find_open(content, rule, 100, new_progress(100))
    assert found == OpenRecord(100, slot_of_hash(expected), expected)


def test_records_without_a_key_go_by_their_block() -> None:
    """As the branches have them."""
    found, _ = find_open(memoryview(batch(*records(None))), DEFAULT_RULE, 100, new_progress(100))
    assert found is not None
    assert found.slot == slot_of_offset(100)


def test_aborted_records_are_not_open() -> None:
    """Where they are left out for everybody; others of the same batches are found."""
    gone = records(*KEYS[:3])
    there = [Record(103 + i, 0, key, b"v") for i, key in enumerate(KEYS[3:5])]
    flags = {"attributes": TRANSACTIONAL_FLAG, "producer_epoch": 0}
    content = memoryview(
        batch(*gone, producer_id=1, **flags)
        + batch(*there, base_offset=103, producer_id=2, **flags)
    )
    found, covered = find_open(content, DEFAULT_RULE, 100, new_progress(100), [(1, 90)])
    assert found is not None
    assert (found.offset, found.slot, covered) == (103, slot_of_key(KEYS[3]), 103)
    assert slot_of_hash(found.key_hash) == found.slot
    found, _ = find_open(content, DEFAULT_RULE, 100, new_progress(100))
    assert found is not None
    assert found.offset == 100
    everything = [(1, 90), (2, 103)]
    assert find_open(content, DEFAULT_RULE, 100, new_progress(100), everything) == (None, 105)
