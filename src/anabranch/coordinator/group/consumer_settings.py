"""What the coordinator needs to know of the settings of one consumer group."""

from dataclasses import dataclass
from enum import Enum


class MigrationPolicy(Enum):
    """Which protocol a living group may change to: `group.consumer.migration.policy`."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """`group.consumer.*`, after what is set for the group itself; Kafka's defaults but one."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    # Heartbeats per second that all members of the broker may add up to while nothing moves;
    # 0 gives everybody `heartbeat_interval_ms`, always.
    heartbeat_rate_budget: int = 500
    heartbeat_fast_interval_ms: int = 50
    # Kafka waits for 1,000 ms, and then for a heartbeat; a target costs microseconds here.
    assignment_interval_ms: int = 50
    max_size: int = 2**31 - 1
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    regex_refresh_interval_ms: int = 600_000
