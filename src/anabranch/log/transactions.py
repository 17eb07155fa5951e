"""The transactions in the log of one partition: which are open, and which were aborted.

Rules
- A transaction begins in a partition with its producer's first transactional batch there and ends
  with a marker. A marker without such a batch ends nothing.
- The last stable offset is where the oldest open transaction begins, or the log's end. Readers of
  committed records see nothing at or above it, so whatever they see is decided.
- They see records of aborted transactions too, with a list of them, and leave those out themselves.
  So a transaction that was aborted is remembered for as long as the log may have records of it.

Open transactions are in the snapshots of producers. Aborted ones are in a `.txnindex` file beside
the segment with the marker, Kafka's format, version 0; a segment without any has no file. Like
other indexes it is written when a segment is closed, and made anew from the log where that is not
certain to have happened.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from anabranch.log.checkpoints import write_atomically
from anabranch.log.segment import Segment
from anabranch.wire.control_records import ABORT
from anabranch.wire.record_batch import iter_headers

TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"

_VERSION = 0
_ENTRY = Struct(">hqqqq")
_last_offset = attrgetter("last_offset")


class AbortedTransaction(NamedTuple):
    """A transaction's first record, its marker, and the last stable offset after that."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Transactions:
    """What is known of the transactions of one partition. Only the event loop touches it."""

    __slots__ = ("aborted", "open")

    def __init__(self) -> None:
        # The first offset of each producer's open transaction, the oldest one first.
        self.open: dict[int, int] = {}
        # By the offset of the marker.
        self.aborted: list[AbortedTransaction] = []

    def begin(self, producer_id: int, first_offset: int) -> None:
        self.open[producer_id] = first_offset

    def end(self, producer_id: int, marker_offset: int, control_type: int) -> None:
        first_offset = self.open.pop(producer_id, None)
        if first_offset is not None and control_type == ABORT:
            stable_offset = self.last_stable_offset(marker_offset + 1)
            self.aborted.append(
                AbortedTransaction(producer_id, first_offset, marker_offset, stable_offset)
            )

    def last_stable_offset(self, log_end_offset: int) -> int:
        """Below it no transaction is open."""
        for first_offset in self.open.values():
            return first_offset
        return log_end_offset

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that records from `first_offset` up to `end_offset` may be of.

        A transaction without records there may be among them.
        """
        found = []
        for index in range(
            bisect_left(self.aborted, first_offset, key=_last_offset), len(self.aborted)
        ):
            one = self.aborted[index]
            if one.first_offset < end_offset:
                found.append(one)
            if one.last_stable_offset >= end_offset:
                break  # whatever ended later began later
        return found

    def is_open(self, producer_id: int, offset: int) -> bool:
        """Whether a producer's record is part of a transaction that is not decided."""
        first_offset = self.open.get(producer_id)
        return first_offset is not None and first_offset <= offset

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether a producer's record is part of a transaction that was aborted."""
        return any(
            one.producer_id == producer_id and one.first_offset <= offset <= one.last_offset
            for one in self.aborted_between(offset, offset + 1)
        )

    def has_aborted_after(self, offset: int) -> bool:
        return bool(self.aborted) and self.aborted[-1].last_offset >= offset

    def aborted_in(self, base_offset: int, next_offset: int) -> Sequence[AbortedTransaction]:
        """Those whose marker is in a segment."""
        first = bisect_left(self.aborted, base_offset, key=_last_offset)
        return self.aborted[first : bisect_left(self.aborted, next_offset, key=_last_offset)]

    def forget_aborted(self, base_offset: int, next_offset: int) -> None:
        """The log has none of their records any more, if their marker is between these offsets."""
        first = bisect_left(self.aborted, base_offset, key=_last_offset)
        del self.aborted[first : bisect_left(self.aborted, next_offset, key=_last_offset)]


def aborted_in_records(
    transactions: Transactions, offset: int, records: bytes | memoryview
) -> list[AbortedTransaction]:
    """The aborted transactions that `records`, read from `offset` on, may hold records of."""
    if not records or not transactions.has_aborted_after(offset):
        return []
    end_offset = offset
    for _, header in iter_headers(records):
        end_offset = header.next_offset
    return transactions.aborted_between(offset, end_offset)


def write_aborted(segment: Segment, transactions: Transactions, *, is_synced: bool = False) -> None:
    """Write the index of a segment that is being closed."""
    aborted = transactions.aborted_in(segment.base_offset, segment.next_offset)
    write_transaction_index(segment.path(TRANSACTION_INDEX_SUFFIX), aborted, is_synced=is_synced)


def write_transaction_index(
    path: Path, aborted: Iterable[AbortedTransaction], *, is_synced: bool = False
) -> bool:
    """Write a segment's aborted transactions; without any there is no file. Whether there is."""
    content = b"".join(_ENTRY.pack(_VERSION, *one) for one in aborted)
    if content:
        write_atomically(path, content, is_synced=is_synced)
    else:
        path.unlink(missing_ok=True)
    return bool(content)


def read_transaction_index(path: Path) -> list[AbortedTransaction] | None:
    """A segment's aborted transactions, none without a file; None when the file is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(content) % _ENTRY.size:
        return None
    found: list[AbortedTransaction] = []
    for version, *fields in _ENTRY.iter_unpack(content):
        one = AbortedTransaction(*fields)
        is_after = not found or one.last_offset > found[-1].last_offset
        if version > _VERSION or not is_after or one.first_offset > one.last_offset:
            return None
        found.append(one)
    return found
