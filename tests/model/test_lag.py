"""The one lag function: examples with reasons, and what holds for all numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.lag import lag

OFFSETS = st.integers(0, 2**63 - 1)
COMMITTED = st.none() | OFFSETS


@pytest.mark.parametrize(
    ("end", "committed", "start", "expected", "why"),
    [
        (100, 40, 0, 60, "the distance to the end"),
        (100, 100, 0, 0, "all has been read"),
        (100, 0, 0, 100, "nothing has been read"),
        (100, None, 0, 100, "nothing was committed: everything counts"),
        (100, None, 30, 70, "nothing was committed: what is left counts"),
        (100, 10, 30, 70, "what retention removed does not count"),
        (100, 30, 30, 70, "at the start"),
        (100, 120, 0, 0, "committed beyond the end: never negative"),
        (100, None, 100, 0, "all records were removed"),
        (100, 10, 100, 0, "all records were removed after the commit"),
        (0, None, 0, 0, "an empty partition"),
        (None, 10, 0, None, "an unknown end"),
        (None, None, 0, None, "an unknown end and no commit"),
    ],
)
def test_lag(
    end: int | None, committed: int | None, start: int, expected: int | None, why: str
) -> None:
    """Lag counts records that can still be read."""
    assert lag(end, committed, start) == expected, why


@given(end=OFFSETS, committed=COMMITTED, start=OFFSETS)
def test_lag_is_within_the_log(end: int, committed: int | None, start: int) -> None:
    """Lag is never negative, and never more than the log holds."""
    assert 0 <= lag(end, committed, start) <= max(end - start, 0)


@given(end=OFFSETS, committed=COMMITTED, start=OFFSETS, more=st.integers(0, 1000))
def test_lag_moves_with_what_happens(
    end: int, committed: int | None, start: int, more: int
) -> None:
    """New records add at most as many, commits and retention never add any."""
    before = lag(end, committed, start)
    assert before <= lag(end + more, committed, start) <= before + more
    assert lag(end, (committed or 0) + more, start) <= before
    assert lag(end, committed, start + more) <= before


@given(end=OFFSETS, start=OFFSETS)
def test_nothing_committed_is_like_the_start(end: int, start: int) -> None:
    """No commit counts as a commit of the log's start."""
    assert lag(end, None, start) == lag(end, start, start)


@given(end=OFFSETS, read=st.integers(0, 1000), start=OFFSETS)
def test_commits_inside_the_log_are_exact(end: int, read: int, start: int) -> None:
    """Each record read takes exactly one off, as long as there are any."""
    if start + read <= end:
        assert lag(end, start + read, start) == end - start - read
