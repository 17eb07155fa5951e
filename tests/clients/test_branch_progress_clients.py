"""Stock consumers of a branch topic: how far their group is with the source, and back to it."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.branch.slots import branch_of_slot, slot_of_key
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    BranchProgressPartition,
    BranchProgressQuestion,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from support.broker_process import BrokerProcess, wait_until
from support.confluent_client import QUICK
from support.raw_client import RawClient

SOURCE, BRANCHED = "orders", "orders.by-key"
RANGES = 8
GROUP = "billing"
TIMEOUT_S = 60
# One key in each of three ranges; the others have no records.
KEYS = [
    next(
        key for key in map(b"%d".__mod__, count()) if branch_of_slot(slot_of_key(key), RANGES) == r
    )
    for r in (1, 4, 6)
]
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


class Scene:
    """A broker with a projecting branch topic over a topic of one partition."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.settings: dict[str, Any] = {**QUICK, "bootstrap.servers": broker.bootstrap}
        self.admin = AdminClient(self.settings)
        self._create(NewTopic(SOURCE, 1, 1))
        configs = {"branch.source.topic": SOURCE, "branch.commit.source": "true"}
        self._create(NewTopic(BRANCHED, RANGES, 1, config=configs))

    def _create(self, topic: NewTopic) -> None:
        self.admin.create_topics([topic])[topic.topic].result(TIMEOUT_S)

    def produce(self, *keys: bytes) -> None:
        producer = Producer(self.settings)
        for key in keys:
            producer.produce(SOURCE, b"v", key=key, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    def consume(
        self, topic: str, records: int, protocol: str = "classic", wait_s: float = TIMEOUT_S
    ) -> list[int]:
        """Join, take so many records, commit, leave; their offsets."""
        consumer = Consumer(
            {
                **self.settings,
                "group.id": GROUP,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **({} if protocol == "consumer" else {"heartbeat.interval.ms": 100}),
            }
        )
        found: list[int] = []

        def poll() -> bool:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                found.append(offset)
            return len(found) >= records

        try:
            consumer.subscribe([topic])
            wait_until(poll, wait_s, period_s=0)
            if found:
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found

    def committed(self, topic: str) -> dict[int, int]:
        request = ConsumerGroupTopicPartitions(GROUP)
        answered = self.admin.list_consumer_group_offsets([request])[GROUP].result(TIMEOUT_S)
        return {tp.partition: tp.offset for tp in answered.topic_partitions if tp.topic == topic}

    def reset_branches(self, offset: int) -> None:
        parts = [TopicPartition(BRANCHED, index, offset) for index in range(RANGES)]
        request = ConsumerGroupTopicPartitions(GROUP, parts)
        self.admin.alter_consumer_group_offsets([request])[GROUP].result(TIMEOUT_S)

    def progress(self) -> BranchProgressPartition:
        client = RawClient(self.broker.bootstrap)
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[])],
            branch_progress=BranchProgressQuestion(),
        )
        try:
            (group,) = client.send(OFFSET_FETCH, 10, request).groups
        finally:
            client.close()
        assert group.branch_progress.error_code == 0, group.branch_progress.error_message
        (partition,) = group.branch_progress.partitions
        assert isinstance(partition, BranchProgressPartition)
        return partition

    def is_projected(self, offset: int) -> bool:
        return wait_until(lambda: self.committed(SOURCE) == {0: offset}, TIMEOUT_S)


@pytest.fixture
def scene(make_broker: Callable[..., BrokerProcess]) -> Iterator[Scene]:
    yield Scene(make_broker(**{"group.initial.rebalance.delay.ms": "0"}))


@PROTOCOLS
def test_an_idle_branch_does_not_hold_the_group_back(scene: Scene, protocol: str) -> None:
    """librdkafka commits its last record, or the end of a filler if it saw one before: both do."""
    scene.produce(KEYS[0], *[KEYS[1], KEYS[2]] * 20)
    assert sorted(scene.consume(BRANCHED, 41, protocol)) == list(range(41))
    commits = scene.committed(BRANCHED)
    assert len(commits) >= len(KEYS)
    assert set(commits.values()) <= {1, 40, 41}
    found = scene.progress()
    assert (found.stable_offset, found.unprocessed_records) == (41, 0)
    assert (found.committed_ranges, found.ranges) == (len(commits), RANGES)
    assert scene.is_projected(41)


def test_back_to_the_plain_topic_without_replay(scene: Scene) -> None:
    """A consumer of the source goes on after what the branches have done, and so does the group."""
    scene.produce(*KEYS * 10)
    assert len(scene.consume(BRANCHED, 30)) == 30
    assert scene.is_projected(30)
    scene.produce(*KEYS)
    assert scene.consume(SOURCE, 3) == [30, 31, 32]
    assert scene.committed(SOURCE) == {0: 33}
    assert scene.progress().stable_offset == 30
    scene.broker.kill()
    scene.broker.start()
    # Nothing is committed on branches any more, so this commit stands.
    assert scene.progress().stable_offset == 30
    scene.produce(*KEYS)
    assert scene.consume(SOURCE, 3) == [33, 34, 35]


def test_progress_survives_a_kill(scene: Scene) -> None:
    """What was projected is there again, and what was not yet follows from the commits."""
    scene.produce(*KEYS * 10)
    assert len(scene.consume(BRANCHED, 30)) == 30
    scene.broker.kill()
    scene.broker.start()
    assert scene.is_projected(30)
    found = scene.progress()
    assert (found.stable_offset, found.unprocessed_records) == (30, 0)
    scene.produce(*KEYS)
    found = scene.progress()
    assert (found.stable_offset, found.unprocessed_records) == (30, 3)


def test_a_reset_of_the_branches_is_followed(scene: Scene) -> None:
    """Downwards as well, and the consumers of the branches read again."""
    scene.produce(*KEYS * 10)
    assert len(scene.consume(BRANCHED, 30)) == 30
    assert scene.is_projected(30)
    scene.reset_branches(12)
    assert scene.is_projected(12)
    found = scene.progress()
    assert (found.stable_offset, found.unprocessed_records) == (12, 18)
    assert sorted(scene.consume(BRANCHED, 18)) == list(range(12, 30))
    assert scene.is_projected(30)
