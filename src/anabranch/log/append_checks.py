"""What a batch must be before it may be appended.

`check_header` is all that the plain path needs (create time, any codec, no compaction). The rest
costs more: a compacted topic has every record's key looked at, a topic with its own
`compression.type` has batches of another codec compressed again, and a topic with
`LogAppendTime` has the batch stamped.
"""

from struct import Struct
from typing import TypeAlias

from crc32c import crc32c

from anabranch.log.log_config import LogConfig
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.compression import CODEC_NAMES, ZSTD, codec_number
from anabranch.wire.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    check_batch,
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

PRODUCER_CODEC = -1
"""`compression.type=producer`: batches keep the codec they came with."""


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
    batch: memoryview, max_message_bytes: int, is_client: bool, zstd_allowed: bool
) -> HeaderFields:
    """The header of the one batch in `batch`; KafkaError when it may not be appended."""
    size = len(batch)
    if size > max_message_bytes:
        raise _too_large(size, max_message_bytes)
    if size < HEADER_SIZE:
        check_batch(batch)
    header: HeaderFields = _unpack_header(batch)
    (
        _, batch_length, _, magic, crc, attributes, last_offset_delta, _, _, producer_id,
        producer_epoch, base_sequence, records_count,
    ) = header  # fmt: skip
    if (
        batch_length != size - _LENGTH_PREFIX_SIZE
        or magic != 2
        or crc32c(batch[_CRC_COVERED_FROM:]) != crc
        or records_count != last_offset_delta + 1
        or records_count <= 0
        or (producer_id >= 0 and (base_sequence < 0 or producer_epoch < 0) and is_client)
    ):
        check_batch(batch)  # finds it too, and says it well
        raise AssertionError("check_batch passes a batch that check_header does not")
    if attributes & _ATTRIBUTES_NOT_PLAIN:
        _check_attributes(attributes, is_client=is_client, zstd_allowed=zstd_allowed)
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
        for _ in iter_records(batch):  # KafkaError when bytes and count disagree
            pass


def _check_attributes(attributes: int, *, is_client: bool, zstd_allowed: bool) -> None:
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
    if attributes & LOG_APPEND_TIME_FLAG:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            "clients may not set the timestamp type LogAppendTime; set the topic's"
            " message.timestamp.type instead",
        )
    if attributes & TRANSACTIONAL_FLAG:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            "the batch is transactional but no transaction is open on this partition;"
            " this broker does not serve transactions yet",
        )
    if attributes & ~CODEC_MASK:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"the batch sets reserved attributes ({attributes:#06x})"
        )


def check_timestamps(base: int, largest: int, config: LogConfig, now_ms: int) -> None:
    """Refuse timestamps too far from the broker's clock; -1 means that a record has none."""
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    for timestamp in (base, largest):
        if timestamp != -1 and not oldest_ms <= timestamp <= newest_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {timestamp} is not between {oldest_ms} and {newest_ms}; check the"
                " producer's clock or the topic's message.timestamp.before.max.ms and"
                " message.timestamp.after.max.ms",
            )


def rework_batch(batch: memoryview, config: LogConfig, codec: int, now_ms: int) -> memoryview:
    """The batch as a topic with special wishes stores it: keys checked, codec and time changed."""
    header = read_header(batch)
    if config.is_compacted and not header.is_control:
        _check_keys(batch)
    if codec not in (PRODUCER_CODEC, header.codec) and not header.is_control:
        batch = memoryview(bytearray(recompress(batch, codec)))
        if len(batch) > config.max_message_bytes:
            raise _too_large(len(batch), config.max_message_bytes)
    if config.is_log_append_time:
        set_log_append_time(batch, now_ms)
    return batch


def _check_keys(batch: memoryview) -> None:
    for record in iter_records(batch):
        if record.key is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                "the topic is compacted, so every record needs a key; send one or change the"
                " topic's cleanup.policy",
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
