"""Stock admin clients and producers on branch topics, over real sockets."""

from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from anabranch.model.errors import ErrorCode
from support.aiokafka_client import Aiokafka
from support.broker_process import BrokerProcess
from support.confluent_client import QUICK, ConfluentKafka
from support.kafka_python_client import QUICK as QUICK_PYTHON
from support.kafka_python_client import KafkaPython, kafka
from support.stock_clients import TIMEOUT_S, ToSend

TIMEOUT = {"request_timeout": TIMEOUT_S}


class Confluent:
    """librdkafka's admin client, with what a refusal says."""

    def __init__(self, bootstrap: str) -> None:
        self.inner = AdminClient({**QUICK, "bootstrap.servers": bootstrap})

    def outcome(self, futures: dict[Any, Any]) -> tuple[int, str] | None:
        """Code and text of the only answer; None when it went well."""
        (future,) = futures.values()
        try:
            future.result(TIMEOUT_S)
        except KafkaException as exception:
            error = exception.args[0]
            return error.code(), error.str()
        return None

    def branch(self, source: str, name: str, partitions: int = -1, **more: Any) -> Any:
        config = {"branch.source.topic": source}
        return self.outcome(
            self.inner.create_topics([NewTopic(name, partitions, -1, config=config)], **more)
        )

    def create(self, name: str, partitions: int) -> None:
        assert self.outcome(self.inner.create_topics([NewTopic(name, partitions, 1)])) is None

    def alter(self, name: str, setting: str, value: str) -> Any:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        return self.outcome(self.inner.incremental_alter_configs([resource], **TIMEOUT))

    def configs(self, name: str) -> dict[str, Any]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        (future,) = self.inner.describe_configs([resource], **TIMEOUT).values()
        entries: dict[str, Any] = future.result(TIMEOUT_S)
        return entries

    def partitions(self, name: str) -> int:
        return len(self.inner.list_topics(timeout=TIMEOUT_S).topics[name].partitions)

    def offsets(self, name: str, spec: Any) -> list[int]:
        keys = [confluent_kafka.TopicPartition(name, i) for i in range(self.partitions(name))]
        futures = self.inner.list_offsets(dict.fromkeys(keys, spec), **TIMEOUT)
        found = {key.partition: future.result(TIMEOUT_S) for key, future in futures.items()}
        return [found[partition].offset for partition in sorted(found)]


@pytest.fixture
def confluent(shared_broker: BrokerProcess) -> Confluent:
    return Confluent(shared_broker.bootstrap)


@pytest.fixture
def kafka_python(shared_broker: BrokerProcess) -> Iterator[Any]:
    settings = {name: value for name, value in QUICK_PYTHON.items() if name != "metrics_enabled"}
    client = kafka.KafkaAdminClient(bootstrap_servers=shared_broker.bootstrap, **settings)
    yield client
    client.close()


def test_a_life_with_librdkafka(confluent: Confluent) -> None:
    """Created by a setting, grown with its source, configured, refused, and deleted first."""
    confluent.create("rd", 3)
    assert confluent.branch("rd", "rd.by-key", 22) == (
        ErrorCode.INVALID_PARTITIONS,
        (
            "22 partitions do not fit: rd has 3 partitions, each to be cut into equally many "
            "ranges. Use 21 or 24."
        ),
    )
    assert confluent.branch("rd", "rd.by-key", 6, validate_only=True) is None
    assert confluent.branch("rd", "rd.by-key", 6) is None
    assert confluent.partitions("rd.by-key") == 6
    assert confluent.outcome(confluent.inner.create_partitions([NewPartitions("rd", 4)])) is None
    assert confluent.partitions("rd.by-key") == 8
    code, text = confluent.outcome(
        confluent.inner.create_partitions([NewPartitions("rd.by-key", 12)])
    )
    assert code == ErrorCode.INVALID_PARTITIONS
    assert text.startswith("The partitions of rd.by-key follow rd, 2 for each.")
    assert confluent.alter("rd.by-key", "branch.commit.source", "true") is None
    code, _ = confluent.alter("rd.by-key", "retention.ms", "1")
    assert code == ErrorCode.INVALID_CONFIG
    assert confluent.alter("rd", "retention.ms", "70000000") is None
    code, _ = confluent.alter("rd", "branch.null.key", "ordered")
    assert code == ErrorCode.INVALID_CONFIG
    entries = confluent.configs("rd.by-key")
    assert (entries["branch.commit.source"].value, entries["retention.ms"].value) == (
        "true",
        "70000000",
    )
    assert [name for name, entry in entries.items() if not entry.is_read_only] == [
        "branch.commit.source"
    ]
    # librdkafka asks in a version that has no room for the sentence.
    code, _ = confluent.outcome(confluent.inner.delete_topics(["rd"], **TIMEOUT))
    assert code == ErrorCode.POLICY_VIOLATION
    both = confluent.inner.delete_topics(["rd", "rd.by-key"], **TIMEOUT)
    assert [future.result(TIMEOUT_S) for future in both.values()] == [None, None]


def test_a_life_with_kafka_python(kafka_python: Any) -> None:
    """The same, with alterations of both kinds; reading all and writing it back is no change."""
    source, name = "py", "py.by-key"
    kafka_python.create_topics({source: {"num_partitions": 2, "configs": {"retention.ms": "7"}}})
    wanted = {"num_partitions": 4, "configs": {"branch.source.topic": source}}
    (made,) = kafka_python.create_topics({name: wanted})["topics"]
    assert (made["num_partitions"], made["configs"]["branch.ranges"]["value"]) == (4, "2")
    kafka_python.create_partitions({source: 3})
    (described,) = kafka_python.describe_topics([name])
    assert len(described["partitions"]) == 6
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        kafka_python.create_partitions({name: 8})
    kind = kafka.admin.ConfigResourceType.TOPIC
    for incremental, value in ((True, "true"), (False, "false")):
        change = kafka.admin.ConfigResource(kind, name, {"branch.commit.source": value})
        altered = kafka_python.alter_configs([change], incremental=incremental)
        assert altered == {"topic": {name: "OK"}}
        shown = kafka_python.describe_configs(
            [kafka.admin.ConfigResource(kind, name)], config_filter="all"
        )["topic"][name]
        assert shown["branch.commit.source"]["value"] == value
        assert shown["branch.source.topic"]["value"] == source
        assert shown["retention.ms"]["value"] == "7"
    with pytest.raises(kafka.errors.PolicyViolationError, match=r"py\.by-key"):
        kafka_python.delete_topics([source])
    place = kafka.TopicPartition(name, 0)
    with pytest.raises(kafka.errors.PolicyViolationError):
        kafka_python.delete_records({place: 0})
    kafka_python.delete_topics([source, name])
    assert not {source, name} & set(kafka_python.list_topics())


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize(
    "client", [ConfluentKafka(), KafkaPython(), Aiokafka()], ids=lambda client: client.name
)
def test_producers_give_up_at_once(
    confluent: Confluent, shared_broker: BrokerProcess, client: Any, idempotent: bool
) -> None:
    """A produce to a branch topic fails with a code that no client tries again."""
    source = f"refusing-{client.name}-{idempotent}"
    confluent.create(source, 1)
    assert confluent.branch(source, f"{source}.by-key", 2) is None
    settings = {"idempotent": idempotent, "delivery_timeout_ms": 60_000}
    with client.producer(shared_broker.bootstrap, **settings) as producer:
        (delivery,) = producer.send(f"{source}.by-key", [ToSend(b"v", key=b"k", partition=1)])
    assert delivery.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert confluent.offsets(source, OffsetSpec.latest()) == [0]


def test_a_restart(make_broker: Callable[..., BrokerProcess]) -> None:
    """Also after a kill, branch topics are there with the branches that came by growth."""
    broker = make_broker()
    confluent = Confluent(broker.bootstrap)
    confluent.create("t", 2)
    assert confluent.branch("t", "t.by-key", 4) is None
    assert confluent.outcome(confluent.inner.create_partitions([NewPartitions("t", 3)])) is None
    with ConfluentKafka().producer(broker.bootstrap) as producer:
        producer.send("t", [ToSend(b"%d" % number, partition=2) for number in range(5)])
    before = {name: entry.value for name, entry in confluent.configs("t.by-key").items()}
    expected = [0, 0, 0, 0, 5, 5]
    assert confluent.offsets("t.by-key", OffsetSpec.latest()) == expected
    for end in (broker.kill, broker.stop):
        end()
        broker.start()
        confluent = Confluent(broker.bootstrap)
        assert confluent.offsets("t.by-key", OffsetSpec.latest()) == expected
        after = {name: entry.value for name, entry in confluent.configs("t.by-key").items()}
        assert after == before
