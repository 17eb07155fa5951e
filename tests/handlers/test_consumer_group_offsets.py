"""OffsetCommit and OffsetFetch of members of consumer groups: which epochs are good for what."""

from collections.abc import Callable
from typing import Any

import pytest
from consumer_group_calls import ConsumerNode, Member, settle
from group_calls import GROUP

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

OK = ErrorCode.NONE
STALE = ErrorCode.STALE_MEMBER_EPOCH


def commit(
    node: ConsumerNode,
    member_id: str,
    epoch: int,
    *partitions: int,
    version: int = 9,
    **changes: Any,
) -> list[int]:
    """Commit offset 100 plus its number for each partition; the error of each."""
    request = OffsetCommitRequest(
        group_id=GROUP,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                topic_id=node.topic_id,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=p, committed_offset=100 + p)
                    for p in partitions
                ],
            )
        ],
        **changes,
    )
    return [p.error_code for p in node.call(request, version).topics[0].partitions]


def fetch(
    node: ConsumerNode,
    member_id: str | None,
    epoch: int,
    *partitions: int,
    version: int = 9,
    group_id: str = GROUP,
) -> tuple[int, list[int]]:
    """The error of the group, and the offsets."""
    asked = OffsetFetchRequestGroup(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        topics=[
            OffsetFetchRequestTopics(
                name="t", topic_id=node.topic_id, partition_indexes=list(partitions)
            )
        ],
    )
    (group,) = node.call(OffsetFetchRequest(groups=[asked]), version).groups
    return group.error_code, [p.committed_offset for t in group.topics for p in t.partitions]


@pytest.mark.parametrize("version", [9, 10])
def test_a_member_commits_and_fetches(consumer_node: ConsumerNode, version: int) -> None:
    """By name or by topic id, with its epoch."""
    member = Member(consumer_node, "a")
    assert commit(consumer_node, "a", member.epoch, 0, 3, version=version) == [OK, OK]
    assert fetch(consumer_node, "a", member.epoch, 0, 1, 3, version=version) == (OK, [100, -1, 103])


@pytest.mark.parametrize("version", range(1, 9))
def test_old_versions_know_no_epochs(consumer_node: ConsumerNode, version: int) -> None:
    """A commit of a member below version 9 is UNSUPPORTED_VERSION, as in Kafka."""
    member = Member(consumer_node, "a")
    answer = commit(consumer_node, "a", member.epoch, 0, version=version)
    assert answer == [ErrorCode.UNSUPPORTED_VERSION]


@pytest.fixture
def moved_on(consumer_node: ConsumerNode) -> tuple[ConsumerNode, Member, int]:
    """Member `a` had all four partitions at an older epoch and has kept 0 and 1 since then."""
    first = Member(consumer_node, "a")
    old = first.epoch
    second = Member(consumer_node, "b")
    settle(first, second)
    assert first.owned == [0, 1] and first.epoch > old
    return consumer_node, first, old


def test_an_older_epoch_is_good_for_what_was_kept(
    moved_on: tuple[ConsumerNode, Member, int],
) -> None:
    """A commit is not refused because the group moved on (KIP-1251)."""
    node, member, old = moved_on
    assert commit(node, "a", old, 0, 1) == [OK, OK]
    assert fetch(node, "a", member.epoch, 0, 1) == (OK, [100, 101])


def test_an_older_epoch_is_not_good_for_what_went(
    moved_on: tuple[ConsumerNode, Member, int],
) -> None:
    """The partition has another owner; nothing else of the commit is taken either."""
    node, member, old = moved_on
    assert commit(node, "a", old, 2) == [STALE]
    assert commit(node, "a", old, 0, 2) == [STALE, STALE]
    assert fetch(node, "a", member.epoch, 0, 2) == (OK, [-1, -1])


def test_nobody_commits_from_before_it_had_a_partition(
    moved_on: tuple[ConsumerNode, Member, int],
) -> None:
    """What `b` got later it did not own at the epoch before."""
    node, member, old = moved_on
    assert commit(node, "b", member.epoch, 2, 3) == [OK, OK]
    assert commit(node, "b", old, 2) == [STALE]


def test_what_is_being_given_up_can_be_committed(consumer_node: ConsumerNode) -> None:
    """A member that was told to revoke commits what it has read, and then lets go."""
    first = Member(consumer_node, "a")
    Member(consumer_node, "b")
    first.beat()
    assert first.owned == [0, 1]
    assert commit(consumer_node, "a", first.epoch, 2, 3) == [OK, OK]


@pytest.mark.parametrize("ahead", [1, 100])
def test_an_epoch_of_the_future(consumer_node: ConsumerNode, ahead: int) -> None:
    """Nobody is ahead of the broker."""
    member = Member(consumer_node, "a")
    assert commit(consumer_node, "a", member.epoch + ahead, 0) == [STALE]
    assert fetch(consumer_node, "a", member.epoch + ahead, 0) == (STALE, [])


def test_strangers(consumer_node: ConsumerNode) -> None:
    """Who is not in the group neither commits nor fetches as a member; admin clients fetch."""
    member = Member(consumer_node, "a")
    assert commit(consumer_node, "x", member.epoch, 0) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert commit(consumer_node, "", -1, 0) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert fetch(consumer_node, "x", member.epoch, 0) == (ErrorCode.UNKNOWN_MEMBER_ID, [])
    assert fetch(consumer_node, None, -1, 0) == (OK, [-1])
    assert fetch(consumer_node, "", -1, 0) == (OK, [-1])


def test_anybody_commits_to_an_empty_group(consumer_node: ConsumerNode) -> None:
    """Tools reset the offsets of a group that nobody is in."""
    member = Member(consumer_node, "a")
    consumer_node.beat("a", -1)
    assert commit(consumer_node, "", -1, 0) == [OK]
    assert commit(consumer_node, "a", member.epoch, 0) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert fetch(consumer_node, None, -1, 0) == (OK, [100])


def test_the_epoch_before_may_fetch(moved_on: tuple[ConsumerNode, Member, int]) -> None:
    """A member whose answer is on its way is not stopped; anything older is."""
    node, member, old = moved_on
    assert fetch(node, "a", member.epoch, 0) == (OK, [-1])
    previous = node.consumer_group.members["a"].previous_member_epoch
    assert fetch(node, "a", previous, 0) == (OK, [-1])
    Member(node, "c")
    member.beat()
    member.confirm()
    assert fetch(node, "a", old, 0) == (STALE, [])


def test_versions_without_members_fetch(consumer_node: ConsumerNode) -> None:
    """Below version 9 nobody says who asks, and everybody is answered."""
    member = Member(consumer_node, "a")
    commit(consumer_node, "a", member.epoch, 0)
    assert fetch(consumer_node, None, -1, 0, version=8) == (OK, [100])


def test_many_groups_in_one_fetch(consumer_node: ConsumerNode) -> None:
    """A group that refuses takes no other with it."""
    member = Member(consumer_node, "a")
    commit(consumer_node, "a", member.epoch, 0)
    consumer_node.commit(7, 0, group_id="classic")
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = [
        OffsetFetchRequestGroup(group_id=GROUP, member_id="a", member_epoch=99, topics=topics),
        OffsetFetchRequestGroup(group_id="classic", topics=topics),
        OffsetFetchRequestGroup(
            group_id=GROUP, member_id="a", member_epoch=member.epoch, topics=topics
        ),
    ]
    groups = consumer_node.call(OffsetFetchRequest(groups=asked), 9).groups
    assert [group.error_code for group in groups] == [STALE, OK, OK]
    assert [g.topics[0].partitions[0].committed_offset for g in groups[1:]] == [7, 100]


def test_commits_survive_a_restart_in_the_middle(
    consumer_node: ConsumerNode, make_consumer_node: Callable[..., ConsumerNode]
) -> None:
    """The epoch that each partition was assigned at is in the journal."""
    first = Member(consumer_node, "a")
    old = first.epoch
    Member(consumer_node, "b")
    first.beat()
    first.confirm()
    consumer_node.close()
    again = make_consumer_node()
    assert commit(again, "a", old, 0, 1) == [OK, OK]
    assert commit(again, "a", old, 2) == [STALE]


def test_a_commit_of_a_partition_that_is_not_there(consumer_node: ConsumerNode) -> None:
    """It is refused for itself; the rest of the commit is taken."""
    member = Member(consumer_node, "a")
    answer = commit(consumer_node, "a", member.epoch, 0, 9)
    assert answer == [OK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
