"""What to tell the broker about the records that are done. Pure.

Per range: a watermark, below which every record of the range is done, and above it ranges of
offsets. Keys of other members lie in between, so a range of offsets speaks only of records of its
own key range: everything from one record that is still open up to the next one is done, and is one
range, however many records of others it contains. So there are never more ranges than open records.

Only what changed is told: gaps in which nothing was done since the last commit are left out. What
the broker confirmed is forgotten; what it did not take is told again with the next commit. Ranges
include both ends, watermarks are the next offset: KIP-X's example, records 41 to 50 fetched with
43-45 and 48-49 done before, is the watermark 51 when all is processed, and with 41 still open the
watermark 41 with [42-50].
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from anabranch.client.range_work import Failure, RangeState, RangeWork, failures_in
from anabranch.client.records import ConsumerRecord, KeyRange
from anabranch.model.offset_ranges import EMPTY, OffsetRange, OffsetRanges
from anabranch.model.units import SlotRange
from anabranch.wire.messages.cooperation import OffsetSet
from anabranch.wire.offset_set import encode

_FIXED_ACK_BYTES = 64
_FIXED_FAILURE_BYTES = 32
REASON_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Progress:
    """What is to be told about one range, and what it is made of."""

    work: RangeWork
    slots: SlotRange
    watermark: int
    done: OffsetRanges = EMPTY
    acked: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def works(self) -> list[RangeWork]:
        """What there is of the range now: it may have been cut since, or parts of it be gone.

        Each part has to know what became of this. One that is given back while a commit that fails
        is on its way would otherwise leave records to its next owner that are done.
        """
        first, end = self.slots
        return [
            one for one in self.work.family if first <= one.slots.first and one.slots.end <= end
        ]


@dataclass(frozen=True, slots=True)
class Ack:
    """A part of what is told about one range, in one request.

    The range may be cut while the request is on its way: `key_range` is what it was.
    """

    work: RangeWork
    key_range: KeyRange
    watermark: int
    done: OffsetSet
    failures: list[Failure] = field(default_factory=list)
    is_last: bool = True

    @property
    def size_bytes(self) -> int:
        failures = sum(_FIXED_FAILURE_BYTES + 4 * len(one.reason) for one in self.failures)
        return _FIXED_ACK_BYTES + len(self.done.content) + failures


def gather(work: RangeWork) -> Progress | None:
    """Take what changed in a range since the last commit; None when nothing did."""
    if work.state in (RangeState.LOADING, RangeState.GONE):
        return None
    open_offsets = sorted(work.open)
    watermark = open_offsets[0] if open_offsets else work.position
    if watermark <= work.committed and not work.acked and not work.failures:
        return None
    done = _closed_gaps(open_offsets, sorted(work.acked), work.position)
    progress = Progress(work, work.slots, watermark, done, work.acked, work.failures)
    work.acked = []
    work.failures = []
    return progress


def _closed_gaps(open_offsets: list[int], acked: list[int], position: int) -> OffsetRanges:
    """The gaps between open records in which something was done."""
    found: list[tuple[int, int]] = []
    index = 0
    while index < len(acked):
        gap = bisect_left(open_offsets, acked[index])
        after = open_offsets[gap] if gap < len(open_offsets) else position
        if gap:  # what lies below the first open record is below the watermark
            found.append((open_offsets[gap - 1] + 1, after - 1))
        index = bisect_left(acked, after, lo=index + 1)
    return OffsetRanges(found)


def confirm(progress: Progress, stable_offset: int) -> None:
    """The broker has it."""
    for work in progress.works:
        work.committed = max(work.committed, progress.watermark)
        work.forget_done_below(min(stable_offset, work.position))
        if work.acked:
            # Whatever is below the stable offset is done, whoever did it.
            work.acked = [offset for offset in work.acked if offset >= stable_offset]


def take_back(progress: Progress) -> None:
    """The broker does not have it: tell it again next time."""
    for work in progress.works:
        work.acked = [*progress.acked, *work.acked]
        work.failures = [*failures_in(work.slots, progress.failures), *work.failures]


def gather_held(records: Iterable[ConsumerRecord]) -> list[Progress]:
    """What is done when records that are held for a transaction are: of their ranges only, and
    nothing is taken that the next commit will tell."""
    by_work: dict[int, tuple[RangeWork, list[int]]] = {}
    for record in records:
        work = record._work
        by_work.setdefault(id(work), (work, []))[1].append(record.offset)
    told = []
    for work, held in by_work.values():
        left = sorted(work.open.keys() - set(held))
        done = _closed_gaps(left, sorted(held), work.position)
        told.append(Progress(work, work.slots, left[0] if left else work.position, done))
    return told


def requests(told: Iterable[Progress], *, max_ranges: int, max_bytes: int) -> Iterator[list[Ack]]:
    """The acknowledgements in requests of at most so many ranges of offsets, and bytes.

    A single one that is larger goes alone: the reason of a failure is short, and a request must
    be larger than the smallest acknowledgement.
    """
    batch: list[Ack] = []
    ranges = size_bytes = 0
    for progress in told:
        for ack, count in _parts(progress, max_ranges):
            too_many = ranges + count > max_ranges or size_bytes + ack.size_bytes > max_bytes
            if batch and too_many:
                yield batch
                batch, ranges, size_bytes = [], 0, 0
            batch.append(ack)
            ranges += count
            size_bytes += ack.size_bytes
    if batch:
        yield batch


def _parts(progress: Progress, max_ranges: int) -> Iterator[tuple[Ack, int]]:
    """A range's progress in parts that a request can have, each with its ranges of offsets."""
    failures = [
        Failure(one.offset, one.key_hash, one.retry_after_ms, one.reason[:REASON_CHARACTERS_MAX])
        for one in progress.failures
    ]
    ranges: list[OffsetRange] = list(progress.done)
    key_range = KeyRange.of_slots(progress.slots)
    for first in range(0, max(len(ranges), 1), max_ranges):
        end = first + max_ranges
        part = OffsetRanges(ranges[first:end])
        ack = Ack(
            progress.work,
            key_range,
            progress.watermark,
            encode(part),
            failures,
            is_last=end >= len(ranges),
        )
        yield ack, len(part)
        failures = []
