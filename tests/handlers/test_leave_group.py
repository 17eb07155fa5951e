"""LeaveGroup: one member up to version 2, several from version 3 on."""

import pytest
from group_calls import GROUP, SESSION_MS, GroupNode

from anabranch.coordinator.group.classic_state import ClassicState
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

OLD = range(3)
NEW = range(3, 6)


@pytest.mark.parametrize("version", OLD)
def test_one_member_goes(group_node: GroupNode, version: int) -> None:
    """Up to version 2 the error of the member is that of the request."""
    ids = group_node.stable(2)
    request = LeaveGroupRequest(group_id=GROUP, member_id=ids[0])
    assert group_node.call(request, version) == LeaveGroupResponse()
    assert list(group_node.group().members) == ids[1:]
    assert group_node.call(request, version) == LeaveGroupResponse(
        error_code=ErrorCode.UNKNOWN_MEMBER_ID
    )


@pytest.mark.parametrize("version", NEW)
def test_several_members_go(group_node: GroupNode, version: int) -> None:
    """From version 3 on each member has an answer of its own, and one rebalance is enough."""
    ids = group_node.stable(3)
    members = [MemberIdentity(member_id=one) for one in (ids[0], "nobody", ids[2])]
    if version >= 5:
        members[0].reason = "shutting down"
    answer = group_node.call(LeaveGroupRequest(group_id=GROUP, members=members), version)
    assert answer == LeaveGroupResponse(
        members=[
            MemberResponse(member_id=ids[0]),
            MemberResponse(member_id="nobody", error_code=ErrorCode.UNKNOWN_MEMBER_ID),
            MemberResponse(member_id=ids[2]),
        ]
    )
    assert list(group_node.group().members) == [ids[1]]
    assert group_node.group().state is ClassicState.PREPARING_REBALANCE


@pytest.mark.parametrize("version", NEW)
def test_static_members_go_by_their_instance(group_node: GroupNode, version: int) -> None:
    """An administrator removes a static member by its instance id alone; a wrong id is fenced."""
    (member_id,) = group_node.stable(version=9, group_instance_id="i")
    asked = [
        MemberIdentity(member_id="other", group_instance_id="i"),
        MemberIdentity(member_id="", group_instance_id="j"),
        MemberIdentity(member_id="", group_instance_id="i"),
    ]
    answer = group_node.call(LeaveGroupRequest(group_id=GROUP, members=asked), version)
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
        ("other", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("", "j", ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "i", ErrorCode.NONE),
    ]
    assert group_node.group().members == {}
    assert member_id.startswith("i-")


@pytest.mark.parametrize("version", [*OLD, *NEW])
def test_groups_that_are_not_there(group_node: GroupNode, version: int) -> None:
    """An empty group id is invalid; in a group that nobody knows nobody is a member."""
    for group_id, code in (
        ("", ErrorCode.INVALID_GROUP_ID),
        ("absent", ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        request = LeaveGroupRequest(group_id=group_id, member_id="m")
        expected = LeaveGroupResponse(error_code=code)
        if version >= 3:
            request = LeaveGroupRequest(group_id=group_id, members=[MemberIdentity(member_id="m")])
            if group_id:
                member = MemberResponse(member_id="m", error_code=code)
                expected = LeaveGroupResponse(members=[member])
        assert group_node.call(request, version) == expected
    assert group_node.broker.groups.all_groups() == []


def test_the_last_one_leaves_an_empty_group(group_node: GroupNode) -> None:
    """The group is Empty at once, and no session is left to end."""
    (member_id,) = group_node.stable()
    group_node.call(LeaveGroupRequest(group_id=GROUP, member_id=member_id), 0)
    assert group_node.group().state is ClassicState.EMPTY
    group_node.pass_ms(SESSION_MS)
    assert group_node.group().generation_id == 2


def test_whoever_waits_while_it_leaves(group_node: GroupNode) -> None:
    """The parked request of a member that goes is answered."""
    ids = group_node.joined(2)
    waiting = group_node.sync(ids[1])
    members = [MemberIdentity(member_id=ids[1])]
    group_node.call(LeaveGroupRequest(group_id=GROUP, members=members), 3)
    assert waiting.answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [*OLD, *NEW])
def test_a_coordinator_that_cannot_write(
    group_node: GroupNode, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A going that is not written down did not happen."""
    (member_id,) = group_node.stable()
    request = LeaveGroupRequest(group_id=GROUP, member_id=member_id)
    if version >= 3:
        members = [MemberIdentity(member_id=member_id)]
        request = LeaveGroupRequest(group_id=GROUP, members=members)
    with monkeypatch.context() as broken:
        broken.setattr(group_node.broker.groups._driver(GROUP).partition.log, "failed", "broken")
        answer = group_node.call(request, version)
    assert answer == LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
