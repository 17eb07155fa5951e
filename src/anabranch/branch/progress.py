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


def measure(
    blocks: "Iterable[Buffer]",
    commits: Sequence[int | None],
    starts: Sequence[int],
    log_start_offset: int,
    high_watermark: int,
) -> Progress:
    """Count what is left to do; `blocks` index the log from the least of `starts` on."""
    counts, firsts, _ = _count(blocks, starts, starts, high_watermark)
    return Progress(
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        commits=tuple(commits),
        firsts=tuple(high_watermark if first == _NONE_OPEN else first for first in firsts),
        unprocessed=tuple(counts),
    )


def plan_ranges(
    blocks: "Sequence[Buffer]", starts: Sequence[int], ranges: int, high_watermark: int
) -> list[RangeStart]:
    """Where each of `ranges` new ranges begins, so that nothing is skipped.

    `starts` are those of the old ranges; `blocks` index the log from the least of them on.
    """
    _, firsts, _ = _count(blocks, starts, [high_watermark] * ranges, high_watermark)
    floors = [high_watermark if first == _NONE_OPEN else first for first in firsts]
    _, _, replays = _count(blocks, starts, floors, high_watermark)
    return [RangeStart(*pair) for pair in zip(floors, replays, strict=True)]


def _count(
    blocks: "Iterable[Buffer]", watermarks: Sequence[int], floors: Sequence[int], end_offset: int
) -> tuple[list[int], list[int], list[int]]:
    """Of each range of `floors`: open records, the first of them or -1, done ones from the floor.

    A record is open from the watermark of its range on.
    """
    ranges = len(floors)
    packed = _packed(watermarks), _packed(floors)
    read_counts, read_offsets = struct.Struct(f"<{ranges}Q"), struct.Struct(f"<{ranges}q")
    open_counts, firsts, done_counts = [0] * ranges, [_NONE_OPEN] * ranges, [0] * ranges
    for block in blocks:
        counted = _kernels.progress(block, *packed, end_offset)
        open_counts = _sums(open_counts, read_counts.unpack(counted[0]))
        done_counts = _sums(done_counts, read_counts.unpack(counted[2]))
        # Blocks come in the order of the log.
        found = read_offsets.unpack(counted[1])
        firsts = [b if a == _NONE_OPEN else a for a, b in zip(firsts, found, strict=True)]
    return open_counts, firsts, done_counts


def _packed(offsets: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(offsets)}q", *offsets)


def _sums(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]
