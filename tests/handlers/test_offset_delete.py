"""OffsetDelete: forgetting offsets of topics that nobody in the group reads."""

from typing import Any

import pytest
from group_calls import GROUP, GroupNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.join_group import JoinGroupRequestProtocol
from anabranch.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@pytest.fixture
def node(group_node: GroupNode) -> GroupNode:
    """A broker with two topics; the members of group_calls are subscribed to the first."""
    group_node.create_topic("t", 2)
    group_node.create_topic("u", 1)
    return group_node


def delete(node: GroupNode, group_id: str = GROUP, **topics: tuple[int, ...]) -> Any:
    return node.call(
        OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[OffsetDeleteRequestPartition(partition_index=i) for i in indexes],
                )
                for name, indexes in topics.items()
            ],
        )
    )


def answered(**topics: tuple[tuple[int, ErrorCode], ...]) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=index, error_code=code)
                    for index, code in partitions
                ],
            )
            for name, partitions in topics.items()
        ]
    )


NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_an_empty_group(node: GroupNode) -> None:
    """Each partition has an answer; what was never committed is as gone as what was."""
    node.commit(1, 0, 1)
    node.commit(2, topic="u")
    answer = delete(node, t=(0, 9), absent=(0,), u=(0,))
    assert answer == answered(t=((0, NONE), (9, UNKNOWN)), absent=((0, UNKNOWN),), u=((0, NONE),))
    assert list(node.broker.groups.offsets(GROUP)) == [("t", 1)]
    assert delete(node, t=(0,)) == answered(t=((0, NONE),))


def test_topics_that_members_read(node: GroupNode) -> None:
    """A subscribed topic keeps its offsets, another one does not."""
    (member_id,) = node.stable()
    node.commit(1, member_id=member_id, generation_id=1)
    node.commit(2, topic="u", member_id=member_id, generation_id=1)
    answer = delete(node, t=(0,), u=(0,))
    assert answer == answered(t=((0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),), u=((0, NONE),))
    assert list(node.broker.groups.offsets(GROUP)) == [("t", 0)]


def test_members_of_another_kind(node: GroupNode) -> None:
    """Nobody knows what the members of a group of another type read."""
    protocols = [JoinGroupRequestProtocol(name="x", metadata=b"x")]
    node.stable(protocol_type="connect", protocols=protocols)
    assert delete(node, t=(0,)) == OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)


def test_groups_that_are_not_there(node: GroupNode) -> None:
    """The error is that of the whole request, whatever the topics are."""
    for topics in ({"t": (0,)}, {"absent": (0,)}, {}):
        answer = delete(node, "absent", **topics)
        assert answer == OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        answer = delete(node, "", **topics)
        assert answer == OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)


def test_it_is_durable(node: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deleted stays deleted; what could not be written was not."""
    node.commit(1, 0, 1)
    driver = node.broker.groups._driver(GROUP)
    with monkeypatch.context() as broken:
        broken.setattr(driver.partition.log, "failed", "broken")
        assert delete(node, t=(0,)) == OffsetDeleteResponse(error_code=ErrorCode.NOT_COORDINATOR)
    driver.load()
    assert list(node.broker.groups.offsets(GROUP)) == [("t", 0), ("t", 1)]
    delete(node, t=(0,))
    driver.load()
    assert list(node.broker.groups.offsets(GROUP)) == [("t", 1)]
