"""SyncGroup: assignments, from the leader to everybody, in every version."""

from typing import Any

import pytest
from group_calls import DELAY_MS, REBALANCE_MS, GroupNode

from anabranch.coordinator.group.classic_state import ClassicState
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.sync_group import SyncGroupResponse

VERSIONS = range(6)


def synced(version: int, assignment: bytes) -> SyncGroupResponse:
    """The protocol is told from version 5 on (KIP-559)."""
    known = version >= 5
    return SyncGroupResponse(
        assignment=assignment,
        protocol_type="consumer" if known else None,
        protocol_name="range" if known else None,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_assignments_reach_their_members(group_node: GroupNode, version: int) -> None:
    """Followers wait for the leader; each gets its own bytes as they are, or none."""
    ids = group_node.joined(3)
    waiting = [group_node.sync(member_id, version=version) for member_id in ids[1:]]
    assert not any(one.is_answered for one in waiting)
    opaque = b"\x00\xff\x80opaque"
    given = {ids[0]: b"mine", ids[1]: opaque, "nobody": b"x"}
    leading = group_node.sync(ids[0], version=version, assignments=given)
    assert leading.answer == synced(version, b"mine")
    assert [one.answer for one in waiting] == [synced(version, opaque), synced(version, b"")]
    assert group_node.sync(ids[1], version=version).answer == synced(version, opaque)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "absent"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_refusals(
    group_node: GroupNode, version: int, changes: dict[str, Any], code: ErrorCode
) -> None:
    """Whoever is not a member of this generation gets nothing, and changes nothing."""
    (member_id,) = group_node.joined()
    values = {"member_id": member_id, "assignments": {member_id: b"x"}} | changes
    answer = group_node.sync(**values, version=version).answer
    assert answer == SyncGroupResponse(error_code=code)
    assert group_node.group().state is ClassicState.COMPLETING_REBALANCE


@pytest.mark.parametrize(
    "changes", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}, {"protocol_type": ""}]
)
def test_another_protocol(group_node: GroupNode, changes: dict[str, Any]) -> None:
    """From version 5 on a member says which protocol it means, and must be right."""
    (member_id,) = group_node.joined()
    answer = group_node.sync(member_id, version=5, **changes).answer
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    right = {"protocol_type": "consumer", "protocol_name": "range"}
    assert group_node.sync(member_id, version=5, **right).answer.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", range(3, 6))
def test_a_fenced_instance(group_node: GroupNode, version: int) -> None:
    """A former self of a static member gets nothing."""
    (former,) = group_node.stable(version=9, group_instance_id="i")
    group_node.join(version=9, group_instance_id="i")
    answer = group_node.sync(former, version=version, group_instance_id="i").answer
    assert answer == SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)


def test_a_rebalance_that_comes_in_between(group_node: GroupNode) -> None:
    """Who waits for an assignment that will not come is told to rejoin."""
    ids = group_node.joined(2)
    waiting = group_node.sync(ids[1])
    group_node.join()
    assert waiting.answer == SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    again = group_node.sync(ids[1])
    assert again.answer == SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)


def test_a_leader_that_never_assigns(group_node: GroupNode) -> None:
    """It is removed when the rebalance timeout is over, and the others rejoin."""
    ids = group_node.joined(2, session_timeout_ms=2 * REBALANCE_MS)
    waiting = group_node.sync(ids[1])
    group_node.pass_ms(REBALANCE_MS - 1)
    assert not waiting.is_answered
    group_node.pass_ms(1)
    assert waiting.answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert list(group_node.group().members) == ids[1:]


def test_a_connection_that_is_lost(group_node: GroupNode) -> None:
    """Its parked request is forgotten; the assignment is there when the member asks again."""
    ids = group_node.joined(2)
    waiting = group_node.sync(ids[1])
    driver = group_node.broker.groups._driver("g")
    assert waiting.deferred is not None
    waiting.deferred.cancel()
    assert driver._parked == {}
    group_node.sync(ids[0], assignments={ids[1]: b"yours"})
    assert not waiting.is_answered
    assert group_node.sync(ids[1]).answer.assignment == b"yours"
    group_node.pass_ms(DELAY_MS)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_coordinator_that_cannot_write(
    group_node: GroupNode, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Leader and followers are told to look for the coordinator again."""
    ids = group_node.joined(2)
    waiting = group_node.sync(ids[1], version=version)
    with monkeypatch.context() as broken:
        broken.setattr(group_node.broker.groups._driver("g").partition.log, "failed", "broken")
        leading = group_node.sync(ids[0], version=version)
    refused = SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
    assert (leading.answer, waiting.answer) == (refused, refused)
