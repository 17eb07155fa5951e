"""Offsets are kept for partitions that exist: what commits and deletions answer for others."""

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def commit(node: Node, version: int, topic: str, *partitions: int) -> list[int]:
    known = node.broker.topics.get(topic)
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=bytes(16) if known is None else known.topic_id,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
                    for index in partitions
                ],
            )
        ],
    )
    (answered,) = node.call(request, version).topics
    assert [partition.partition_index for partition in answered.partitions] == list(partitions)
    return [partition.error_code for partition in answered.partitions]


@pytest.mark.parametrize("version", range(2, 11))
def test_commits(node: Node, version: int) -> None:
    """A partition that does not exist is refused, and its neighbours are committed."""
    node.create_topic("t", 2)
    assert commit(node, version, "t", 0, 2, -1, 1) == [0, UNKNOWN, UNKNOWN, 0]
    assert sorted(node.broker.groups.offsets("g")) == [("t", 0), ("t", 1)]


def test_deletions(node: Node) -> None:
    """So is a deletion."""
    node.create_topic("t", 2)
    commit(node, 8, "t", 0, 1)
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=i) for i in (0, 2)],
            )
            for name in ("t", "other")
        ],
    )
    response = node.call(request, 0)
    assert response.error_code == 0
    assert [[p.error_code for p in topic.partitions] for topic in response.topics] == [
        [0, UNKNOWN],
        [UNKNOWN, UNKNOWN],
    ]
    assert list(node.broker.groups.offsets("g")) == [("t", 1)]
