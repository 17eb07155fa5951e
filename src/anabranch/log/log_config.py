"""What a partition's log needs to know of its topic's configuration."""

from dataclasses import dataclass
from typing import Final

INT64_MAX: Final = 2**63 - 1

DELETE: Final = "delete"
COMPACT: Final = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """A topic's log settings under Kafka's names and defaults; `segment.ms` is `segment_ms` here.

    The broker builds it from topic and broker settings and may hand a log a new one at any time.
    """

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 * 1024**2
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({DELETE})
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 3600 * 1000
    compression_type: str = "producer"
    # The level for the codec above; None for the codec's own default.
    compression_level: int | None = None
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    file_delete_delay_ms: int = 60 * 1000
    producer_id_expiration_ms: int = 24 * 3600 * 1000

    @property
    def is_compacted(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def is_deleted_by_retention(self) -> bool:
        return DELETE in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is closed.

        Only closed segments can be compacted, so `max.compaction.lag.ms` shortens `segment.ms`.
        """
        if self.is_compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms
