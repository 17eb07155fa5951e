"""Three switches have to agree before members share a partition: the broker's
(`group.individual.commit.enable`), the topic's (`range.fetch.enable`) and the consumer's own (that
it is one of ours). What happens when one of them is off, or is turned off while members work."""

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer
from loop_kit import in_loop, polled

from anabranch.client import (
    CooperativeConsumer,
    IndividualCommitNotAllowedError,
    KeyRange,
    RangeFetchNotAllowedError,
    TopicPartition,
    group_progress,
)
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.confluent_client import QUICK
from support.raw_client import RawClient
from support.topics import alter_brokers, alter_topic, create_topic

BROKER_SWITCH = "group.individual.commit.enable"
TOPIC_SWITCH = "range.fetch.enable"
TIMEOUT_S = 60
RECORDS = 20
_numbers = count(1)


class Scene:
    """A topic of one partition with some records, and a group."""

    def __init__(self, broker: BrokerProcess, *, is_shareable: bool = True) -> None:
        self.bootstrap = broker.bootstrap
        number = next(_numbers)
        self.topic, self.group = f"switched-{number}", f"switching-{number}"
        configs = {TOPIC_SWITCH: "true"} if is_shareable else {}
        create_topic(self.bootstrap, self.topic, 1, configs)
        self.produce()

    def produce(self, number: int = RECORDS) -> None:
        records = [Record(i, 0, b"%d" % i, b"") for i in range(number)]
        batch = build_batch(records, base_offset=0, partition_leader_epoch=-1)
        with RawClient(self.bootstrap) as client:
            assert client.produce(self.topic, 0, batch).error_code == 0

    def member(self, **options: Any) -> CooperativeConsumer:
        consumer = CooperativeConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_commit_interval_ms=None,
            fetch_max_wait_ms=100,
            **options,
        )
        consumer.subscribe(self.topic)
        return consumer

    def stock_member(self) -> Consumer:
        consumer = Consumer(
            {
                **QUICK,
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self.topic])
        return consumer

    def turn_topic(self, is_on: bool) -> None:
        alter_topic(self.bootstrap, self.topic, {TOPIC_SWITCH: str(is_on).lower()})

    def turn_broker(self, is_on: bool) -> None:
        alter_brokers(self.bootstrap, {BROKER_SWITCH: str(is_on).lower()})

    async def stable_offset(self) -> int | None:
        asked = [TopicPartition(self.topic, 0)]
        (found,) = (await group_progress(self.bootstrap, self.group, partitions=asked)).partitions
        return found.stable_offset


def read_by_stock(scene: Scene, number: int) -> list[int]:
    """The offsets that an ordinary consumer reads, which it then commits."""
    consumer = scene.stock_member()
    try:
        offsets: list[int] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(offsets) < number and time.monotonic() < deadline_s:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                offsets.append(message.offset())
        consumer.commit(asynchronous=False)
        return offsets
    finally:
        consumer.close()


# All on, and one off ------------------------------------------------------------------------------


@in_loop
async def test_all_on(shared_broker: BrokerProcess) -> None:
    """Two members have the partition between them."""
    scene = Scene(shared_broker)
    async with scene.member() as one, scene.member() as other:
        ranges: list[KeyRange] = []
        while len(ranges) != 2:
            for member in (one, other):
                for record in await member.poll(0.05):
                    member.ack(record)
            ranges = [r.key_range for m in (one, other) for r in m.progress().ranges]
        assert KeyRange.whole() not in ranges


@in_loop
async def test_broker_off(make_broker: Callable[..., BrokerProcess]) -> None:
    """A member is told when it connects, before it joins; ordinary consumers do not notice, and a
    reader of ranges without a group commits nothing and is served."""
    broker = make_broker(**{BROKER_SWITCH: "false"})
    scene = Scene(broker)
    async with scene.member() as member:
        with pytest.raises(IndividualCommitNotAllowedError, match=f"{BROKER_SWITCH}=true"):
            await polled(member, 1)
    assert (await group_progress(broker.bootstrap, scene.group)).state is None
    assert read_by_stock(scene, RECORDS) == list(range(RECORDS))
    async with CooperativeConsumer(bootstrap_servers=broker.bootstrap) as reader:
        reader.assign({TopicPartition(scene.topic, 0): KeyRange.equal(2)})
        assert len(await polled(reader, RECORDS)) == RECORDS


@in_loop
async def test_topic_off(shared_broker: BrokerProcess) -> None:
    """A member is told with the first fetch what to set; ordinary consumers do not notice."""
    scene = Scene(shared_broker, is_shareable=False)
    async with scene.member() as member:
        with pytest.raises(RangeFetchNotAllowedError, match=f"{TOPIC_SWITCH}=true"):
            await polled(member, 1)
    assert read_by_stock(scene, RECORDS) == list(range(RECORDS))


@in_loop
async def test_consumer_off(shared_broker: BrokerProcess) -> None:
    """A consumer that is not one of ours owns the partition whole, and another one has nothing."""
    scene = Scene(shared_broker)
    one, other = scene.stock_member(), scene.stock_member()
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        owned: list[int] = []
        while sorted(owned) != [0, 1]:
            assert time.monotonic() < deadline_s, owned
            for consumer in (one, other):
                consumer.poll(0.05)
            owned = [len(consumer.assignment()) for consumer in (one, other)]
        found = await group_progress(scene.bootstrap, scene.group)
        assert [row.key_range for row in found.partitions[0].ranges] == [KeyRange.whole()]
    finally:
        one.close()
        other.close()


# Turned off while members work --------------------------------------------------------------------


@in_loop
async def test_broker_turned_off(make_broker: Callable[..., BrokerProcess]) -> None:
    """The next commit says so and ends the consumer; what was stored before stays, and the group
    goes on from there when it is turned on again, or with ordinary consumers from the stable
    offset."""
    scene = Scene(make_broker())
    async with scene.member() as member:
        records = {record.offset: record for record in await polled(member, RECORDS)}
        for offset in (0, 1, 5):
            member.ack(records[offset])
        await member.commit()
        scene.turn_broker(False)
        member.ack(records[6])
        with pytest.raises(IndividualCommitNotAllowedError, match=f"{BROKER_SWITCH}=true"):
            await member.commit()
    async with scene.member() as member:
        with pytest.raises(IndividualCommitNotAllowedError):
            await polled(member, 1)
    scene.turn_broker(True)
    async with scene.member() as member:
        left = [record.offset for record in await polled(member, RECORDS - 3)]
        assert sorted(left) == [offset for offset in range(RECORDS) if offset not in (0, 1, 5)]
    scene.turn_broker(False)
    assert read_by_stock(scene, RECORDS - 2) == list(range(2, RECORDS))
    assert await scene.stable_offset() == RECORDS


@in_loop
async def test_commits_by_themselves_end_too(make_broker: Callable[..., BrokerProcess]) -> None:
    """So does a commit that nobody waits for: the next poll raises it."""
    scene = Scene(make_broker())
    consumer = CooperativeConsumer(
        bootstrap_servers=scene.bootstrap, group_id=scene.group, auto_commit_interval_ms=20
    )
    async with consumer:
        consumer.subscribe(scene.topic)
        records = await polled(consumer, RECORDS)
        scene.turn_broker(False)
        consumer.ack(records[0])
        with pytest.raises(IndividualCommitNotAllowedError):
            while True:
                assert await consumer.poll(0.1) == []


@in_loop
async def test_topic_turned_off(shared_broker: BrokerProcess) -> None:
    """Members stop with the next fetch, and still store what they have done, where they had stored
    something before; then the group goes on with ordinary consumers, from the stable offset."""
    scene = Scene(shared_broker)
    async with scene.member() as member:
        records = {record.offset: record for record in await polled(member, RECORDS)}
        member.ack(records[0])
        await member.commit()
        scene.turn_topic(False)
        for offset in (1, 2, 7):
            member.ack(records[offset])
        await member.commit()
        assert await scene.stable_offset() == 3
        with pytest.raises(RangeFetchNotAllowedError, match=f"{TOPIC_SWITCH}=true"):
            while True:
                assert await member.poll(0.1) == []
    assert read_by_stock(scene, RECORDS - 3) == list(range(3, RECORDS))
    scene.turn_topic(True)
    scene.produce()
    async with scene.member() as member:
        again = [record.offset for record in await polled(member, RECORDS)]
        assert sorted(again) == list(range(RECORDS, 2 * RECORDS))
