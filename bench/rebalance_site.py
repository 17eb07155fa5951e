"""Where a step of the rebalance benchmark is measured: one broker, and its samples so far."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rebalance_group import wait_for_coordinator
from rebalance_table import DEFAULT, TUNED, Row
from rebalance_topics import ensure_topic, set_group_configs
from server_process import ServerProcess

# Kafka lets brokers go down to 1 ms; 100 ms is the shortest interval that the Java client keeps.
TUNED_HEARTBEAT_MS = 100
# After an event a group is left alone for as long as Kafka batches assignments (KIP-1263), so that
# every event meets a group at rest.
REST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What a consumer group is set to, and how long its members are silent when at rest."""

    name: str
    silence_s: float
    configs: Mapping[str, str] = field(default_factory=dict)


KAFKA_SETTINGS = (
    GroupSettings(name=DEFAULT, silence_s=5.0),
    GroupSettings(
        name=TUNED,
        silence_s=TUNED_HEARTBEAT_MS / 1000,
        configs={
            "consumer.heartbeat.interval.ms": str(TUNED_HEARTBEAT_MS),
            "consumer.assignment.interval.ms": "0",
        },
    ),
)
# Groups that set nothing keep Kafka's default interval: this is the limit for those that do.
KAFKA_OVERRIDES = (f"group.consumer.min.heartbeat.interval.ms={TUNED_HEARTBEAT_MS}",)
ANABRANCH_SETTINGS = (GroupSettings(name=DEFAULT, silence_s=2.0),)


class Site:
    """A broker that is awake."""

    def __init__(self, server: ServerProcess, settings: tuple[GroupSettings, ...]) -> None:
        self.server = server
        self.settings = settings
        self.samples: dict[Row, list[float]] = defaultdict(list)
        # What went wrong without being the end: groups that were never stable.
        self.failures: list[str] = []
        # Seconds for which a partition belonged to two librdkafka members, by their callbacks.
        self.double_ownerships: list[float] = []
        self._group_count = 0

    async def new_group(self, configs: Mapping[str, str] | None = None) -> str:
        """The id of a group that does not exist yet, once its coordinator answers."""
        self._group_count += 1
        group_id = f"group-{self._group_count}"
        await wait_for_coordinator(self.server.port, group_id)
        if configs:
            servers = self.server.bootstrap_servers
            await asyncio.to_thread(set_group_configs, servers, group_id, configs)
        return group_id

    async def topic(self, partition_count: int) -> str:
        """A topic with that many partitions."""
        name = f"rebalance-{partition_count}"
        servers = self.server.bootstrap_servers
        await asyncio.to_thread(ensure_topic, servers, name, partition_count)
        return name

    @contextmanager
    def cpu_of(self, row: Row, parts: float) -> Iterator[None]:
        """The broker's CPU time during the block, divided by `parts`, as a sample of the row."""
        before = self.server.cpu_seconds()
        yield
        self.samples[row].append((self.server.cpu_seconds() - before) * 1000 / parts)


def delays(count: int, choice: random.Random, interval_s: float) -> list[float]:
    """Parts of the heartbeat interval, evenly spread, in random order."""
    parts = [(place + 0.5) / count * interval_s for place in range(count)]
    choice.shuffle(parts)
    return parts
