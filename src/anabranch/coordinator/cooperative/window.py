"""How much is kept of what a group does record by record, and what happens before it is too much.

The window of a group and partition is what lies between its stable offset and the highest offset
that any of its members was shown. A record that nobody finishes keeps the stable offset where it
is, and the window grows with all that the others do.

Rules of what is refused
- What a group keeps of a partition is limited, in ranges and in offsets between the stable offset
  and the last one that is done; what all groups of the broker keep is limited in bytes. Beyond a
  limit ranges that come on top are refused, while watermarks, and whatever closes gaps, are taken:
  that is what gets it below the limit again.
- What is acknowledged in transactions that are open counts as well. It closes gaps that are closed
  when all of them are committed.

Rules of the stages, each of which is there to make the next one needless
- WARN: half of the window is full, in offsets or in ranges, or a record has been stuck for half of
  the time that it may be.
- HOLD: three quarters of the window are full. Nobody is shown offsets that nobody was shown yet;
  everything below flows on, so that whatever can be finished is, and the window shrinks again.
- REVOKE: somebody works on the record that holds the stable offset back, and either has done so for
  longer than `coop.stuck.ms`, or the group is held and more than 98 % of the window is done: then
  everybody waits for this record. It is measured from HOLD on and not from a later mark, because a
  group that is held is not shown enough to get there.
- Stages that follow from time alone hold nobody back: a slow record in a quiet partition is the
  business of its owner only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from anabranch.coordinator.cooperative.acks import AckOutcome
from anabranch.coordinator.cooperative.commands import NO_OFFSET
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.records import AckedRange
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import SLOT_COUNT, SlotRange

WARN_PERCENT = 50
HOLD_PERCENT = 75
# So much of a window is done when all that is left of it is stuck.
DONE_PERCENT = 98
# Of a record that nobody works on.
NO_AGE_MS = -1

# About what the objects take in memory; see `state_bytes`.
_PARTITION_BYTES = 600
_INTERVAL_BYTES = 400
_RANGE_BYTES = 80
_ATTEMPT_BYTES = 500
_DIVERTED_BYTES = 150


# What is refused --------------------------------------------------------------------------------


def is_over(
    before: PartitionProgress,
    after: PartitionProgress,
    settings: CooperativeSettings,
    broker_bytes: int = 0,
    pending_ranges: int = 0,
) -> bool:
    """Whether ranges came on top that are too many, or too far from the stable offset.

    `broker_bytes` is what all groups of the broker have, about, before this; `pending_ranges` is
    how many ranges of the partition there are in open transactions.
    """
    if after.ranges_count <= before.ranges_count:
        return False
    if after.ranges_count + pending_ranges > settings.max_ranges:
        return True
    if broker_bytes + state_bytes(after) - state_bytes(before) > settings.max_state_bytes:
        return True
    return after.last_done_offset - begun_offset(after) > settings.max_window_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How what is acknowledged in open transactions grows with an acknowledgement.

    `before` and `after` are the progress as if all of them were committed; the rest is kept beside
    the progress that counts.
    """

    before: PartitionProgress
    after: PartitionProgress
    ranges_count: int
    more_bytes: int


def is_growth_over(
    progress: PartitionProgress,
    growth: Growth,
    settings: CooperativeSettings,
    broker_bytes: int = 0,
) -> bool:
    """The same of ranges that are acknowledged in a transaction."""
    if growth.after.ranges_count <= growth.before.ranges_count:
        return False
    if progress.ranges_count + growth.ranges_count > settings.max_ranges:
        return True
    if broker_bytes + growth.more_bytes > settings.max_state_bytes:
        return True
    return growth.after.last_done_offset - begun_offset(progress) > settings.max_window_offsets


def limited(slots: SlotRange) -> AckOutcome:
    """What is said of an acknowledgement that is beyond a limit."""
    return AckOutcome(
        slots, ErrorCode.THROTTLING_QUOTA_EXCEEDED, SubCode.MAX_INDIVIDUAL_COMMIT_REACHED
    )


def begun_offset(progress: PartitionProgress) -> int:
    """The stable offset, but for slots that nobody has spoken of: they hold nobody back."""
    begun = [one.watermark for one in progress.intervals if one.watermark != NO_OFFSET]
    return min(begun) if begun else progress.last_done_offset


def state_bytes(progress: PartitionProgress) -> int:
    """About how much memory the progress of a partition takes."""
    return (
        _PARTITION_BYTES
        + _INTERVAL_BYTES * len(progress.intervals)
        + _RANGE_BYTES * progress.ranges_count
        + _ATTEMPT_BYTES * len(progress.attempts)
        + _DIVERTED_BYTES * len(progress.diverted)
    )


def pending_bytes(acked: Sequence[AckedRange]) -> int:
    """The same of what is acknowledged in an open transaction."""
    ranges_count = sum(len(one.done) for one in acked)
    return _PARTITION_BYTES + _INTERVAL_BYTES * len(acked) + _RANGE_BYTES * ranges_count


# Stages -----------------------------------------------------------------------------------------


class Stage(IntEnum):
    """How far it has come with a window; the numbers are what metrics show."""

    NONE = 0
    WARN = 1
    HOLD = 2
    REVOKE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a group has under way of a partition.

    `delivered_offset` follows the last offset that any member was shown. `done_percent` is how much
    of the window is done, `age_ms` how long its oldest record has been with the member that works
    on it; -1 when nobody does.
    """

    stable_offset: int
    delivered_offset: int
    ranges_count: int = 0
    done_percent: int = 0
    age_ms: int = NO_AGE_MS

    @property
    def offsets(self) -> int:
        return max(0, self.delivered_offset - self.stable_offset)


def is_full(window: Window, settings: CooperativeSettings, percent: int) -> bool:
    """Whether so much of a window is full, in offsets or in ranges."""
    return window.offsets * 100 >= settings.max_window_offsets * percent or (
        window.ranges_count * 100 >= settings.max_ranges * percent
    )


def is_held(window: Window, settings: CooperativeSettings) -> bool:
    """Whether nobody is shown offsets that nobody was shown yet."""
    return window.offsets > 0 and is_full(window, settings, HOLD_PERCENT)


def stage_of(window: Window, settings: CooperativeSettings) -> Stage:
    if window.offsets == 0:
        return Stage.NONE  # there is nothing to wait for
    is_held_back = is_held(window, settings)
    is_worked_on = window.age_ms != NO_AGE_MS
    if is_worked_on and window.age_ms > settings.stuck_ms:
        return Stage.REVOKE
    if is_worked_on and is_held_back and window.done_percent > DONE_PERCENT:
        return Stage.REVOKE
    if is_held_back:
        return Stage.HOLD
    if is_full(window, settings, WARN_PERCENT) or window.age_ms * 2 > settings.stuck_ms:
        return Stage.WARN
    return Stage.NONE


def done_percent(progress: PartitionProgress, delivered_offset: int) -> int:
    """How much of the window is done, rounded down, as if all slots had equally many records.

    That they have not does not matter: it is asked whether nearly all of it is.
    """
    stable_offset = begun_offset(progress)
    if delivered_offset <= stable_offset:
        return 100
    done = 0
    for interval in progress.intervals:
        slots = interval.slots.end - interval.slots.first
        watermark = min(max(interval.watermark, stable_offset), delivered_offset)
        above = interval.done.at_or_above(watermark).below(delivered_offset)
        done += slots * (watermark - stable_offset + above.offsets_count)
    return done * 100 // (SLOT_COUNT * (delivered_offset - stable_offset))
