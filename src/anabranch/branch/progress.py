"""How far a group is with a partition, from what it committed for the branches of it.

A group that reads branches commits one offset for each range of keys. From these and the slot index
follows what one plain consumer would have committed: the stable offset, below which everything is
done.

Rules
- A range is done up to its first record at or above its commit, and up to the high watermark where
  there is none. So a branch in which nothing happens holds nothing back, also when its client
  commits no further than the last record that it got.
- The stable offset is the least of these: everything below it is done, in all ranges.
- A range without a commit has everything still to do, from the log's start on.
- What is gone cannot be done: a commit below the log's start counts as the start. One above the
  high watermark, which an unclean stop may have moved back, counts as the high watermark.
- Unprocessed records are counted one by one, and those of other ranges do not count.

A new set of ranges starts where nothing is skipped: each new range at its first record that is not
done in the old ranges. What is done and stands above it is replayed.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.branch import _kernels

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NONE_OPEN = -1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group is with one partition; tuples have one entry for each range."""

    log_start_offset: int
    high_watermark: int
    commits: tuple[int | None, ...]
    # The first record that is not done, or the high watermark.
    firsts: tuple[int, ...]
    unprocessed: tuple[int, ...]

    @property
    def stable_offset(self) -> int:
        """Everything below it is done."""
        return min(self.firsts)

    @property
    def unprocessed_records(self) -> int:
        return sum(self.unprocessed)

    @property
    def committed_ranges(self) -> int:
        return sum(commit is not None for commit in self.commits)

    @property
    def is_begun(self) -> bool:
        """Whether somebody has begun with every range that has records.

        Clients that commit what they got commit nothing for a range without records.
        """
        return all(
            commit is not None or not records
            for commit, records in zip(self.commits, self.unprocessed, strict=True)
        )


@dataclass(frozen=True, slots=True)
class RangeStart:
    """Where a new range begins, and how many records above that were done before."""

    start_offset: int
    replayed_records: int


def scan_starts(
    commits: Sequence[int | None],
    log_start_offset: int,
    high_watermark: int,
    known: Progress | None = None,
) -> tuple[int, ...]:
    """From where on each range has to be looked at.

    That is its commit, or beyond it where `known`, an earlier look, saw no record of the range.
    """
    starts = []
    for number, commit in enumerate(commits):
        start = log_start_offset if commit is None else max(commit, log_start_offset)
        if known is not None:
            before = known.commits[number]
            seen_from = known.log_start_offset if before is None else before
            if seen_from <= start <= known.firsts[number]:
                start = known.firsts[number]
        starts.append(min(start, high_watermark))
    return tuple(starts)


class Tally:
    """Counts over the slot index of a log: runs of blocks are given one after the other.

    A record is open from the watermark of its range on; `watermarks` has one for each of the
    ranges by which the records are known. Counted is by the ranges of `floors`, which may be
    others, and only what stands below `end_offset`.
    """

    __slots__ = ("_packed", "_ranges", "done_counts", "end_offset", "firsts", "open_counts")

    def __init__(self, watermarks: Sequence[int], floors: Sequence[int], end_offset: int) -> None:
        self.end_offset = end_offset
        ranges = len(floors)
        self._ranges = ranges
        self._packed = _pack(watermarks), _pack(floors)
        self.open_counts = [0] * ranges
        # The first open record of each range, or the end.
        self.firsts = [end_offset] * ranges
        # Records that are not open, from the floor of their range on.
        self.done_counts = [0] * ranges

    def add(self, blocks: "Iterable[Buffer]") -> None:
        """Count what follows in the log. May run in a thread, without the interpreter's lock."""
        for block in blocks:
            counts, firsts, done = _kernels.progress(block, *self._packed, self.end_offset)
            self.open_counts = _sums(self.open_counts, self._unpack("Q", counts))
            self.done_counts = _sums(self.done_counts, self._unpack("Q", done))
            self.firsts = [
                min(before, found) if found != _NONE_OPEN else before
                for before, found in zip(self.firsts, self._unpack("q", firsts), strict=True)
            ]

    def _unpack(self, kind: str, array: bytes) -> tuple[int, ...]:
        return struct.unpack(f"<{self._ranges}{kind}", array)


def progress_tally(starts: Sequence[int], high_watermark: int) -> Tally:
    """What to count with for `progress_of`, from the least of `starts` on."""
    return Tally(starts, starts, high_watermark)


def progress_of(tally: Tally, commits: Sequence[int | None], log_start_offset: int) -> Progress:
    return Progress(
        log_start_offset=log_start_offset,
        high_watermark=tally.end_offset,
        commits=tuple(commits),
        firsts=tuple(tally.firsts),
        unprocessed=tuple(tally.open_counts),
    )


def plan_tally(starts: Sequence[int], ranges: int, high_watermark: int) -> Tally:
    """What to count with, from the least of `starts` on, to find where new ranges begin.

    `starts` are those of the old ranges; `firsts` of the result are the new ones.
    """
    return Tally(starts, [high_watermark] * ranges, high_watermark)


def replay_tally(starts: Sequence[int], firsts: Sequence[int], high_watermark: int) -> Tally:
    """What to count with after that, from the same place on, for `plan_of`."""
    return Tally(starts, firsts, high_watermark)


def plan_of(firsts: Sequence[int], replays: Tally) -> tuple[RangeStart, ...]:
    return tuple(map(RangeStart, firsts, replays.done_counts))


def _pack(offsets: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(offsets)}q", *offsets)


def _sums(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]
