"""Polling and iterating: what is handed out, acknowledged, and stored."""

from fake_broker import FakeBroker
from loop_kit import ORDERS, give_all, in_loop, new_consumer, polled
from workload_kit import HALVES, key_in

from anabranch.client.consumer import CooperativeConsumer
from anabranch.client.records import KeyRange


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


@in_loop
async def test_iteration() -> None:
    """A record that is iterated over is started when it is returned, not before."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a", b"b", b"c"])
        async with new_consumer(broker) as consumer:
            seen = []
            async for record in consumer:
                seen.append(record.offset)
                assert consumer.progress().in_flight == 1
                consumer.ack(record)
                if len(seen) == 3:
                    break
            assert seen == [0, 1, 2]


@in_loop
async def test_nothing_to_poll() -> None:
    """A poll without records waits as long as it may, and returns none."""
    async with FakeBroker() as broker:
        give_all(broker)
        async with new_consumer(broker) as consumer:
            assert await consumer.poll() == []
            assert await consumer.poll(0.05) == []


@in_loop
async def test_records_that_come_later() -> None:
    """A poll that waits returns as soon as there is a record."""
    async with FakeBroker() as broker:
        give_all(broker)
        async with new_consumer(broker, fetch_max_wait_ms=30_000) as consumer:
            await consumer.poll()
            await broker.until(lambda: broker.sent("Fetch") or broker.members)
            broker.append("orders", [b"a"])
            assert len(await consumer.poll(20)) == 1


@in_loop
async def test_max_poll_records() -> None:
    """A poll returns at most so many records, the others come with the next ones."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(25)])
        async with new_consumer(broker, max_poll_records=10) as consumer:
            sizes = []
            while sum(sizes) < 25:
                sizes.append(len(await consumer.poll(5)))
            assert sizes == [10, 10, 5]


@in_loop
async def test_nack() -> None:
    """A record that could not be processed comes again, and is counted, its key behind it."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a", b"b", b"a"])
        async with new_consumer(broker) as consumer:
            first, other, later = await polled(consumer, 3)
            assert consumer.nack(first, retry_after_s=0.01, reason="no luck")
            assert consumer.may_start(other) and not consumer.may_start(later)
            consumer.ack(other)
            again = await polled(consumer, 2)
            assert [(one.offset, one.attempt) for one in again] == [(0, 2), (2, 1)]
            place = broker.unit("orders")[:2]
            await broker.until(lambda: broker.progress[place].attempts)
            (attempt,) = broker.progress[place].attempts.values()
            assert (attempt.count, attempt.reason) == (1, "no luck")


@in_loop
async def test_progress_goes_on_elsewhere() -> None:
    """Whoever comes next gets what was not acknowledged, and nothing else."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(10)])
        async with new_consumer(broker) as consumer:
            for record in await polled(consumer, 10):
                if record.offset not in (2, 7):
                    consumer.ack(record)
        assert broker.stable_offset("orders") == 2
        async with new_consumer(broker) as consumer:
            assert [record.offset for record in await polled(consumer, 2)] == [2, 7]


@in_loop
async def test_local_filter() -> None:
    """What is done is left out also by the member, whatever the broker sends."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(5)])
        async with new_consumer(broker) as consumer:
            for record in await polled(consumer, 5):
                if record.offset in (1, 3):
                    consumer.ack(record)
        broker._is_withheld = lambda *_: False  # type: ignore[method-assign]
        async with new_consumer(broker) as consumer:
            assert [record.offset for record in await polled(consumer, 3)] == [0, 2, 4]


@in_loop
async def test_auto_commit() -> None:
    """Progress is stored by itself."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a", b"b"])
        async with new_consumer(broker, auto_commit_interval_ms=10) as consumer:
            for record in await polled(consumer, 2):
                consumer.ack(record)
            await broker.until(lambda: broker.stable_offset("orders") == 2)


@in_loop
async def test_early_commit() -> None:
    """Progress is stored early when it takes many ranges to tell it, in requests of so many."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(21)])
        async with new_consumer(broker, max_num_ranges_to_commit=5) as consumer:
            records = await polled(consumer, 21)
            for record in records[1::2]:
                consumer.ack(record)
            place = broker.unit("orders")[:2]
            await broker.until(
                lambda: place in broker.progress and broker.progress[place].ranges_count >= 5
            )
            await consumer.commit()
            assert broker.progress[place].ranges_count == 10
            assert len(broker.sent("OffsetCommit")) >= 2


@in_loop
async def test_latest() -> None:
    """A group that begins at the end of the log stores where that was."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a", b"b"])
        async with new_consumer(broker, auto_offset_reset="latest") as consumer:
            await consumer.poll()
            await broker.until(lambda: broker.sent("Fetch"))
            await consumer.commit()
            assert broker.stable_offset("orders") == 2
            broker.append("orders", [b"c"])
            (record,) = await polled(consumer, 1)
            assert record.offset == 2


@in_loop
async def test_standalone_offsets() -> None:
    """Ranges without a group begin where they are told to."""
    async with FakeBroker() as broker:
        broker.create("orders")
        broker.append("orders", [b"a", b"b", b"c"])
        async with new_consumer(broker, group_id=None) as consumer:
            consumer.assign({ORDERS: []}, offsets={ORDERS: 1})
            assert [record.offset for record in await polled(consumer, 2)] == [1, 2]


@in_loop
async def test_standalone_with_a_group() -> None:
    """Ranges that were assigned by hand store their progress in a group that has no members."""
    async with FakeBroker() as broker:
        broker.create("orders")
        broker.append("orders", [b"a", b"b", b"c"])
        half = KeyRange.equal(2)
        for _ in range(2):
            consumer = CooperativeConsumer(
                bootstrap_servers=broker.bootstrap, group_id="workers", fetch_max_wait_ms=20
            )
            async with consumer:
                consumer.assign({ORDERS: half})
                for record in await consumer.poll(2):
                    consumer.ack(record)
                await consumer.commit()
                assert broker.stable_offset("orders") == 3
        (request, *_) = broker.sent("OffsetCommit")
        assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1)


@in_loop
async def test_assign_again() -> None:
    """Another assignment takes the place of the former one."""
    async with FakeBroker() as broker:
        broker.create("orders", partitions=2)
        broker.append("orders", [b"a"])
        broker.append("orders", [b"b"], partition=1)
        async with new_consumer(broker, group_id=None) as consumer:
            consumer.assign({ORDERS: []})
            assert [one.partition for one in await polled(consumer, 1)] == [0]
            consumer.assign({ORDERS._replace(partition=1): []})
            assert [one.partition for one in await polled(consumer, 1)] == [1]


@in_loop
async def test_ordering_header() -> None:
    """Records are ordered, and found, by the header that the topic names."""
    async with FakeBroker() as broker:
        broker.create("orders", branch_ordering_key_header="customer")
        low, high = (key_in(half) for half in HALVES)
        for owner in (low, high, low):
            broker.append("orders", [b"k"], headers=(("customer", owner),))
        async with new_consumer(broker, group_id=None) as consumer:
            consumer.assign({ORDERS: [KeyRange.equal(2)[0]]})
            records = await polled(consumer, 2)
            assert [one.offset for one in records] == [0, 2]
            assert records[0].headers == (("customer", low),)
            assert records[0].header("customer") == low and records[0].header("other") is None


@in_loop
async def test_ordered_null_keys() -> None:
    """Where records without a key are ordered, all of them are in the first range."""
    async with FakeBroker() as broker:
        broker.create("orders", branch_null_key="ordered")
        broker.append("orders", [None] * 200)
        async with new_consumer(broker, group_id=None) as consumer:
            consumer.assign({ORDERS: [KeyRange.equal(16)[0]]})
            assert len(await polled(consumer, 200)) == 200


@in_loop
async def test_progress() -> None:
    """How far a consumer is can be seen, by range and in total."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(10)])
        async with new_consumer(broker) as consumer:
            records = await polled(consumer, 4)
            consumer.ack(records[0])
            await consumer.commit()
            progress = consumer.progress()
            (one,) = progress.ranges
            assert (one.topic, one.partition, one.key_range) == ("orders", 0, KeyRange.whole())
            assert (one.watermark, one.position, one.high_watermark) == (1, 10, 10)
            assert (one.in_flight, one.buffered, one.state) == (3, 6, "active")
            assert (progress.lag_records, progress.is_lag_exact) == (9, True)
            assert progress.stable_offsets == {ORDERS: 1}
            assert progress.member_id in broker.members
            assert 0 < progress.lease_left_s <= 27
