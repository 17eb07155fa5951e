"""Topics and group settings for the rebalance benchmark, through the stock admin client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from rebalance_protocol import RebalanceError

_LIMIT_S = 60


def _admin(bootstrap_servers: str) -> AdminClient:
    # A client for each use: the broker may have been frozen since the last one.
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def ensure_topic(bootstrap_servers: str, topic: str, partition_count: int) -> None:
    """Create the topic unless it exists, and wait until all its partitions have leaders."""
    admin = _admin(bootstrap_servers)
    if topic not in admin.list_topics(timeout=_LIMIT_S).topics:
        new = NewTopic(topic, num_partitions=partition_count, replication_factor=1)
        admin.create_topics([new], request_timeout=_LIMIT_S)[topic].result(_LIMIT_S)
    deadline_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline_s:
        found = admin.list_topics(topic, timeout=_LIMIT_S).topics[topic]
        leaders = [partition.leader for partition in found.partitions.values()]
        if len(leaders) == partition_count and min(leaders) >= 0:
            return
        time.sleep(0.1)
    raise RebalanceError(f"{topic} has no leaders after {_LIMIT_S} s")


class Growth:
    """More partitions for a topic; the connection is open before the clock starts."""

    def __init__(self, bootstrap_servers: str, topic: str, partition_count: int) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._admin = _admin(bootstrap_servers)
        self._admin.list_topics(topic, timeout=_LIMIT_S)

    async def create(self) -> None:
        await asyncio.to_thread(self._create)

    def _create(self) -> None:
        new = NewPartitions(self._topic, self._partition_count)
        self._admin.create_partitions([new])[self._topic].result(_LIMIT_S)


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    admin = _admin(bootstrap_servers)
    admin.delete_topics([topic])[topic].result(_LIMIT_S)


def set_group_configs(bootstrap_servers: str, group_id: str, configs: Mapping[str, str]) -> None:
    if not configs:
        return
    resource = ConfigResource(
        ConfigResource.Type.GROUP,
        group_id,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ],
    )
    admin = _admin(bootstrap_servers)
    for result in admin.incremental_alter_configs([resource]).values():
        result.result(_LIMIT_S)
