"""A journal partition: the durable records of a coordinator's decisions in a partition log.

A decision is one batch, so that it is there whole or not at all after a crash; only where it would
not fit (the expiry of very many offsets) it spans several, each of which stands by itself.
"""

from collections.abc import Iterator, Sequence

from anabranch.coordinator.group.records import GroupRecord
from anabranch.engine.journal.batch import build_entries, iter_entries
from anabranch.engine.journal.group_codec import DurableRecord, decode, encode
from anabranch.log.partition_log import PartitionLog
from anabranch.wire.record_batch import HEADER_SIZE, iter_headers

_BATCH_RECORDS_MAX = 5000
_READ_BYTES = 8 * 1024 * 1024


def append_records(log: PartitionLog, records: Sequence[DurableRecord], now_ms: int) -> int:
    """Write a decision's durable records; returns the bytes written. KafkaError when refused."""
    size_bytes = 0
    for start in range(0, len(records), _BATCH_RECORDS_MAX):
        entries = [encode(record) for record in records[start : start + _BATCH_RECORDS_MAX]]
        batch = bytearray(build_entries(entries, timestamp_ms=now_ms))
        log.append(memoryview(batch), now_ms=now_ms, is_client=False)
        size_bytes += len(batch)
    return size_bytes


def read_records(log: PartitionLog) -> Iterator[GroupRecord]:
    """Everything in the journal, oldest first; record types that are not ours are passed over."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        view = log.read(offset, _READ_BYTES)
        if len(view) < HEADER_SIZE:
            return
        for position, header in iter_headers(view):
            for key, value in iter_entries(view[position : position + header.size_bytes]):
                record = decode(key, value)
                if record is not None:
                    yield record
            offset = header.next_offset
