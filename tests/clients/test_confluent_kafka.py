"""confluent-kafka (librdkafka) against the broker, over real sockets."""

from collections.abc import Callable

import confluent_kafka
import pytest
from client_behaviour import ClientBehaviour, numbered
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from anabranch.model.errors import ErrorCode
from support.broker_process import BrokerProcess
from support.confluent_client import QUICK, ConfluentKafka
from support.stock_clients import EARLIEST, TIMEOUT_S, ToSend

TIMEOUT = {"request_timeout": TIMEOUT_S}
# An unknown topic may be one that is just being made; librdkafka believes that for 30 s.
IMPATIENT = {"topic.metadata.propagation.max.ms": 100}


class TestConfluentKafka(ClientBehaviour):
    """What every client must see."""

    client = ConfluentKafka()


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> AdminClient:
    return AdminClient({**QUICK, "bootstrap.servers": shared_broker.bootstrap})


def _code(future: object) -> int:
    """The error that an admin call ended with; 0 without one."""
    try:
        future.result(TIMEOUT_S)  # type: ignore[attr-defined]
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


def _create(admin: AdminClient, *topics: NewTopic, **settings: object) -> dict[str, int]:
    made = admin.create_topics(list(topics), **TIMEOUT, **settings)
    return {name: _code(future) for name, future in made.items()}


# Clients ----------------------------------------------------------------------------------------


def test_an_unknown_topic_stays_unknown_when_creation_is_off(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    """Metadata says so, and a produce fails."""
    broker = make_broker(**{"auto.create.topics.enable": "false"})
    settings = {**QUICK, **IMPATIENT, "bootstrap.servers": broker.bootstrap}
    producer = confluent_kafka.Producer(settings)
    errors: list[int] = []
    producer.produce("t", b"v", on_delivery=lambda error, _: errors.append(error.code()))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    found = producer.list_topics("t", timeout=TIMEOUT_S).topics["t"]
    assert found.error.code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_consumer_does_not_create_topics(shared_broker: BrokerProcess, topic: str) -> None:
    """librdkafka asks not to, and is obeyed although the broker would."""
    settings = {**QUICK, **IMPATIENT, "bootstrap.servers": shared_broker.bootstrap}
    consumer = confluent_kafka.Consumer({**settings, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.5) is None
    found = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    assert found.error.code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in consumer.list_topics(timeout=TIMEOUT_S).topics
    consumer.close()


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("error", None)])
def test_an_offset_out_of_range(
    shared_broker: BrokerProcess, topic: str, reset: str, first: int | None
) -> None:
    """The consumer resets as it is configured, or tells the application."""
    with ConfluentKafka().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, numbered(10))
    settings = {
        **QUICK,
        "bootstrap.servers": shared_broker.bootstrap,
        "group.id": "g",
        "auto.offset.reset": reset,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 1000)])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    if first is None:
        assert message.error().code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
    else:
        assert message.error() is None
        assert message.offset() == first


# Administration ---------------------------------------------------------------------------------


def test_topics_are_created_described_and_deleted(admin: AdminClient, topic: str) -> None:
    """Partitions, replicas and settings are as asked; a deleted topic is gone."""
    wanted = NewTopic(topic, 3, 1, config={"retention.ms": "5000"})
    assert _create(admin, wanted) == {topic: ErrorCode.NONE}
    listed = admin.list_topics(timeout=TIMEOUT_S).topics[topic]
    assert sorted(listed.partitions) == [0, 1, 2]
    described = admin.describe_topics(confluent_kafka.TopicCollection([topic]), **TIMEOUT)[
        topic
    ].result(TIMEOUT_S)
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert [len(partition.replicas) for partition in described.partitions] == [1, 1, 1]
    deleted = admin.delete_topics([topic], **TIMEOUT)
    assert _code(deleted[topic]) == ErrorCode.NONE
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics
    again = admin.delete_topics([topic], **TIMEOUT)
    assert _code(again[topic]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_that_cannot_be_created(admin: AdminClient, topic: str) -> None:
    """Each mistake has its error, and nothing is made."""
    assert _create(admin, NewTopic(f"{topic}-there", 1, 1))[f"{topic}-there"] == 0
    codes = _create(
        admin,
        NewTopic(f"{topic}-there", 1, 1),
        NewTopic(f"{topic}-none", 0, 1),
        NewTopic(f"{topic}-three", 1, 3),
        NewTopic(f"{topic}-config", 1, 1, config={"retention.ms": "soon"}),
        NewTopic(f"{topic}-unknown", 1, 1, config={"no.such.setting": "1"}),
        NewTopic("not/a/name", 1, 1),
    )
    assert codes == {
        f"{topic}-there": ErrorCode.TOPIC_ALREADY_EXISTS,
        f"{topic}-none": ErrorCode.INVALID_PARTITIONS,
        f"{topic}-three": ErrorCode.INVALID_REPLICATION_FACTOR,
        f"{topic}-config": ErrorCode.INVALID_CONFIG,
        f"{topic}-unknown": ErrorCode.INVALID_CONFIG,
        "not/a/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    validated = _create(admin, NewTopic(f"{topic}-only", 1, 1), validate_only=True)
    assert validated == {f"{topic}-only": ErrorCode.NONE}
    listed = admin.list_topics(timeout=TIMEOUT_S).topics
    assert [name for name in listed if name.startswith(topic)] == [f"{topic}-there"]


def test_partitions_are_added(admin: AdminClient, shared_broker: BrokerProcess, topic: str) -> None:
    """New partitions take records; fewer than there are is refused."""
    _create(admin, NewTopic(topic, 2, 1))
    assert _code(admin.create_partitions([NewPartitions(topic, 5)], **TIMEOUT)[topic]) == 0
    with ConfluentKafka().producer(shared_broker.bootstrap) as producer:
        assert producer.partition_count(topic) == 5
        assert producer.send(topic, [ToSend(b"v", partition=4)])[0].offset == 0
    fewer = admin.create_partitions([NewPartitions(topic, 3)], **TIMEOUT)
    assert _code(fewer[topic]) == ErrorCode.INVALID_PARTITIONS


def test_settings_of_a_topic_are_altered(admin: AdminClient, topic: str) -> None:
    """Incremental alterations set, append and delete; the rest keeps its defaults."""
    _create(admin, NewTopic(topic, 1, 1, config={"retention.ms": "5000"}))

    def alter(*entries: ConfigEntry) -> int:
        wanted = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=list(entries))
        return _code(admin.incremental_alter_configs([wanted], **TIMEOUT)[wanted])

    def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
        return ConfigEntry(name, value, incremental_operation=operation)

    assert (
        alter(
            entry("max.message.bytes", "2000", AlterConfigOpType.SET),
            entry("cleanup.policy", "compact", AlterConfigOpType.APPEND),
            entry("retention.ms", None, AlterConfigOpType.DELETE),
        )
        == ErrorCode.NONE
    )
    described = _describe(admin, ConfigResource(ConfigResource.Type.TOPIC, topic))
    assert described["max.message.bytes"].value == "2000"
    assert described["cleanup.policy"].value == "delete,compact"
    assert described["retention.ms"].value == "604800000"
    assert described["retention.ms"].is_default
    assert not described["max.message.bytes"].is_default
    bad = entry("max.message.bytes", "many", AlterConfigOpType.SET)
    assert alter(bad) == ErrorCode.INVALID_CONFIG


def _describe(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    found: dict[str, ConfigEntry] = admin.describe_configs([resource], **TIMEOUT)[resource].result(
        TIMEOUT_S
    )
    return found


def test_altered_settings_act_at_once(
    admin: AdminClient, shared_broker: BrokerProcess, topic: str
) -> None:
    """A topic made to take small messages only refuses the next large one."""
    _create(admin, NewTopic(topic, 1, 1))
    with ConfluentKafka().producer(shared_broker.bootstrap) as producer:
        assert producer.send(topic, [ToSend(b"." * 5000)])[0].error_code == ErrorCode.NONE
        small = ConfigEntry(
            "max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[small])
        assert _code(admin.incremental_alter_configs([resource], **TIMEOUT)[resource]) == 0
        (refused,) = producer.send(topic, [ToSend(b"." * 5000)])
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_settings_of_the_broker_are_described(
    admin: AdminClient, shared_broker: BrokerProcess
) -> None:
    """Defaults and what was given at the start are told apart."""
    (node,) = admin.list_topics(timeout=TIMEOUT_S).brokers
    described = _describe(admin, ConfigResource(ConfigResource.Type.BROKER, str(node)))
    assert described["num.partitions"].value == "4"
    assert described["log.dirs"].value == str(shared_broker.data_dir)
    assert described["log.dirs"].is_read_only
    assert described["log.retention.hours"].is_default


def test_records_are_deleted(admin: AdminClient, shared_broker: BrokerProcess, topic: str) -> None:
    """The log begins where it is told to; offsets beyond its end are refused."""
    with ConfluentKafka().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, numbered(20))
    place = TopicPartition(topic, 0, 12)
    (future,) = admin.delete_records([place], **TIMEOUT).values()
    assert future.result(TIMEOUT_S).low_watermark == 12
    with ConfluentKafka().consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
        assert consumer.offset_range(0) == (12, 20)
        assert [record.offset for record in consumer.take(8)] == list(range(12, 20))
    (future,) = admin.delete_records([TopicPartition(topic, 0, 99)], **TIMEOUT).values()
    assert _code(future) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_offsets_are_listed(admin: AdminClient, shared_broker: BrokerProcess, topic: str) -> None:
    """Earliest, latest, by time, and the record with the largest time."""
    start_ms = 1_700_000_000_000
    times_ms = [start_ms, start_ms + 10, start_ms + 50, start_ms + 20]
    with ConfluentKafka().producer(shared_broker.bootstrap) as producer:
        for time_ms in times_ms:
            producer.send(topic, [ToSend(b"v", timestamp_ms=time_ms)])

    def listed(spec: OffsetSpec) -> int:
        (future,) = admin.list_offsets({TopicPartition(topic, 0): spec}, **TIMEOUT).values()
        return int(future.result(TIMEOUT_S).offset)

    assert listed(OffsetSpec.earliest()) == 0
    assert listed(OffsetSpec.latest()) == 4
    assert listed(OffsetSpec.max_timestamp()) == 2
    assert listed(OffsetSpec.for_timestamp(start_ms + 15)) == 2
    assert listed(OffsetSpec.for_timestamp(start_ms + 51)) == -1


def test_the_cluster_is_described(admin: AdminClient, shared_broker: BrokerProcess) -> None:
    """One node, which is the controller, at the address that was asked."""
    cluster = admin.describe_cluster(**TIMEOUT).result(TIMEOUT_S)
    (node,) = cluster.nodes
    assert (node.host, node.port) == ("127.0.0.1", shared_broker.port)
    assert cluster.controller.id == node.id
    assert cluster.cluster_id == admin.list_topics(timeout=TIMEOUT_S).cluster_id
