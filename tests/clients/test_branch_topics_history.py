"""The judge of the histories finds what it is there to find, and nothing else."""

from collections import Counter
from typing import Any

import pytest

from support.branch_crew import ideal_s
from support.branch_history import History, judge

PRODUCED = {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"}
FOREVER = float("inf")


def assigned(at: float, *partitions: int) -> dict[str, Any]:
    return {"event": "assigned", "at": at, "partitions": list(partitions)}


def revoked(at: float, *partitions: int) -> dict[str, Any]:
    return {"event": "revoked", "at": at, "partitions": list(partitions)}


def committed(at: float, offset: int, kind: str = "committed") -> dict[str, Any]:
    return {"event": kind, "at": at, "offsets": {"0": offset}}


def worked(at: float, *offsets: int, partition: int = 0) -> list[dict[str, Any]]:
    """One record each tenth of a second."""
    events = []
    for number, offset in enumerate(offsets):
        place = {"partition": partition, "offset": offset}
        begin = at + number / 10
        events.append({"event": "start", "at": begin, **place, "key": PRODUCED[offset]})
        events.append({"event": "done", "at": begin + 0.05, **place})
    return events


def problems(*histories: History) -> list[str]:
    return judge(histories, PRODUCED).problems


def test_a_sound_history_has_no_problems() -> None:
    """A hand-over with a commit, without replays."""
    one = History([assigned(0, 0), *worked(1, 0, 1, 2), committed(2, 3), revoked(3, 0)])
    other = History([assigned(4, 0), *worked(5, 3, 4), committed(6, 5)])
    verdict = judge([one, other], PRODUCED)
    assert verdict.problems == []
    assert verdict.replays == Counter()
    assert (verdict.tenures, verdict.keys_that_moved) == (2, 2)


def test_what_a_killed_one_had_may_come_again() -> None:
    """From the last commit that was confirmed, or from one that was only asked for."""
    one = [assigned(0, 0), *worked(1, 0), committed(2, 1), *worked(3, 1, 2)]
    again = History([assigned(9, 0), *worked(10, 1, 2, 3, 4)])
    verdict = judge([History(one, killed_at=5), again], PRODUCED)
    assert verdict.problems == []
    assert verdict.replays == {"killed": 2}
    asked = History([*one, committed(4, 3, "committing")], killed_at=5)
    assert problems(asked, again) == []
    assert problems(asked, History([assigned(9, 0), *worked(10, 3, 4)])) == []


@pytest.mark.parametrize(
    ("first", "second", "complaint"),
    [
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2, 3), committed(2, 4)],
            [],
            "1 records were never done, the first is 4",
            id="lost",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 2, 1, 3, 4)],
            [],
            "1 came after 2",
            id="out-of-order",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2), committed(2, 2), revoked(3, 0)],
            [assigned(4, 0), *worked(5, 3, 4)],
            "left out 1 records, the first is 2",
            id="skipped-at-the-hand-over",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2, 3), committed(2, 1), revoked(3, 0)],
            [assigned(4, 0), *worked(5, 1, 3, 4)],
            "left out 1 records, the first is 2",
            id="gap-in-a-replay",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2), committed(2, 3), revoked(3, 0)],
            [assigned(4, 0), *worked(5, 2, 3, 4)],
            "did 1 committed records again, the first is 2",
            id="committed-and-done-again",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2), committed(2, 3), revoked(5, 0)],
            [assigned(4, 0), *worked(6, 3, 4)],
            "before the end of",
            id="two-owners",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2)],
            [assigned(0.5, 0), *worked(1.06, 4), *worked(1.3, 3)],
            "went back to",
            id="interleaved",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2)],
            [assigned(0.5, 0), *worked(1.22, 4), *worked(1.3, 3)],
            "was in two hands",
            id="at-once",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2), committed(2, 3), revoked(3, 0)],
            worked(5, 3, 4),
            "without holding its partition",
            id="stray",
        ),
        pytest.param(
            [assigned(0, 0, 1), *worked(1, 0, 1), *worked(2, 2, 3, 4, partition=1)],
            [],
            "key 'a' was in the partitions [0, 1]",
            id="a-key-in-two-partitions",
        ),
        pytest.param(
            [assigned(0, 0), *worked(1, 0, 1, 2, 3, 4), {"event": "crashed", "at": 2}],
            [],
            "crashed",
            id="crashed",
        ),
    ],
)
def test_each_fault_is_found(
    first: list[dict[str, Any]], second: list[dict[str, Any]], complaint: str
) -> None:
    """What must not happen is named."""
    found = problems(History(first), History(second))
    assert any(complaint in problem for problem in found), found


def test_the_ideal_counts_who_is_there() -> None:
    """Seconds of work, divided among those who have come and are not gone."""
    assert ideal_s(40, 100, [(90, FOREVER)] * 8) == 5
    assert ideal_s(40, 100, [(90, FOREVER)]) == 40
    # Seven from the start, one from second 1 on, one until second 2: 7 + 8 + 7 * 25 / 7.
    stays = [(90, FOREVER)] * 6 + [(101, FOREVER), (90, 102)]
    assert ideal_s(40, 100, stays) == pytest.approx(2 + 25 / 7)
