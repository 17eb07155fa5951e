"""Finding the record that holds a stable offset back: the first one that nobody has finished.

What is done is known by slots and offsets, so the records themselves have to be looked at. The
first that is open is nearly always the one at the stable offset. It may also be far behind, or not
there at all, when an owner has nothing to do and has not said so yet: a search goes on in steps,
and what one has looked through the next one passes over.

Where nobody is shown records of aborted transactions, nobody finishes them either: they are not
open.
"""

from bisect import bisect_right
from typing import NamedTuple

from anabranch.branch._kernels import xxh64
from anabranch.branch.aborted_records import Aborted, committed_numbers
from anabranch.branch.record_columns import RecordColumns, read_records
from anabranch.branch.slots import NULL_KEY_BLOCK_BITS, SlotRule
from anabranch.coordinator.cooperative.commands import NO_OFFSET
from anabranch.coordinator.cooperative.progress import PartitionProgress


class OpenRecord(NamedTuple):
    """A record that is not done."""

    offset: int
    slot: int
    key_hash: int


def find_open(
    batches: memoryview,
    rule: SlotRule,
    from_offset: int,
    progress: PartitionProgress,
    aborted: Aborted = (),
) -> tuple[OpenRecord | None, int]:
    """The first open record from an offset on, and below which offset there is no other one.

    `aborted` are the transactions whose records do not count.
    May run in a thread: nothing that it is given changes.
    """
    columns = read_records(batches, rule, from_offset=from_offset)
    ends = [interval.slots.end for interval in progress.intervals]
    intervals = progress.intervals
    committed = committed_numbers(columns, aborted) if aborted else None
    slots, offsets = columns.slots, columns.offsets
    for number in range(len(columns)) if committed is None else committed:
        slot, offset = slots[number], offsets[number]
        interval = intervals[bisect_right(ends, slot)]
        # Slots that nobody has spoken of hold nobody back.
        if interval.watermark != NO_OFFSET and not interval.is_done(offset):
            return OpenRecord(offset, slot, _key_hash(columns, number, rule)), offset
    return None, columns.next_offset


def _key_hash(columns: RecordColumns, number: int, rule: SlotRule) -> int:
    """The hash of what a record keeps its order with, of which its slot is the upper bits."""
    order = columns.key(number)
    if rule.ordering_header is not None:
        name = rule.ordering_header.decode("utf-8", "surrogateescape")
        values = (value for found, value in columns.headers(number) if found == name)
        order = next(reversed([value for value in values if value is not None]), order)
    if order is None:
        if rule.is_null_key_ordered:
            return 0
        order = (columns.offsets[number] >> NULL_KEY_BLOCK_BITS).to_bytes(8, "big")
    return xxh64(order) >> 1
