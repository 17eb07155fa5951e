"""kafka-python against the broker, over real sockets."""

import uuid
from collections.abc import Callable, Iterator

import pytest
from client_behaviour import ClientBehaviour, numbered

from anabranch.model.errors import ErrorCode
from support.broker_process import BrokerProcess
from support.kafka_python_client import QUICK, KafkaPython, kafka
from support.stock_clients import EARLIEST, ToSend

# The name `kafka` comes from the support module, which imports it with its warning silenced.
TopicPartition = kafka.TopicPartition
errors = kafka.errors

QUICK_ADMIN = {name: value for name, value in QUICK.items() if name != "metrics_enabled"}


class TestKafkaPython(ClientBehaviour):
    """What every client must see."""

    client = KafkaPython()
    sends_null_headers = False


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=shared_broker.bootstrap, **QUICK_ADMIN)
    yield client
    client.close()


def _resource(topic: str, configs: dict[str, object] | None = None) -> object:
    kinds = kafka.admin.ConfigResourceType
    return kafka.admin.ConfigResource(kinds.TOPIC, topic, configs)


# Clients ----------------------------------------------------------------------------------------


def test_an_unknown_topic_stays_unknown_when_creation_is_off(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    """A producer gives up when it has waited long enough; a consumer knows no partitions."""
    broker = make_broker(**{"auto.create.topics.enable": "false"})
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, max_block_ms=300, **QUICK)
    with pytest.raises(errors.KafkaTimeoutError):
        producer.send("t", b"v")
    producer.close(timeout=1)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, **QUICK)
    assert not consumer.partitions_for_topic("t")
    assert consumer.topics() == set()
    consumer.close()


def test_an_offset_out_of_range(shared_broker: BrokerProcess, topic: str) -> None:
    """The application is told when nothing else is configured, or the consumer starts over."""
    with KafkaPython().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, numbered(10))
    place = TopicPartition(topic, 0)
    for reset, first in (("none", None), ("earliest", 0)):
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=shared_broker.bootstrap, auto_offset_reset=reset, **QUICK
        )
        consumer.assign([place])
        consumer.seek(place, 1000)
        if first is None:
            with pytest.raises(errors.OffsetOutOfRangeError):
                consumer.poll(timeout_ms=10_000)
        else:
            assert next(consumer).offset == first
        consumer.close()


# Administration ---------------------------------------------------------------------------------


def test_topics_are_created_described_and_deleted(
    admin: kafka.KafkaAdminClient, topic: str
) -> None:
    """By name and by id."""
    wanted = {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "5000"}}
    (made,) = admin.create_topics({topic: wanted})["topics"]
    assert (made["num_partitions"], made["replication_factor"]) == (3, 1)
    assert made["configs"]["retention.ms"]["value"] == "5000"
    assert topic in admin.list_topics()
    (described,) = admin.describe_topics([topic])
    assert [p["partition_index"] for p in described["partitions"]] == [0, 1, 2]
    topic_id = uuid.UUID(str(described["topic_id"]))
    assert topic_id == uuid.UUID(str(made["topic_id"]))
    (by_id,) = admin.describe_topics([topic_id])
    assert by_id["name"] == topic
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics({topic: wanted})
    admin.delete_topics([topic_id])
    assert topic not in admin.list_topics()
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([topic])


def test_topics_that_cannot_be_created(admin: kafka.KafkaAdminClient, topic: str) -> None:
    """Each mistake has its error, and nothing is made."""
    wanted = {
        f"{topic}-none": {"num_partitions": 0},
        f"{topic}-three": {"replication_factor": 3},
        f"{topic}-config": {"configs": {"retention.ms": "soon"}},
        f"{topic}-nobody": {"assignments": {0: [99]}},
    }
    answer = admin.create_topics(wanted, raise_errors=False)
    assert {made["name"]: made["error_code"] for made in answer["topics"]} == {
        f"{topic}-none": ErrorCode.INVALID_PARTITIONS,
        f"{topic}-three": ErrorCode.INVALID_REPLICATION_FACTOR,
        f"{topic}-config": ErrorCode.INVALID_CONFIG,
        f"{topic}-nobody": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }
    assert all(made["error_message"] for made in answer["topics"])
    admin.create_topics({f"{topic}-only": {}}, validate_only=True)
    assert not [name for name in admin.list_topics() if name.startswith(topic)]


def test_partitions_are_added(
    admin: kafka.KafkaAdminClient, shared_broker: BrokerProcess, topic: str
) -> None:
    """New partitions take records; fewer than there are is refused."""
    admin.create_topics({topic: {"num_partitions": 2}})
    admin.create_partitions({topic: 5})
    with KafkaPython().producer(shared_broker.bootstrap) as producer:
        assert producer.partition_count(topic) == 5
        assert producer.send(topic, [ToSend(b"v", partition=4)])[0].offset == 0
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_partitions({topic: 3})


@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "whole"])
def test_settings_of_a_topic_are_altered(
    admin: kafka.KafkaAdminClient, topic: str, incremental: bool
) -> None:
    """Both kinds of alteration end in the same settings, and a reset brings the defaults back."""
    admin.create_topics({topic: {"configs": {"retention.ms": "5000"}}})
    altered = admin.alter_configs(
        [_resource(topic, {"max.message.bytes": "2000"})], incremental=incremental
    )
    assert altered == {"topic": {topic: "OK"}}
    assert _modified(admin, topic) == {"retention.ms": "5000", "max.message.bytes": "2000"}
    admin.reset_configs([_resource(topic, {"retention.ms": None})], incremental=incremental)
    assert _modified(admin, topic) == {"max.message.bytes": "2000"}
    refused = admin.alter_configs(
        [_resource(topic, {"max.message.bytes": "many"})], incremental=incremental
    )
    assert refused["topic"][topic] != "OK"
    assert _modified(admin, topic) == {"max.message.bytes": "2000"}


def _modified(admin: kafka.KafkaAdminClient, topic: str) -> dict[str, str]:
    described = admin.describe_configs([_resource(topic)], config_filter="modified")
    return {name: config["value"] for name, config in described["topic"][topic].items()}


def test_settings_come_with_their_synonyms(admin: kafka.KafkaAdminClient, topic: str) -> None:
    """A setting tells where its value comes from, down to the default."""
    admin.create_topics({topic: {"configs": {"retention.ms": "5000"}}})
    described = admin.describe_configs(
        [_resource(topic)], include_synonyms=True, config_filter="all"
    )
    retention = described["topic"][topic]["retention.ms"]
    assert (retention["config_source"], retention["config_type"]) == (
        "DYNAMIC_TOPIC_CONFIG",
        "LONG",
    )
    assert retention["synonyms"][0]["value"] == "5000"
    assert retention["synonyms"][-1]["source"] == "DEFAULT_CONFIG"


def test_records_are_deleted(
    admin: kafka.KafkaAdminClient, shared_broker: BrokerProcess, topic: str
) -> None:
    """The log begins where it is told to; offsets beyond its end are refused."""
    with KafkaPython().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, numbered(20))
    place = TopicPartition(topic, 0)
    assert admin.delete_records({place: 12})[place]["low_watermark"] == 12
    with KafkaPython().consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
        assert consumer.offset_range(0) == (12, 20)
        assert [record.offset for record in consumer.take(8)] == list(range(12, 20))
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({place: 99})


def test_offsets_are_listed(
    admin: kafka.KafkaAdminClient, shared_broker: BrokerProcess, topic: str
) -> None:
    """Earliest, latest, by time, the record with the largest time, and tiered places."""
    start_ms = 1_700_000_000_000
    with KafkaPython().producer(shared_broker.bootstrap) as producer:
        for after_ms in (0, 10, 50, 20):
            producer.send(topic, [ToSend(b"v", timestamp_ms=start_ms + after_ms)])
    place = TopicPartition(topic, 0)
    spec = kafka.admin.OffsetSpec

    def listed(wanted: object) -> int:
        return int(admin.list_partition_offsets({place: wanted})[place].offset)

    assert listed(spec.EARLIEST) == 0
    assert listed(spec.LATEST) == 4
    assert listed(spec.MAX_TIMESTAMP) == 2
    assert listed(spec.EARLIEST_LOCAL) == 0
    assert listed(spec.LATEST_TIERED) == -1
    assert listed(start_ms + 15) == 2
    assert listed(start_ms + 51) == -1


def test_the_cluster_is_described(
    admin: kafka.KafkaAdminClient, shared_broker: BrokerProcess
) -> None:
    """One node, which is the controller, at the address that was asked."""
    cluster = admin.describe_cluster()
    (node,) = cluster["brokers"]
    assert (node["host"], node["port"]) == ("127.0.0.1", shared_broker.port)
    assert cluster["controller_id"] == node["broker_id"]
    assert cluster["cluster_id"]


def test_partitions_are_described_page_by_page(admin: kafka.KafkaAdminClient, topic: str) -> None:
    """DescribeTopicPartitions stops at its limit and goes on from its cursor."""
    admin.create_topics({topic: {"num_partitions": 5}})
    found, cursor = [], None
    for _ in range(3):
        page = admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
        (described,) = page["topics"]
        found += [partition["partition_index"] for partition in described["partitions"]]
        cursor = page["next_cursor"]
    assert found == [0, 1, 2, 3, 4]
    assert cursor is None


def test_log_dirs_and_producers_are_described(
    admin: kafka.KafkaAdminClient, shared_broker: BrokerProcess, topic: str
) -> None:
    """The folder with its sizes, and the idempotent producer with its last sequence."""
    with KafkaPython().producer(shared_broker.bootstrap, idempotent=True) as producer:
        producer.send(topic, numbered(10))
    (node,) = admin.describe_log_dirs({topic: [0]})
    (log_dir,) = node["log_dirs"]
    assert log_dir["log_dir"] == str(shared_broker.data_dir)
    (described,) = log_dir["topics"]
    (partition,) = described["partitions"]
    segment = shared_broker.data_dir / f"{topic}-0" / f"{0:020d}.log"
    assert partition["partition_size"] == segment.stat().st_size
    place = TopicPartition(topic, 0)
    (state,) = admin.describe_producers([place])[place].active_producers
    assert (state.producer_epoch, state.last_sequence) == (0, 9)
