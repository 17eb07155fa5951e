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
from anabranch.wire.record_batch import HEADER_SIZE, MAGIC_V2, iter_records, read_header
from anabranch.wire.varint import append_varint

Entry = tuple[bytes, bytes | None]

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_POS = 17
_CRC_COVERED_FROM = 21
_LENGTH_PREFIX_SIZE = 12
_NO_PRODUCER = -1

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
    entries: Sequence[Entry], *, timestamp_ms: int, base_offset: int = 0, leader_epoch: int = 0
) -> bytearray:
    """A batch of `entries`, all of one time, as a log takes it."""
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
        0,
        len(entries) - 1,
        timestamp_ms,
        timestamp_ms,
        _NO_PRODUCER,
        _NO_PRODUCER,
        _NO_PRODUCER,
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
        if read_header(batch).is_control:
            return
        for record in iter_records(batch):
            if record.key is None:
                raise JournalError(f"the record at offset {record.offset} has no key")
            yield record.key, record.value
    except KafkaError as error:
        raise JournalError(f"a batch cannot be read: {error}") from error
