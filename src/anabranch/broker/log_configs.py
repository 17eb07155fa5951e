"""From settings under Kafka's names to what a partition log works with."""

from collections.abc import Mapping
from typing import Any

from anabranch.log.log_config import LogConfig

# Topic setting -> field of LogConfig, where the field is the name with underscores.
_SAME_NAME = (
    "segment.bytes",
    "segment.ms",
    "segment.index.bytes",
    "index.interval.bytes",
    "retention.ms",
    "retention.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "max.message.bytes",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "compression.type",
    "flush.messages",
    "flush.ms",
    "file.delete.delay.ms",
)

_LZ4_LEVEL_DEFAULT = 9
_LZ4_LEVEL_MAX = 16  # of the library; Kafka's counts to 17


def make_log_config(values: Mapping[str, Any], producer_id_expiration_ms: int) -> LogConfig:
    """Build the log's view of a topic's effective settings."""
    fields: dict[str, Any] = {name.replace(".", "_"): values[name] for name in _SAME_NAME}
    return LogConfig(
        **fields,
        compression_level=_compression_level(values),
        cleanup_policy=frozenset(values["cleanup.policy"]),
        producer_id_expiration_ms=producer_id_expiration_ms,
    )


def _compression_level(values: Mapping[str, Any]) -> int | None:
    """The level of the topic's own codec; Kafka's default for lz4, 9, means its fast compressor."""
    codec = values["compression.type"]
    if codec not in ("gzip", "lz4", "zstd"):
        return None
    level: int = values[f"compression.{codec}.level"]
    if codec == "lz4":
        return None if level == _LZ4_LEVEL_DEFAULT else min(level, _LZ4_LEVEL_MAX)
    return level
