"""CreateTopics: what is made, what is refused, and that one bad topic spoils no other."""

from collections.abc import Callable
from typing import Any

import pytest
from handler_calls import Node

from anabranch.broker import partition_limits
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)


def asking(name: str = "t", partitions: int = 1, factor: int = 1, **more: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **more)


def create(
    node: Node, *topics: CreatableTopic, version: int | None = None, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    results: list[CreatableTopicResult] = node.call(request, version).topics
    return results


def refusal(node: Node, topic: CreatableTopic) -> tuple[int, str | None]:
    """The error of a topic that must not have been made."""
    (result,) = create(node, topic)
    assert node.broker.topics.get(topic.name) is None
    assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, [])
    return result.error_code, result.error_message


def assigned(*broker_ids: list[int], first: int = 0) -> list[CreatableReplicaAssignment]:
    return [
        CreatableReplicaAssignment(partition_index=first + index, broker_ids=ids)
        for index, ids in enumerate(broker_ids)
    ]


def test_topic_is_made_and_described(node: Node) -> None:
    """The newest version answers with id, partitions, replicas and every config with its source."""
    config = CreatableTopicConfig(name="retention.ms", value="1000")
    (result,) = create(node, asking("orders", 3, configs=[config]))
    topic = node.broker.topics.get("orders")
    assert topic is not None
    assert len(topic.partitions) == 3
    assert topic.configs == {"retention.ms": "1000"}
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.topic_id, result.num_partitions) == (topic.topic_id, 3)
    assert (result.replication_factor, result.topic_config_error_code) == (1, 0)
    assert result.configs is not None
    names = [row.name for row in result.configs]
    assert names == sorted(names)
    rows = {row.name: (row.value, row.config_source, row.read_only) for row in result.configs}
    assert rows["retention.ms"] == ("1000", 1, False)
    assert rows["cleanup.policy"] == ("delete", 5, False)


@pytest.mark.parametrize("version", range(5))
def test_old_versions_answer_name_and_error(node: Node, version: int) -> None:
    """Versions without descriptions carry the name and the error, and the topic is made."""
    assert create(node, asking("orders", 2), version=version) == [
        CreatableTopicResult(name="orders")
    ]
    assert node.broker.topics.partition("orders", 1).index == 1


def test_minus_one_takes_the_defaults(make_node: Callable[..., Node]) -> None:
    """-1 partitions and replicas are num.partitions and default.replication.factor."""
    node = make_node("num.partitions=4")
    (result,) = create(node, asking(partitions=-1, factor=-1))
    assert (result.num_partitions, result.replication_factor) == (4, 1)


def test_default_replication_factor_that_cannot_be(make_node: Callable[..., Node]) -> None:
    """A default of three replicas is refused like three that were asked for."""
    node = make_node("default.replication.factor=3")
    assert refusal(node, asking(factor=-1))[0] == ErrorCode.INVALID_REPLICATION_FACTOR


def test_validate_only_makes_nothing(node: Node) -> None:
    """A check answers what would be, with no topic id, and leaves nothing behind."""
    (result,) = create(node, asking("orders", 5), validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 5, bytes(16))
    assert node.broker.topics.get("orders") is None
    assert node.broker.engine.logs == {}


def test_validate_only_refuses_what_creation_refuses(node: Node) -> None:
    """A check of a name that is taken says so."""
    create(node, asking("there"))
    (result,) = create(node, asking("there"), validate_only=True)
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (
            asking(partitions=0),
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            asking(partitions=-2),
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            asking(factor=0),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            asking(factor=3),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            (
                "Unable to replicate the partition 3 time(s): there is 1 broker. "
                "Use a replication factor of 1, or -1 for the default."
            ),
        ),
        (
            asking("a/b"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            (
                "Topic name 'a/b' is illegal: only ASCII letters, digits, '.', '_' and '-' are "
                "possible."
            ),
        ),
        (
            asking(""),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic name '' is illegal: it is empty.",
        ),
        (
            asking("__cluster_metadata"),
            ErrorCode.INVALID_REQUEST,
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
        (
            asking(configs=[CreatableTopicConfig(name="retention.ms", value="soon")]),
            ErrorCode.INVALID_CONFIG,
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        (
            asking(configs=[CreatableTopicConfig(name="retention.ms")]),
            ErrorCode.INVALID_CONFIG,
            "Null value not supported for topic configs: retention.ms",
        ),
        (
            asking(configs=[CreatableTopicConfig(name="retention.mss", value="1")]),
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: retention.mss. Did you mean retention.ms?",
        ),
        (
            asking(partitions=-1, factor=1, assignments=assigned([1])),
            ErrorCode.INVALID_REQUEST,
            (
                "A manual partition assignment was specified, but replication factor was not "
                "set to -1."
            ),
        ),
        (
            asking(partitions=1, factor=-1, assignments=assigned([1])),
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            asking(partitions=-1, factor=-1, assignments=assigned([])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list. The only broker is 1.",
        ),
        (
            asking(partitions=-1, factor=-1, assignments=assigned([1, 3, 2])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            (
                "The manual partition assignment includes broker 2, but no such broker is "
                "registered. The only broker is 1."
            ),
        ),
        (
            asking(partitions=-1, factor=-1, assignments=assigned([1, 1])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            (
                "The manual partition assignment includes the broker 1 more than once. "
                "The only broker is 1."
            ),
        ),
        (
            asking(partitions=-1, factor=-1, assignments=assigned([1]) + assigned([1])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Found multiple manual partition assignments for partition 0.",
        ),
        (
            asking(partitions=-1, factor=-1, assignments=assigned([1], [1], first=1)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        ),
    ],
)
def test_what_is_wrong_is_said(
    node: Node, topic: CreatableTopic, code: ErrorCode, message: str
) -> None:
    """Each mistake has Kafka's code and a sentence, and makes nothing."""
    assert refusal(node, topic) == (code, message)


def test_manual_assignment_to_the_only_broker(node: Node) -> None:
    """Partitions 0..n-1 that all lie on this broker are what it would have chosen itself."""
    assignments = list(reversed(assigned([1], [1])))
    (result,) = create(node, asking("t", -1, -1, assignments=assignments))
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_one_bad_topic_spoils_no_other(node: Node) -> None:
    """Existing, colliding and duplicate names are refused each for itself, in order."""
    create(node, asking("there"), asking("a.b"))
    results = create(
        node, asking("there"), asking("twice"), asking("good"), asking("a_b"), asking("twice")
    )
    assert [(r.name, r.error_code, r.error_message) for r in results] == [
        ("there", ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'there' already exists."),
        ("twice", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        ("good", 0, None),
        (
            "a_b",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic 'a_b' collides with existing topic: a.b.",
        ),
    ]
    assert node.broker.topics.get("twice") is None


def test_request_for_millions_of_partitions(node: Node) -> None:
    """More than 10,000 partitions in one request are refused for all of its topics, unmade."""
    results = create(node, asking("small"), asking("huge", 10_000_000))
    message = (
        "The request would create 10000001 partitions; at most 10000 are possible in one "
        "request. Split it."
    )
    assert [(r.name, r.error_code, r.error_message) for r in results] == [
        ("small", ErrorCode.POLICY_VIOLATION, message),
        ("huge", ErrorCode.POLICY_VIOLATION, message),
    ]
    assert len(node.broker.topics) == 0


def test_the_largest_request(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 partitions in one request are still possible."""
    monkeypatch.setattr(partition_limits, "open_files_max", lambda: 1 << 20)
    (result,) = create(node, asking("wide", 10_000), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 10_000)


def test_more_partitions_than_files_may_be_open(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic whose logs could not be kept open is refused before its first folder is made."""
    monkeypatch.setattr(partition_limits, "open_files_max", lambda: 300)
    assert refusal(node, asking("wide", 45)) == (
        ErrorCode.POLICY_VIOLATION,
        (
            "This broker has 0 partitions and may have 300 files open, which is too few for 45 "
            "more partitions. Raise its limit of open files (ulimit -n)."
        ),
    )
    assert create(node, asking("narrow", 44))[0].error_code == 0


def test_disk_that_refuses(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that the disk does not take is KAFKA_STORAGE_ERROR and leaves no half topic."""

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.broker.engine, "create_logs", full)
    code, message = refusal(node, asking("t"))
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    assert message == "Topic 't' could not be created: [Errno 28] No space left on device."
    assert node.broker.engine.store.topics() == []
