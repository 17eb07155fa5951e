"""DescribeTopicPartitions: pages in the order of names, and where the next one starts."""

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    NextCursor,
    TopicRequest,
)

# Read, write, create, delete, alter, describe, describe and alter configs.
ALL_OPERATIONS = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11

Page = tuple[list[tuple[str, list[int]]], tuple[str, int] | None]


def describe(
    node: Node, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    response: DescribeTopicPartitionsResponse = node.call(
        DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None
            if cursor is None
            else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )
    )
    return response


def page(response: DescribeTopicPartitionsResponse) -> Page:
    topics = [(t.name or "", [p.partition_index for p in t.partitions]) for t in response.topics]
    following = response.next_cursor
    return topics, (following.topic_name, following.partition_index) if following else None


def test_a_topic_in_full(node: Node) -> None:
    """Everything a client learns about a topic with one partition."""
    topic = node.create_topic("t")
    assert describe(node, "t") == DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(
                name="t",
                topic_id=topic.topic_id,
                topic_authorized_operations=ALL_OPERATIONS,
                partitions=[
                    DescribeTopicPartitionsResponsePartition(
                        leader_id=1,
                        leader_epoch=topic.partitions[0].log.leader_epoch,
                        replica_nodes=[1],
                        isr_nodes=[1],
                        eligible_leader_replicas=[],
                        last_known_elr=[],
                    )
                ],
            )
        ]
    )


def test_pages_cover_everything_once(node: Node) -> None:
    """Following the cursor gives every partition of every topic in order, without repeats."""
    for name, partitions in (("b", 3), ("a", 2), ("c", 1)):
        node.create_topic(name, partitions)
    assert page(describe(node)) == ([("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])], None)
    assert page(describe(node, limit=3)) == ([("a", [0, 1]), ("b", [0])], ("b", 1))
    assert page(describe(node, limit=3, cursor=("b", 1))) == ([("b", [1, 2]), ("c", [0])], None)


def test_a_page_that_ends_with_a_topic(node: Node) -> None:
    """The cursor then points at the beginning of the next topic, asked for or not existing."""
    node.create_topic("a", 2)
    node.create_topic("c")
    assert page(describe(node, limit=2)) == ([("a", [0, 1])], ("c", 0))
    assert page(describe(node, "a", "b", limit=2)) == ([("a", [0, 1])], ("b", 0))


@pytest.mark.parametrize("limit", [0, -5])
def test_a_page_has_at_least_one_partition(node: Node, limit: int) -> None:
    """A limit below one counts as one, so that paging always moves."""
    node.create_topic("a", 2)
    assert page(describe(node, limit=limit)) == ([("a", [0])], ("a", 1))


def test_a_page_has_at_most_2000_partitions(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own limit counts when a client asks for more."""
    monkeypatch.setattr("anabranch.handlers.describe_topic_partitions._PARTITIONS_MAX", 2)
    node.create_topic("a", 3)
    assert page(describe(node, limit=1 << 30)) == ([("a", [0, 1])], ("a", 2))


def test_asked_topics_are_sorted_and_answered_once(node: Node) -> None:
    """Unknown and illegal names are answered with their errors in their place."""
    node.create_topic("a")
    response = describe(node, "x", "a", "a", "!")
    assert [(t.name, t.error_code, len(t.partitions)) for t in response.topics] == [
        ("!", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        ("a", 0, 1),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]
    assert response.next_cursor is None


def test_cursor_of_a_topic_that_is_gone(node: Node) -> None:
    """Paging through all topics goes on behind a topic that was deleted meanwhile."""
    node.create_topic("a")
    node.create_topic("c")
    assert page(describe(node, cursor=("b", 1))) == ([("c", [0])], None)


def test_cursor_beyond_the_last_partition(node: Node) -> None:
    """A topic that was made again with fewer partitions ends there."""
    node.create_topic("a")
    node.create_topic("b")
    assert page(describe(node, cursor=("a", 5))) == ([("a", []), ("b", [0])], None)


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1)])
def test_cursor_that_fits_nothing(node: Node, cursor: tuple[str, int]) -> None:
    """A cursor outside the asked topics, or with a negative partition, is INVALID_REQUEST."""
    node.create_topic("a")
    assert describe(node, "a", cursor=cursor) == DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(name="a", error_code=ErrorCode.INVALID_REQUEST)
        ]
    )


def test_cursor_is_none_in_the_last_page(node: Node) -> None:
    """The response ends paging with a null cursor, not with an empty one."""
    node.create_topic("a", 2)
    first = describe(node, limit=1)
    assert first.next_cursor == NextCursor(topic_name="a", partition_index=1)
    assert describe(node, limit=1, cursor=("a", 1)).next_cursor is None
