"""A journal partition: the durable records of a coordinator's decisions in a partition log.

A decision is one batch, so that it is there whole or not at all after a crash; only where it would
not fit (the expiry of very many offsets) it spans several, each of which stands by itself.

Reading a journal gives what a perfect compaction would leave of it: the last record of each key, in
order. A state that cannot be built from that cannot be built from a compacted log either, and most
records of a journal are commits that a later one replaced, which are not worth decoding.

Transactional batches count from their commit marker on, and never after an abort marker; those
without a marker are pending, and come last. Which of two records of a key is the later one is said
by their own places in the log and not by that of a marker, as in Kafka and for its compaction: what
was committed outside the transaction meanwhile stays.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from anabranch.coordinator.group.records import OffsetCommitted, OffsetPending
from anabranch.engine.journal.batch import Entry, Producer, build_entries, iter_entries
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.group_codec import DurableRecord, decode, encode
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.control_records import ABORT, COMMIT, read_marker
from anabranch.wire.journal.record_type import read_prefix
from anabranch.wire.primitives import EncodeError
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    crc_ok,
    iter_headers,
)

_BATCH_RECORDS_MAX = 5000
# A batch is closed when it is this large, a record of its own size excepted.
_BATCH_BYTES = 4 * 1024 * 1024
_READ_BYTES = 8 * 1024 * 1024
# Only closed segments are compacted, and most of a journal is commits that a later one replaced:
# closing segments early keeps small what a start has to read, however large they might become.
_SEGMENT_BYTES = 4 * 1024 * 1024

_IN_TRANSACTIONS = TRANSACTIONAL_FLAG | CONTROL_FLAG

# Refusals that concern one decision only: the log is well, and nothing was written.
TOO_LARGE_CODES = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


# Writing ----------------------------------------------------------------------------------------


def _encode_all(records: Sequence[DurableRecord]) -> list[Entry]:
    return [encode(record) for record in records]


def append_records(
    log: PartitionLog,
    records: Sequence[Any],
    now_ms: int,
    encode_all: Callable[[Sequence[Any]], list[Entry]] = _encode_all,
    producer: Producer | None = None,
) -> int:
    """Write a decision's durable records; returns the bytes written.

    `encode_all` makes keys and values of them; by default it knows the records of groups. With a
    producer they belong to that one's transaction.
    KafkaError when the log refuses: with one of TOO_LARGE_CODES nothing was written; with any
    other a part may have been, where the decision does not fit in one batch.
    """
    try:
        entries = encode_all(records)
    except EncodeError as error:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"the journal has no room for it: {error}"
        ) from error
    size_bytes = 0
    for batch in _batches(log, entries, now_ms, producer):
        log.append(memoryview(batch), now_ms=now_ms, is_client=False)
        size_bytes += len(batch)
    if log.segments[-1].size_bytes > _SEGMENT_BYTES:
        # Refused, it is tried again with the next decision.
        with contextlib.suppress(KafkaError):
            log.roll(now_ms)
    return size_bytes


def append_pending(log: PartitionLog, records: Sequence[OffsetPending], now_ms: int) -> int:
    """Write offsets of one producer's transaction; as `append_records` otherwise."""
    producer = (records[0].producer_id, records[0].producer_epoch)
    return append_records(log, [record.offset for record in records], now_ms, producer=producer)


def _batches(
    log: PartitionLog, entries: list[Entry], now_ms: int, producer: Producer | None
) -> list[bytearray]:
    if len(entries) == 1:
        return [build_entries(entries, timestamp_ms=now_ms, producer=producer)]
    batches: list[bytearray] = []
    first, size_bytes = 0, 0
    for number, (key, value) in enumerate(entries):
        entry_bytes = len(key) + len(value or b"")
        is_full = number - first == _BATCH_RECORDS_MAX or size_bytes + entry_bytes > _BATCH_BYTES
        if is_full and number > first:
            part = entries[first:number]
            batches.append(build_entries(part, timestamp_ms=now_ms, producer=producer))
            first, size_bytes = number, 0
        size_bytes += entry_bytes
    batches.append(build_entries(entries[first:], timestamp_ms=now_ms, producer=producer))
    if len(batches) > 1:
        # Known before the first one is written, so that a refusal is one of the whole decision.
        limit = min(log.config.max_message_bytes, log.config.segment_bytes)
        largest = max(map(len, batches))
        if largest > limit:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of the journal would have {largest} bytes, {limit} are possible",
            )
    return batches


# Reading ----------------------------------------------------------------------------------------


def read_records(
    log: PartitionLog,
    skipped: Counter[int],
    decode_one: Callable[[bytes, bytes | None], Any] = decode,
) -> Iterator[Any]:
    """What the journal says: the last record of each key, in the order they were written.

    After them come the offsets of transactions that are open, as `OffsetPending`. Types that are
    not known here are passed over and counted in `skipped` by their number. A JournalError tells
    what cannot be read and where; KafkaError when the log cannot be.
    """
    contents = _Contents()
    for header, batch in _batches_of(log):
        contents.take(header, batch)
    for key, (offset, value) in contents.last.items():
        record = _decode_at(offset, key, value, decode_one)
        if record is None:
            skipped[read_prefix(key)] += 1
        else:
            yield record
    for (producer_id, key), one in contents.pending():
        record = _decode_at(one.offset, key, one.value, decode_one)
        if isinstance(record, OffsetCommitted) and record.value is not None:
            producer_epoch = one.producer_epoch
            yield OffsetPending(
                producer_id=producer_id, producer_epoch=producer_epoch, offset=record
            )
        else:
            skipped[read_prefix(key)] += 1


def _decode_at(
    offset: int,
    key: bytes,
    value: bytes | None,
    decode_one: Callable[[bytes, bytes | None], Any],
) -> Any:
    try:
        return decode_one(key, value)
    except JournalError as error:
        raise JournalError(f"the batch at offset {offset}: {error}") from error


def _batches_of(log: PartitionLog) -> Iterator[tuple[BatchHeader, memoryview]]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        view = memoryview(log.read(offset, _READ_BYTES))
        if not view:
            break  # compaction left nothing up to the log's end
        read_from = offset
        for position, header in iter_headers(view):
            size_bytes = header.size_bytes
            if not crc_ok(view, position, size_bytes):
                raise JournalError(
                    f"the batch at offset {header.base_offset} does not match its CRC-32C"
                )
            yield header, view[position : position + size_bytes]
            offset = header.next_offset
        if offset == read_from:
            raise JournalError(f"no batch begins at offset {offset}")


class _Pending(NamedTuple):
    """What a transaction wrote, and the offset of the batch it is in."""

    offset: int
    value: bytes | None
    producer_epoch: int


class _Contents:
    """The last value of each key, and the offset of the batch it is in."""

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[int, bytes | None]] = {}
        # What open transactions have written, by producer.
        self._open: dict[int, dict[bytes, _Pending]] = {}

    def take(self, header: BatchHeader, batch: memoryview) -> None:
        try:
            if header.attributes & _IN_TRANSACTIONS:
                if not header.is_control:
                    self._keep(header, batch)
                elif self._open:
                    self._end(header, batch)
                return
            last, opened, offset = self.last, self._open, header.base_offset
            for key, value in iter_entries(batch):
                last.pop(key, None)  # so that it goes to the end
                last[key] = (offset, value)
                if opened:
                    for pending in opened.values():
                        pending.pop(key, None)  # whatever becomes of it, this is later
        except (JournalError, KafkaError) as error:
            raise JournalError(f"the batch at offset {header.base_offset}: {error}") from error

    def _keep(self, header: BatchHeader, batch: memoryview) -> None:
        pending = self._open.setdefault(header.producer_id, {})
        for key, value in iter_entries(batch):
            pending[key] = _Pending(header.base_offset, value, header.producer_epoch)

    def _end(self, header: BatchHeader, batch: memoryview) -> None:
        control_type, _ = read_marker(batch)
        if control_type not in (ABORT, COMMIT):
            return
        ended = self._open.pop(header.producer_id, {})
        if control_type == ABORT:
            return
        for key, one in ended.items():
            self.last.pop(key, None)
            self.last[key] = (one.offset, one.value)
            for pending in self._open.values():
                other = pending.get(key)
                if other is not None and other.offset < one.offset:
                    del pending[key]

    def pending(self) -> list[tuple[tuple[int, bytes], _Pending]]:
        """What is neither committed nor aborted, by producer and key, in the order it came."""
        found = [
            ((producer_id, key), one)
            for producer_id, pending in self._open.items()
            for key, one in pending.items()
        ]
        return sorted(found, key=lambda entry: entry[1].offset)
