"""Keys and values of one decision as one record batch, and back.

One batch, because what a decision writes is whole or absent after a crash. It is put together here
and not from `Record`s, because every commit of every group pays for it: nothing but the keys and
the values differs from one journal record to another.
"""

from collections.abc import Iterator, Sequence
from struct import Struct

from crc32c import crc32c

from anabranch.engine.journal.errors import JournalError
from anabranch.model.errors import KafkaError
from anabranch.wire.record_batch import (
    HEADER_SIZE,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    iter_records,
    read_header,
)
from anabranch.wire.varint import append_varint, read_varint

Entry = tuple[bytes, bytes | None]
# A producer's id and epoch.
Producer = tuple[int, int]

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_POS = 17
_CRC_COVERED_FROM = 21
_LENGTH_PREFIX_SIZE = 12
_NO_PRODUCER = (-1, -1)
_NO_SEQUENCE = -1

_ATTRIBUTES_AND_TIME = b"\0\0"  # no attributes; the time is the batch's
_NO_VALUE = b"\x01"  # a length of -1
_NO_HEADERS = b"\0"


def _varint(number: int) -> bytes:
    if number < len(_VARINTS):
        return _VARINTS[number]
    return _make_varint(number)


def _make_varint(number: int) -> bytes:
    out = bytearray()
    append_varint(out, number)
    return bytes(out)


# Lengths and offsets inside a batch are small numbers nearly always.
_VARINTS = [_make_varint(number) for number in range(1024)]


def build_entries(
    entries: Sequence[Entry],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    producer: Producer | None = None,
) -> bytearray:
    """A batch of `entries`, all of one time, as a log takes it.

    With a producer it belongs to that one's transaction, and counts when a marker says so.
    """
    parts: list[bytes] = []
    for delta, (key, value) in enumerate(entries):
        record = b"".join(
            (
                _ATTRIBUTES_AND_TIME,
                _varint(delta),
                _varint(len(key)),
                key,
                _NO_VALUE if value is None else _varint(len(value)) + value,
                _NO_HEADERS,
            )
        )
        parts.append(_varint(len(record)))
        parts.append(record)
    batch = bytearray(HEADER_SIZE)
    batch += b"".join(parts)
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - _LENGTH_PREFIX_SIZE,
        leader_epoch,
        MAGIC_V2,
        0,
        0 if producer is None else TRANSACTIONAL_FLAG,
        len(entries) - 1,
        timestamp_ms,
        timestamp_ms,
        *(producer or _NO_PRODUCER),
        _NO_SEQUENCE,
        len(entries),
    )
    with memoryview(batch) as view:
        _CRC.pack_into(batch, _CRC_POS, crc32c(view[_CRC_COVERED_FROM:]))
    return batch


def iter_entries(batch: bytes | bytearray | memoryview) -> Iterator[Entry]:
    """The keys and values of a batch in order; a control batch has none.

    The CRC is the caller's to check; whatever the bytes are, the only exception is JournalError.
    """
    try:
        header = read_header(batch)
        if header.is_control:
            return
        if not header.codec and header.size_bytes == len(batch) and header.magic == MAGIC_V2:
            entries = _plain_entries(bytes(batch[HEADER_SIZE:]), header.records_count)
            if entries is not None:
                yield from entries
                return
        for record in iter_records(batch):
            if record.key is None:
                raise JournalError(f"the record at offset {record.offset} has no key")
            yield record.key, record.value
    except KafkaError as error:
        raise JournalError(f"a batch cannot be read: {error}") from error


def _plain_entries(data: bytes, count: int) -> list[Entry] | None:
    """The entries of records as they are laid out above; None when a closer look is needed.

    Whatever is unusual (times of their own, headers, damage) is left to the wire package.
    """
    if count < 0:
        return None
    entries: list[Entry] = []
    pos = 0
    try:
        for _ in range(count):
            size, pos = read_varint(data, pos)
            end = pos + size
            if data[pos] or data[pos + 1] or data[end - 1]:
                return None
            _, pos = read_varint(data, pos + 2)
            size, pos = read_varint(data, pos)
            key = data[pos : pos + size]
            if size < 0 or len(key) != size:
                return None
            size, pos = read_varint(data, pos + size)
            value = None
            if size >= 0:
                value = data[pos : pos + size]
                pos += size
            elif size != -1:
                return None
            if pos != end - 1:
                return None
            pos = end
            entries.append((key, value))
    except (IndexError, KafkaError):
        return None
    return entries if pos == len(data) else None
