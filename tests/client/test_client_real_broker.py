"""The client and a real broker."""

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from loop_kit import ORDERS, in_loop, polled

from anabranch.client import (
    Backoff,
    ConsumerRecord,
    CooperativeConsumer,
    IndividualCommitNotAllowedError,
    KeyRange,
    RangeFetchNotAllowedError,
    RejectRecord,
)
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess, wait_until
from support.raw_client import RawClient
from support.topics import create_topic

SHARED = {"range.fetch.enable": "true"}


def produce(broker: BrokerProcess, count: int, keys: int = 50, codec: int = 0) -> None:
    chance = random.Random(count)
    with RawClient(broker.bootstrap) as client:
        for first in range(0, count, 100):
            records = [
                Record(i, 0, b"k%d" % chance.randrange(keys), b"v%d" % (first + i))
                for i in range(min(100, count - first))
            ]
            batch = build_batch(records, base_offset=0, partition_leader_epoch=-1, codec=codec)
            assert client.produce("orders", 0, batch).error_code == 0


def committed(broker: BrokerProcess, group: str = "workers") -> int:
    """The group's ordinary committed offset, as every client sees it."""
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id=group, topics=topics)
    with RawClient(broker.bootstrap) as client:
        answer = client.send(OFFSET_FETCH, 9, OffsetFetchRequest(groups=[asked]))
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


def new_member(broker: BrokerProcess, **options: Any) -> CooperativeConsumer:
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": "workers",
        "auto_commit_interval_ms": 100,
        "fetch_max_wait_ms": 200,
        "retry_backoff_ms": 20,
        **options,
    }
    consumer = CooperativeConsumer(**settings)
    consumer.subscribe("orders")
    return consumer


class Crew:
    """Members in one process, whose handlers check the order of keys over all of them."""

    def __init__(self, broker: BrokerProcess, work_s: float = 0.001) -> None:
        self.broker = broker
        self.work_s = work_s
        self.counts: Counter[int] = Counter()
        self.by_key: dict[bytes | None, list[int]] = defaultdict(list)
        self.running: set[bytes | None] = set()
        self.members: list[CooperativeConsumer] = []
        self.tasks: list[asyncio.Future[None]] = []
        self._changed = asyncio.Event()

    def join(self, **options: Any) -> CooperativeConsumer:
        member = new_member(self.broker, **options)
        self.members.append(member)
        work = member.run(self.handle, concurrency=8, handle_signals=False)
        self.tasks.append(asyncio.ensure_future(work))
        return member

    async def handle(self, record: ConsumerRecord) -> None:
        assert record.key not in self.running, "two of a key at once"
        self.running.add(record.key)
        try:
            await asyncio.sleep(self.work_s)
            self.counts[record.offset] += 1
            self.by_key[record.key].append(record.offset)
        finally:
            self.running.discard(record.key)
            self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def finish(self, total: int) -> None:
        """Wait until all is done, and told; also by owners of ranges that have no records.

        A range that changed hands last and holds no key keeps the stable offset back until its
        new owner has looked, which is after the last record when the machine is busy.
        """
        await self.until(lambda: len(self.counts) == total)
        while await asyncio.to_thread(committed, self.broker) < total:
            await asyncio.sleep(0.02)
        for member in self.members:
            await member.close()
        await asyncio.gather(*self.tasks)

    def check_order(self) -> None:
        """Every key went through in order, also where it went back and through again."""
        for offsets in self.by_key.values():
            reached = -1
            for offset in offsets:
                known = [one for one in offsets if one <= reached]
                assert offset > reached or offset in known
                reached = max(reached, offset)
            assert list(dict.fromkeys(offsets)) == sorted(set(offsets))


def test_members_come_and_go(broker: BrokerProcess) -> None:
    """Members share one partition while others come and go; nothing is lost, doubled or swapped."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 4000)

    @in_loop
    async def scenario() -> None:
        crew = Crew(broker)
        for goal in (200, 600, 1000):
            crew.join()
            await crew.until(lambda goal=goal: len(crew.counts) >= goal)  # type: ignore[misc]
        await crew.members[0].close()
        await crew.until(lambda: len(crew.counts) >= 2000)
        crew.join()
        await crew.finish(4000)
        assert set(crew.counts.values()) == {1}
        assert all(offsets == sorted(offsets) for offsets in crew.by_key.values())
        assert committed(broker) == 4000

    scenario()


def test_a_committed_offset_beyond_the_end(broker: BrokerProcess) -> None:
    """Somebody committed too much: the group goes on at the end, and commits what is true."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 100)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5000)
    topic = OffsetCommitRequestTopic(name="orders", partitions=[partition])
    with RawClient(broker.bootstrap) as client:
        request = OffsetCommitRequest(group_id="workers", topics=[topic])
        assert client.send(OFFSET_COMMIT, 8, request).topics[0].partitions[0].error_code == 0

    @in_loop
    async def scenario() -> None:
        crew = Crew(broker)
        crew.join()
        await asyncio.to_thread(wait_until, lambda: crew.members[0].progress().ranges)
        await asyncio.to_thread(produce, broker, 50)
        await crew.until(lambda: len(crew.counts) == 50)
        assert min(crew.counts) == 100
        await crew.members[0].close()
        await asyncio.gather(*crew.tasks)
        assert committed(broker) == 150

    scenario()


def test_broker_restarts(broker: BrokerProcess) -> None:
    """A broker that dies and comes back finds its members again; little is done twice."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 3000)

    @in_loop
    async def scenario() -> None:
        crew = Crew(broker)
        for _ in range(3):
            crew.join()
        await crew.until(lambda: len(crew.counts) >= 1000)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await crew.finish(3000)
        crew.check_order()
        assert committed(broker) == 3000

    scenario()


def test_member_vanishes(make_broker: Callable[..., BrokerProcess]) -> None:
    """The ranges of a member that is gone without a word go to the others, from its last commit."""
    broker = make_broker(
        **{
            "group.consumer.session.timeout.ms": "1500",
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.heartbeat.interval.ms": "300",
            "group.consumer.min.heartbeat.interval.ms": "100",
        }
    )
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 3000)

    @in_loop
    async def scenario() -> None:
        crew = Crew(broker, work_s=0.002)
        doomed = crew.join()
        await crew.until(lambda: len(crew.counts) >= 300)
        crew.join()
        await crew.until(lambda: len(crew.counts) >= 800)
        # As if the process had died: nothing of it is heard or done any more.
        crew.tasks.pop(0).cancel()
        await doomed._tasks.stop()
        assert doomed._fetcher is not None
        await doomed._fetcher.stop()
        crew.members.pop(0)
        await crew.finish(3000)
        crew.check_order()
        # What it had done and not told: on a busy machine that is more than one interval's work.
        assert sum(count - 1 for count in crew.counts.values()) <= 800
        assert committed(broker) == 3000
        await doomed._core.cluster.close()

    scenario()


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_records(broker: BrokerProcess, codec: int) -> None:
    """Records of all codecs are read."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 300, codec=codec)

    @in_loop
    async def scenario() -> None:
        async with new_member(broker) as consumer:
            records = await polled(consumer, 300)
            assert [record.value for record in records] == [b"v%d" % i for i in range(300)]

    scenario()


def test_attempts_are_counted_by_the_broker(make_broker: Callable[..., BrokerProcess]) -> None:
    """A record that fails at one member is tried again at the next one, as its next attempt."""
    broker = make_broker(**{"coop.retry.backoff.ms": "10"})
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 5, keys=1)

    @in_loop
    async def scenario() -> None:
        async with new_member(broker) as consumer:
            (record, *_) = await polled(consumer, 5)
            consumer.nack(record, retry_after_s=0.01, reason="no luck")
            await consumer.commit()
        seen: list[tuple[int, int]] = []
        async with new_member(broker) as consumer:

            async def handle(record: ConsumerRecord) -> None:
                seen.append((record.offset, record.attempt))
                if record.offset == 0 and record.attempt < 4:
                    raise ValueError("still no luck")
                if record.offset == 4:
                    consumer.stop()

            await consumer.run(handle, retry=Backoff(0.01, 0.02), handle_signals=False)
        assert seen == [(0, 2), (0, 3), (0, 4), (1, 1), (2, 1), (3, 1), (4, 1)]
        assert committed(broker) == 5

    scenario()


def test_rejected_record_blocks_its_key_only(broker: BrokerProcess) -> None:
    """A record that is not to be tried again holds back its key, and nothing else."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 400, keys=20)

    @in_loop
    async def scenario() -> None:
        seen: dict[bytes | None, list[int]] = defaultdict(list)
        bad = b"k7"
        done = asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            seen[record.key].append(record.offset)
            if record.key == bad:
                raise RejectRecord("never")
            if sum(len(some) for key, some in seen.items() if key != bad) == others:
                done.set()

        with RawClient(broker.bootstrap) as client:
            records = client.read_all("orders", 0)
        others = sum(record.key != bad for record in records)
        first_bad = min(record.offset for record in records if record.key == bad)
        async with new_member(broker) as consumer:
            running = asyncio.ensure_future(consumer.run(handle, handle_signals=False))
            await done.wait()
            consumer.stop()
            await running
        assert seen[bad] == [first_bad]
        assert committed(broker) == first_bad

    scenario()


def test_by_hand(broker: BrokerProcess) -> None:
    """Ranges without a group's assignment: every record in one of them, progress in the group."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 500)

    @in_loop
    async def scenario() -> None:
        seen: Counter[int] = Counter()
        for one in KeyRange.equal(3):
            consumer = CooperativeConsumer(
                bootstrap_servers=broker.bootstrap, group_id="by-hand", fetch_max_wait_ms=100
            )
            async with consumer:
                consumer.assign({ORDERS: [one]})
                while not consumer.progress().ranges or consumer.progress().lag_records:
                    for record in await consumer.poll(0.2):
                        seen[record.offset] += 1
                        consumer.ack(record)
                await consumer.commit()
        assert sorted(seen) == list(range(500)) and set(seen.values()) == {1}
        assert committed(broker, "by-hand") == 500

    scenario()


def test_switches(make_broker: Callable[..., BrokerProcess]) -> None:
    """A topic or a broker that does not allow it says so, with the setting to change."""
    broker = make_broker()
    create_topic(broker.bootstrap, "orders")

    @in_loop
    async def by_range() -> None:
        async with CooperativeConsumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign({ORDERS: []})
            with pytest.raises(RangeFetchNotAllowedError, match=r"range\.fetch\.enable=true"):
                await consumer.poll(20)

    by_range()
    refusing = make_broker(**{"group.individual.commit.enable": "false"})
    create_topic(refusing.bootstrap, "orders", 1, SHARED)
    produce(refusing, 1)

    @in_loop
    async def individually() -> None:
        consumer = CooperativeConsumer(bootstrap_servers=refusing.bootstrap, group_id="by-hand")
        async with consumer:
            consumer.assign({ORDERS: []})
            with pytest.raises(IndividualCommitNotAllowedError) as caught:
                for record in await polled(consumer, 1):
                    consumer.ack(record)
                await consumer.commit()
            assert caught.value.code is ErrorCode.INVALID_REQUEST

    individually()


def test_threads_and_a_steady_load(broker: BrokerProcess) -> None:
    """Threads keep up with a load that goes on while members join."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    stopping = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with RawClient(broker.bootstrap) as client:
            while not stopping.is_set() and written < 5000:
                batch = build_batch(
                    [Record(i, 0, b"k%d" % ((written + i) % 40), b"") for i in range(20)],
                    base_offset=0,
                    partition_leader_epoch=-1,
                )
                client.produce("orders", 0, batch)
                written += 20
                time.sleep(0.004)

    @in_loop
    async def scenario() -> None:
        lock = threading.Lock()
        by_key: dict[bytes | None, list[int]] = defaultdict(list)

        def handle(record: ConsumerRecord) -> None:
            with lock:
                by_key[record.key].append(record.offset)

        writer = asyncio.ensure_future(asyncio.to_thread(write))
        members = [new_member(broker) for _ in range(3)]
        tasks = []
        for member in members:
            work = member.run(handle, concurrency=4, handle_signals=False)
            tasks.append(asyncio.ensure_future(work))
            await asyncio.sleep(0.3)
        await writer
        while sum(map(len, by_key.values())) < written:
            await asyncio.sleep(0.02)
        for member in members:
            await member.close()
        await asyncio.gather(*tasks)
        assert all(offsets == sorted(set(offsets)) for offsets in by_key.values())
        assert committed(broker) == written

    try:
        scenario()
    finally:
        stopping.set()
