"""What a batch must be before it may be appended.

`check_header` is all that the plain path needs (create time, any codec, no compaction). The rest
costs more: a compacted topic has every record's key looked at, a topic with its own
`compression.type` has batches of another codec compressed again, and a topic with
`LogAppendTime` has the batch stamped.

A batch that is refused for some of its records names them (KIP-467), so that a producer can tell
them from those that only travelled along. CORRUPT_MESSAGE is never said of records under a right
CRC: clients would send them again, to the same end.
"""

import contextlib
from collections.abc import Iterator
from struct import Struct
from typing import TypeAlias

from crc32c import crc32c

from anabranch.log.log_config import LogConfig
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.compression import CODEC_NAMES, ZSTD, codec_number
from anabranch.wire.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    DECOMPRESSED_BYTES_MAX,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Record,
    check_batch,
    clear_log_append_time,
    iter_records,
    read_header,
    recompress,
    set_log_append_time,
)

HeaderFields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of a BatchHeader in its order; a plain tuple is made in half the time."""

_unpack_header = Struct(">qiibIhiqqqhii").unpack_from
_LENGTH_PREFIX_SIZE = 12
_CRC_COVERED_FROM = 21
_RECORD_SIZE_MIN = 7  # length, attributes, two deltas, two null lengths, no headers: a byte each
_RECORDS_PER_BYTE_BELIEVED = 20
_ATTRIBUTES_NOT_PLAIN = ~0x03  # zstd, unknown codecs and every flag get a closer look
_ATTRIBUTES_OF_CLIENTS = CODEC_MASK | LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG

# A batch with more wrong records is refused without naming them: a small batch can hold millions.
_RECORD_ERRORS_MAX = 1_000
# How much of a batch is decompressed only to say which of its timestamps are wrong.
_REFUSED_BYTES_MAX = 16 * 1024 * 1024

_INT64_MIN = -(1 << 63)
_INT64_MAX = (1 << 63) - 1
_NO_KEY = (
    "the topic is compacted, so every record needs a key; send one or change the topic's"
    " cleanup.policy"
)

PRODUCER_CODEC = -1
"""`compression.type=producer`: batches keep the codec they came with."""


class RecordValidationError(KafkaError):
    """A batch refused because of some of its records.

    `record_errors` has the index in the batch of each, and what is wrong with it; it is empty
    where the fault is not in single records or cannot be told record by record.
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...] = ()
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def target_codec(config: LogConfig) -> int:
    """The codec that a topic's batches must have, or PRODUCER_CODEC."""
    match config.compression_type:
        case "producer":
            return PRODUCER_CODEC
        case "uncompressed":
            return 0
        case name:
            return codec_number(name)


def check_header(
    batch: memoryview,
    max_message_bytes: int,
    is_client: bool,
    zstd_allowed: bool,
    has_transactional_id: bool,
) -> HeaderFields:
    """The header of the one batch in `batch`; KafkaError when it may not be appended."""
    size = len(batch)
    if size > max_message_bytes:
        raise _too_large(size, max_message_bytes)
    if size < HEADER_SIZE:
        check_batch(batch)
    header: HeaderFields = _unpack_header(batch)
    (
        base_offset, batch_length, _, magic, crc, attributes, last_offset_delta, _, _, producer_id,
        producer_epoch, base_sequence, records_count,
    ) = header  # fmt: skip
    if (
        batch_length != size - _LENGTH_PREFIX_SIZE
        or magic != 2
        or crc32c(batch[_CRC_COVERED_FROM:]) != crc
        or records_count != last_offset_delta + 1
        or records_count <= 0
        or (
            is_client
            and (base_offset or (producer_id >= 0 and (base_sequence < 0 or producer_epoch < 0)))
        )
    ):
        check_batch(batch)  # finds it too, and says it well
        raise AssertionError("check_batch passes a batch that check_header does not")
    if attributes & _ATTRIBUTES_NOT_PLAIN:
        _check_attributes(
            attributes,
            is_client=is_client,
            zstd_allowed=zstd_allowed,
            has_transactional_id=has_transactional_id,
        )
    if records_count * _RECORD_SIZE_MIN > size - HEADER_SIZE:
        _check_count(batch, attributes & CODEC_MASK, records_count)
    return header


def _check_count(batch: memoryview, codec: int, records_count: int) -> None:
    """Refuse a count that the bytes cannot hold: offsets would leap, and segments with them.

    Compression makes many records of few bytes honestly, so a batch that claims very many is
    decompressed and counted; all others are believed.
    """
    if codec == 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{records_count} records do not fit in a batch of {len(batch)} bytes",
        )
    if records_count > _RECORDS_PER_BYTE_BELIEVED * len(batch):
        for _ in _records(batch):  # INVALID_RECORD when bytes and count disagree
            pass


def _check_attributes(
    attributes: int, *, is_client: bool, zstd_allowed: bool, has_transactional_id: bool
) -> None:
    """Refuse flags that are not the sender's to set, and codecs it may not use."""
    codec = attributes & CODEC_MASK
    if codec >= len(CODEC_NAMES):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"codec {codec} is not known; use one of {', '.join(CODEC_NAMES)}",
        )
    if codec == ZSTD and not zstd_allowed:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            "zstd needs Produce version 7 or newer; upgrade the client or use another codec",
        )
    if not is_client:
        return
    if attributes & CONTROL_FLAG:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "clients may not write control batches; only the broker does"
        )
    if attributes & TRANSACTIONAL_FLAG and not has_transactional_id:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the batch is transactional but the request has no transactional id",
        )
    if attributes & ~_ATTRIBUTES_OF_CLIENTS:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"the batch sets reserved attributes ({attributes:#06x})"
        )


def check_timestamps(
    batch: memoryview, base: int, largest: int, config: LogConfig, now_ms: int
) -> None:
    """Refuse timestamps too far from the broker's clock; -1 means that a record has none.

    The header decides. The records are looked at only to name those that are wrong.
    """
    oldest_ms, newest_ms = _timestamp_range(config, now_ms)
    wrong = [each for each in (base, largest) if each != -1 and not oldest_ms <= each <= newest_ms]
    if not wrong:
        return
    refusal = None
    if read_header(batch).records_count <= min(_RECORD_ERRORS_MAX, len(batch)):
        # Records that cannot be read cannot be named either.
        with contextlib.suppress(KafkaError):
            refusal = _refusal_of_records(batch, config, now_ms, max_bytes=_REFUSED_BYTES_MAX)
    why = _wrong_timestamp(wrong[0], oldest_ms, newest_ms)
    raise refusal or RecordValidationError(ErrorCode.INVALID_TIMESTAMP, why)


def rework_batch(
    batch: memoryview, config: LogConfig, codec: int, now_ms: int, *, is_client: bool
) -> memoryview:
    """The batch as a topic with special wishes stores it: keys checked, codec and time changed.

    The broker's own records have keys where they need them.
    """
    header = read_header(batch)
    if header.is_log_append_time:
        _take_back_append_time(batch, header, config)
    if config.is_compacted and is_client:
        refusal = _refusal_of_records(batch, config, now_ms)
        if refusal is not None:
            raise refusal
    if codec not in (PRODUCER_CODEC, header.codec) and not header.is_control:
        try:
            batch = memoryview(bytearray(recompress(batch, codec, level=config.compression_level)))
        except KafkaError as error:
            raise _unreadable(error) from None
        if len(batch) > config.max_message_bytes:
            raise _too_large(len(batch), config.max_message_bytes)
    if config.is_log_append_time:
        set_log_append_time(batch, now_ms)
    return batch


def _take_back_append_time(batch: memoryview, header: BatchHeader, config: LogConfig) -> None:
    """Undo a timestamp type that is the topic's to choose, where Kafka does, or refuse it."""
    if not config.is_log_append_time and header.max_timestamp != -1:
        clear_log_append_time(batch)
        return
    why = (
        "a producer may not set the timestamp type LogAppendTime; set the topic's"
        " message.timestamp.type instead"
    )
    named = range(header.records_count if header.records_count <= _RECORD_ERRORS_MAX else 0)
    errors = tuple((index, why) for index in named)
    raise RecordValidationError(ErrorCode.INVALID_TIMESTAMP, why, errors)


def _refusal_of_records(
    batch: memoryview, config: LogConfig, now_ms: int, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> RecordValidationError | None:
    """What the topic has against some of the records, found by reading them all."""
    needs_key = config.is_compacted
    oldest_ms, newest_ms = _timestamp_range(config, now_ms)
    code = ErrorCode.INVALID_RECORD
    errors: list[tuple[int, str]] = []
    for index, record in enumerate(_records(batch, max_bytes)):
        timestamp = record.timestamp
        if needs_key and record.key is None:
            errors.append((index, _NO_KEY))
        elif timestamp != -1 and not oldest_ms <= timestamp <= newest_ms:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append((index, _wrong_timestamp(timestamp, oldest_ms, newest_ms)))
        if len(errors) > _RECORD_ERRORS_MAX:
            return RecordValidationError(code, errors[0][1])
    if not errors:
        return None
    index, why = errors[0]
    return RecordValidationError(code, f"record {index}: {why}", tuple(errors))


def _timestamp_range(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """The oldest and the newest timestamp that the topic takes now."""
    if config.is_log_append_time:
        return _INT64_MIN, _INT64_MAX
    return (
        now_ms - config.message_timestamp_before_max_ms,
        now_ms + config.message_timestamp_after_max_ms,
    )


def _wrong_timestamp(timestamp: int, oldest_ms: int, newest_ms: int) -> str:
    if timestamp > newest_ms:
        limit, setting = f"later than {newest_ms}", "message.timestamp.after.max.ms"
    else:
        limit, setting = f"earlier than {oldest_ms}", "message.timestamp.before.max.ms"
    return (
        f"timestamp {timestamp} is {limit}; check that the producer sends milliseconds, its clock,"
        f" and the topic's {setting}"
    )


def _records(batch: memoryview, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Each record of a batch whose CRC is right."""
    try:
        yield from iter_records(batch, max_bytes=max_bytes)
    except KafkaError as error:
        raise _unreadable(error) from None


def _unreadable(error: KafkaError) -> KafkaError:
    what = error.message.partition(";")[0]
    return KafkaError(
        ErrorCode.INVALID_RECORD,
        f"the records cannot be read although the CRC is right: {what}; check how the producer"
        " builds and compresses them",
    )


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size} bytes, the topic takes {limit}; send smaller batches or raise"
        " max.message.bytes",
    )


def larger_than_segment(size: int, limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"the batch has {size} bytes, a segment holds {limit}; send smaller batches or raise"
        " segment.bytes",
    )
