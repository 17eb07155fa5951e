"""Sets of offsets: KIP-X's own examples, and all operations against plain sets."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.offset_ranges import EMPTY, OffsetRange, OffsetRanges

PAIRS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


def plain(ranges: OffsetRanges) -> set[int]:
    found = set()
    for first, last in ranges:
        found |= set(range(first, last + 1))
    return found


def is_sound(ranges: OffsetRanges) -> bool:
    """Sorted, no range empty, and none touching the next."""
    listed = list(ranges)
    return all(first <= last for first, last in listed) and all(
        one.last + 1 < other.first for one, other in pairwise(listed)
    )


def test_neighbours_become_one() -> None:
    """KIP-X: [48-49] joins [45-47] and [50-50] to [45-50]."""
    done = OffsetRanges([(45, 47), (50, 50)])
    assert list(done.union(OffsetRanges([(48, 49)]))) == [OffsetRange(45, 50)]


def test_what_is_left_of_a_fetch() -> None:
    """KIP-X: of 41 to 50 with [43-45] and [48-49] done, [41-42], [46-47] and [50-50] are left."""
    done = OffsetRanges([(43, 45), (48, 49)])
    assert list(done.gaps(41, 50)) == [(41, 42), (46, 47), (50, 50)]
    assert done.gaps(43, 45) == EMPTY
    assert done.gaps(5, 4) == EMPTY


def test_a_run_ends_where_something_is_missing() -> None:
    """KIP-X: with [45-47] done, [43-44] takes the next open offset from 43 to 48."""
    done = OffsetRanges([(45, 47)]).union(OffsetRanges([(43, 44)]))
    assert done.end_of_run(43) == 48
    assert done.end_of_run(48) == 48


def test_a_range_must_not_end_before_it_begins() -> None:
    """A set of nothing is written without ranges."""
    with pytest.raises(ValueError, match="cannot begin at 5 and end at 4"):
        OffsetRanges([(5, 4)])
    with pytest.raises(ValueError, match="no largest"):
        _ = EMPTY.last
    assert (repr(EMPTY), repr(OffsetRanges([(1, 2), (4, 4)]))) == ("none", "[1-2], [4-4]")


@given(PAIRS)
def test_made_of_anything(pairs: list[tuple[int, int]]) -> None:
    """Order, overlaps and repetitions do not matter."""
    made = OffsetRanges(pairs)
    wanted = {offset for first, last in pairs for offset in range(first, last + 1)}
    assert is_sound(made)
    assert plain(made) == wanted
    assert made.offsets_count == len(wanted)
    assert made == OffsetRanges(reversed(pairs))
    assert hash(made) == hash(OffsetRanges(reversed(pairs)))
    assert all((offset in made) == (offset in wanted) for offset in range(-1, 50))
    assert not wanted or made.last == max(wanted)


@given(PAIRS, PAIRS, st.integers(-1, 50))
def test_against_plain_sets(
    pairs: list[tuple[int, int]], others: list[tuple[int, int]], offset: int
) -> None:
    """Every operation is that of sets, and its result is sound."""
    one, other = OffsetRanges(pairs), OffsetRanges(others)
    a, b = plain(one), plain(other)
    for made, wanted in (
        (one.union(other), a | b),
        (one.without(other), a - b),
        (one.intersection(other), a & b),
        (one.at_or_above(offset), {x for x in a if x >= offset}),
        (one.below(offset), {x for x in a if x < offset}),
        (one.gaps(offset, offset + 9), set(range(offset, offset + 10)) - a),
    ):
        assert is_sound(made)
        assert plain(made) == wanted
    end = one.end_of_run(offset)
    assert end not in a
    assert set(range(offset, end)) <= a


@given(PAIRS, st.integers(0, 40), st.integers(0, 6))
def test_one_range_more(pairs: list[tuple[int, int]], first: int, length: int) -> None:
    """The quick way of adding one range is the slow one's equal."""
    one = OffsetRanges(pairs)
    more = OffsetRanges([(first, first + length)])
    assert one.union(more) == OffsetRanges([*pairs, (first, first + length)])
