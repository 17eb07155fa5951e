"""Polling and iterating: what is handed out, acknowledged, and stored."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fake_broker import FakeBroker
from workload_kit import HALVES, key_in

from anabranch.client.consumer import CooperativeConsumer
from anabranch.client.records import ConsumerRecord, KeyRange, TopicPartition

ORDERS = TopicPartition("orders", 0)


def in_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that runs in an event loop."""

    def test() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await scenario()

        asyncio.run(bounded())

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    return test


async def polled(consumer: CooperativeConsumer, count: int) -> list[ConsumerRecord]:
    """Exactly so many records."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        records += await consumer.poll(5, max_records=count - len(records))
    return records


@in_loop
async def test_standalone_whole_partition() -> None:
    """A partition without ranges is the whole partition, from its beginning."""
    async with FakeBroker() as broker:
        broker.create("orders")
        broker.append("orders", [b"a", b"b", None, b"a"])
        async with CooperativeConsumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign({ORDERS: []})
            records = await polled(consumer, 4)
        assert [(one.offset, one.key, one.value) for one in records] == [
            (0, b"a", b"0"),
            (1, b"b", b"1"),
            (2, None, b"2"),
            (3, b"a", b"3"),
        ]
        assert (records[0].topic, records[0].partition, records[0].timestamp) == ("orders", 0, 1000)


@in_loop
async def test_standalone_ranges() -> None:
    """Two consumers with half of the keys each have every record once."""
    async with FakeBroker() as broker:
        broker.create("orders")
        keys = [key_in(HALVES[i % 2], i % 5) for i in range(20)]
        broker.append("orders", keys)
        found: list[list[int]] = []
        for half in KeyRange.equal(2):
            async with CooperativeConsumer(bootstrap_servers=broker.bootstrap) as consumer:
                consumer.assign({ORDERS: [half]})
                found.append([one.offset for one in await polled(consumer, 10)])
        assert found == [list(range(0, 20, 2)), list(range(1, 20, 2))]


@in_loop
async def test_group_of_one() -> None:
    """A member that subscribes is given ranges, acknowledges, and its progress is stored."""
    async with FakeBroker() as broker:
        broker.create("orders")
        broker.append("orders", [b"a", b"b", b"c"])
        broker.on_join = lambda member: broker.give(member, {broker.unit("orders"): 3})
        consumer = CooperativeConsumer(bootstrap_servers=broker.bootstrap, group_id="workers")
        consumer.subscribe(["orders"])
        records = await polled(consumer, 3)
        assert {one.token.epoch for one in records} == {3}
        assert [consumer.ack(one) for one in records] == [True, True, True]
        await consumer.commit()
        assert broker.stable_offset("orders") == 3
        await consumer.close()
        assert broker.members == {}
