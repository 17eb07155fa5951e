"""Individual acknowledgements: KIP-X's examples, fences, and everything against a plain oracle."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from anabranch.coordinator.cooperative.acks import (
    NO_WATERMARK,
    Ack,
    AckOutcome,
    Holdings,
    LogFacts,
    take_acks,
)
from anabranch.coordinator.cooperative.book import expired, with_acked
from anabranch.coordinator.cooperative.progress import (
    Attempt,
    Interval,
    PartitionProgress,
    new_progress,
    with_attempt,
    with_done,
    without_lost,
)
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange

MIDDLE = SLOT_COUNT // 2
LOW, HIGH = SlotRange(0, MIDDLE), SlotRange(MIDDLE, SLOT_COUNT)
FAR = LogFacts(
    log_start_offset=0, log_end_offset=1000, delivered_offset=1000, epoch_end_offset=1000
)
OWNER = Holdings(5, {ALL_SLOTS: 3})


def ranges(*pairs: tuple[int, int]) -> OffsetRanges:
    return OffsetRanges(pairs)


def done(*pairs: tuple[int, int], progress: PartitionProgress | None = None) -> PartitionProgress:
    return with_done(progress or new_progress(41), ALL_SLOTS, NO_WATERMARK, ranges(*pairs))


# KIP-X's examples -----------------------------------------------------------------------------


def test_a_range_joins_its_neighbours() -> None:
    """[48-49] makes [45-47] and [50-50] one range, [45-50]."""
    progress = done((45, 47), (50, 50))
    after = done((48, 49), progress=progress)
    assert after.intervals == (Interval(ALL_SLOTS, 41, ranges((45, 50))),)


def test_a_range_moves_the_stable_offset() -> None:
    """KIP-X's stable offset 42, the last done, and [43-44]: it moves over [45-47] to its 47.

    Here 42 is done means that 43 is the next, and 47 is done that 48 is.
    """
    progress = done((45, 47), progress=new_progress(43))
    after = done((43, 44), progress=progress)
    assert after.stable_offset == 48
    assert after.intervals == (Interval(ALL_SLOTS, 48),)


def test_what_a_consumer_commits_of_a_fetch() -> None:
    """Stable 40 in KIP-X's terms, [43-45] and [48-49] done, 40 to 50 fetched: the gaps are left."""
    (interval,) = done((43, 45), (48, 49)).intervals
    left = interval.done.gaps(max(40, interval.watermark), 50)
    assert list(left) == [(41, 42), (46, 47), (50, 50)]
    after = with_done(done((43, 45), (48, 49)), ALL_SLOTS, NO_WATERMARK, left)
    assert after.stable_offset == 51


# Progress -------------------------------------------------------------------------------------


def test_the_slowest_slots_hold_the_stable_offset() -> None:
    """Progress of some slots is theirs alone."""
    progress = with_done(new_progress(0), LOW, 10, EMPTY)
    assert progress.intervals == (Interval(LOW, 10), Interval(HIGH, 0))
    assert progress.stable_offset == 0
    assert progress.last_done_offset == 10
    progress = with_done(progress, HIGH, 10, EMPTY)
    assert progress.intervals == (Interval(ALL_SLOTS, 10),)


def test_slots_in_the_middle_are_cut_out() -> None:
    """An interval is cut where an acknowledgement begins and ends."""
    middle = SlotRange(100, 200)
    progress = with_done(new_progress(5), middle, NO_WATERMARK, ranges((7, 8)))
    assert progress.intervals == (
        Interval(SlotRange(0, 100), 5),
        Interval(middle, 5, ranges((7, 8))),
        Interval(SlotRange(200, SLOT_COUNT), 5),
    )
    assert progress.within(SlotRange(150, 300)) == [
        Interval(SlotRange(150, 200), 5, ranges((7, 8))),
        Interval(SlotRange(200, 300), 5),
    ]
    assert progress.ranges_count == 1
    assert [progress.is_done(slot, 7) for slot in (99, 100, 199, 200)] == [
        False,
        True,
        True,
        False,
    ]


def retained(progress: PartitionProgress, start: int) -> PartitionProgress:
    """As the broker goes about it when the log begins later."""
    return with_acked(progress, expired(progress, start))


def test_retention_does_the_rest() -> None:
    """What the log does not have any more is nobody's work; ranges that follow are joined."""
    progress = done((45, 47), (60, 61))
    after = retained(progress, 45)
    assert after.intervals == (Interval(ALL_SLOTS, 48, ranges((60, 61))),)
    assert retained(after, 48) is after


def test_a_cut_log_takes_acks_back() -> None:
    """The same offsets will hold other records, which nobody has done."""
    progress = with_attempt(done((45, 47), (60, 61)), 50, Attempt(0, 1, 0))
    after = without_lost(progress, 46)
    assert after.intervals == (Interval(ALL_SLOTS, 41, ranges((45, 45))),)
    assert after.attempts == {}
    assert without_lost(after, 10).intervals == (Interval(ALL_SLOTS, 10),)
    assert without_lost(progress, 62) is progress


# A key of slot 9.
HASH = (9 << 47) + 5


def test_attempts_end_with_the_record() -> None:
    """They are counted while it is open and forgotten when it is done, in whatever way."""
    progress = with_attempt(new_progress(0), 7, Attempt(HASH, 2, 1000, "boom"))
    assert progress.attempts == {7: Attempt(HASH, 2, 1000, "boom")}
    assert with_done(progress, SlotRange(10, 20), 8, EMPTY).attempts == progress.attempts
    assert with_done(progress, SlotRange(9, 10), NO_WATERMARK, ranges((7, 7))).attempts == {}
    assert retained(progress, 8).attempts == {}
    over = with_done(new_progress(0), ALL_SLOTS, 8, EMPTY)
    assert with_attempt(over, 7, Attempt(HASH, 1, 0)) is over


# Fences ---------------------------------------------------------------------------------------


def take(ack: Ack, holdings: Holdings = OWNER, facts: LogFacts = FAR) -> tuple[Any, Any]:
    progress, outcomes = take_acks(new_progress(10), [ack], holdings, facts)
    return progress, outcomes


def test_the_owner_is_believed() -> None:
    """Also with the epoch in which it got the slots, until it knows a newer one."""
    for epoch in (3, 4, 5):
        progress, outcomes = take(Ack(LOW, epoch, 20, ranges((30, 31))))
        assert outcomes == [AckOutcome(LOW)]
        assert progress.intervals == (
            Interval(LOW, 20, ranges((30, 31))),
            Interval(HIGH, 10),
        )


@pytest.mark.parametrize(
    ("ack", "holdings", "facts", "code"),
    [
        (Ack(LOW, 5, 20), Holdings(5, {}), FAR, ErrorCode.FENCED_MEMBER_EPOCH),
        (Ack(LOW, 2, 20), OWNER, FAR, ErrorCode.STALE_MEMBER_EPOCH),
        (Ack(LOW, 6, 20), OWNER, FAR, ErrorCode.STALE_MEMBER_EPOCH),
        (Ack(LOW, 5, 1001), OWNER, FAR, ErrorCode.OFFSET_OUT_OF_RANGE),
        (Ack(LOW, 5, 0, ranges((1000, 1000))), OWNER, FAR, ErrorCode.OFFSET_OUT_OF_RANGE),
        (Ack(LOW, 5, 51), OWNER, LogFacts(0, 1000, 50, 1000), ErrorCode.OFFSET_OUT_OF_RANGE),
        (Ack(LOW, 5, 51), OWNER, LogFacts(0, 50, 1000, 1000), ErrorCode.OFFSET_OUT_OF_RANGE),
        (Ack(LOW, 5, 51), OWNER, LogFacts(0, 1000, 1000, 50), ErrorCode.FENCED_LEADER_EPOCH),
        (Ack(SlotRange(5, 5), 5, 20), OWNER, FAR, ErrorCode.INVALID_REQUEST),
        (Ack(LOW, 5, 0, ranges((-2, 3))), OWNER, FAR, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_refused(ack: Ack, holdings: Holdings, facts: LogFacts, code: ErrorCode) -> None:
    """A refusal changes nothing."""
    progress, outcomes = take(ack, holdings, facts)
    assert outcomes == [AckOutcome(ack.slots, code)]
    assert progress == new_progress(10)


def test_the_edges_of_what_was_shown() -> None:
    """The last record that was delivered, and the last of its leader epoch, may be acknowledged."""
    facts = LogFacts(0, 1000, 50, 50)
    progress, outcomes = take(Ack(LOW, 5, 50, ranges((49, 49))), OWNER, facts)
    assert outcomes == [AckOutcome(LOW)]
    assert progress.intervals[0].watermark == 50


def test_what_is_still_held_counts() -> None:
    """Who lost a part of its slots keeps its work on the rest; each part has an outcome."""
    holdings = Holdings(5, {SlotRange(0, 100): 3, SlotRange(200, 300): 5, SlotRange(400, 500): 4})
    progress, outcomes = take(Ack(SlotRange(50, 450), 4, 20), holdings)
    assert outcomes == [
        AckOutcome(SlotRange(50, 100)),
        AckOutcome(SlotRange(100, 200), ErrorCode.FENCED_MEMBER_EPOCH),
        AckOutcome(SlotRange(200, 300), ErrorCode.STALE_MEMBER_EPOCH),
        AckOutcome(SlotRange(300, 400), ErrorCode.FENCED_MEMBER_EPOCH),
        AckOutcome(SlotRange(400, 450)),
    ]
    assert [i.slots for i in progress.intervals if i.watermark == 20] == [
        SlotRange(50, 100),
        SlotRange(400, 450),
    ]


def test_again_and_too_late_change_nothing() -> None:
    """Repetitions, and what lies below the stable offset, are taken without effect."""
    ack = Ack(LOW, 5, 20, ranges((30, 31)))
    once, _ = take(ack)
    twice, outcomes = take_acks(once, [ack, Ack(LOW, 5, 5, ranges((1, 3)))], OWNER, FAR)
    assert twice == once
    assert outcomes == [AckOutcome(LOW), AckOutcome(LOW)]


# The oracle -----------------------------------------------------------------------------------

SLOTS = [SlotRange(first, end) for first in range(8) for end in range(first + 1, 9)]
OFFSETS = st.integers(0, 30)


class Acks(RuleBasedStateMachine):
    """Random acknowledgements, cuts and retention against a set of (slot, offset)."""

    @initialize(start=OFFSETS)
    def begin(self, start: int) -> None:
        self.progress = new_progress(start)
        self.done = {(slot, offset) for slot in range(9) for offset in range(start)}

    @rule(
        slots=st.sampled_from(SLOTS),
        watermark=st.integers(-1, 30),
        pairs=st.lists(st.tuples(OFFSETS, st.integers(0, 4)), max_size=4),
    )
    def acknowledge(self, slots: SlotRange, watermark: int, pairs: list[tuple[int, int]]) -> None:
        acked = ranges(*((first, first + length) for first, length in pairs))
        self.progress = with_done(self.progress, slots, watermark, acked)
        for slot in range(slots.first, slots.end):
            self.done |= {(slot, offset) for offset in range(max(watermark, 0))}
            self.done |= {(slot, o) for first, last in acked for o in range(first, last + 1)}

    @rule(end=OFFSETS)
    def lose(self, end: int) -> None:
        self.progress = without_lost(self.progress, end)
        self.done = {(slot, offset) for slot, offset in self.done if offset < end}

    @rule(start=OFFSETS)
    def expire(self, start: int) -> None:
        self.progress = retained(self.progress, start)
        self.done |= {(slot, offset) for slot in range(9) for offset in range(start)}

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "progress"):
            return
        progress = self.progress
        for slot in range(9):  # 8 stands for all the others
            for offset in range(40):
                assert progress.is_done(slot, offset) == ((slot, offset) in self.done)
        stable = min(
            next(offset for offset in range(100) if (slot, offset) not in self.done)
            for slot in range(9)
        )
        assert progress.stable_offset == stable
        self._is_tidy(progress)

    @staticmethod
    def _is_tidy(progress: PartitionProgress) -> None:
        position = 0
        for interval in progress.intervals:
            assert interval.slots.first == position < interval.slots.end
            position = interval.slots.end
            assert not interval.done or next(iter(interval.done)).first > interval.watermark
        assert position == SLOT_COUNT
        values = [(interval.watermark, interval.done) for interval in progress.intervals]
        assert all(one != other for one, other in pairwise(values))


TestAcks = Acks.TestCase
TestAcks.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
