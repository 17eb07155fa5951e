"""aiokafka against the broker, over real sockets."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import (
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidPartitionsError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from client_behaviour import ClientBehaviour, numbered

from anabranch.model.errors import ErrorCode
from support.aiokafka_client import Aiokafka
from support.broker_process import BrokerProcess
from support.stock_clients import EARLIEST, ToSend

Work = Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, None]]


class TestAiokafka(ClientBehaviour):
    """What every client must see."""

    client = Aiokafka()
    # It does not know this number and shows the application UnknownError (-1).
    code_of_invalid_record = -1


def administer(broker: BrokerProcess, work: Work) -> None:
    """Run `work` with an admin client."""

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await work(admin)
        finally:
            await admin.close()

    asyncio.run(run())


# Clients ----------------------------------------------------------------------------------------


def test_an_unknown_topic_stays_unknown_when_creation_is_off(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    """A producer gives up when it has waited long enough."""
    broker = make_broker(**{"auto.create.topics.enable": "false"})

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, request_timeout_ms=500, retry_backoff_ms=50
        )
        await producer.start()
        try:
            with pytest.raises((UnknownTopicOrPartitionError, KafkaTimeoutError)):
                await producer.send_and_wait("t", b"v")
        finally:
            await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("reset", "first"), [("none", None), ("earliest", 0)])
def test_an_offset_out_of_range(
    shared_broker: BrokerProcess, topic: str, reset: str, first: int | None
) -> None:
    """The application is told when nothing else is configured, or the consumer starts over."""
    with Aiokafka().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, numbered(10))

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=shared_broker.bootstrap, auto_offset_reset=reset
        )
        await consumer.start()
        try:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 1000)
            if first is None:
                with pytest.raises(OffsetOutOfRangeError):
                    await consumer.getone()
            else:
                assert (await consumer.getone()).offset == first
        finally:
            await consumer.stop()

    asyncio.run(run())


# Administration ---------------------------------------------------------------------------------


def test_topics_are_created_described_and_deleted(shared_broker: BrokerProcess, topic: str) -> None:
    """Partitions are as asked; a deleted topic is gone."""

    async def work(admin: AIOKafkaAdminClient) -> None:
        wanted = NewTopic(topic, 3, 1, topic_configs={"retention.ms": "5000"})
        made = await admin.create_topics([wanted])
        assert [(name, code) for name, code, *_ in made.topic_errors] == [(topic, 0)]
        again = await admin.create_topics([wanted])
        assert again.topic_errors[0][1] == ErrorCode.TOPIC_ALREADY_EXISTS
        assert topic in await admin.list_topics()
        (described,) = await admin.describe_topics([topic])
        assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
        deleted = await admin.delete_topics([topic])
        assert [tuple(row)[:2] for row in deleted.topic_error_codes] == [(topic, 0)]
        assert topic not in await admin.list_topics()

    administer(shared_broker, work)


def test_topics_that_cannot_be_created(shared_broker: BrokerProcess, topic: str) -> None:
    """Each mistake has its error."""

    async def work(admin: AIOKafkaAdminClient) -> None:
        made = await admin.create_topics(
            [
                NewTopic(f"{topic}-none", 0, 1),
                NewTopic(f"{topic}-three", 1, 3),
                NewTopic(f"{topic}-config", 1, 1, topic_configs={"retention.ms": "soon"}),
            ]
        )
        assert [code for _, code, *_ in made.topic_errors] == [
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_CONFIG,
        ]
        await admin.create_topics([NewTopic(f"{topic}-only", 1, 1)], validate_only=True)
        assert not [name for name in await admin.list_topics() if name.startswith(topic)]

    administer(shared_broker, work)


def test_partitions_are_added(shared_broker: BrokerProcess, topic: str) -> None:
    """New partitions take records; fewer than there are is refused."""

    async def work(admin: AIOKafkaAdminClient) -> None:
        await admin.create_topics([NewTopic(topic, 2, 1)])
        await admin.create_partitions({topic: NewPartitions(5)})
        with pytest.raises(InvalidPartitionsError):
            await admin.create_partitions({topic: NewPartitions(3)})

    administer(shared_broker, work)
    with Aiokafka().producer(shared_broker.bootstrap) as producer:
        assert producer.partition_count(topic) == 5
        assert producer.send(topic, [ToSend(b"v", partition=4)])[0].offset == 0


def test_settings_of_a_topic_are_altered(shared_broker: BrokerProcess, topic: str) -> None:
    """AlterConfigs replaces all settings of a topic: what is not named goes back to its default."""

    async def described(admin: AIOKafkaAdminClient) -> dict[str, str]:
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        (response,) = await admin.describe_configs([asked])
        (resource,) = response.resources
        assert resource[0] == ErrorCode.NONE
        return {row[0]: row[1] for row in resource[4]}

    async def work(admin: AIOKafkaAdminClient) -> None:
        await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"retention.ms": "5000"})])
        assert (await described(admin))["retention.ms"] == "5000"
        wanted = {"max.message.bytes": "2000"}
        (altered,) = await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, wanted)]
        )
        assert altered.resources[0][0] == ErrorCode.NONE
        found = await described(admin)
        assert (found["max.message.bytes"], found["retention.ms"]) == ("2000", "604800000")

    administer(shared_broker, work)


def test_records_are_deleted(shared_broker: BrokerProcess, topic: str) -> None:
    """The log begins where it is told to; offsets beyond its end are refused."""
    with Aiokafka().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, numbered(20))
    place = TopicPartition(topic, 0)

    async def work(admin: AIOKafkaAdminClient) -> None:
        assert await admin.delete_records({place: RecordsToDelete(12)}) == {place: 12}
        with pytest.raises(OffsetOutOfRangeError):
            await admin.delete_records({place: RecordsToDelete(99)})

    administer(shared_broker, work)
    with Aiokafka().consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
        assert consumer.offset_range(0) == (12, 20)
        assert [record.offset for record in consumer.take(8)] == list(range(12, 20))


def test_the_cluster_is_described(shared_broker: BrokerProcess) -> None:
    """One node, which is the controller, at the address that was asked."""

    async def work(admin: AIOKafkaAdminClient) -> None:
        cluster = await admin.describe_cluster()
        (node,) = cluster["brokers"]
        assert (node["host"], node["port"]) == ("127.0.0.1", shared_broker.port)
        assert cluster["controller_id"] == node["node_id"]
        assert await admin.find_coordinator("group") == node["node_id"]

    administer(shared_broker, work)
