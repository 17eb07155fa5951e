"""Splits by key range: they tile, they follow the load, and they are as many as is worth it."""

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange
from anabranch.spark.splits import Cut, Split, Wish, cut_by_load, equal_cut, split_counts

SLOTS = st.integers(0, SLOT_COUNT - 1)
LOADS = st.dictionaries(SLOTS, st.floats(0.25, 1000), max_size=60)
COUNTS = st.integers(1, 64)


def check_tiles(cut: Cut) -> None:
    """Every slot is in exactly one range, and no range is empty."""
    assert cut[0].first == 0
    assert cut[-1].end == SLOT_COUNT
    assert all(one.first < one.end for one in cut)
    assert all(before.end == after.first for before, after in pairwise(cut))


def worst(cut: Cut, loads: Mapping[int, float]) -> float:
    return max(sum(loads[s] for s in loads if one.first <= s < one.end) for one in cut)


@given(COUNTS, LOADS, st.none() | COUNTS)
def test_cuts_tile(count: int, loads: dict[int, float], before: int | None) -> None:
    """Whatever the load and whatever was before, all slots are covered once."""
    cut = cut_by_load(count, loads, equal_cut(before) if before else ())
    check_tiles(cut)
    assert len(cut) <= count


def best_by_trying(loads: Mapping[int, float], count: int) -> float:
    """The least that the largest of `count` ranges can have, by dynamic programming."""
    weights = [loads[slot] for slot in sorted(loads)]
    best = [0.0, *([float("inf")] * len(weights))]
    for _ in range(count):
        row = list(best)
        for end in range(1, len(weights) + 1):
            total = 0.0
            for start in range(end - 1, -1, -1):
                total += weights[start]
                row[end] = min(row[end], max(best[start], total))
        best = row
    return best[-1]


@given(st.integers(2, 6), st.dictionaries(SLOTS, st.integers(1, 1000), min_size=6, max_size=14))
def test_cuts_are_as_good_as_can_be(count: int, loads: dict[int, int]) -> None:
    """No other cut into so many ranges has a smaller largest one."""
    floats = {slot: float(weight * 100) for slot, weight in loads.items()}
    cut = cut_by_load(count, floats)
    assert worst(cut, floats) <= best_by_trying(floats, count) * 1.01


def test_a_hot_key_is_alone() -> None:
    """A slot with half of the records is a range of its own; the others share the rest."""
    loads = dict.fromkeys(range(0, SLOT_COUNT, 64), 1.0)
    loads[20_000] = 1024.0
    cut = cut_by_load(8, loads)
    check_tiles(cut)
    assert len(cut) == 8
    (hot,) = [one for one in cut if one.first <= 20_000 < one.end]
    others = [worst((one,), loads) for one in cut if one != hot]
    assert worst((hot,), loads) < 1024 * 1.05
    assert max(others) < 300


def test_few_keys_make_few_splits() -> None:
    """Ranges without records would be tasks for nothing."""
    cut = cut_by_load(8, {5: 100.0, 70: 100.0, 60_000: 100.0})
    check_tiles(cut)
    assert len(cut) == 3


def test_a_cut_stays_while_it_is_good() -> None:
    """A load that hardly differs changes nothing; one that does moves the cut."""
    even = dict.fromkeys(range(0, SLOT_COUNT, 256), 10.0)
    first = cut_by_load(4, even)
    assert cut_by_load(4, {**even, 0: 11.0}, first) is first
    assert cut_by_load(4, {}, first) is first
    moved = {**even, 0: 2000.0}
    assert cut_by_load(4, moved, first) != first
    assert cut_by_load(4, {}) == equal_cut(4)
    assert cut_by_load(1, moved, first) == (ALL_SLOTS,)
    assert equal_cut(2) == (SlotRange(0, 32_768), SlotRange(32_768, SLOT_COUNT))


def test_a_split_knows_its_siblings() -> None:
    """By their first slots alone: a partition may have a thousand of them."""
    cut = cut_by_load(3, {5: 100.0, 70: 100.0, 60_000: 100.0})
    firsts = tuple(one.first for one in cut)
    split = Split("t", bytes(16), 0, 0, 9, cut[1], firsts)
    assert split.cut == cut
    assert split.place == ("t", 0)


SIZES = st.dictionaries(
    st.tuples(st.just("t"), st.integers(0, 20)), st.integers(1, 10**7), min_size=1, max_size=8
)


@given(
    SIZES,
    st.none() | st.just("auto") | st.integers(1, 1024),
    st.none() | st.integers(1, 500),
    st.none() | st.integers(1, 10**6),
    st.integers(1, 10_000),
)
def test_counts(sizes, branches, min_partitions, max_records, min_records) -> None:  # type: ignore
    """One split at least, none below what is worth it, unless a limit on records asks for it."""
    wish = Wish(branches, min_partitions, max_records, min_records)
    counts = split_counts(sizes, wish)
    assert counts.keys() == sizes.keys()
    for place, count in counts.items():
        size = sizes[place]
        needed = -(-size // max_records) if max_records else 1
        assert 1 <= count <= 1024
        assert count >= min(needed, 1024)
        assert count <= max(needed, size // min_records, 1)
    if min_partitions is not None and min_records == 1:
        assert sum(counts.values()) >= min(min_partitions, sum(sizes.values()), 1024)


def test_counts_by_example() -> None:
    """`branches` is for each partition, `minPartitions` for all of them, shared by size."""
    sizes = {("t", 0): 60_000, ("t", 1): 30_000, ("t", 2): 10}
    assert [*split_counts(sizes, Wish()).values()] == [1, 1, 1]
    assert [*split_counts(sizes, Wish(branches=8)).values()] == [8, 8, 1]
    assert [*split_counts(sizes, Wish(branches="auto")).values()] == [6, 3, 1]
    assert [*split_counts(sizes, Wish(min_partitions=10)).values()] == [6, 3, 1]
    assert [*split_counts(sizes, Wish(max_records=20_000)).values()] == [3, 2, 1]
    assert [*split_counts(sizes, Wish(branches=8, min_records=20_000)).values()] == [3, 1, 1]
