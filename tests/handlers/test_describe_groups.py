"""DescribeGroups: a group with its members, or that there is none."""

import pytest
from group_calls import GROUP, METADATA, GroupNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from anabranch.wire.messages.metadata import OPERATIONS_NOT_REQUESTED

VERSIONS = range(7)
# READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS.
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def describe(
    node: GroupNode, version: int, *group_ids: str, operations: bool = False
) -> list[DescribedGroup]:
    request = DescribeGroupsRequest(
        groups=list(group_ids), include_authorized_operations=operations
    )
    groups: list[DescribedGroup] = node.call(request, version).groups
    return groups


def member(
    member_id: str, metadata: bytes = METADATA, assignment: bytes = b""
) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member_id,
        client_id="tests",
        client_host="/127.0.0.1",
        member_metadata=metadata,
        member_assignment=assignment,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stable_group(group_node: GroupNode, version: int) -> None:
    """Members with their subscriptions and assignments, byte for byte."""
    ids = group_node.stable(2)
    assert describe(group_node, version, GROUP) == [
        DescribedGroup(
            group_id=GROUP,
            group_state="Stable",
            protocol_type="consumer",
            protocol_data="range",
            members=[member(ids[0], assignment=b"0"), member(ids[1], assignment=b"1")],
        )
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_that_are_not_stable(group_node: GroupNode, version: int) -> None:
    """Between generations there is no protocol; what was assigned last is still shown."""
    (member_id,) = group_node.joined(group_id="completing")
    (old_id,) = group_node.stable(group_id="preparing")
    group_node.join(group_id="preparing")
    completing, preparing = describe(group_node, version, "completing", "preparing")
    assert completing == DescribedGroup(
        group_id="completing",
        group_state="CompletingRebalance",
        protocol_type="consumer",
        members=[member(member_id, metadata=b"")],
    )
    assert (preparing.group_state, preparing.protocol_data) == ("PreparingRebalance", "")
    assert preparing.members[0] == member(old_id, metadata=b"", assignment=b"0")


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_without_members(group_node: GroupNode, version: int) -> None:
    """A group that only has offsets is Empty and of no type; so is the empty group id."""
    group_node.create_topic("t")
    group_node.commit(1, group_id="simple")
    group_node.commit(1, group_id="")
    assert describe(group_node, version, "simple", "") == [
        DescribedGroup(group_id="simple", group_state="Empty"),
        DescribedGroup(group_id="", group_state="Empty"),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_group_that_is_not_there(group_node: GroupNode, version: int) -> None:
    """Up to version 5 it is Dead without an error; version 6 says that it was not found."""
    (answer,) = describe(group_node, version, "absent", operations=version >= 3)
    expected = DescribedGroup(group_id="absent", group_state="Dead")
    if version >= 6:
        expected.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        expected.error_message = "Group absent not found."
    elif version >= 3:
        expected.authorized_operations = GROUP_OPERATIONS
    assert answer == expected


@pytest.mark.parametrize("version", range(3, 7))
def test_authorized_operations(group_node: GroupNode, version: int) -> None:
    """They are told when they are asked for."""
    group_node.stable()
    (asked,) = describe(group_node, version, GROUP, operations=True)
    assert asked.authorized_operations == GROUP_OPERATIONS
    (not_asked,) = describe(group_node, version, GROUP)
    assert not_asked.authorized_operations == OPERATIONS_NOT_REQUESTED


@pytest.mark.parametrize("version", range(4, 7))
def test_static_members(group_node: GroupNode, version: int) -> None:
    """Their instance ids are told from version 4 on."""
    group_node.stable(version=9, group_instance_id="i")
    (group,) = describe(group_node, version, GROUP)
    assert group.members[0].group_instance_id == "i"
    (group,) = describe(group_node, 3, GROUP)
    assert group.members[0].group_instance_id is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shard_that_is_refused(group_node: GroupNode, version: int) -> None:
    """Nobody is told that a group is Dead when nobody knows."""
    group_node.stable()
    group_node.broker.groups.stop()
    (answer,) = describe(group_node, version, GROUP, operations=version >= 3)
    assert answer == DescribedGroup(
        group_id=GROUP,
        error_code=ErrorCode.NOT_COORDINATOR,
        error_message="The broker is shutting down." if version >= 6 else None,
    )


def test_several_at_once(group_node: GroupNode) -> None:
    """Answers stand in the order of the questions, and nobody makes a journal by asking."""
    answers = describe(group_node, 5, "b", "a", "b")
    assert [answer.group_id for answer in answers] == ["b", "a", "b"]
    assert len(group_node.broker.topics) == 0
