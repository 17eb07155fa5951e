"""Consume, transform, produce: with a real broker, exactly once and each key in order."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from loop_kit import in_loop, polled
from test_client_real_broker import committed

from anabranch.client import (
    Backoff,
    ConfigurationError,
    ConsumerRecord,
    ConsumerStateError,
    CooperativeConsumer,
    Outputs,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalProducer,
    transaction_session,
)
from anabranch.client.cluster import Cluster
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
)
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic
from support.transactional_clients import Confluent

SHARED = {"range.fetch.enable": "true"}
RETRY = Backoff(first_s=0.01, max_s=0.05)


def begin(broker: BrokerProcess, count: int) -> None:
    """Orders of 20 customers, whose values are their numbers."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    create_topic(broker.bootstrap, "invoices")
    chance = random.Random(count)
    with RawClient(broker.bootstrap) as client:
        for start in range(0, count, 100):
            records = [
                Record(number - start, 0, b"k%d" % chance.randrange(20), b"%d" % number)
                for number in range(start, min(start + 100, count))
            ]
            batch = build_batch(records, base_offset=0, partition_leader_epoch=-1)
            assert client.produce("orders", 0, batch).error_code == 0


def new_producer(broker: BrokerProcess, name: str = "t", **options: Any) -> TransactionalProducer:
    settings = {"retry_backoff_ms": 20, "transaction_timeout_ms": 20_000, **options}
    return TransactionalProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=name, **settings
    )


def new_consumer(broker: BrokerProcess, **options: Any) -> CooperativeConsumer:
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": "workers",
        "auto_commit_interval_ms": 100,
        "fetch_max_wait_ms": 100,
        "retry_backoff_ms": 20,
        **options,
    }
    consumer = CooperativeConsumer(**settings)
    consumer.subscribe("orders")
    return consumer


def invoices(broker: BrokerProcess, isolation: str = "read_committed") -> list[bytes]:
    return Confluent.read(broker.bootstrap, "invoices", isolation)


def check(broker: BrokerProcess, count: int) -> None:
    """Every order has one invoice, and those of a customer are in order."""
    found = invoices(broker)
    assert sorted(map(int, found)) == list(range(count)), "doubled or lost"
    chance = random.Random(count)
    keys = [chance.randrange(20) for _ in range(count)]
    by_key: dict[int, list[int]] = defaultdict(list)
    for value in found:
        by_key[keys[int(value)]].append(int(value))
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "out of order"


class Workers:
    """Members that write an invoice for each order."""

    def __init__(self, broker: BrokerProcess, work_s: float = 0.001) -> None:
        self.broker = broker
        self.work_s = work_s
        self.handled: Counter[bytes | None] = Counter()
        self.running: set[bytes | None] = set()
        self._changed = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.consumers: list[CooperativeConsumer] = []
        self.producers: list[TransactionalProducer] = []

    def join(self, name: str, **options: Any) -> CooperativeConsumer:
        consumer = new_consumer(self.broker, **options)
        producer = new_producer(self.broker, name)
        self.consumers.append(consumer)
        self.producers.append(producer)

        async def work() -> None:
            async with producer, consumer:
                await consumer.run_in_transactions(
                    self.handle,
                    producer,
                    concurrency=8,
                    interval_ms=20,
                    retry=RETRY,
                    handle_signals=False,
                )

        self.tasks.append(asyncio.create_task(work()))
        return consumer

    async def handle(self, record: ConsumerRecord, outputs: Outputs) -> None:
        assert record.key not in self.running, "two of a key at once"
        self.running.add(record.key)
        try:
            await asyncio.sleep(self.work_s)
            outputs.send("invoices", record.value, key=record.key)
            self.handled[record.value] += 1
        finally:
            self.running.discard(record.key)
            self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for task in self.tasks:
                if task.done():
                    task.result()
            self._changed.clear()
            await self._changed.wait()

    async def finish(self, total: int) -> None:
        while await asyncio.to_thread(committed, self.broker) < total:
            for task in self.tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)
        for consumer in self.consumers:
            consumer.stop()
        await asyncio.gather(*self.tasks)


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param == 1:
        monkeypatch.setattr(transaction_session, "_VERSION_2", 3)
    number: int = request.param
    return number


def test_one_member(broker: BrokerProcess, version: int) -> None:
    """Every record is processed, its output written and its acknowledgement stored, once."""
    begin(broker, 500)

    @in_loop
    async def scenario() -> None:
        workers = Workers(broker)
        workers.join("a")
        await workers.finish(500)
        assert set(workers.handled.values()) == {1}

    scenario()
    check(broker, 500)


def test_members_come_and_go(broker: BrokerProcess) -> None:
    """Ranges move between members in the middle of transactions; nothing is doubled or swapped."""
    begin(broker, 2000)

    @in_loop
    async def scenario() -> None:
        workers = Workers(broker, work_s=0.003)
        for number, goal in enumerate((100, 400, 700)):
            workers.join(f"m{number}")
            await workers.until(lambda goal=goal: len(workers.handled) >= goal)  # type: ignore[misc]
        workers.consumers[0].stop()
        await workers.until(lambda: len(workers.handled) >= 1300)
        workers.join("m9")
        await workers.finish(2000)
        assert set(workers.handled.values()) == {1}

    scenario()
    check(broker, 2000)


def test_a_broker_that_is_killed(broker: BrokerProcess) -> None:
    """The broker is killed and started in the middle of transactions, and everything goes on."""
    begin(broker, 1500)

    @in_loop
    async def scenario() -> None:
        workers = Workers(broker, work_s=0.003)
        workers.join("a")
        workers.join("b")
        for goal in (200, 600, 1000):
            await workers.until(lambda goal=goal: len(workers.handled) >= goal)  # type: ignore[misc]
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await workers.finish(1500)

    scenario()
    check(broker, 1500)


def test_aborted_transactions(broker: BrokerProcess) -> None:
    """What was processed in a transaction that is aborted is processed again, each key in order."""
    begin(broker, 600)

    @in_loop
    async def scenario() -> None:
        workers = Workers(broker, work_s=0.002)
        workers.join("a")
        session = workers.producers[0]._session
        for goal in (100, 250, 400):
            await workers.until(lambda goal=goal: len(workers.handled) >= goal)  # type: ignore[misc]
            commit_offsets = session.commit_offsets

            async def refuse(*_: Any, before: Any = commit_offsets) -> None:
                # The outputs of this transaction are written, and then it is not committed.
                session.commit_offsets = before  # type: ignore[method-assign]
                raise TransactionAbortedError("a test wants it so")

            session.commit_offsets = refuse  # type: ignore[method-assign, assignment]
            await workers.until(lambda before=commit_offsets: session.commit_offsets == before)  # type: ignore[misc]
        await workers.finish(600)
        assert 2 in workers.handled.values()

    scenario()
    check(broker, 600)
    assert len(invoices(broker, "read_uncommitted")) > 600


def test_a_fenced_member(broker: BrokerProcess) -> None:
    """A member that the group went on without loses its transaction, and starts over."""
    begin(broker, 800)

    @in_loop
    async def scenario() -> None:
        workers = Workers(broker, work_s=0.003)
        consumer = workers.join("a")
        for goal in (100, 400):
            await workers.until(lambda goal=goal: len(workers.handled) >= goal)  # type: ignore[misc]
            membership = consumer._membership
            assert membership is not None
            put_out(broker, membership.member_id)
        await workers.finish(800)

    scenario()
    check(broker, 800)


def put_out(broker: BrokerProcess, member_id: str) -> None:
    """Put a member out of its group, behind its back; it may be out already."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="workers", member_id=member_id, member_epoch=-1
    )
    with RawClient(broker.bootstrap) as client:
        answer = client.send(CONSUMER_GROUP_HEARTBEAT, 1, request)
    assert answer.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)


def test_in_the_order_of_offsets(make_broker: Callable[..., BrokerProcess]) -> None:
    """Transactions that have to wait for each other do so, and for nothing of their own."""
    broker = make_broker(**{"coop.txn.order": "stable"})
    begin(broker, 300)

    class SlowAtFirst(Workers):
        async def handle(self, record: ConsumerRecord, outputs: Outputs) -> None:
            if record.offset % 100 == 3:
                await asyncio.sleep(0.5)
            await super().handle(record, outputs)

    @in_loop
    async def scenario() -> None:
        workers = SlowAtFirst(broker)
        workers.join("a")
        await workers.until(lambda: len(workers.handled) >= 150)
        assert set(workers.handled.values()) == {1}, "a transaction waited for its own member"
        workers.join("b")
        await workers.finish(300)

    scenario()
    check(broker, 300)


def test_a_producer_that_is_fenced(broker: BrokerProcess) -> None:
    """Who starts under the same name stops the one before, and goes on where it was."""
    begin(broker, 600)

    @in_loop
    async def scenario() -> None:
        older = Workers(broker, work_s=0.003)
        older.join("same")
        await older.until(lambda: len(older.handled) >= 100)
        younger = Workers(broker)
        younger.join("same")
        with pytest.raises(ProducerFencedError):
            await older.tasks[0]
        await younger.finish(600)

    scenario()
    check(broker, 600)


def test_a_handler_that_fails(broker: BrokerProcess) -> None:
    """What a handler sent before it raised is not written."""
    begin(broker, 200)

    class Failing(Workers):
        async def handle(self, record: ConsumerRecord, outputs: Outputs) -> None:
            outputs.send("invoices", record.value, key=record.key)
            if int(record.value or b"") % 10 == 3 and record.attempt == 1:
                raise LookupError("not yet")
            self.handled[record.value] += 1

    @in_loop
    async def scenario() -> None:
        workers = Failing(broker)
        workers.join("a")
        await workers.finish(200)

    scenario()
    check(broker, 200)


def test_threads(broker: BrokerProcess) -> None:
    """Ordinary functions are called in threads, with the same outcome."""
    begin(broker, 300)

    @in_loop
    async def scenario() -> None:
        def handle(record: ConsumerRecord, outputs: Outputs) -> None:
            outputs.send("invoices", record.value, key=record.key)

        async with (
            new_producer(broker, buffer_memory=2000) as producer,
            new_consumer(broker) as consumer,
        ):
            running = asyncio.create_task(
                consumer.run_in_transactions(
                    handle, producer, concurrency=4, interval_ms=10, max_records=16
                )
            )
            while await asyncio.to_thread(committed, broker) < 300:
                await asyncio.sleep(0.05)
                assert not running.done()
            consumer.stop()
            await running

    scenario()
    check(broker, 300)


def test_an_output_that_is_refused(broker: BrokerProcess) -> None:
    """An output that would be refused again ends the consumer, which says why."""
    begin(broker, 50)

    @in_loop
    async def scenario() -> None:
        async def handle(record: ConsumerRecord, outputs: Outputs) -> None:
            outputs.send("invoices", b"x" * 3_000_000)

        async with new_producer(broker) as producer, new_consumer(broker) as consumer:
            with pytest.raises(TransactionAbortedError, match="MESSAGE_TOO_LARGE"):
                await consumer.run_in_transactions(handle, producer, interval_ms=10)

    scenario()
    assert invoices(broker) == []


# By hand ------------------------------------------------------------------------------------------


def test_polling(broker: BrokerProcess) -> None:
    """Polled records are acknowledged with a transaction; after an abort they come again."""
    begin(broker, 100)

    @in_loop
    async def scenario() -> None:
        chance = random.Random(3)
        async with new_producer(broker) as producer, new_consumer(broker) as consumer:
            done = aborted = 0
            while done < 100:
                records = await consumer.poll(5, max_records=chance.randrange(1, 20))
                is_aborted = chance.random() < 0.4
                try:
                    async with producer.transaction() as transaction:
                        acks = consumer.acks_in(transaction)
                        for number, record in enumerate(records):
                            if is_aborted and number == len(records) // 2:
                                raise LookupError
                            transaction.send("invoices", record.value, key=record.key)
                            acks.ack(record)
                except LookupError:
                    aborted += 1
                else:
                    done += len(records)
            assert aborted > 3
            assert consumer.progress().in_flight == 0
            await consumer.commit()

    scenario()
    check(broker, 100)
    assert committed(broker) == 100


def test_acknowledging_twice(broker: BrokerProcess) -> None:
    """A record that is not ours to acknowledge aborts the transaction, which has its outputs."""
    begin(broker, 10)

    @in_loop
    async def scenario() -> None:
        async with new_producer(broker) as producer, new_consumer(broker) as consumer:
            records = await polled(consumer, 10)
            with pytest.raises(TransactionAbortedError, match="not ours"):
                async with producer.transaction() as transaction:
                    acks = consumer.acks_in(transaction)
                    acks.ack(records[0])
                    acks.ack(records[0])
            records = await polled(consumer, 10)
            membership = consumer._membership
            assert membership is not None
            with pytest.raises(TransactionAbortedError):
                async with producer.transaction() as transaction:
                    acks = consumer.acks_in(transaction)
                    for record in records:
                        transaction.send("invoices", record.value)
                        acks.ack(record)
                    put_out(broker, membership.member_id)
            records = await polled(consumer, 10)
            async with producer.transaction() as transaction:
                acks = consumer.acks_in(transaction)
                for record in records:
                    transaction.send("invoices", record.value)
                    acks.ack(record)

    scenario()
    assert invoices(broker) == [b"%d" % number for number in range(10)]


def test_a_range_that_starts_over(broker: BrokerProcess) -> None:
    """A transaction has nothing of a range that was begun again since, by the same owner even."""
    begin(broker, 10)

    @in_loop
    async def scenario() -> None:
        async with new_producer(broker) as producer, new_consumer(broker) as consumer:
            records = await polled(consumer, 10)
            with pytest.raises(TransactionAbortedError, match="not ours any more"):
                async with producer.transaction() as transaction:
                    acks = consumer.acks_in(transaction)
                    for record in records[:5]:
                        transaction.send("invoices", record.value)
                        acks.ack(record)
                    assert consumer._hand_over is not None
                    consumer._hand_over.reload(list(consumer._core.workload))
            records = await polled(consumer, 10)
            async with producer.transaction() as transaction:
                acks = consumer.acks_in(transaction)
                for record in records:
                    transaction.send("invoices", record.value)
                    acks.ack(record)

    scenario()
    assert invoices(broker) == [b"%d" % number for number in range(10)]


def test_a_range_waits_for_its_transaction(broker: BrokerProcess) -> None:
    """A range is not given to another member while a transaction has records of it."""
    begin(broker, 100)

    @in_loop
    async def scenario() -> None:
        async with new_producer(broker) as producer, new_consumer(broker) as first:
            records = await polled(first, 100)
            transaction = producer.transaction()
            acks = first.acks_in(transaction)
            for record in records:
                transaction.send("invoices", record.value, key=record.key)
                acks.ack(record)
            async with new_consumer(broker) as second:
                assert await second.poll(1.5) == []
                await transaction.commit()
                while not second.progress().ranges or first.progress().in_flight:
                    assert await second.poll(0.1) == [], "what is done came again"

    scenario()
    check(broker, 100)


def test_lag(broker: BrokerProcess) -> None:
    """What nobody may read yet is nothing to do; it counts when its transaction is committed."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)

    @in_loop
    async def scenario() -> None:
        levels = ("read_uncommitted", "read_committed")
        async with new_producer(broker) as producer:
            transaction = producer.transaction()
            for number in range(10):
                transaction.send("orders", b"%d" % number)
            await transaction.flush()
            lags = []
            for level in levels:
                async with new_consumer(broker, isolation_level=level, group_id=level) as consumer:
                    while not any(one.readable_end >= 0 for one in consumer._core.workload):
                        await consumer.poll(0.05, max_records=1)
                    (progress,) = consumer.progress().ranges
                    assert progress.high_watermark == 10
                    assert progress.is_lag_exact
                    lags.append(consumer.progress().lag_records)
                    if level == "read_committed":
                        await transaction.commit()
                        records = await polled(consumer, 10)
                        assert consumer.progress().lag_records == 10
                        for record in records:
                            consumer.ack(record)
            assert lags == [10, 0]

    scenario()


def test_what_it_takes(broker: BrokerProcess) -> None:
    """Acknowledging in transactions takes a group, and the way of consuming that is used."""
    begin(broker, 5)

    @in_loop
    async def scenario() -> None:
        async with new_producer(broker) as producer:
            alone = CooperativeConsumer(bootstrap_servers=broker.bootstrap)
            with pytest.raises(ConfigurationError, match="group_id"):
                alone.acks_in(producer.transaction())
            with pytest.raises(ConfigurationError, match="group_id"):
                await alone.run_in_transactions(print, producer)
            await alone.close()
            async with new_consumer(broker) as consumer:
                with pytest.raises(ConfigurationError, match="max_records"):
                    await consumer.run_in_transactions(print, producer, max_records=0)
                with pytest.raises(ConfigurationError, match="concurrency"):
                    await consumer.run_in_transactions(print, producer, concurrency=0)
                await consumer.poll(0.1)
                with pytest.raises(ConsumerStateError, match="poll"):
                    await consumer.run_in_transactions(print, producer)

    scenario()


# Whatever goes wrong ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_faults(broker: BrokerProcess, seed: int) -> None:
    """Connections end, transactions are aborted and members put out; the outcome is the same."""
    begin(broker, 3000)

    @in_loop
    async def scenario() -> None:
        chance = random.Random(seed)
        workers = Workers(broker, work_s=0.003)
        for number in range(3):
            workers.join(f"m{number}")
        done = 0
        while done < 2800:
            await workers.until(lambda done=done: len(workers.handled) > done)  # type: ignore[misc]
            done = len(workers.handled) + 60
            number = chance.randrange(3)
            consumer, producer = workers.consumers[number], workers.producers[number]
            match chance.randrange(4):
                case 0:
                    drop_connections(producer._session.cluster)
                case 1:
                    drop_connections(consumer._core.cluster)
                case 2:
                    if producer._transaction is not None:
                        producer._transaction.fail(TransactionAbortedError("a test wants it so"))
                case 3:
                    membership = consumer._membership
                    if membership is not None and membership.epoch > 0:
                        await asyncio.to_thread(put_out, broker, membership.member_id)
        await workers.finish(3000)

    scenario()
    check(broker, 3000)


def drop_connections(cluster: Cluster) -> None:
    for connection in list(cluster._connections.values()):
        connection.close()
