"""Which records of fetched batches belong to transactions that were aborted.

A reader of committed records gets them too, with a list of the transactions, and leaves them out
itself (KIP-98). A transaction's records are the transactional batches of its producer from its
first offset up to the marker that aborts it; the producer's next transaction comes after that.
"""

from collections.abc import Collection, Iterable, Iterator

from anabranch.branch.record_columns import ReadBatch, RecordColumns

_ABORT = 0  # the type of the marker

Aborted = Collection[tuple[int, int]]
"""Producer ids and first offsets."""


def aborted_batches(batches: Iterable[ReadBatch], aborted: Aborted) -> Iterator[ReadBatch]:
    """The batches whose records were aborted."""
    begun: set[int] = set()
    # The next one to begin is the last in the list.
    to_begin = sorted(
        ((first_offset, producer) for producer, first_offset in aborted), reverse=True
    )
    for batch in batches:
        while to_begin and to_begin[-1][0] < batch.next_offset:
            begun.add(to_begin.pop()[1])
        if batch.is_control:
            if batch.control_type == _ABORT:
                begun.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in begun:
            yield batch


def committed_numbers(columns: RecordColumns, aborted: Aborted) -> list[int] | None:
    """The places in the columns of records that were not aborted; None when that is all."""
    numbers: list[int] = []
    start = 0
    for batch in aborted_batches(columns.batches, aborted):
        numbers += range(start, batch.first_record)
        start = batch.first_record + batch.records_count
    if not start:
        return None
    numbers += range(start, len(columns))
    return numbers
