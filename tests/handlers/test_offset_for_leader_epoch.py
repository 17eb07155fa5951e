"""OffsetForLeaderEpoch: where each start of the broker stopped writing."""

from collections.abc import Callable

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)


def look_up(
    node: Node, epoch: int, *, current: int = -1, topic: str = "t", partition: int = 0,
    version: int = 4,
) -> EpochEndOffset:  # fmt: skip
    asked = OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    topics = [OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    response = node.call(OffsetForLeaderEpochRequest(topics=topics), version)
    (result,) = response.topics
    assert result == OffsetForLeaderTopicResult(topic=topic, partitions=result.partitions)
    found: EpochEndOffset
    (found,) = result.partitions
    return found


@pytest.fixture
def node_of_epoch_3(make_node: Callable[..., Node]) -> Node:
    """Epoch 0 wrote offsets 0-1, epoch 1 nothing, epoch 2 offset 2, epoch 3 offset 3."""
    for records in (2, 0, 1):
        node = make_node()
        if node.broker.topics.get("t") is None:
            node.create_topic("t")
        for _ in range(records):
            node.append("t", b"v")
        node.close()
    node = make_node()
    node.append("t", b"v")
    return node


@pytest.mark.parametrize("version", range(2, 5))
@pytest.mark.parametrize(
    ("epoch", "found_epoch", "end_offset"),
    [(0, 0, 2), (1, 0, 2), (2, 2, 3), (3, 3, 4), (4, -1, -1), (-1, -1, -1)],
)
def test_where_an_epoch_ended(
    node_of_epoch_3: Node, version: int, epoch: int, found_epoch: int, end_offset: int
) -> None:
    """The end of the largest epoch up to the asked one; an epoch to come is not known."""
    assert look_up(node_of_epoch_3, epoch, version=version) == EpochEndOffset(
        leader_epoch=found_epoch, end_offset=end_offset
    )


@pytest.mark.parametrize(
    ("current", "code"),
    [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH), (3, ErrorCode.NONE)],
)
def test_clients_of_another_leader(node_of_epoch_3: Node, current: int, code: ErrorCode) -> None:
    """A client that believes in another leader must refresh before it may compare."""
    found = look_up(node_of_epoch_3, 3, current=current)
    assert found.error_code == code
    assert found.end_offset == (-1 if code else 4)


@pytest.mark.parametrize(("topic", "partition"), [("absent", 0), ("t", 7), ("t", -1)])
def test_unknown_partitions(node: Node, topic: str, partition: int) -> None:
    """Each unknown partition has its own error."""
    node.create_topic("t")
    assert look_up(node, 0, topic=topic, partition=partition) == EpochEndOffset(
        partition=partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
