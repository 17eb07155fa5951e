"""Slots: vectors that other implementations can check themselves by, and the equal cuts."""

from itertools import pairwise

import pytest
from batch_kit import xxh64_model
from hypothesis import given
from hypothesis import strategies as st

from anabranch.branch.slots import (
    BRANCHES_MAX,
    branch_of_slot,
    slot_of_key,
    slot_of_offset,
    slots_of_branch,
)
from anabranch.model.units import SLOT_COUNT

# The upper 16 bits of published XXH64 results.
SLOT_VECTORS = {
    b"": 0xEF46,
    b"a": 0xD24E,
    b"abc": 0x44BC,
    b"hello": 0x26C7,
    b"message digest": 0x066E,
    b"0123456789abcdefghijklmnopqrstuvwxyz": 0x6919,
}


@pytest.mark.parametrize(("key", "slot"), SLOT_VECTORS.items())
def test_slots_of_known_keys(key: bytes, slot: int) -> None:
    """A key's slot is the upper 16 bits of its hash."""
    assert slot_of_key(key) == slot


@given(st.binary(max_size=100))
def test_slot_is_the_63_bit_hash_cut_down(key: bytes) -> None:
    """The definition by way of the 63-bit hash gives the same slot."""
    assert slot_of_key(key) == (xxh64_model(key) >> 1) >> 47


@given(st.integers(0, 2**62))
def test_offsets_share_a_slot_in_blocks_of_64(offset: int) -> None:
    """Records without a key have the slot of their block of 64 offsets."""
    block = offset - offset % 64
    assert slot_of_offset(offset) == slot_of_offset(block) == slot_of_offset(block + 63)
    assert slot_of_offset(block) == slot_of_key((block // 64).to_bytes(8, "big"))


def test_blocks_spread() -> None:
    """Neighbouring blocks of offsets are in different places."""
    assert len({slot_of_offset(64 * block) for block in range(1000)}) > 980


@given(st.integers(1, BRANCHES_MAX))
def test_branches_cut_the_slots(branches: int) -> None:
    """The ranges follow each other without gap, differ by one at most, and find their branch."""
    ranges = [slots_of_branch(i, branches) for i in range(branches)]
    assert ranges[0].first == 0
    assert ranges[-1].end == SLOT_COUNT
    assert all(a.end == b.first for a, b in pairwise(ranges))
    assert len({r.end - r.first for r in ranges}) <= 2
    for i, slots in enumerate(ranges):
        assert branch_of_slot(slots.first, branches) == i
        assert branch_of_slot(slots.end - 1, branches) == i


@pytest.mark.parametrize("branches", [2, 3, 8, 24])
def test_keys_of_one_partition_spread(branches: int) -> None:
    """Ordinary keys fill all branches about equally."""
    counts = [0] * branches
    for number in range(20_000):
        counts[branch_of_slot(slot_of_key(b"customer-%d" % number), branches)] += 1
    fair = 20_000 / branches
    assert all(0.85 * fair < count < 1.15 * fair for count in counts)
