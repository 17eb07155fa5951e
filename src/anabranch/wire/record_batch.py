"""Record batches of format v2: reading headers, checking, iterating records and building.

A batch is what travels in Produce and Fetch and what lies in a segment file, byte for byte: a
header of 61 bytes, then the records, compressed as one block when a codec is set. The CRC covers
everything after itself, so base offset and leader epoch (before it) can be patched without
touching the checksum; anything else, such as the timestamp type, needs a new one.

    0  base offset int64        21 attributes int16          43 producer id int64
    8  batch length int32       23 last offset delta int32   51 producer epoch int16
    12 leader epoch int32       27 base timestamp int64      53 base sequence int32
    16 magic int8               35 max timestamp int64       57 records count int32
    17 CRC-32C uint32

The plain path of the broker uses `read_header`, `crc_ok` and `check_batch` only: nothing below the
header is parsed. Message formats v0 and v1 are refused, as Kafka 4 does.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.compression import CODEC_NAMES, compress, decompress
from anabranch.wire.varint import append_varint, read_varint, read_varlong

if TYPE_CHECKING:
    from mmap import mmap

    Buffer: TypeAlias = bytes | bytearray | memoryview | mmap


def _find_crc32c() -> Callable[[Any], int]:
    """The library's function. Who only reads records has the kernels' own and does without."""
    try:
        from crc32c import crc32c
    except ImportError:

        def missing(data: Any) -> int:
            raise ImportError(
                "checksums need the Python package crc32c, which is not installed; install it"
                " with: pip install crc32c",
                name="crc32c",
            )

        return missing
    found: Callable[[Any], int] = crc32c
    return found


crc32c = _find_crc32c()

HEADER_SIZE: Final = 61
MAGIC_V2: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024
"""How much one batch may grow to when its records are read, unless the caller says otherwise."""

_LENGTH_PREFIX_SIZE = 12  # base offset and batch length: what the length does not count
_BATCH_LENGTH_MIN = HEADER_SIZE - _LENGTH_PREFIX_SIZE
_LENGTH_MIN_ANY_FORMAT = 14  # the smallest message of format v0, which Kafka takes as the limit
_LENGTH_POS = 8
_MAGIC_POS = 16
_CRC_POS = 17
_ATTRIBUTES_POS = 21  # the first byte under the CRC
_MAX_TIMESTAMP_POS = 35
_RECORD_SIZE_MIN = 7  # length, attributes, two deltas, two null lengths, no headers: a byte each
_SEQUENCE_MASK = 0x7FFFFFFF

_HEADER = struct.Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The fixed part of a batch, in wire order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, base offset and length included."""
        return _LENGTH_PREFIX_SIZE + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp says when tombstones may go (set by compaction)."""
        return self.attributes & DELETE_HORIZON_FLAG != 0

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, which wraps to 0 after 2^31 - 1; -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _SEQUENCE_MASK


class Record(NamedTuple):
    """One record with its absolute offset and timestamp.

    Header keys that are not UTF-8 keep their bytes as surrogate escapes, so that rewriting a
    batch (compaction, recompression) changes nothing.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_header(buf: "Buffer", pos: int = 0) -> BatchHeader:
    """The header at `pos`, unchecked; CORRUPT_MESSAGE when fewer than 61 bytes are left."""
    try:
        return BatchHeader._make(_unpack_header(buf, pos))
    except struct.error:
        raise _corrupt(
            f"{max(len(buf) - pos, 0)} bytes are too few for a batch header of {HEADER_SIZE}"
        ) from None


def crc_ok(buf: "Buffer", pos: int, size_bytes: int) -> bool:
    """Whether the stored CRC-32C is that of the batch of `size_bytes` at `pos`."""
    end = pos + size_bytes
    if size_bytes < HEADER_SIZE or pos < 0 or end > len(buf):
        return False
    stored: int = _UINT32.unpack_from(buf, pos + _CRC_POS)[0]
    return crc32c(memoryview(buf)[pos + _ATTRIBUTES_POS : end]) == stored


def iter_headers(buf: "Buffer", pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch from `pos` on, without checking CRCs.

    A batch cut short by the end of the buffer ends the iteration, because fetched bytes and torn
    files end so; a length that no batch can have is CORRUPT_MESSAGE.
    """
    end = len(buf)
    while pos + HEADER_SIZE <= end:
        header = BatchHeader._make(_unpack_header(buf, pos))
        if header.batch_length < _BATCH_LENGTH_MIN:
            raise _bad_length(header.batch_length)
        next_pos = pos + header.size_bytes
        if next_pos > end:
            return
        yield pos, header
        pos = next_pos


def is_one_batch(records: "Buffer") -> bool:
    """Whether `records` is exactly one batch of format v2, going by its length and magic alone."""
    size_bytes = len(records)
    return (
        size_bytes >= HEADER_SIZE
        and records[_MAGIC_POS] == MAGIC_V2
        and _INT32.unpack_from(records, _LENGTH_POS)[0] == size_bytes - _LENGTH_PREFIX_SIZE
    )


def check_batch(batch: memoryview) -> BatchHeader:
    """The header of a batch that a client may append; KafkaError says why it may not.

    `batch` is the records field of one partition in a Produce request: exactly one batch. The
    checks are Kafka's, all on the header and the CRC; the records are not parsed. CORRUPT_MESSAGE,
    which clients answer by sending the batch again, is only for what the way here may have done.
    """
    if not is_one_batch(batch):
        raise _not_one_batch(batch)
    header = read_header(batch)
    if header.base_offset != 0:
        raise _invalid(
            f"the batch begins at offset {header.base_offset}; a producer must send 0, because"
            " the broker assigns the offsets"
        )
    if crc32c(batch[_ATTRIBUTES_POS:]) != header.crc:
        raise _corrupt("the batch does not match its CRC-32C")
    if header.records_count != header.last_offset_delta + 1 or header.records_count <= 0:
        raise _invalid(
            f"the batch declares {header.records_count} records but a last offset delta of"
            f" {header.last_offset_delta}; every offset must hold one record"
        )
    attributes = header.attributes
    if attributes & CONTROL_FLAG:
        raise _invalid("clients may not write control batches; only the broker does")
    if attributes & CODEC_MASK >= len(CODEC_NAMES):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the batch uses compression codec {attributes & CODEC_MASK}, which is not known;"
            f" use one of {', '.join(CODEC_NAMES)}",
        )
    if header.producer_id >= 0:
        _check_producer(header)
    return header


def _not_one_batch(records: memoryview) -> KafkaError:
    """Why `records` is not exactly one batch of format v2, found in the order Kafka looks."""
    size_bytes = len(records)
    if size_bytes <= _MAGIC_POS:
        return _invalid(f"{size_bytes} bytes are too few for a batch header of {HEADER_SIZE}")
    magic = records[_MAGIC_POS]
    batch_length: int = _INT32.unpack_from(records, _LENGTH_POS)[0]
    if batch_length < _LENGTH_MIN_ANY_FORMAT:
        return _bad_length(batch_length)
    if magic > MAGIC_V2:
        return _wrong_magic(magic)
    if _LENGTH_PREFIX_SIZE + batch_length > size_bytes:
        return _invalid(
            f"the batch declares {_LENGTH_PREFIX_SIZE + batch_length} bytes, {size_bytes} arrived"
        )
    if magic != MAGIC_V2:
        return _wrong_magic(magic)
    if batch_length < _BATCH_LENGTH_MIN:
        return _bad_length(batch_length)
    return _invalid("a partition's records must be exactly one batch; send batches one by one")


def _check_producer(header: BatchHeader) -> None:
    if header.base_sequence < 0:
        raise _invalid(
            f"producer {header.producer_id} sent sequence {header.base_sequence}; an idempotent"
            " producer must number its records from 0 up"
        )
    if header.producer_epoch < 0:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} sent epoch {header.producer_epoch}; send the epoch"
            " that InitProducerId gave",
        )


def iter_records(batch: "Buffer", *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Each record of the one batch in `batch`, decompressed; the CRC is the caller's to check.

    Whatever the bytes are, the only exception is KafkaError, and no more than `max_bytes` are
    ever decompressed.
    """
    header, payload = _open_payload(batch, max_bytes)
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    end = len(payload)
    pos = 0
    for _ in range(header.records_count):
        size, pos = read_varint(payload, pos)
        record_end = pos + size
        if size < _RECORD_SIZE_MIN - 1 or record_end > end:
            raise _corrupt(f"a record declares {size} bytes, {end - pos} are left in the batch")
        timestamp_delta, pos = read_varlong(payload, pos + 1)  # past the unused attributes byte
        offset_delta, pos = read_varint(payload, pos)
        key, pos = _read_bytes(payload, pos, record_end)
        value, pos = _read_bytes(payload, pos, record_end)
        count, pos = read_varint(payload, pos)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if count:
            headers, pos = _read_record_headers(payload, pos, record_end, count)
        if pos != record_end:
            raise _corrupt(f"a record declares {size} bytes but its fields end elsewhere")
        timestamp = append_time if append_time is not None else base_timestamp + timestamp_delta
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    if pos != end:
        raise _corrupt(f"{end - pos} bytes follow the last of {header.records_count} records")


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int,
    last_offset: int | None = None,
    partition_leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    codec: int = 0,
    attributes: int = 0,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    checksum: Callable[[Any], int] | None = None,
) -> bytes:
    """A batch of `records`, whose offsets must rise from `base_offset` on.

    `last_offset` exceeds the last record's where compaction removed records after it, and is
    required when no record is left. `attributes` gives the flags; the codec bits come from `codec`.
    `checksum` is another function for CRC-32C, for who does without the library.
    """
    if last_offset is None:
        if not records:
            raise ValueError("a batch without records needs its last_offset")
        last_offset = records[-1].offset
    if base_timestamp is None:
        base_timestamp = records[0].timestamp if records else -1
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=-1)
    payload = bytearray()
    previous_offset = base_offset - 1
    for record in records:
        if not previous_offset < record.offset <= last_offset:
            raise ValueError(
                f"offset {record.offset} does not rise from {previous_offset} up to {last_offset}"
            )
        previous_offset = record.offset
        _append_record(payload, record, base_offset, base_timestamp)
    return _assemble(
        BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            partition_leader_epoch=partition_leader_epoch,
            magic=MAGIC_V2,
            crc=0,
            attributes=(attributes & ~CODEC_MASK) | (codec if records else 0),
            last_offset_delta=last_offset - base_offset,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            records_count=len(records),
        ),
        compress(codec, payload) if codec and records else payload,
        checksum or crc32c,
    )


def set_log_append_time(batch: memoryview, timestamp_ms: int) -> None:
    """Stamp the batch with the broker's time, in place, and renew its CRC.

    The records keep their own timestamps; the flag tells readers to use the batch's instead.
    """
    (attributes,) = _INT16.unpack_from(batch, _ATTRIBUTES_POS)
    _INT16.pack_into(batch, _ATTRIBUTES_POS, attributes | LOG_APPEND_TIME_FLAG)
    _INT64.pack_into(batch, _MAX_TIMESTAMP_POS, timestamp_ms)
    _UINT32.pack_into(batch, _CRC_POS, crc32c(batch[_ATTRIBUTES_POS:]))


def clear_log_append_time(batch: memoryview) -> None:
    """Let the records' own timestamps count, in place, and renew the CRC."""
    (attributes,) = _INT16.unpack_from(batch, _ATTRIBUTES_POS)
    _INT16.pack_into(batch, _ATTRIBUTES_POS, attributes & ~LOG_APPEND_TIME_FLAG)
    _UINT32.pack_into(batch, _CRC_POS, crc32c(batch[_ATTRIBUTES_POS:]))


def recompress(
    batch: "Buffer",
    codec: int,
    *,
    level: int | None = None,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> bytes:
    """The same batch under another codec; the records' bytes stay as they are."""
    header, payload = _open_payload(batch, max_bytes)
    if header.codec == codec or header.records_count == 0:
        return bytes(batch)
    attributes = (header.attributes & ~CODEC_MASK) | codec
    return _assemble(
        header._replace(attributes=attributes), compress(codec, payload, level), crc32c
    )


def _assemble(
    header: BatchHeader, payload: bytes | bytearray, checksum: Callable[[Any], int]
) -> bytes:
    """Header fields and (compressed) records as bytes, with the right length and CRC."""
    tail = _AFTER_CRC.pack(*header[5:]) + payload
    head = _BEFORE_CRC.pack(
        header.base_offset,
        _BATCH_LENGTH_MIN + len(payload),
        header.partition_leader_epoch,
        header.magic,
        checksum(tail),
    )
    return head + tail


def _open_payload(batch: "Buffer", max_bytes: int) -> tuple[BatchHeader, bytes]:
    """The header, and the records' bytes without compression."""
    header = read_header(batch)
    if header.magic != MAGIC_V2:
        raise _wrong_magic(header.magic)
    if header.size_bytes != len(batch):
        raise _corrupt(f"the batch declares {header.size_bytes} bytes, {len(batch)} are given")
    if header.records_count < 0:
        raise _corrupt(f"the batch declares {header.records_count} records")
    with memoryview(batch) as view, view[HEADER_SIZE:] as stored:
        if header.codec == 0 or header.records_count == 0:
            payload = bytes(stored)
        else:
            payload = decompress(header.codec, stored, max_bytes=max_bytes)
    if header.records_count * _RECORD_SIZE_MIN > len(payload):
        raise _corrupt(f"{header.records_count} records do not fit in {len(payload)} bytes")
    return header, payload


def _read_bytes(payload: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    size, pos = read_varint(payload, pos)
    if size < 0:
        if size != -1:
            raise _corrupt(f"a key or value declares {size} bytes")
        return None, pos
    field_end = pos + size
    if field_end > end:
        raise _corrupt(f"a key or value of {size} bytes runs past its record")
    return payload[pos:field_end], field_end


def _read_record_headers(
    payload: bytes, pos: int, end: int, count: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if not 0 <= count <= end - pos:
        raise _corrupt(f"a record declares {count} headers in {end - pos} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, pos = _read_bytes(payload, pos, end)
        if key is None:
            raise _corrupt("a record header has no key")
        value, pos = _read_bytes(payload, pos, end)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), pos


def _append_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)  # the attributes byte, unused so far
    append_varint(body, record.timestamp - base_timestamp)
    append_varint(body, record.offset - base_offset)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    append_varint(body, len(record.headers))
    for key, value in record.headers:
        _append_bytes(body, key.encode("utf-8", "surrogateescape"))
        _append_bytes(body, value)
    append_varint(out, len(body))
    out += body


def _append_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1, zigzag
    else:
        append_varint(out, len(value))
        out += value


def _corrupt(what: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{what}; send the batch again")


def _invalid(what: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, what)


def _bad_length(batch_length: int) -> KafkaError:
    return _corrupt(f"a batch length of {batch_length} cannot be right")


def _wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return _invalid(
            f"message format v{magic} is not supported; use a client of Kafka 0.11 or newer,"
            " which sends v2"
        )
    return _corrupt(f"message format {magic} does not exist")
