"""Workers: many records at once, each key in order."""

import asyncio
import os
import signal
import threading
from collections import Counter, defaultdict

import pytest
from fake_broker import FakeBroker
from loop_kit import give_all, in_loop, is_held, new_consumer, only_member
from workload_kit import HALVES, key_in

from anabranch.client import (
    Backoff,
    ConfigurationError,
    ConsumerRecord,
    ConsumerStateError,
    CooperativeConsumer,
    RejectRecord,
    RetryRecord,
)
from anabranch.client.workers import judge

QUICK = Backoff(first_s=0.005, max_s=0.01)
LOW, HIGH = (key_in(half) for half in HALVES)


class Desk:
    """A handler's notes: what runs, and what has run in which order."""

    def __init__(self) -> None:
        self.running: Counter[bytes | None] = Counter()
        self.most_running = 0
        self.offsets: dict[bytes | None, list[int]] = defaultdict(list)
        self.lock = threading.Lock()

    def begin(self, record: ConsumerRecord) -> None:
        with self.lock:
            self.running[record.key] += 1
            assert record.key is None or self.running[record.key] == 1, "two of a key at once"
            self.most_running = max(self.most_running, self.running.total())
            self.offsets[record.key].append(record.offset)

    def end(self, record: ConsumerRecord) -> None:
        with self.lock:
            self.running[record.key] -= 1

    @property
    def count(self) -> int:
        return sum(map(len, self.offsets.values()))

    def check(self, total: int) -> None:
        found = sorted(offset for offsets in self.offsets.values() for offset in offsets)
        assert found == list(range(total))
        assert all(offsets == sorted(offsets) for offsets in self.offsets.values())


async def finish(consumer: CooperativeConsumer, running: "asyncio.Future[None]") -> None:
    consumer.stop()
    await running
    await consumer.close()


@in_loop
async def test_async_handler() -> None:
    """Different keys run side by side, each key in order, and progress is stored."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % (i % 20) for i in range(400)])
        desk = Desk()

        async def handle(record: ConsumerRecord) -> None:
            desk.begin(record)
            await asyncio.sleep(0.0005 * (record.offset % 3))
            desk.end(record)

        consumer = new_consumer(broker, auto_commit_interval_ms=10)
        running = asyncio.ensure_future(consumer.run(handle, concurrency=8))
        await broker.until(lambda: broker.stable_offset("orders") == 400)
        await finish(consumer, running)
        desk.check(400)
        assert desk.most_running == 8


@in_loop
async def test_threads() -> None:
    """An ordinary function is called in threads, with the same order."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % (i % 20) for i in range(400)])
        desk = Desk()
        meeting = threading.Barrier(4, timeout=60)

        def handle(record: ConsumerRecord) -> None:
            desk.begin(record)
            if record.offset < 4:
                meeting.wait()  # four of them are really there at once
            desk.end(record)

        consumer = new_consumer(broker, auto_commit_interval_ms=10)
        running = asyncio.ensure_future(consumer.run(handle, concurrency=4))
        await broker.until(lambda: broker.stable_offset("orders") == 400)
        await finish(consumer, running)
        desk.check(400)
        assert desk.most_running == 4


@pytest.mark.parametrize("is_async", [True, False])
@in_loop
async def test_failing_handler(is_async: bool) -> None:
    """A record whose handler raises is tried again, its key waits, other keys do not."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a", b"a", b"b"])
        seen: list[tuple[int, int]] = []

        def work(record: ConsumerRecord) -> None:
            seen.append((record.offset, record.attempt))
            if record.offset == 0 and record.attempt < 3:
                raise OSError("no luck")

        async def handle(record: ConsumerRecord) -> None:
            work(record)

        consumer = new_consumer(broker, auto_commit_interval_ms=10)
        running = asyncio.ensure_future(
            consumer.run(handle if is_async else work, concurrency=4, retry=QUICK)
        )
        await broker.until(lambda: broker.stable_offset("orders") == 3)
        await finish(consumer, running)
        assert sorted(seen) == [(0, 1), (0, 2), (0, 3), (1, 1), (2, 1)]
        of_a = [offset for offset, _ in seen if offset < 2]
        assert of_a == [0, 0, 0, 1]
        commits = broker.sent("OffsetCommit")
        reasons = [
            failure.reason
            for commit in commits
            for topic in commit.topics
            for partition in topic.partitions
            for failure in partition.individual.failures
        ]
        assert reasons == ["OSError: no luck"] * 2


def test_verdicts() -> None:
    """What a handler raises decides when its record comes again, if at all."""
    backoff = Backoff(first_s=1.0, max_s=5.0)
    assert judge(ValueError("x"), 1, backoff).retry_after_s == 1.0
    assert judge(ValueError("x"), 3, backoff).retry_after_s == 4.0
    assert judge(ValueError("x"), 50, backoff).retry_after_s == 5.0
    assert judge(RetryRecord(7.5), 1, backoff).retry_after_s == 7.5
    assert judge(RejectRecord("bad"), 1, backoff).retry_after_s < 0
    assert judge(RejectRecord("bad"), 1, backoff).reason == "RejectRecord: bad"
    assert len(judge(ValueError("x" * 9999), 1, backoff).reason) <= 256


@in_loop
async def test_back_pressure() -> None:
    """No more is fetched than the buffer has room for, however much there is."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.fetch_max_records = 50
        broker.append("orders", [b"%d" % i for i in range(5000)])
        gate = asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            await gate.wait()

        consumer = new_consumer(broker, buffer_max_records=200, auto_commit_interval_ms=10)
        running = asyncio.ensure_future(consumer.run(handle, concurrency=8))
        await broker.until(lambda: broker.members)
        beats = len(broker.sent("ConsumerGroupHeartbeat"))
        await broker.until(lambda: consumer.progress().buffered >= 200)
        await broker.until(lambda: len(broker.sent("ConsumerGroupHeartbeat")) > beats + 5)
        progress = consumer.progress()
        assert (progress.in_flight, progress.buffered) == (8, 242)
        gate.set()
        await broker.until(lambda: broker.stable_offset("orders") == 5000)
        await finish(consumer, running)


@pytest.mark.parametrize("is_async", [True, False])
@in_loop
async def test_revocation_waits_for_handlers(is_async: bool) -> None:
    """A range is given back when its handlers have ended; the others go on meanwhile."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [HIGH, HIGH, LOW])
        loop = asyncio.get_running_loop()
        started, gate = asyncio.Event(), threading.Event()
        gate_in_loop = asyncio.Event()

        def block(record: ConsumerRecord) -> None:
            if record.key == HIGH:
                loop.call_soon_threadsafe(started.set)
                assert gate.wait(60)

        async def wait(record: ConsumerRecord) -> None:
            if record.key == HIGH:
                started.set()
                await gate_in_loop.wait()

        consumer = new_consumer(broker, auto_commit_interval_ms=10)
        running = asyncio.ensure_future(consumer.run(wait if is_async else block, concurrency=2))
        await started.wait()
        member = only_member(broker)
        leaving = broker.unit("orders", HALVES[1])
        broker.give(member, {broker.unit("orders", HALVES[0]): 1})
        await broker.until(lambda: not member.is_news)
        broker.append("orders", [LOW])
        place = leaving[:2]
        await broker.until(
            lambda: place in broker.progress and broker.progress[place].is_done(0, 3)
        )
        assert is_held(member, leaving)
        gate.set()
        gate_in_loop.set()
        await broker.until(lambda: not is_held(member, leaving))
        progress = broker.progress[place]
        assert progress.is_done(65_535, 0) and not progress.is_done(65_535, 1)
        await finish(consumer, running)


@pytest.mark.parametrize("is_async", [True, False])
@in_loop
async def test_handler_that_does_not_end(is_async: bool) -> None:
    """When the rebalance timeout ends a range is given up, and what its handler does is void."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [HIGH])
        loop = asyncio.get_running_loop()
        started, was_cancelled = asyncio.Event(), asyncio.Event()
        gate = threading.Event()

        def block(record: ConsumerRecord) -> None:
            loop.call_soon_threadsafe(started.set)
            gate.wait(20)

        async def wait(record: ConsumerRecord) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                was_cancelled.set()

        consumer = new_consumer(broker, rebalance_timeout_ms=100)
        running = asyncio.ensure_future(consumer.run(wait if is_async else block, concurrency=2))
        await started.wait()
        member = only_member(broker)
        broker.give(member, {})
        await broker.until(lambda: not member.held)
        if is_async:
            assert was_cancelled.is_set()
        gate.set()
        await finish(consumer, running)
        place = broker.unit("orders")[:2]
        assert place not in broker.progress or not broker.progress[place].is_done(65_535, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@in_loop
async def test_signal(number: signal.Signals) -> None:
    """SIGTERM and SIGINT let what runs end, and store its progress."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a", b"b", b"a"])
        started, gate = asyncio.Event(), asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            if record.key == b"b":
                started.set()
            await gate.wait()

        consumer = new_consumer(broker)
        running = asyncio.ensure_future(consumer.run(handle, concurrency=2))
        await started.wait()
        os.kill(os.getpid(), number)
        beats = len(broker.sent("ConsumerGroupHeartbeat"))
        await broker.until(lambda: len(broker.sent("ConsumerGroupHeartbeat")) > beats + 2)
        assert not running.done()
        gate.set()
        await running
        assert broker.stable_offset("orders") == 2, "the last record was not begun any more"
        await consumer.close()
        assert broker.members == {}


@in_loop
async def test_close_drains() -> None:
    """Closing waits for what runs, stores its progress, and leaves."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a", b"b"])
        started, gate = asyncio.Event(), asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            if record.key == b"b":
                started.set()
            await gate.wait()

        consumer = new_consumer(broker)
        running = asyncio.ensure_future(consumer.run(handle, concurrency=2))
        await started.wait()
        closing = asyncio.ensure_future(consumer.close())
        beats = len(broker.sent("ConsumerGroupHeartbeat"))
        await broker.until(lambda: len(broker.sent("ConsumerGroupHeartbeat")) > beats + 2)
        assert broker.members, "it is a member while something runs"
        gate.set()
        await closing
        await running
        assert broker.stable_offset("orders") == 2
        assert broker.members == {}


@in_loop
async def test_wrong_use() -> None:
    """A consumer polls or runs, not both, and wants at least one worker."""

    async def handle(record: ConsumerRecord) -> None: ...

    async with FakeBroker() as broker:
        give_all(broker)
        async with new_consumer(broker) as consumer:
            with pytest.raises(ConfigurationError, match="at least 1"):
                await consumer.run(handle, concurrency=0)
            await consumer.poll()
            with pytest.raises(ConsumerStateError, match="either by poll"):
                await consumer.run(handle)
