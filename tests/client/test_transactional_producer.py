"""The transactional producer and a real broker; what it wrote is read by librdkafka."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from loop_kit import in_loop

from anabranch.client import (
    BufferFullError,
    ConfigurationError,
    ConsumerClosedError,
    ConsumerStateError,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortedError,
    TransactionalProducer,
    TransactionUncertainError,
    transaction_session,
)
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic
from support.transactional_clients import Confluent

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The transaction version that the producer takes the broker's for; it serves both."""
    if request.param == 1:
        monkeypatch.setattr(transaction_session, "_VERSION_2", 3)
    number: int = request.param
    return number


def new_producer(
    broker: BrokerProcess, transactional_id: str = "t", **options: Any
) -> TransactionalProducer:
    return TransactionalProducer(
        bootstrap_servers=broker.bootstrap,
        transactional_id=transactional_id,
        retry_backoff_ms=10,
        **options,
    )


def read(broker: BrokerProcess, topic: str, isolation: str = COMMITTED) -> list[bytes]:
    return Confluent.read(broker.bootstrap, topic, isolation)


def test_commit_and_abort(shared_broker: BrokerProcess, version: int) -> None:
    """Records count when their transaction is committed, and never when it is aborted."""
    topic = f"ended-{version}"
    create_topic(shared_broker.bootstrap, topic)

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, topic) as producer:
            for number in range(6):
                try:
                    async with producer.transaction() as transaction:
                        transaction.send(topic, b"a%d" % number, key=b"k")
                        await transaction.flush()
                        transaction.send(topic, b"b%d" % number, key=b"k")
                        if number % 2:
                            raise LookupError
                except LookupError:
                    assert number % 2
                else:
                    assert number % 2 == 0

    scenario()
    expected = [b"%s%d" % (name, number) for number in (0, 2, 4) for name in (b"a", b"b")]
    assert read(shared_broker, topic) == expected
    # Of those that were aborted, what was flushed before is there.
    assert read(shared_broker, topic, UNCOMMITTED) == [
        b"a0", b"b0", b"a1", b"a2", b"b2", b"a3", b"a4", b"b4", b"a5",
    ]  # fmt: skip


def test_many_records(shared_broker: BrokerProcess, version: int) -> None:
    """Many batches of many partitions all arrive, once and in order, compressed or not."""
    topic = f"many-{version}"
    create_topic(shared_broker.bootstrap, topic, 4)

    @in_loop
    async def scenario() -> None:
        compression = "gzip" if version == 2 else "none"
        async with new_producer(
            shared_broker, topic, batch_size=2000, compression_type=compression
        ) as producer:
            for start in range(0, 3000, 1000):
                async with producer.transaction() as transaction:
                    for number in range(start, start + 1000):
                        partition = number % 4
                        transaction.send(topic, b"%d" % number, partition=partition)
                        if number % 100 == 0:
                            await asyncio.sleep(0)

    scenario()
    for partition in range(4):
        found = Confluent.read(shared_broker.bootstrap, topic, COMMITTED, partition)
        assert found == [b"%d" % number for number in range(partition, 3000, 4)]


def test_what_is_not_flushed_yet(shared_broker: BrokerProcess) -> None:
    """Records leave by themselves after a moment, and count only with the commit."""
    create_topic(shared_broker.bootstrap, "linger")

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, "linger", linger_ms=1) as producer:
            transaction = producer.transaction()
            transaction.send("linger", b"v")
            while not await asyncio.to_thread(read, shared_broker, "linger", UNCOMMITTED):
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(read, shared_broker, "linger") == []
            await transaction.commit()

    scenario()
    assert read(shared_broker, "linger") == [b"v"]


def test_an_empty_transaction(shared_broker: BrokerProcess, version: int) -> None:
    """A transaction in which nothing happened ends without asking anybody."""
    create_topic(shared_broker.bootstrap, f"empty-{version}")

    @in_loop
    async def scenario() -> None:
        topic = f"empty-{version}"
        async with new_producer(shared_broker, topic) as producer:
            async with producer.transaction():
                pass
            await producer.transaction().abort()
            async with producer.transaction() as transaction:
                transaction.send(topic, b"v")

    scenario()
    assert read(shared_broker, f"empty-{version}") == [b"v"]


def test_a_zombie(shared_broker: BrokerProcess, version: int) -> None:
    """Who starts under the same id aborts what was open, and fences who had it."""
    topic = f"zombie-{version}"
    create_topic(shared_broker.bootstrap, topic)

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, topic) as zombie:
            open_one = zombie.transaction()
            open_one.send(topic, b"of the zombie")
            await open_one.flush()
            async with new_producer(shared_broker, topic) as successor:
                async with successor.transaction() as transaction:
                    transaction.send(topic, b"of the successor")
                    await transaction.flush()
                    # In the middle of the successor's transaction, which goes on undisturbed.
                    with pytest.raises(ProducerFencedError, match="this producer must stop"):
                        await open_one.commit()
                with pytest.raises(ConsumerStateError, match="cannot go on"):
                    zombie.transaction()
                async with successor.transaction() as transaction:
                    transaction.send(topic, b"and another")

    scenario()
    assert read(shared_broker, topic) == [b"of the successor", b"and another"]


def test_a_zombie_that_writes(shared_broker: BrokerProcess, version: int) -> None:
    """What a fenced producer writes is refused, and aborting tells it that it is fenced."""
    topic = f"writing-zombie-{version}"
    create_topic(shared_broker.bootstrap, topic)

    @in_loop
    async def scenario() -> None:
        async with (
            new_producer(shared_broker, topic) as zombie,
            new_producer(shared_broker, topic) as successor,
        ):
            with pytest.raises(ProducerFencedError):
                async with zombie.transaction() as transaction:
                    transaction.send(topic, b"of the zombie")
            async with successor.transaction() as transaction:
                transaction.send(topic, b"v")

    scenario()
    assert read(shared_broker, topic, UNCOMMITTED) == [b"v"]


def test_a_transaction_that_takes_too_long(shared_broker: BrokerProcess) -> None:
    """The broker aborts it; the producer says so, and goes on with the next one."""
    create_topic(shared_broker.bootstrap, "slow")

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, "slow", transaction_timeout_ms=500) as producer:
            transaction = producer.transaction()
            transaction.send("slow", b"late")
            await transaction.flush()
            # Records that follow open nothing again, so waiting for the abort is safe.
            while "ONGOING" in await asyncio.to_thread(state_of, shared_broker, "slow"):
                await asyncio.sleep(0.02)
            with pytest.raises(TransactionAbortedError, match="transaction_timeout_ms"):
                await transaction.commit()
            while True:  # on a busy machine it may be late again
                try:
                    async with producer.transaction() as transaction:
                        transaction.send("slow", b"in time")
                    break
                except TransactionAbortedError:
                    pass

    scenario()
    assert read(shared_broker, "slow") == [b"in time"]


def state_of(broker: BrokerProcess, transactional_id: str) -> str:
    """The state of a transaction, in capitals."""
    from anabranch.wire.messages.describe_transactions import (
        DESCRIBE_TRANSACTIONS,
        DescribeTransactionsRequest,
    )

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    with RawClient(broker.bootstrap) as client:
        (found,) = client.send(DESCRIBE_TRANSACTIONS, 0, request).transaction_states
    state: str = found.transaction_state
    return state.upper()


def test_a_record_that_is_refused(shared_broker: BrokerProcess, version: int) -> None:
    """A refused record aborts its transaction, and the next one is not the worse for it."""
    topic = f"refusing-{version}"
    create_topic(shared_broker.bootstrap, topic, 1, {"max.message.bytes": "1000"})

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, topic) as producer:
            with pytest.raises(TransactionAbortedError, match="MESSAGE_TOO_LARGE"):
                async with producer.transaction() as transaction:
                    transaction.send(topic, b"small")
                    await transaction.flush()
                    transaction.send(topic, b"x" * 2000)
            with pytest.raises(TransactionAbortedError, match="MESSAGE_TOO_LARGE"):
                async with producer.transaction() as transaction:
                    transaction.send(topic, b"x" * 2000)
                    await transaction.flush()
            with pytest.raises(ConfigurationError, match="has no partition 9"):
                async with producer.transaction() as transaction:
                    transaction.send(topic, b"v", partition=9)
                    await transaction.flush()
            async with producer.transaction() as transaction:
                transaction.send(topic, b"fits")

    scenario()
    assert read(shared_broker, topic) == [b"fits"]


def test_an_answer_that_is_lost(shared_broker: BrokerProcess, version: int) -> None:
    """After an abort nothing is left of what the producer does not know of."""
    topic = f"lost-answer-{version}"
    create_topic(shared_broker.bootstrap, topic)

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, topic) as producer:
            transaction = producer.transaction()
            transaction.send(topic, b"unanswered")
            await transaction.flush()
            producer._session._sequences.clear()  # as if it had not heard of it
            await transaction.abort()
            async with producer.transaction() as transaction:
                transaction.send(topic, b"v")

    scenario()
    assert read(shared_broker, topic) == [b"v"]


def test_a_transaction_that_nobody_heard_of(shared_broker: BrokerProcess, version: int) -> None:
    """What failed before the coordinator knew of the transaction is aborted all the same."""
    topic = f"unheard-{version}"
    create_topic(shared_broker.bootstrap, topic)

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, topic) as producer:
            with pytest.raises(TransactionAbortedError, match="INVALID_GROUP_ID"):
                async with producer.transaction() as transaction:
                    await transaction.send_offsets({TopicPartition(topic, 0): 1}, "")
            async with producer.transaction() as transaction:
                transaction.send(topic, b"v")

    scenario()
    assert read(shared_broker, topic) == [b"v"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_that_restarts(broker: BrokerProcess, version: int, how: str) -> None:
    """A transaction goes on through a restart of the broker, and so does the next one."""
    create_topic(broker.bootstrap, "t")

    @in_loop
    async def scenario() -> None:
        # On a busy machine two restarts can take longer than a transaction may by default.
        async with new_producer(broker, transaction_timeout_ms=600_000) as producer:
            async with producer.transaction() as transaction:
                transaction.send("t", b"before")
                await transaction.flush()
                first_id = producer._session.producer_id
                await asyncio.to_thread(broker.stop if how == "stop" else broker.kill)
                transaction.send("t", b"meanwhile")
                flushing = asyncio.ensure_future(transaction.flush())
                await asyncio.sleep(0.05)
                await asyncio.to_thread(broker.start)
                await flushing
                await asyncio.to_thread(broker.stop if how == "stop" else broker.kill)
                ending = asyncio.ensure_future(transaction.commit())
                await asyncio.sleep(0.05)
                await asyncio.to_thread(broker.start)
                await ending
            assert producer._session.producer_id == first_id
            async with producer.transaction() as transaction:
                transaction.send("t", b"after")

    scenario()
    assert read(broker, "t") == [b"before", b"meanwhile", b"after"]


async def surely(end: Callable[[], Awaitable[None]]) -> None:
    """End a transaction, however long the broker takes to say so."""
    while True:
        try:
            await end()
            return
        except TransactionUncertainError:
            pass


def test_an_end_that_is_not_answered(broker: BrokerProcess) -> None:
    """It is said when it is not known whether a transaction is committed, and it can be asked."""
    create_topic(broker.bootstrap, "t")

    @in_loop
    async def scenario() -> None:
        async with new_producer(broker, delivery_timeout_ms=2000) as producer:
            transaction = producer.transaction()
            transaction.send("t", b"v")
            await transaction.flush()
            await asyncio.to_thread(broker.kill)
            with pytest.raises(TransactionUncertainError):
                await transaction.commit()
            with pytest.raises(ConsumerStateError, match="uncertain"):
                producer.transaction()
            with pytest.raises(ConsumerStateError, match="call commit"):
                await transaction.abort()
            with pytest.raises(ConsumerStateError, match="uncertain"):
                transaction.send("t", b"more")
            await asyncio.to_thread(broker.start)
            await surely(transaction.commit)
            transaction = producer.transaction()
            transaction.send("t", b"not this")
            await transaction.flush()
            await asyncio.to_thread(broker.kill)
            with pytest.raises(TransactionUncertainError):
                await transaction.abort()
            with pytest.raises(ConsumerStateError, match="call abort"):
                await transaction.commit()
            await asyncio.to_thread(broker.start)
            await surely(transaction.abort)
            async with producer.transaction() as transaction:
                transaction.send("t", b"w")

    scenario()
    assert read(broker, "t") == [b"v", b"w"]


def test_offsets(shared_broker: BrokerProcess, version: int) -> None:
    """Offsets of a group count with the transaction, and not with one that is aborted."""
    topic = f"offsets-{version}"
    create_topic(shared_broker.bootstrap, topic)
    place = TopicPartition(topic, 0)

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, topic) as producer:
            for offset, is_commit in ((5, True), (9, False)):
                transaction = producer.transaction()
                transaction.send(topic, b"v")
                await transaction.send_offsets({place: offset}, topic)
                assert committed_offset(shared_broker, topic) == (-1 if is_commit else 5)
                await (transaction.commit() if is_commit else transaction.abort())
            with pytest.raises(TransactionAbortedError, match="UNKNOWN_MEMBER_ID"):
                async with producer.transaction() as transaction:
                    await transaction.send_offsets(
                        {place: 7}, topic, member_id="nobody", generation_id=3
                    )

    scenario()
    assert committed_offset(shared_broker, topic) == 5


def committed_offset(broker: BrokerProcess, topic: str) -> int:
    from anabranch.wire.messages.offset_fetch import (
        OFFSET_FETCH,
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchRequestTopics,
    )

    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id=topic, topics=topics)
    with RawClient(broker.bootstrap) as client:
        answer = client.send(OFFSET_FETCH, 9, OffsetFetchRequest(groups=[asked]))
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


def test_too_much_at_once(shared_broker: BrokerProcess) -> None:
    """More than fits in the buffer is refused until some of it was sent."""
    create_topic(shared_broker.bootstrap, "full")

    @in_loop
    async def scenario() -> None:
        async with (
            new_producer(shared_broker, "full", buffer_memory=1000) as producer,
            producer.transaction() as transaction,
        ):
            transaction.send("full", b"x" * 600)
            with pytest.raises(BufferFullError, match="flush"):
                transaction.send("full", b"y" * 600)
            await transaction.flush()
            transaction.send("full", b"y" * 600)

    scenario()
    assert read(shared_broker, "full") == [b"x" * 600, b"y" * 600]


def test_one_at_a_time(shared_broker: BrokerProcess) -> None:
    """A producer has one transaction at a time, and none when it is closed."""

    @in_loop
    async def scenario() -> None:
        producer = new_producer(shared_broker, "one")
        transaction = producer.transaction()
        with pytest.raises(ConsumerStateError, match="open"):
            producer.transaction()
        await transaction.commit()
        with pytest.raises(ConsumerStateError, match="ended"):
            transaction.send("t", b"v")
        await producer.close()
        await producer.close()
        with pytest.raises(ConsumerClosedError):
            producer.transaction()

    scenario()


def test_closing(shared_broker: BrokerProcess) -> None:
    """A producer that is closed in the middle of a transaction aborts it."""
    create_topic(shared_broker.bootstrap, "closing")

    @in_loop
    async def scenario() -> None:
        async with new_producer(shared_broker, "closing") as producer:
            transaction = producer.transaction()
            transaction.send("closing", b"v")
            await transaction.flush()
        assert state_of(shared_broker, "closing") == "COMPLETEABORT"

    scenario()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a transactional_id"),
        ({"transactional_id": ""}, "must not be empty"),
        ({"transactional_id": "t", "compression_type": "rar"}, "compression_type"),
        ({"transactional_id": "t", "linger_ms": -1}, "linger_ms"),
        ({"transactional_id": "t", "batch_size": 0}, "batch_size"),
        ({"transactional_id": "t", "acks": 1}, "unknown settings: acks"),
        ({"transactional_id": "t", "bootstrap_servers": ""}, "names no broker"),
        ({"transactional_id": "t", "security_protocol": "SASL_SSL"}, "not supported"),
    ],
)
def test_settings(options: dict[str, Any], message: str) -> None:
    """A setting that makes no sense is said when the producer is made."""
    with pytest.raises(ConfigurationError, match=message):
        TransactionalProducer(**options)
