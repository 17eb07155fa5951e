"""Metadata: brokers and topics, by name and id, and topics that come into being by asking."""

from collections.abc import Callable
from typing import Any

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

VERSION = 13
# Read, write, create, delete, alter, describe, describe and alter configs.
TOPIC_OPERATIONS = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11
CLUSTER_OPERATIONS = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12


def asking(*names: str, **more: Any) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **more)


def found(response: MetadataResponse) -> list[tuple[str | None, int, int]]:
    """(name, error, number of partitions) of each topic."""
    return [(t.name, t.error_code, len(t.partitions)) for t in response.topics]


@pytest.mark.parametrize("version", range(14))
def test_everything_there_is(make_node: Callable[..., Node], version: int) -> None:
    """One broker leads every partition; each version carries what it knows of that."""
    node = make_node("cluster.id=tests", "node.id=3", "broker.rack=r1")
    topic = node.create_topic("t", 2)
    request = MetadataRequest(topics=None) if version else asking()
    assert node.call(request, version) == MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=3, host="kafka.example", port=9092, rack="r1" if version >= 1 else None
            )
        ],
        cluster_id="tests" if version >= 2 else None,
        controller_id=3 if version >= 1 else -1,
        topics=[
            MetadataResponseTopic(
                name="t",
                topic_id=topic.topic_id if version >= 10 else bytes(16),
                partitions=[
                    MetadataResponsePartition(
                        partition_index=index,
                        leader_id=3,
                        leader_epoch=0 if version >= 7 else -1,
                        replica_nodes=[3],
                        isr_nodes=[3],
                    )
                    for index in range(2)
                ],
            )
        ],
    )


@pytest.mark.parametrize("version", [1, 5, 13])
def test_an_empty_list_is_no_topic(node: Node, version: int) -> None:
    """From version 1 on only null means all topics."""
    node.create_topic("t")
    assert found(node.call(asking(), version)) == []


def test_all_topics_come_in_order(node: Node) -> None:
    """All topics are sorted by name, and Kafka's internal ones are marked."""
    for name in ("b", "__consumer_offsets", "a", "__mine"):
        node.create_topic(name)
    topics = node.call(MetadataRequest(topics=None), VERSION).topics
    assert [(topic.name, topic.is_internal) for topic in topics] == [
        ("__consumer_offsets", True),
        ("__mine", False),
        ("a", False),
        ("b", False),
    ]


def test_asking_creates_a_topic(make_node: Callable[..., Node]) -> None:
    """A topic that is asked for is there in the same answer, with num.partitions partitions."""
    node = make_node("num.partitions=3")
    response = node.call(asking("new"), VERSION)
    assert found(response) == [("new", 0, 3)]
    assert response.topics[0].topic_id == node.broker.topics.get("new").topic_id


@pytest.mark.parametrize(
    ("overrides", "allowed", "version"),
    [
        (("auto.create.topics.enable=false",), True, VERSION),
        ((), False, VERSION),
        (("auto.create.topics.enable=false",), True, 0),
    ],
)
def test_creation_can_be_forbidden(
    make_node: Callable[..., Node], overrides: tuple[str, ...], allowed: bool, version: int
) -> None:
    """Broker and client can each forbid it; the topic is unknown then."""
    node = make_node(*overrides)
    response = node.call(asking("new", allow_auto_topic_creation=allowed), version)
    assert found(response) == [("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]
    assert len(node.broker.topics) == 0


def test_versions_before_4_always_ask_for_creation(node: Node) -> None:
    """Old clients cannot decline, so the broker's setting alone decides."""
    assert found(node.call(asking("new"), 3)) == [("new", 0, 1)]


def test_names_that_cannot_be_created(node: Node) -> None:
    """Illegal and colliding names are refused each for itself; the others are answered."""
    node.create_topic("a.b")
    response = node.call(asking("a b", "a_b", "", "good"), VERSION)
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert found(response) == [
        ("a b", invalid, 0),
        ("a_b", invalid, 0),
        ("", invalid, 0),
        ("good", 0, 1),
    ]


def test_illegal_names_without_creation(node: Node) -> None:
    """An illegal name is told apart from an unknown one also when nothing is created."""
    request = asking("a b", allow_auto_topic_creation=False)
    assert found(node.call(request, VERSION)) == [("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, 0)]


@pytest.mark.parametrize("version", [12, 13])
def test_by_topic_id(node: Node, version: int) -> None:
    """Topics can be asked for by id; an unknown id has no name and creates nothing."""
    topic = node.create_topic("t")
    unknown = b"\x02" * 16
    asked = [
        MetadataRequestTopic(name=None, topic_id=topic.topic_id),
        MetadataRequestTopic(name=None, topic_id=unknown),
    ]
    known, missing = node.call(MetadataRequest(topics=asked), version).topics
    assert (known.name, known.topic_id, known.error_code) == ("t", topic.topic_id, 0)
    assert missing == MetadataResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=unknown
    )
    assert len(node.broker.topics) == 1


def test_operations_when_asked_for(node: Node) -> None:
    """Everything is allowed, and said so only on request and of topics that exist."""
    node.create_topic("t")
    request = asking("t", "a b", include_topic_authorized_operations=True)
    topics = node.call(request, VERSION).topics
    assert [t.topic_authorized_operations for t in topics] == [TOPIC_OPERATIONS, -(1 << 31)]
    (plain,) = node.call(asking("t"), VERSION).topics
    assert plain.topic_authorized_operations == -(1 << 31)


@pytest.mark.parametrize("version", range(8, 11))
def test_operations_on_the_cluster(node: Node, version: int) -> None:
    """Versions 8-10 can ask what is allowed on the cluster."""
    request = asking(include_cluster_authorized_operations=True)
    response = node.call(request, version)
    assert response.cluster_authorized_operations == CLUSTER_OPERATIONS
    assert node.call(asking(), version).cluster_authorized_operations == -(1 << 31)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_before_version_12(node: Node, version: int) -> None:
    """Versions 10 and 11 have the field but not the right to use it: all is INVALID_REQUEST."""
    node.create_topic("t")
    named = MetadataRequestTopic(name="t")
    for wrong in (
        MetadataRequestTopic(name="t", topic_id=b"\x02" * 16),
        MetadataRequestTopic(name=None, topic_id=b"\x02" * 16),
        MetadataRequestTopic(name=None),
    ):
        response = node.call(MetadataRequest(topics=[named, wrong]), version)
        assert response == MetadataResponse(
            topics=[
                MetadataResponseTopic(
                    error_code=ErrorCode.INVALID_REQUEST,
                    name=asked.name or "",
                    topic_id=asked.topic_id,
                )
                for asked in (named, wrong)
            ]
        )


@pytest.mark.parametrize("version", [0, 3, 12, 13])
def test_a_name_twice_is_answered_once(node: Node, version: int) -> None:
    """As many as are asked for, whether they exist, are created or are refused."""
    node.create_topic("t")
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    request = asking("t", "new", "a b", "t", "new", "a b")
    assert found(node.call(request, version)) == [("t", 0, 1), ("new", 0, 1), ("a b", invalid, 0)]


def test_an_id_twice_is_answered_once(node: Node) -> None:
    """Also when another name is given with it, which counts for nothing."""
    topic_id = node.create_topic("t").topic_id
    unknown = b"\x02" * 16
    asked = [
        MetadataRequestTopic(name=name, topic_id=each)
        for name in (None, "t", "other")
        for each in (topic_id, unknown)
    ]
    response = node.call(MetadataRequest(topics=asked), VERSION)
    assert found(response) == [("t", 0, 1), (None, ErrorCode.UNKNOWN_TOPIC_ID, 0)]


def test_disk_that_refuses(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that cannot be created now is an error of that topic only."""
    node.create_topic("t")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.broker.engine, "create_logs", full)
    response = node.call(asking("new", "t"), VERSION)
    assert found(response) == [("new", ErrorCode.KAFKA_STORAGE_ERROR, 0), ("t", 0, 1)]
