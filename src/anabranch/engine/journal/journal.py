"""A journal partition: the durable records of a coordinator's decisions in a partition log.

A decision is one batch, so that it is there whole or not at all after a crash; only where it would
not fit (the expiry of very many offsets) it spans several, each of which stands by itself.

Reading a journal gives what a perfect compaction would leave of it: the last record of each key, in
order. A state that cannot be built from that cannot be built from a compacted log either, and most
records of a journal are commits that a later one replaced, which are not worth decoding.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anabranch.engine.journal.batch import Entry, build_entries, iter_entries
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.group_codec import DurableRecord, decode, encode
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.journal.record_type import read_prefix
from anabranch.wire.primitives import EncodeError
from anabranch.wire.record_batch import crc_ok, iter_headers

_BATCH_RECORDS_MAX = 5000
# A batch is closed when it is this large, a record of its own size excepted.
_BATCH_BYTES = 4 * 1024 * 1024
_READ_BYTES = 8 * 1024 * 1024
# Only closed segments are compacted, and most of a journal is commits that a later one replaced:
# closing segments early keeps small what a start has to read, however large they might become.
_SEGMENT_BYTES = 4 * 1024 * 1024

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
) -> int:
    """Write a decision's durable records; returns the bytes written.

    `encode_all` makes keys and values of them; by default it knows the records of groups.
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
    for batch in _batches(log, entries, now_ms):
        log.append(memoryview(batch), now_ms=now_ms, is_client=False)
        size_bytes += len(batch)
    if log.segments[-1].size_bytes > _SEGMENT_BYTES:
        # Refused, it is tried again with the next decision.
        with contextlib.suppress(KafkaError):
            log.roll(now_ms)
    return size_bytes


def _batches(log: PartitionLog, entries: list[Entry], now_ms: int) -> list[bytearray]:
    if len(entries) == 1:
        return [build_entries(entries, timestamp_ms=now_ms)]
    batches: list[bytearray] = []
    first, size_bytes = 0, 0
    for number, (key, value) in enumerate(entries):
        entry_bytes = len(key) + len(value or b"")
        is_full = number - first == _BATCH_RECORDS_MAX or size_bytes + entry_bytes > _BATCH_BYTES
        if is_full and number > first:
            batches.append(build_entries(entries[first:number], timestamp_ms=now_ms))
            first, size_bytes = number, 0
        size_bytes += entry_bytes
    batches.append(build_entries(entries[first:], timestamp_ms=now_ms))
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

    Types that are not known here are passed over and counted in `skipped` by their number. A
    JournalError tells what cannot be read and where; KafkaError when the log cannot be.
    """
    for key, (offset, value) in _last_entries(log).items():
        try:
            record = decode_one(key, value)
        except JournalError as error:
            raise JournalError(f"the batch at offset {offset}: {error}") from error
        if record is None:
            skipped[read_prefix(key)] += 1
        else:
            yield record


def _last_entries(log: PartitionLog) -> dict[bytes, tuple[int, bytes | None]]:
    """The last value of each key, and the offset of the batch it is in."""
    last: dict[bytes, tuple[int, bytes | None]] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        view = log.read(offset, _READ_BYTES)
        if not view:
            break  # compaction left nothing up to the log's end
        read_from = offset
        for position, header in iter_headers(view):
            base_offset, size_bytes = header.base_offset, header.size_bytes
            if not crc_ok(view, position, size_bytes):
                raise JournalError(f"the batch at offset {base_offset} does not match its CRC-32C")
            try:
                for key, value in iter_entries(view[position : position + size_bytes]):
                    last.pop(key, None)  # so that it goes to the end
                    last[key] = (base_offset, value)
            except JournalError as error:
                raise JournalError(f"the batch at offset {base_offset}: {error}") from error
            offset = header.next_offset
        if offset == read_from:
            raise JournalError(f"no batch begins at offset {offset}")
    return last
