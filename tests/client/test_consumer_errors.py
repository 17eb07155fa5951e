"""What a consumer cannot go on with, and says so."""

import asyncio

import pytest
from fake_broker import FakeBroker
from loop_kit import ORDERS, give_all, in_loop, new_consumer, polled

from anabranch.client import (
    BrokerConnectionError,
    BrokerError,
    CallbackError,
    ConfigurationError,
    ConsumerClosedError,
    ConsumerRecord,
    ConsumerStateError,
    CooperationNotSupportedError,
    CooperativeConsumer,
    CorruptRecordsError,
    GroupAuthorizationError,
    IndividualCommitNotAllowedError,
    KeyRange,
    NoOffsetError,
    RangeFetchNotAllowedError,
)
from anabranch.client.errors import broker_error
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode


@in_loop
async def test_missing_feature() -> None:
    """A broker that does not announce cooperative consumption is asked nothing else."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.without_tags.add("ApiVersions")
        async with new_consumer(broker) as consumer:
            with pytest.raises(
                CooperationNotSupportedError, match=r"without the feature cooperative\.consumption"
            ):
                await polled(consumer, 1)
        assert {name for name, _ in broker.requests} == {"ApiVersions"}


@in_loop
async def test_another_version_of_the_feature() -> None:
    """So is one that knows other versions of it."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.level = 0
        async with new_consumer(broker) as consumer:
            with pytest.raises(CooperationNotSupportedError, match="in version 1"):
                await polled(consumer, 1)


@in_loop
async def test_feature_that_is_off() -> None:
    """Where individual commits are off a group member is told so before it joins, and a reader
    without a group reads."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a"])
        broker.finalized_level = 0
        async with new_consumer(broker) as consumer:
            with pytest.raises(
                IndividualCommitNotAllowedError, match=r"group\.individual\.commit\.enable=true"
            ):
                await polled(consumer, 1)
        assert {name for name, _ in broker.requests} == {"ApiVersions"}
        async with new_consumer(broker, group_id=None) as consumer:
            consumer.assign({ORDERS: []})
            assert len(await polled(consumer, 1)) == 1


@pytest.mark.parametrize("api_name", ["ConsumerGroupHeartbeat", "Fetch", "OffsetFetch"])
@in_loop
async def test_missing_echo(api_name: str) -> None:
    """A broker that does not answer our tag would send everything to everybody: fatal."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a"])
        broker.without_tags.add(api_name)
        async with new_consumer(broker) as consumer:
            with pytest.raises(CooperationNotSupportedError, match=f"{api_name} without the coop"):
                await polled(consumer, 1)
            with pytest.raises(CooperationNotSupportedError):
                await consumer.poll()


@in_loop
async def test_missing_echo_of_a_commit() -> None:
    """A commit that was not understood is no commit."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a"])
        async with new_consumer(broker) as consumer:
            (record,) = await polled(consumer, 1)
            consumer.ack(record)
            broker.without_tags.add("OffsetCommit")
            with pytest.raises(CooperationNotSupportedError, match="OffsetCommit"):
                await consumer.commit()


@in_loop
async def test_missing_echo_ends_a_run() -> None:
    """Workers stop too."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.without_tags.add("ConsumerGroupHeartbeat")

        async def handle(record: ConsumerRecord) -> None: ...

        async with new_consumer(broker) as consumer:
            with pytest.raises(CooperationNotSupportedError):
                await consumer.run(handle)
        async with new_consumer(broker) as consumer:
            with pytest.raises(CooperationNotSupportedError):
                await consumer.run(lambda record: None, concurrency=3)


@pytest.mark.parametrize(
    ("api_name", "code", "kind"),
    [
        ("ConsumerGroupHeartbeat", ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationError),
        ("ConsumerGroupHeartbeat", ErrorCode.UNSUPPORTED_ASSIGNOR, BrokerError),
        ("Fetch partition", ErrorCode.TOPIC_AUTHORIZATION_FAILED, BrokerError),
        ("OffsetFetch", ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationError),
        ("FindCoordinator", ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationError),
    ],
)
@in_loop
async def test_refusal(api_name: str, code: ErrorCode, kind: type[Exception]) -> None:
    """What a broker refuses for good reaches the application."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.errors[api_name].append(code)
        async with new_consumer(broker) as consumer:
            with pytest.raises(kind, match=code.name):
                await consumer.poll(20)


def test_sub_codes() -> None:
    """KIP-X's own errors have exceptions of their own, which say what to set."""
    error = broker_error(42, "x", None, SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED)
    assert isinstance(error, RangeFetchNotAllowedError)
    assert "range.fetch.enable=true" in str(error)
    error = broker_error(42, "x", None, SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED)
    assert isinstance(error, IndividualCommitNotAllowedError)
    assert broker_error(9999, "x").code is ErrorCode.UNKNOWN_SERVER_ERROR


@in_loop
async def test_no_broker() -> None:
    """Without a broker a standalone consumer keeps trying; a poll returns nothing."""
    async with FakeBroker() as broker:
        bootstrap = broker.bootstrap
    consumer = CooperativeConsumer(
        bootstrap_servers=bootstrap, group_id="workers", retry_backoff_ms=1, retry_backoff_max_ms=5
    )
    consumer.subscribe("orders")
    assert await consumer.poll(0.05) == []
    await consumer.close()


@in_loop
async def test_corrupt_batch() -> None:
    """A batch that cannot be read ends the consumer, or is passed over if one asks for that."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"a"])
        read = broker._read

        def damaged(topic_id: bytes, asked: object) -> object:
            data = read(topic_id, asked)
            if data.records:
                data.records = data.records[:-1] + b"\xff"
            return data

        broker._read = damaged  # type: ignore[method-assign]
        async with new_consumer(broker) as consumer:
            with pytest.raises(CorruptRecordsError, match=r"orders-0: the batch at offset 0"):
                await consumer.poll(20)
        async with new_consumer(broker, corrupt_batches="skip") as consumer:
            await consumer.poll()
            await broker.until(
                lambda: consumer.progress().ranges and consumer.progress().ranges[0].position == 1
            )


@in_loop
async def test_no_progress() -> None:
    """Without progress, and without leave to begin anywhere, a consumer does not guess."""
    async with FakeBroker() as broker:
        give_all(broker)
        async with new_consumer(broker, auto_offset_reset="none") as consumer:
            with pytest.raises(NoOffsetError, match="no progress of orders-0"):
                await consumer.poll(20)


@in_loop
async def test_unknown_partition() -> None:
    """A partition that does not exist cannot be assigned."""
    async with FakeBroker() as broker:
        broker.create("orders")
        for wanted in ("orders", 5), ("payments", 0):
            async with new_consumer(broker, group_id=None) as consumer:
                consumer.assign({ORDERS._make(wanted): []})
                with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                    await consumer.poll(20)


@in_loop
async def test_callback_that_raises() -> None:
    """An exception of a callback ends the consumer: what it should have done was not done."""
    async with FakeBroker() as broker:
        give_all(broker)

        def prepare(ranges: object) -> None:
            raise ValueError("no room")

        async with new_consumer(broker, on_ranges_assigned=prepare) as consumer:
            with pytest.raises(CallbackError, match="prepare: no room"):
                await consumer.poll(20)


@in_loop
async def test_closed() -> None:
    """A closed consumer says so, and ends iterations."""
    async with FakeBroker() as broker:
        give_all(broker)
        consumer = new_consumer(broker)

        async def iterate() -> int:
            return len([record async for record in consumer])

        iterating = asyncio.ensure_future(iterate())
        await broker.until(lambda: broker.sent("Fetch"))
        await consumer.close()
        await consumer.close()
        assert await iterating == 0
        with pytest.raises(ConsumerClosedError):
            await consumer.poll()
        with pytest.raises(ConsumerClosedError):
            consumer.subscribe(["orders"])
        with pytest.raises(ConsumerClosedError):
            await consumer.commit()


@in_loop
async def test_order_of_calls() -> None:
    """A consumer that was not told what to consume, or twice in different ways, says so."""
    with pytest.raises(ConsumerStateError, match="subscribe or assign"):
        await CooperativeConsumer().poll()
    with pytest.raises(ConfigurationError, match="needs a group_id"):
        CooperativeConsumer().subscribe(["orders"])
    with pytest.raises(ConfigurationError, match="at least one topic"):
        CooperativeConsumer(group_id="g").subscribe([])
    consumer = CooperativeConsumer(group_id="g")
    consumer.subscribe("orders")
    with pytest.raises(ConsumerStateError, match="has subscribed"):
        consumer.assign({ORDERS: []})
    consumer = CooperativeConsumer(group_id="g")
    with pytest.raises(ConfigurationError, match="overlap"):
        consumer.assign({ORDERS: [KeyRange.whole(), KeyRange.equal(2)[1]]})
    with pytest.raises(ValueError, match="multiples of 2\\^47"):
        consumer.assign({ORDERS: [KeyRange(1, 5)]})
    consumer.assign({ORDERS: []})
    with pytest.raises(ConsumerStateError, match="by assign"):
        consumer.subscribe("orders")
    with pytest.raises(ConfigurationError, match="set group_id"):
        await CooperativeConsumer().commit()


@in_loop
async def test_connection_error_names_the_place() -> None:
    """A refused connection names the address."""
    from anabranch.client.cluster import Cluster
    from anabranch.client.settings import ConsumerSettings
    from anabranch.wire.messages.metadata import METADATA, MetadataRequest

    cluster = Cluster(ConsumerSettings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1:1"):
        await cluster.ask_any(METADATA, MetadataRequest())
    await cluster.close()
