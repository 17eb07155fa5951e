"""Windows: what is refused, when it is time to do what, and records that are stuck."""

import sys
from typing import Any

from cooperative_story import (
    GROUP,
    HIGH,
    LOW,
    OK,
    PLACE,
    TOPIC_ID,
    WHOLE,
    Desk,
    ack,
    committed,
    done,
    written,
)

from anabranch.coordinator.cooperative.commands import CountStuck, Failure
from anabranch.coordinator.cooperative.progress import (
    Attempt,
    Interval,
    PartitionProgress,
    new_progress,
    with_done,
)
from anabranch.coordinator.cooperative.records import FailedAttempt, ProgressDelta
from anabranch.coordinator.cooperative.retries import NEVER_MS
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.cooperative.stuck import Holder, holder_of
from anabranch.coordinator.cooperative.window import (
    NO_AGE_MS,
    Stage,
    Window,
    begun_offset,
    done_percent,
    is_held,
    stage_of,
    state_bytes,
)
from anabranch.coordinator.group import consumer_records as cr
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

LIMITS = CooperativeSettings(max_window_offsets=200, max_ranges=40, stuck_ms=1_000)


def window(offsets: int, **more: Any) -> Window:
    return Window(stable_offset=50, delivered_offset=50 + offsets, **more)


def stage(offsets: int, **more: Any) -> Stage:
    return stage_of(window(offsets, **more), LIMITS)


# Stages -----------------------------------------------------------------------------------------


def test_nothing_is_under_way():
    """Where nothing was shown that is not done, there is nothing to wait for."""
    assert stage(0, age_ms=10_000, ranges_count=100) is Stage.NONE
    assert stage(-20, age_ms=10_000) is Stage.NONE
    assert not is_held(window(0, ranges_count=100), LIMITS)


def test_a_window_fills():
    """Half of it is told, from three quarters on nobody is shown new offsets."""
    assert [stage(n) for n in (99, 100, 149, 150, 500)] == [
        Stage.NONE,
        Stage.WARN,
        Stage.WARN,
        Stage.HOLD,
        Stage.HOLD,
    ]
    assert not is_held(window(149), LIMITS)
    assert is_held(window(150), LIMITS)


def test_a_window_fills_with_ranges():
    """Many small ones are as much as a few long ones."""
    assert [stage(1, ranges_count=n) for n in (19, 20, 29, 30)] == [
        Stage.NONE,
        Stage.WARN,
        Stage.WARN,
        Stage.HOLD,
    ]


def test_everybody_waits_for_one_record():
    """Who is held, and has done all but it, need not wait until its time is up."""
    assert stage(150, done_percent=98, age_ms=5) is Stage.HOLD
    assert stage(150, done_percent=99, age_ms=5) is Stage.REVOKE
    assert stage(149, done_percent=99, age_ms=5) is Stage.WARN
    # Nobody works on it: it rests, or waits for somebody to decide.
    assert stage(150, done_percent=99, age_ms=NO_AGE_MS) is Stage.HOLD


def test_time_is_up():
    """A quiet partition is told of when half of the time is over, and held back never."""
    assert [stage(1, age_ms=n) for n in (500, 501, 1_000, 1_001)] == [
        Stage.NONE,
        Stage.WARN,
        Stage.WARN,
        Stage.REVOKE,
    ]
    assert not is_held(window(1, age_ms=2_000), LIMITS)


# How much is done -------------------------------------------------------------------------------


def test_how_much_of_a_window_is_done():
    """Below watermarks and in ranges, by the slots that it was done for."""
    progress = new_progress(100)
    assert done_percent(progress, 100) == 100
    assert done_percent(progress, 200) == 0
    progress = with_done(progress, ALL_SLOTS, -1, done((101, 200)))
    assert done_percent(progress, 200) == 99
    assert done_percent(progress, 150) == 98
    assert done_percent(progress, 101) == 0
    half = with_done(new_progress(100), LOW, 150, done((160, 169)))
    assert done_percent(half, 200) == 30
    assert done_percent(half, 120) == 50


def test_slots_that_nobody_has_spoken_of():
    """They hold nobody back, but they are not done either."""
    progress = with_done(new_progress(-1), LOW, 100, done((101, 199)))
    assert begun_offset(progress) == 100
    assert done_percent(progress, 200) == 49
    assert begun_offset(new_progress(-1)) == -1


# Memory -----------------------------------------------------------------------------------------


def sizes_of(progress: PartitionProgress) -> int:
    """What the objects really take, those that are shared once."""
    seen: dict[int, int] = {}

    def visit(one: Any) -> None:
        if id(one) in seen:
            return
        seen[id(one)] = sys.getsizeof(one)
        if isinstance(one, dict):
            parts = [*one, *one.values()]
        elif isinstance(one, list | tuple):
            parts = list(one)
        else:
            names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            parts = [getattr(one, name) for name in names]
        for part in parts:
            visit(part)

    visit(progress)
    return sum(seen.values())


def test_memory_is_about_right():
    """Few ranges or many, and records that failed."""
    few = with_done(new_progress(10**12), LOW, -1, done((10**12 + 5, 10**12 + 9)))
    pairs = [(10**12 + 4 * n, 10**12 + 4 * n + 1) for n in range(1, 5_000)]
    many = with_done(new_progress(10**12), ALL_SLOTS, -1, OffsetRanges(pairs))
    attempts = {
        10**12 + n: Attempt((7 << 47) + n, 300 + n, 10**12 + n, f"{n}: " + "x" * 60)
        for n in range(1_000)
    }
    failed = PartitionProgress(few.intervals, attempts)
    for progress in (few, many, failed):
        assert 0.5 <= state_bytes(progress) / sizes_of(progress) <= 2


def begun(**limits: int) -> Desk:
    desk = Desk(**limits)
    desk.holds("a", 6, WHOLE)
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 10))
    return desk


def test_memory_of_all_groups_is_limited():
    """What adds to it is refused, what closes gaps is taken and makes room for others."""
    desk = begun()
    desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (20, 20), (30, 30)))
    used = desk.shard.progress_bytes
    desk.settings = CooperativeSettings(max_state_bytes=used + 79)
    refused = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (40, 40)))
    assert refused.codes == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (21, 29))).codes == [OK]
    assert desk.shard.progress_bytes == used - 80
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (40, 40))).codes == [OK]
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, 60)).codes == [OK]


def test_memory_is_that_of_what_is_kept():
    """Counted as it comes and goes; after a start it is the same."""
    desk = begun()
    desk.ack("a", 6, ack(LOW, 5, -1, (20, 20), (30, 30)), ack(HIGH, 5, 12))
    desk.holds("b", 6, WHOLE, place=(TOPIC_ID, 1))
    desk.take("b", 6, desk.part(ack(ALL_SLOTS, 5, 5), partition=1))
    kept = [tracked.progress for tracked in desk.shard.progress(GROUP).values()]
    assert len(kept) == 2
    assert desk.shard.progress_bytes == sum(map(state_bytes, kept))
    assert desk.read().progress_bytes == desk.shard.progress_bytes
    desk.replace_topics()
    desk.restart()
    desk.ring()
    assert desk.shard.progress(GROUP) == {}
    assert desk.shard.progress_bytes == 0


# Records that are stuck ---------------------------------------------------------------------------

SLOT = 7
HASH = (SLOT << 47) + 1


def stuck(desk: Desk, offset: int = 12, partition: int = 0) -> Any:
    command = CountStuck(
        group_id=GROUP,
        topic_id=TOPIC_ID,
        partition=partition,
        offset=offset,
        key_hash=HASH,
        reason="stuck for 9 s",
    )
    return desk.submit(command).records


def attempt(desk: Desk, offset: int = 12) -> Attempt | None:
    progress = desk.progress()
    assert progress is not None
    return progress.attempts.get(offset)


def test_a_stuck_record_has_failed():
    """It counts as an attempt, rests, and can be finished by whoever has it all the same."""
    desk = begun()
    expected = Attempt(HASH, 1, desk.now_ms + 1_000, "stuck for 9 s")
    delta = ProgressDelta(leader_epoch=3, failed=(FailedAttempt(12, expected),))
    assert stuck(desk) == [written(1, delta)]
    assert attempt(desk) == expected
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, 13)).records[-1] == committed(13)
    assert attempt(desk) is None


def test_stuck_again_and_again():
    """Each time counts; after the last one it waits for somebody to decide."""
    desk = begun(delivery_limit=2)
    stuck(desk)
    desk.now_ms += 1_000
    stuck(desk)
    assert attempt(desk) == Attempt(HASH, 2, NEVER_MS, "stuck for 9 s")
    desk.now_ms += 10**9
    assert stuck(desk) == []


def test_who_rests_is_not_stuck():
    """Nobody works on a record that failed a moment ago."""
    desk = begun()
    desk.fail("a", 6, Failure(12, HASH, 5_000, "broken"))
    desk.now_ms += 4_999
    assert stuck(desk) == []
    desk.now_ms += 1
    stuck(desk)
    assert attempt(desk) == Attempt(HASH, 2, desk.now_ms + 2_000, "stuck for 9 s")


def test_what_is_done_is_not_stuck():
    """Whoever finished it was faster; nor is there anything where nothing is known."""
    desk = begun()
    assert stuck(desk, offset=9) == []
    desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (12, 12)))
    assert stuck(desk) == []
    assert stuck(desk, partition=1) == []


def test_too_many_records_that_failed():
    """Those that are known count on; of others there is no room for more."""
    desk = begun(max_ranges=1)
    stuck(desk)
    assert stuck(desk, offset=13) == []
    desk.now_ms += 1_000
    assert len(stuck(desk)) == 1


def holder(desk: Desk, slot: int) -> Holder | None:
    group = desk.shard.group(GROUP)
    assert isinstance(group, ConsumerGroup)
    return holder_of(group, *PLACE, slot)


def test_who_holds_a_slot():
    """Owners, and those who are about to give it back."""
    desk = Desk()
    desk.holds("a", 6, {LOW: 5})
    desk.holds("b", 6, {SlotRange(HIGH.first, 50_000): 6}, {SlotRange(50_000, SLOT_COUNT): 4})
    for member_id, slots in (("a", LOW), ("b", SlotRange(HIGH.first, 50_000))):
        target = frozenset({Unit(*PLACE, slots)})
        desk.shard.replay(cr.TargetWritten(group_id=GROUP, member_id=member_id, target=target))
    assert holder(desk, 7) == Holder("a", LOW, 5, False)
    assert holder(desk, LOW.end - 1) == Holder("a", LOW, 5, False)
    assert holder(desk, LOW.end) == Holder("b", SlotRange(HIGH.first, 50_000), 6, False)
    assert holder(desk, 50_000) == Holder("b", SlotRange(50_000, SLOT_COUNT), 4, True)
    desk.shard.replay(cr.TargetWritten(group_id=GROUP, member_id="a", target=frozenset()))
    assert holder(desk, 7) == Holder("a", LOW, 5, True)
    desk.leaves("a")
    assert holder(desk, 7) is None


def test_an_interval_is_not_touched_by_its_failures():
    """Stuck is not done."""
    desk = begun()
    stuck(desk)
    assert desk.intervals() == (Interval(ALL_SLOTS, 10),)
