"""Logs and batches for the tests of this folder."""

from pathlib import Path

from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.wire.record_batch import Record, build_batch, iter_headers

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)


def open_log(folder: Path, config: LogConfig = SMALL, **changes: object) -> PartitionLog:
    """The log in `folder`, by default opened as after an orderly stop."""
    arguments: dict[str, object] = {
        "topic": "t",
        "partition": 0,
        "topic_id": TOPIC_ID,
        "config": config,
        "leader_epoch": 0,
        "clean": True,
        "recovery_point": 0,
        "log_start_offset": 0,
        "now_ms": NOW_MS,
    }
    return PartitionLog.open(folder, **(arguments | changes))


def batch_of(
    count: int = 1,
    value: bytes | None = b"value",
    *,
    key: bytes | None = None,
    timestamp: int = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: int = 0,
    attributes: int = 0,
) -> memoryview:
    """A writable batch of equal records, as a producer would send it."""
    producer_id, producer_epoch, base_sequence = producer
    return memoryview(
        bytearray(
            build_batch(
                [Record(i, timestamp, key, value) for i in range(count)],
                base_offset=0,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                codec=codec,
                attributes=attributes,
            )
        )
    )


def append(log: PartitionLog, *arguments: object, **changes: object) -> tuple[int, int]:
    info = log.append(batch_of(*arguments, **changes), now_ms=NOW_MS)
    return info.first_offset, info.last_offset


def read_all(log: PartitionLog) -> bytes:
    """Every byte from the log's start to its end, by reading on from where each read ended."""
    content = bytearray()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        chunk = log.read(offset, 2**20)
        headers = [header for _, header in iter_headers(chunk)]
        if not headers:
            break
        content += chunk
        offset = headers[-1].next_offset
    return bytes(content)
