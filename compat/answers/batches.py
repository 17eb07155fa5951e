"""Record batches by hand, right ones and wrong ones."""

from __future__ import annotations

import struct

import cramjam
import crc32c

NOW_MS = 1_790_000_000_000


def record(
    offset_delta: int, value: bytes, key: bytes | None = None, *, timestamp_delta_ms: int = 0
) -> bytes:
    """One record of format v2 without headers."""
    body = b"\0" + varint(timestamp_delta_ms) + varint(offset_delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def batch(
    values: list[bytes],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_ms: int = NOW_MS,
    max_timestamp_ms: int | None = None,
    last_offset_delta: int | None = None,
    record_count: int | None = None,
    crc_error: int = 0,
    payload: bytes | None = None,
) -> bytes:
    """A batch; every argument can be made wrong on purpose."""
    last = len(values) - 1 if last_offset_delta is None else last_offset_delta
    count = len(values) if record_count is None else record_count
    body = struct.pack(
        ">hiqqqhii",
        attributes,
        last,
        timestamp_ms,
        timestamp_ms if max_timestamp_ms is None else max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    if payload is None:
        payload = b"".join(record(delta, value) for delta, value in enumerate(values))
    body += payload
    crc = crc32c.crc32c(body) ^ crc_error
    rest = struct.pack(">ibI", leader_epoch, magic, crc) + body
    return struct.pack(">qi", base_offset, len(rest)) + rest


ZSTD_RECORD = bytes(cramjam.zstd.compress(record(0, b"a")))
