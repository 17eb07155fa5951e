"""What the group coordinator needs to know of the broker's settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Kafka's names and defaults."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    # A member that has just joined gets this long until its first generation: it cannot send
    # heartbeats while its JoinGroup is parked. A constant in Kafka.
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
