"""How far a group is with one partition that its members share by key range.

Rules
- The slots of the partition are covered by intervals. All records of an interval's slots below its
  watermark are done; above it there may be more, as ranges of offsets. A range speaks only of the
  records of the interval's slots: who did offsets 10 and 14 of its slots, and has nothing in
  between, did [10-14], whatever other slots have there. So ranges stay few.
- Being done is for ever: acks only add. What takes it back is a reset by an administrator, or a log
  that lost the records (the same offsets later hold others, which nobody has done).
- The stable offset is the lowest watermark: everything below it is done, whoever did it.
- Intervals are cut where an ack begins or ends and joined again when neighbours agree, so that they
  follow what members own without knowing it.
- A record that failed has its attempts counted and a time before which it is not tried again; both
  go when it is done.
- Keys may be diverted: their records from an offset on are not processed but go to the dead-letter
  topic, until somebody releases the key. Who starts over, starts over without that.

Watermarks and the stable offset are exclusive, the next offset to do, as committed offsets are in
Kafka. KIP-X draws the stable offset as the last one that is done: its 40 is 41 here. Ranges include
both ends, as KIP-X has them.

Everything here is a value; functions return another one.
"""

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import ALL_SLOTS, SlotRange, slot_of_hash


@dataclass(frozen=True, slots=True)
class Interval:
    """Slots that are equally far."""

    slots: SlotRange
    watermark: int
    done: OffsetRanges = EMPTY

    def is_done(self, offset: int) -> bool:
        return offset < self.watermark or offset in self.done

    def with_done(self, watermark: int, done: OffsetRanges) -> "Interval":
        """The interval after more was done; ranges that reach the watermark move it."""
        watermark = max(self.watermark, watermark)
        done = self.done.union(done)
        watermark = done.end_of_run(watermark)
        return Interval(self.slots, watermark, done.at_or_above(watermark))


@dataclass(frozen=True, slots=True)
class Attempt:
    """A record that failed. `count` is 0 for one that was never tried, as its key is diverted."""

    key_hash: int
    count: int
    not_before_ms: int
    reason: str = ""

    @property
    def slot(self) -> int:
        return slot_of_hash(self.key_hash)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """What is done of a partition. `leader_epoch` is that of the newest ack that was taken.

    `attempts` are by offset; `diverted` says for the hash of a key from which offset on.
    """

    intervals: tuple[Interval, ...]
    attempts: Mapping[int, Attempt] = field(default_factory=dict)
    leader_epoch: int = -1
    diverted: Mapping[int, int] = field(default_factory=dict)

    @property
    def stable_offset(self) -> int:
        """Everything below it is done."""
        return min(interval.watermark for interval in self.intervals)

    @property
    def last_done_offset(self) -> int:
        """Nothing at or above it is done."""
        return max(
            interval.done.last + 1 if interval.done else interval.watermark
            for interval in self.intervals
        )

    @property
    def ranges_count(self) -> int:
        """How many ranges it takes to write down what is done above the watermarks."""
        return sum(len(interval.done) for interval in self.intervals)

    def is_done(self, slot: int, offset: int) -> bool:
        return self.interval_of(slot).is_done(offset)

    def is_diverted(self, key_hash: int, offset: int) -> bool:
        """Whether a record is not to be processed, but goes to the dead-letter topic."""
        first_offset = self.diverted.get(key_hash)
        return first_offset is not None and offset >= first_offset

    def interval_of(self, slot: int) -> Interval:
        return self.intervals[bisect_right(self.intervals, slot, key=_first_slot) - 1]

    def within(self, slots: SlotRange) -> list[Interval]:
        """The intervals of some slots, cut at their edges."""
        found = []
        for interval in self.intervals:
            part = intersect(interval.slots, slots)
            if part is not None:
                found.append(dataclasses.replace(interval, slots=part))
        return found


def new_progress(offset: int) -> PartitionProgress:
    """A partition of which everything below `offset` counts as done, and nothing else."""
    return PartitionProgress((Interval(ALL_SLOTS, offset),))


def _first_slot(interval: Interval) -> int:
    return interval.slots.first


def intersect(one: SlotRange, other: SlotRange) -> SlotRange | None:
    first, end = max(one.first, other.first), min(one.end, other.end)
    return SlotRange(first, end) if first < end else None


def with_done(
    progress: PartitionProgress, slots: SlotRange, watermark: int, done: OffsetRanges
) -> PartitionProgress:
    """After records of some slots were done: those below `watermark`, and those in `done`."""
    return with_all_done(progress, [(slots, watermark, done)])


def with_all_done(
    progress: PartitionProgress, ranges: Iterable[tuple[SlotRange, int, OffsetRanges]]
) -> PartitionProgress:
    """After records of several slots were done, one after the other; many cost little more than
    one."""
    intervals: Iterable[Interval] = progress.intervals
    for slots, watermark, done in ranges:
        changed: list[Interval] = []
        for interval in intervals:
            part = intersect(interval.slots, slots)
            if part is None:
                changed.append(interval)
                continue
            for piece in _without(interval.slots, part):
                changed.append(dataclasses.replace(interval, slots=piece))
            changed.append(dataclasses.replace(interval, slots=part).with_done(watermark, done))
        intervals = changed
    return _tidy(progress, intervals)


def with_attempt(progress: PartitionProgress, offset: int, attempt: Attempt) -> PartitionProgress:
    """After a record failed; of no effect if it was done meanwhile."""
    return with_attempts(progress, {offset: attempt})


def with_attempts(
    progress: PartitionProgress, attempts: Mapping[int, Attempt]
) -> PartitionProgress:
    """After records failed; of no effect for those that were done meanwhile."""
    more = {o: one for o, one in attempts.items() if not progress.is_done(one.slot, o)}
    if not more:
        return progress
    return dataclasses.replace(progress, attempts={**progress.attempts, **more})


def without_attempts(progress: PartitionProgress, offsets: Iterable[int]) -> PartitionProgress:
    """As if some records had never failed."""
    left = dict(progress.attempts)
    for offset in offsets:
        left.pop(offset, None)
    return dataclasses.replace(progress, attempts=left)


def with_diverted(progress: PartitionProgress, key_hash: int, offset: int) -> PartitionProgress:
    """After a key was diverted; a key that is, stays so from where it was."""
    first_offset = min(offset, progress.diverted.get(key_hash, offset))
    return dataclasses.replace(progress, diverted={**progress.diverted, key_hash: first_offset})


def without_diverted(progress: PartitionProgress, key_hash: int) -> PartitionProgress:
    """After a key was released."""
    left = {key: offset for key, offset in progress.diverted.items() if key != key_hash}
    return dataclasses.replace(progress, diverted=left)


def without_lost(progress: PartitionProgress, end_offset: int) -> PartitionProgress:
    """After the log was cut at `end_offset`: what is there later has not been done by anybody."""
    is_whole = progress.last_done_offset <= end_offset
    named = (*progress.attempts, *progress.diverted.values())
    if is_whole and all(offset < end_offset for offset in named):
        return progress
    intervals = [
        Interval(one.slots, min(one.watermark, end_offset), one.done.below(end_offset))
        for one in progress.intervals
    ]
    attempts = {o: attempt for o, attempt in progress.attempts.items() if o < end_offset}
    # Keys of records that are lost have done nothing yet that they could be diverted for.
    diverted = {key: o for key, o in progress.diverted.items() if o < end_offset}
    return _tidy(dataclasses.replace(progress, attempts=attempts, diverted=diverted), intervals)


def _without(whole: SlotRange, part: SlotRange) -> Iterable[SlotRange]:
    if whole.first < part.first:
        yield SlotRange(whole.first, part.first)
    if part.end < whole.end:
        yield SlotRange(part.end, whole.end)


def _tidy(progress: PartitionProgress, intervals: Iterable[Interval]) -> PartitionProgress:
    """Sort intervals, join neighbours that agree, forget attempts of what is done."""
    joined: list[Interval] = []
    for interval in sorted(intervals, key=lambda one: one.slots):
        last = joined[-1] if joined else None
        if last is not None and last.watermark == interval.watermark and last.done == interval.done:
            joined[-1] = dataclasses.replace(
                last, slots=SlotRange(last.slots.first, interval.slots.end)
            )
        else:
            joined.append(interval)
    tidied = dataclasses.replace(progress, intervals=tuple(joined))
    if not progress.attempts:
        return tidied
    attempts = {
        offset: attempt
        for offset, attempt in progress.attempts.items()
        if not tidied.is_done(attempt.slot, offset)
    }
    return dataclasses.replace(tidied, attempts=attempts)
