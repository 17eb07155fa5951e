"""OffsetFetch: what groups have committed, in every version."""

import pytest
from group_calls import GROUP, GroupNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

OLD = range(8)
NEW = range(8, 11)


@pytest.fixture
def node(group_node: GroupNode) -> GroupNode:
    """A broker on which group g has committed for two topics."""
    group_node.create_topic("t", 3)
    group_node.create_topic("u", 1)
    group_node.commit(7, committed_leader_epoch=2, committed_metadata="text")
    group_node.commit(8, 2)
    group_node.commit(9, topic="u")
    return group_node


def topic_id(node: GroupNode, name: str = "t") -> bytes:
    topic = node.broker.topics.get(name)
    assert topic is not None
    return topic.topic_id


def old(topic: str, *partitions: tuple[int, int, int, str]) -> OffsetFetchResponseTopic:
    """The answer up to version 7, of (partition, offset, leader epoch, metadata)."""
    return OffsetFetchResponseTopic(
        name=topic,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                metadata=metadata,
            )
            for index, offset, epoch, metadata in partitions
        ],
    )


def new(
    node: GroupNode, version: int, topic: str, *partitions: tuple[int, int, int, str]
) -> OffsetFetchResponseTopics:
    has_ids = version >= 10
    return OffsetFetchResponseTopics(
        name="" if has_ids else topic,
        topic_id=topic_id(node, topic) if has_ids else bytes(16),
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                metadata=metadata,
            )
            for index, offset, epoch, metadata in partitions
        ],
    )


def asked(node: GroupNode, topic: str, *partitions: int) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics(
        name=topic, topic_id=topic_id(node, topic), partition_indexes=list(partitions)
    )


def fetch(
    node: GroupNode, version: int, *groups: OffsetFetchRequestGroup
) -> list[OffsetFetchResponseGroup]:
    answered: list[OffsetFetchResponseGroup] = node.call(
        OffsetFetchRequest(groups=list(groups)), version
    ).groups
    return answered


# One group --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", OLD)
def test_one_group(node: GroupNode, version: int) -> None:
    """Partitions without a commit, and topics that do not exist, have offset -1 and no error."""
    topics = [
        OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 99]),
        OffsetFetchRequestTopic(name="absent", partition_indexes=[0]),
    ]
    answer = node.call(OffsetFetchRequest(group_id=GROUP, topics=topics), version)
    epoch = 2 if version >= 5 else -1
    never = (-1, -1, "")
    assert answer == OffsetFetchResponse(
        topics=[
            old("t", (0, 7, epoch, "text"), (1, *never), (99, *never)),
            old("absent", (0, *never)),
        ]
    )


@pytest.mark.parametrize("version", range(2, 8))
def test_all_topics_of_one_group(node: GroupNode, version: int) -> None:
    """Null means all; an empty list means none."""
    answer = node.call(OffsetFetchRequest(group_id=GROUP, topics=None), version)
    epoch = 2 if version >= 5 else -1
    assert answer == OffsetFetchResponse(
        topics=[old("t", (0, 7, epoch, "text"), (2, 8, -1, "")), old("u", (0, 9, -1, ""))]
    )
    none = node.call(OffsetFetchRequest(group_id=GROUP, topics=[]), version)
    assert none == OffsetFetchResponse()


@pytest.mark.parametrize("version", OLD)
def test_a_group_that_is_not_there(node: GroupNode, version: int) -> None:
    """It has committed nothing, which is no error."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    answer = node.call(OffsetFetchRequest(group_id="absent", topics=topics), version)
    assert answer == OffsetFetchResponse(topics=[old("t", (0, -1, -1, ""))])
    assert node.broker.groups.group("absent") is None


def test_require_stable_changes_nothing(node: GroupNode) -> None:
    """There are no transactions that anything could be pending in."""
    topics = [OffsetFetchRequestTopic(name="u", partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=True)
    assert node.call(request, 7).topics == [old("u", (0, 9, -1, ""))]


# Many groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", NEW)
def test_many_groups(node: GroupNode, version: int) -> None:
    """Each group is asked for its own topics, some for all, and answered by itself."""
    node.commit(1, 1, group_id="other")
    answers = fetch(
        node,
        version,
        OffsetFetchRequestGroup(group_id=GROUP, topics=[asked(node, "t", 0, 1)]),
        OffsetFetchRequestGroup(group_id="other", topics=None),
        OffsetFetchRequestGroup(group_id="absent", topics=[asked(node, "u", 0)]),
        OffsetFetchRequestGroup(group_id="absent", topics=None),
        OffsetFetchRequestGroup(group_id=GROUP, topics=[]),
    )
    assert answers == [
        OffsetFetchResponseGroup(
            group_id=GROUP, topics=[new(node, version, "t", (0, 7, 2, "text"), (1, -1, -1, ""))]
        ),
        OffsetFetchResponseGroup(
            group_id="other", topics=[new(node, version, "t", (1, 1, -1, ""))]
        ),
        OffsetFetchResponseGroup(
            group_id="absent", topics=[new(node, version, "u", (0, -1, -1, ""))]
        ),
        OffsetFetchResponseGroup(group_id="absent"),
        OffsetFetchResponseGroup(group_id=GROUP),
    ]


@pytest.mark.parametrize("version", [9, 10])
def test_member_and_epoch_of_a_classic_group(node: GroupNode, version: int) -> None:
    """They say nothing about a classic group, as in Kafka."""
    (answer,) = fetch(
        node,
        version,
        OffsetFetchRequestGroup(
            group_id=GROUP, member_id="nobody", member_epoch=77, topics=[asked(node, "u", 0)]
        ),
    )
    assert answer.topics == [new(node, version, "u", (0, 9, -1, ""))]


def test_the_empty_group_id(node: GroupNode) -> None:
    """It is a group like any other: clients from before groups committed under it."""
    node.commit(4, group_id="")
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    answer = node.call(OffsetFetchRequest(group_id="", topics=topics), 1)
    assert answer.topics == [old("t", (0, 4, -1, ""))]
    (group,) = fetch(node, 10, OffsetFetchRequestGroup(group_id="", topics=None))
    assert group.topics == [new(node, 10, "t", (0, 4, -1, ""))]


# Topic ids --------------------------------------------------------------------------------------


def test_a_topic_id_that_nobody_knows(node: GroupNode) -> None:
    """UNKNOWN_TOPIC_ID for each of its partitions, beside the offsets of the others."""
    unknown = OffsetFetchRequestTopics(topic_id=b"\x01" * 16, partition_indexes=[0, 5])
    zero = OffsetFetchRequestTopics(topic_id=bytes(16), partition_indexes=[0])
    (answer,) = fetch(
        node,
        10,
        OffsetFetchRequestGroup(group_id=GROUP, topics=[unknown, asked(node, "u", 0), zero]),
    )
    first, second, third = answer.topics
    assert first.topic_id == b"\x01" * 16
    expected = (-1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)
    for partition in (*first.partitions, *third.partitions):
        found = (
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.metadata,
            partition.error_code,
        )
        assert found == expected
    assert [p.partition_index for p in first.partitions] == [0, 5]
    assert second == new(node, 10, "u", (0, 9, -1, ""))


@pytest.mark.parametrize("version", [7, 9, 10])
def test_a_topic_that_was_made_again(
    node: GroupNode, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """What was committed for the former topic of that name is not the new one's, if it is there.

    A crash between the end of a topic and the end of its offsets leaves them behind.
    """
    former = topic_id(node)
    topic = node.broker.topics.get("t")
    assert topic is not None
    with monkeypatch.context() as crashing:
        crashing.setattr(node.broker.groups, "topic_deleted", lambda name: None)
        node.broker.delete_topic(topic)
    node.create_topic("t", 3)
    assert ("t", 0) in node.broker.groups.offsets(GROUP)
    if version == 7:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        answer = node.call(OffsetFetchRequest(group_id=GROUP, topics=topics), version)
        assert answer.topics == [old("t", (0, -1, -1, ""))]
        everything = node.call(OffsetFetchRequest(group_id=GROUP, topics=None), version)
        assert everything.topics == [old("u", (0, 9, -1, ""))]
        return
    groups = fetch(
        node,
        version,
        OffsetFetchRequestGroup(group_id=GROUP, topics=[asked(node, "t", 0)]),
        OffsetFetchRequestGroup(group_id=GROUP, topics=None),
    )
    assert groups[0].topics == [new(node, version, "t", (0, -1, -1, ""))]
    assert groups[1].topics == [new(node, version, "u", (0, 9, -1, ""))]
    assert former != topic_id(node)


def test_all_topics_when_one_is_gone(node: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name its offsets can still be seen; by id there is nothing to call it by."""
    topic = node.broker.topics.get("t")
    assert topic is not None
    monkeypatch.setattr(node.broker.groups, "topic_deleted", lambda name: None)
    node.broker.delete_topic(topic)
    (by_name,) = fetch(node, 9, OffsetFetchRequestGroup(group_id=GROUP, topics=None))
    assert [topic.name for topic in by_name.topics] == ["t", "u"]
    (by_id,) = fetch(node, 10, OffsetFetchRequestGroup(group_id=GROUP, topics=None))
    assert by_id.topics == [new(node, 10, "u", (0, 9, -1, ""))]


def test_offsets_from_before_topic_ids(node: GroupNode) -> None:
    """A commit with a retention of its own has no topic id in the journal, and is found by name."""
    request = OffsetCommitRequest(
        group_id="old",
        retention_time_ms=60_000,
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=3)],
            )
        ],
    )
    node.call(request, 2)
    (answer,) = fetch(node, 10, OffsetFetchRequestGroup(group_id="old", topics=None))
    assert answer.topics == [new(node, 10, "t", (0, 3, -1, ""))]


# A coordinator that cannot answer ---------------------------------------------------------------


@pytest.mark.parametrize("version", OLD)
def test_a_shard_that_is_refused_in_old_versions(node: GroupNode, version: int) -> None:
    """Versions 0 and 1 have no place for the error but the partitions; later ones say it once."""
    node.broker.groups.stop()
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 2])]
    answer = node.call(OffsetFetchRequest(group_id=GROUP, topics=topics), version)
    if version >= 2:
        assert answer == OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR)
        return
    found = [
        (p.partition_index, p.committed_offset, p.error_code) for p in answer.topics[0].partitions
    ]
    assert found == [(0, -1, ErrorCode.NOT_COORDINATOR), (2, -1, ErrorCode.NOT_COORDINATOR)]


@pytest.mark.parametrize("version", NEW)
def test_a_shard_that_is_refused(node: GroupNode, version: int) -> None:
    """The error is the group's; nobody is told that nothing was committed."""
    node.broker.groups.stop()
    answers = fetch(node, version, OffsetFetchRequestGroup(group_id=GROUP, topics=None))
    assert answers == [
        OffsetFetchResponseGroup(group_id=GROUP, error_code=ErrorCode.NOT_COORDINATOR)
    ]


def test_before_the_first_group(group_node: GroupNode) -> None:
    """Asking does not make a journal."""
    (answer,) = fetch(group_node, 10, OffsetFetchRequestGroup(group_id=GROUP, topics=None))
    assert answer == OffsetFetchResponseGroup(group_id=GROUP)
    assert len(group_node.broker.topics) == 0
