"""OffsetCommit: who may commit what, in every version."""

from collections.abc import Callable
from typing import Any

import pytest
from group_calls import GROUP, SESSION_MS, GroupNode

from anabranch.coordinator.group.classic_state import ClassicState
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

VERSIONS = range(11)
NONE = ErrorCode.NONE


@pytest.fixture
def node(group_node: GroupNode) -> GroupNode:
    """A broker with a topic of three partitions."""
    group_node.create_topic("t", 3)
    return group_node


def topic_id(node: GroupNode, name: str = "t") -> bytes:
    topic = node.broker.topics.get(name)
    assert topic is not None
    return topic.topic_id


def partition(index: int = 0, offset: int = 5, **values: Any) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, **values)


def commit(
    node: GroupNode, version: int, *partitions: OffsetCommitRequestPartition, **values: Any
) -> list[int]:
    """Commit for topic t, by name or by id as the version has it; the partitions' errors."""
    asked = OffsetCommitRequestTopic(
        name="t", topic_id=topic_id(node), partitions=list(partitions) or [partition()]
    )
    request = OffsetCommitRequest(**{"group_id": GROUP, "topics": [asked]} | values)
    return [p.error_code for p in node.call(request, version).topics[0].partitions]


def committed(node: GroupNode, index: int = 0, group_id: str = GROUP) -> CommittedOffset | None:
    return node.broker.groups.offsets(group_id).get(("t", index))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_by_nobody_in_particular(node: GroupNode, version: int) -> None:
    """Consumers that assign themselves their partitions, and tools, commit without a group."""
    partitions = [
        partition(0, 7, committed_leader_epoch=3, committed_metadata="text"),
        partition(2, 9, committed_metadata=None),
    ]
    asked = OffsetCommitRequestTopic(name="t", topic_id=topic_id(node), partitions=partitions)
    answer = node.call(OffsetCommitRequest(group_id=GROUP, topics=[asked]), version)
    has_ids = version >= 10
    assert answer == OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name="" if has_ids else "t",
                topic_id=topic_id(node) if has_ids else bytes(16),
                partitions=[
                    OffsetCommitResponsePartition(partition_index=index) for index in (0, 2)
                ],
            )
        ]
    )
    assert committed(node) == CommittedOffset(
        offset=7,
        leader_epoch=3 if version >= 6 else -1,
        metadata="text",
        commit_timestamp_ms=node.now_ms,
        topic_id=topic_id(node),
    )
    second = committed(node, 2)
    assert second is not None
    assert (second.offset, second.metadata) == (9, "")
    assert node.group().state is ClassicState.EMPTY


@pytest.mark.parametrize("version", range(1, 11))
def test_members_commit(node: GroupNode, version: int) -> None:
    """A member of the present generation may; anybody else is told what is wrong."""
    ids = node.stable()
    good = {"member_id": ids[0], "generation_id_or_member_epoch": 1}
    assert commit(node, version, **good) == [NONE]
    for changes, code in (
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id_or_member_epoch": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "", "generation_id_or_member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert commit(node, version, partition(0, 99), **good | changes) == [code]
    kept = committed(node)
    assert kept is not None and kept.offset == 5


@pytest.mark.parametrize("version", range(1, 11))
def test_a_generation_of_a_group_that_is_not_there(node: GroupNode, version: int) -> None:
    """GROUP_ID_NOT_FOUND from version 9 on, before that ILLEGAL_GENERATION."""
    known = version >= 9
    code = ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION
    assert commit(node, version, generation_id_or_member_epoch=1, member_id="m") == [code]
    assert node.broker.groups.all_groups() == []


@pytest.mark.parametrize("version", range(7, 11))
def test_a_fenced_instance(node: GroupNode, version: int) -> None:
    """A former self of a static member commits nothing."""
    (former,) = node.stable(version=9, group_instance_id="i")
    node.join(version=9, group_instance_id="i")
    values = {"member_id": former, "group_instance_id": "i", "generation_id_or_member_epoch": 1}
    assert commit(node, version, **values) == [ErrorCode.FENCED_INSTANCE_ID]
    assert committed(node) is None


def test_while_the_assignment_is_awaited(node: GroupNode) -> None:
    """Nobody owns anything then; while members rejoin, the last generation may still commit."""
    (member_id,) = node.joined()
    values = {"member_id": member_id, "generation_id_or_member_epoch": 1}
    assert commit(node, 9, **values) == [ErrorCode.REBALANCE_IN_PROGRESS]
    node.sync(member_id)
    node.join()
    assert node.group().state is ClassicState.PREPARING_REBALANCE
    assert commit(node, 9, **values) == [NONE]


def test_a_commit_is_a_sign_of_life(node: GroupNode) -> None:
    """A member that commits needs no heartbeat."""
    (member_id,) = node.stable()
    for _ in range(3):
        node.pass_ms(SESSION_MS - 1)
        assert node.commit(1, member_id=member_id, generation_id=1) == [NONE]
    node.pass_ms(SESSION_MS)
    assert node.group().state is ClassicState.EMPTY


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_that_are_not_there(node: GroupNode, version: int) -> None:
    """What is known is committed; each of the others has its error."""
    known, unknown = topic_id(node), b"\x01" * 16
    topics = [
        OffsetCommitRequestTopic(name="absent", topic_id=unknown, partitions=[partition()]),
        OffsetCommitRequestTopic(
            name="t", topic_id=known, partitions=[partition(3), partition(1), partition(-1)]
        ),
    ]
    answer = node.call(OffsetCommitRequest(group_id=GROUP, topics=topics), version)
    codes = [[p.error_code for p in topic.partitions] for topic in answer.topics]
    there_is_none = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    no_topic = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else there_is_none
    assert codes == [[no_topic], [there_is_none, NONE, there_is_none]]
    assert list(node.broker.groups.offsets(GROUP)) == [("t", 1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_that_is_there(node: GroupNode, version: int) -> None:
    """A commit without a known partition does not reach the coordinator: no journal is made."""
    asked = OffsetCommitRequestTopic(name="absent", topic_id=b"\x01" * 16, partitions=[partition()])
    for topics in ([], [asked]):
        answer = node.call(OffsetCommitRequest(group_id=GROUP, topics=topics), version)
        assert len(answer.topics) == len(topics)
    assert [topic.name for topic in node.broker.topics] == ["t"]


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_that_is_too_long(node: GroupNode, version: int) -> None:
    """It is refused for its partition alone; the limit is counted in characters, as in Kafka."""
    codes = commit(
        node,
        version,
        partition(0, committed_metadata="x" * 4_097),
        partition(1, committed_metadata="x" * 4_096),
        partition(2, committed_metadata="ä" * 4_096),
    )
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, NONE, NONE]
    assert committed(node) is None


def test_the_limit_of_metadata_is_a_setting(
    make_group_node: Callable[..., GroupNode],
) -> None:
    """offset.metadata.max.bytes."""
    node = make_group_node("offset.metadata.max.bytes=3")
    node.create_topic("t")
    assert commit(node, 9, partition(committed_metadata="abc")) == [NONE]
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(node, 9, partition(committed_metadata="abcd")) == [code]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_retention_of_its_own(node: GroupNode, version: int) -> None:
    """Versions 2 to 4 may bring one; the others have the broker's."""
    assert commit(node, version, retention_time_ms=60_000) == [NONE]
    kept = committed(node)
    assert kept is not None
    expected = node.now_ms + 60_000 if 2 <= version <= 4 else -1
    assert kept.expire_timestamp_ms == expected


def test_the_empty_group_id(node: GroupNode) -> None:
    """Clients from before groups commit under it, as in Kafka."""
    assert commit(node, 0, group_id="") == [NONE]
    assert committed(node, group_id="") is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_coordinator_that_cannot_write(
    node: GroupNode, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """What could be committed is refused; what could not be anyway keeps its error."""
    node.commit(1)
    with monkeypatch.context() as broken:
        broken.setattr(node.broker.groups._driver(GROUP).partition.log, "failed", "broken")
        codes = commit(node, version, partition(0), partition(9), partition(1))
    refused = ErrorCode.NOT_COORDINATOR
    assert codes == [refused, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, refused]


def test_an_answer_that_waits_for_the_disk(node: GroupNode) -> None:
    """With flush.on.acks.all on the journal the answer comes after the sync."""
    node.commit(1)
    topic = node.broker.topics.get("__consumer_offsets")
    assert topic is not None
    node.broker.topics.set_configs(topic, {**topic.configs, "flush.on.acks.all": "true"})
    asked = OffsetCommitRequestTopic(name="t", partitions=[partition(0, 2)])
    call = node.begin(OffsetCommitRequest(group_id=GROUP, topics=[asked]), 9)
    assert not call.is_answered
    node.loop.finish_jobs()
    assert call.answer.topics[0].partitions[0].error_code == NONE
