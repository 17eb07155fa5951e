"""What the tests of `anabranch groups` prepare with a client: topics, offsets, living members."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.confluent_client import QUICK

TIMEOUT_S = 60


class GroupsKit:
    """Prepares one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({**QUICK, "bootstrap.servers": bootstrap})

    def topic(self, name: str, records: int = 0, partitions: int = 3) -> str:
        """A new topic with so many records in each partition, a second apart from T0 on."""
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(TIMEOUT_S)
        producer = Producer({**QUICK, "bootstrap.servers": self.bootstrap})
        for number in range(records):
            for partition in range(partitions):
                producer.produce(
                    name, str(number), partition=partition, timestamp=T0_MS + number * 1000
                )
        assert producer.flush(TIMEOUT_S) == 0
        return name

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commit for a group without joining it."""
        request = ConsumerGroupTopicPartitions(
            group, [TopicPartition(topic, partition, at) for partition, at in offsets.items()]
        )
        answered = self.admin.alter_consumer_group_offsets([request])[group].result(TIMEOUT_S)
        assert all(each.error is None for each in answered.topic_partitions)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        request = ConsumerGroupTopicPartitions(group)
        answered = self.admin.list_consumer_group_offsets([request])[group].result(TIMEOUT_S)
        return {(each.topic, each.partition): each.offset for each in answered.topic_partitions}

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        key = TopicPartition(topic, partition, before)
        self.admin.delete_records([key])[key].result(TIMEOUT_S)

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(TIMEOUT_S)

    @contextlib.contextmanager
    def member(
        self, group: str, topic: str, *, owning: int | None = None, **settings: Any
    ) -> Iterator[Consumer]:
        """A consumer that has joined; with `owning` once it has so many partitions.

        A setting of None is left out.
        """
        config: dict[str, Any] = {
            **QUICK,
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,  # how soon a member hears of a rebalance
            "auto.offset.reset": "earliest",
            "client.id": f"{group}-client",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        consumer = Consumer({name: value for name, value in config.items() if value is not None})
        try:
            consumer.subscribe([topic])
            if owning is not None:
                wait_for_partitions(consumer, owning)
            yield consumer
        finally:
            close(consumer)


def close(consumer: Consumer) -> None:
    """Close a consumer; one whose close never returns is left behind.

    librdkafka may wait for itself for ever when it is closed in the middle of a rebalance (seen
    once in rd_kafka_assign, long after it had left the group), where no time limit of a test
    reaches it.
    """
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(TIMEOUT_S)


def wait_for_partitions(consumer: Consumer, count: int) -> None:
    """Let the consumer work until it owns exactly so many partitions."""
    deadline = time.monotonic() + TIMEOUT_S
    while len(consumer.assignment()) != count:
        assert time.monotonic() < deadline, f"{consumer.assignment()} are not {count} partitions"
        consumer.poll(0.05)


T0_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
