"""CreatePartitions: topics grow, and only grow."""

from typing import Any

import pytest
from handler_calls import Node

from anabranch.broker import partition_limits
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def grow(
    node: Node, *topics: CreatePartitionsTopic, version: int = 3, validate_only: bool = False
) -> list[tuple[str, int, str | None]]:
    request = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    results: list[CreatePartitionsTopicResult] = node.call(request, version).results
    return [(r.name, r.error_code, r.error_message) for r in results]


def asking(name: str, count: int, *broker_ids: list[int], **more: Any) -> CreatePartitionsTopic:
    assignments = [CreatePartitionsAssignment(broker_ids=ids) for ids in broker_ids]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments or None, **more)


@pytest.mark.parametrize("version", range(4))
def test_topic_grows_and_stays_grown(node: Node, version: int) -> None:
    """New partitions are there at once and are written down; old records stay where they are."""
    node.create_topic("t")
    node.append("t", b"kept")
    assert grow(node, asking("t", 3), version=version) == [("t", 0, None)]
    assert [p.log.log_end_offset for p in node.broker.topics.get("t").partitions] == [1, 0, 0]
    assert [t.partitions for t in node.broker.engine.store.topics()] == [3]
    assert node.append("t", b"new", partition=2) == 0


def test_validate_only_makes_nothing(node: Node) -> None:
    """A check says that it would work and leaves the topic as it is."""
    node.create_topic("t")
    assert grow(node, asking("t", 3), validate_only=True) == [("t", 0, None)]
    assert len(node.broker.topics.get("t").partitions) == 1


def test_chosen_replicas(node: Node) -> None:
    """Assignments that name this broker once for each new partition are accepted."""
    node.create_topic("t")
    assert grow(node, asking("t", 3, [1], [1])) == [("t", 0, None)]


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (
            asking("absent", 2),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "There is no topic 'absent'.",
        ),
        (asking("t", 2), ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (
            asking("t", 1),
            ErrorCode.INVALID_PARTITIONS,
            "The topic t currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            asking("t", -1),
            ErrorCode.INVALID_PARTITIONS,
            "The topic t currently has 2 partition(s); -1 would not be an increase.",
        ),
        (
            asking("t", 4, [1]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but 1 assignment(s) were specified.",
        ),
        (
            asking("t", 3, [7]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            (
                "The manual partition assignment includes broker 7, but no such broker is "
                "registered. The only broker is 1."
            ),
        ),
        (
            asking("t", 10_003),
            ErrorCode.POLICY_VIOLATION,
            (
                "The request would create 10001 partitions; at most 10000 are possible in one "
                "request. Split it."
            ),
        ),
    ],
)
def test_what_is_wrong_is_said(
    node: Node, topic: CreatePartitionsTopic, code: ErrorCode, message: str
) -> None:
    """Each mistake has Kafka's code and a sentence, and the topic keeps its partitions."""
    node.create_topic("t", 2)
    assert grow(node, topic) == [(topic.name, code, message)]
    assert len(node.broker.topics.get("t").partitions) == 2


def test_duplicates_spoil_no_other(node: Node) -> None:
    """A topic that is there twice is refused once, and the others grow."""
    node.create_topic("a")
    node.create_topic("b")
    assert grow(node, asking("a", 2), asking("b", 2), asking("a", 3)) == [
        ("a", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        ("b", 0, None),
    ]
    assert len(node.broker.topics.get("a").partitions) == 1


def test_more_partitions_than_files_may_be_open(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic does not grow beyond what the process can keep open."""
    node.create_topic("t")
    monkeypatch.setattr(partition_limits, "open_files_max", lambda: 260)
    ((_, code, _),) = grow(node, asking("t", 5))
    assert code == ErrorCode.POLICY_VIOLATION
    assert grow(node, asking("t", 4)) == [("t", 0, None)]
