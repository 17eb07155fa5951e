"""What a batch must be before it may be appended, beyond what `PartitionLog.append` checks inline.

The plain path (create time, any codec, no compaction) never comes here. What does come here costs
more: a topic that is compacted has every record's key looked at, a topic with its own
`compression.type` has batches of another codec compressed again, and a topic with
`LogAppendTime` has the batch stamped.
"""

from anabranch.log.log_config import LogConfig
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.compression import CODEC_NAMES, ZSTD, codec_number
from anabranch.wire.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    iter_records,
    read_header,
    recompress,
    set_log_append_time,
)

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


def check_attributes(attributes: int, *, is_client: bool, zstd_allowed: bool) -> None:
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


def rework_batch(
    batch: memoryview, config: LogConfig, codec: int, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The batch as a topic with special wishes stores it: keys checked, codec and time changed."""
    header = read_header(batch)
    if config.is_compacted and not header.is_control:
        _check_keys(batch)
    if codec != PRODUCER_CODEC and codec != header.codec and not header.is_control:
        batch = memoryview(bytearray(recompress(batch, codec)))
    if config.is_log_append_time:
        set_log_append_time(batch, now_ms)
    return batch, read_header(batch)


def _check_keys(batch: memoryview) -> None:
    for record in iter_records(batch):
        if record.key is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                "the topic is compacted, so every record needs a key; send one or change the"
                " topic's cleanup.policy",
            )


def too_large(size: int, limit: int) -> KafkaError:
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
