"""Heartbeat: a sign of life that is checked, counts, and tells when to rejoin."""

from typing import Any

import pytest
from group_calls import GROUP, SESSION_MS, GroupNode

from anabranch.coordinator.group.classic_state import ClassicState
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

VERSIONS = range(5)


def beat(node: GroupNode, version: int, **values: Any) -> HeartbeatResponse:
    request = HeartbeatRequest(**{"group_id": GROUP, "generation_id": 1} | values)
    response: HeartbeatResponse = node.call(request, version)
    return response


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_that_is_heard_from_stays(group_node: GroupNode, version: int) -> None:
    """Each heartbeat begins the session anew; without one it ends."""
    (member_id,) = group_node.stable()
    for _ in range(5):
        group_node.pass_ms(SESSION_MS - 1)
        assert beat(group_node, version, member_id=member_id) == HeartbeatResponse()
    group_node.pass_ms(SESSION_MS)
    assert group_node.group().state is ClassicState.EMPTY
    answer = beat(group_node, version, member_id=member_id)
    assert answer == HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "absent"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": -1}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_refusals(
    group_node: GroupNode, version: int, changes: dict[str, Any], code: ErrorCode
) -> None:
    """Whoever is not a member of this generation is told so, and keeps nobody alive."""
    (member_id,) = group_node.stable()
    group_node.pass_ms(SESSION_MS - 1)
    answer = beat(group_node, version, **{"member_id": member_id} | changes)
    assert answer == HeartbeatResponse(error_code=code)
    group_node.pass_ms(1)
    assert group_node.group().state is ClassicState.EMPTY


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rebalance_is_told(group_node: GroupNode, version: int) -> None:
    """A member learns from its heartbeat that it has to rejoin."""
    (member_id,) = group_node.stable()
    group_node.join()
    answer = beat(group_node, version, member_id=member_id)
    assert answer == HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)


def test_between_generations(group_node: GroupNode) -> None:
    """While the assignment is awaited a member is fine."""
    (member_id,) = group_node.joined()
    assert beat(group_node, 4, member_id=member_id) == HeartbeatResponse()


@pytest.mark.parametrize("version", [3, 4])
def test_static_members(group_node: GroupNode, version: int) -> None:
    """A former self is fenced, an instance that nobody knows is unknown."""
    (former,) = group_node.stable(version=9, group_instance_id="i")
    values = {"member_id": former, "group_instance_id": "i"}
    assert beat(group_node, version, **values).error_code == ErrorCode.NONE
    group_node.join(version=9, group_instance_id="i")
    assert beat(group_node, version, **values).error_code == ErrorCode.FENCED_INSTANCE_ID
    values["group_instance_id"] = "j"
    assert beat(group_node, version, **values).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shard_that_is_refused(group_node: GroupNode, version: int) -> None:
    """NOT_COORDINATOR, which makes the client look for it again."""
    (member_id,) = group_node.stable()
    group_node.broker.groups.stop()
    answer = beat(group_node, version, member_id=member_id)
    assert answer == HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
