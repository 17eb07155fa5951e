"""Stages of windows, and how much of them is done, for any window at all."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.cooperative.progress import (
    PartitionProgress,
    new_progress,
    with_done,
)
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.cooperative.window import (
    DONE_PERCENT,
    Stage,
    Window,
    done_percent,
    is_held,
    stage_of,
)
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import SLOT_COUNT, SlotRange

LIMITS = CooperativeSettings(max_window_offsets=200, max_ranges=40, stuck_ms=1_000)

windows = st.builds(
    Window,
    stable_offset=st.integers(0, 300),
    delivered_offset=st.integers(0, 600),
    ranges_count=st.integers(0, 60),
    done_percent=st.integers(0, 100),
    age_ms=st.integers(-1, 3_000),
)


@given(windows, windows)
def test_stages_only_rise_with_what_is_under_way(one: Window, other: Window):
    """More of anything never makes it less urgent, as long as there is something to do."""
    more = Window(
        stable_offset=min(one.stable_offset, other.stable_offset),
        delivered_offset=max(one.delivered_offset, other.delivered_offset),
        ranges_count=max(one.ranges_count, other.ranges_count),
        done_percent=max(one.done_percent, other.done_percent),
        age_ms=max(one.age_ms, other.age_ms),
    )
    assert stage_of(more, LIMITS) >= max(stage_of(one, LIMITS), stage_of(other, LIMITS))


@given(windows)
def test_stages_say_what_they_mean(found: Window):
    """Revoked is only what somebody works on; a stage of fullness is one of the numbers."""
    found_stage = stage_of(found, LIMITS)
    is_late = found.age_ms > LIMITS.stuck_ms
    if found_stage is Stage.REVOKE:
        assert found.offsets > 0
        assert found.age_ms >= 0
        assert is_late or (is_held(found, LIMITS) and found.done_percent > DONE_PERCENT)
    else:
        assert not (is_late and found.offsets)
        assert (found_stage is Stage.HOLD) == is_held(found, LIMITS)
    fullness = max(found.offsets / 200, found.ranges_count / 40) if found.offsets else 0
    assert is_held(found, LIMITS) == (fullness >= 0.75)
    if fullness >= 0.5:
        assert found_stage >= Stage.WARN


@st.composite
def progresses(draw: Any) -> PartitionProgress:
    progress = new_progress(draw(st.integers(0, 50)))
    for _ in range(draw(st.integers(0, 6))):
        first = draw(st.integers(0, SLOT_COUNT - 1))
        slots = SlotRange(first, draw(st.integers(first + 1, SLOT_COUNT)))
        start = draw(st.integers(0, 120))
        pairs = [(start, start + draw(st.integers(0, 30)))]
        progress = with_done(progress, slots, draw(st.integers(-1, 60)), OffsetRanges(pairs))
    return progress


@given(progresses(), st.integers(0, 160))
def test_done_is_counted_as_an_oracle_does(progress: PartitionProgress, delivered_offset: int):
    """Slot by slot and offset by offset."""
    stable_offset = progress.stable_offset
    offsets = range(stable_offset, delivered_offset)
    counted = sum(
        (one.slots.end - one.slots.first) * sum(map(one.is_done, offsets))
        for one in progress.intervals
    )
    expected = counted * 100 // (SLOT_COUNT * len(offsets)) if offsets else 100
    assert done_percent(progress, delivered_offset) == expected
