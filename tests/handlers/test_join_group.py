"""JoinGroup: the way into a group, in every version."""

from collections.abc import Callable
from typing import Any

import pytest
from group_calls import (
    DELAY_MS,
    GROUP,
    METADATA,
    PROTOCOLS,
    REBALANCE_MS,
    SESSION_MS,
    GroupNode,
    subscription,
)

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.join_group import (
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

VERSIONS = range(10)


def no_protocol(version: int) -> str | None:
    """What stands for no protocol: null is known from version 7 on."""
    return None if version >= 7 else ""


def type_in(version: int) -> str | None:
    return "consumer" if version >= 7 else None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_leader_and_the_others(group_node: GroupNode, version: int) -> None:
    """Everybody hears of the generation; the leader alone hears who the members are."""
    joins = [group_node.join(version=version) for _ in range(2)]
    if version >= 4:
        ids = [join.answer.member_id for join in joins]
        joins = [group_node.join(member_id, version) for member_id in ids]
    assert not any(join.is_answered for join in joins)
    group_node.pass_ms(2 * DELAY_MS)
    ids = [join.answer.member_id for join in joins]
    expected = JoinGroupResponse(
        generation_id=1,
        protocol_type=type_in(version),
        protocol_name="range",
        leader=ids[0],
        member_id=ids[1],
    )
    assert joins[1].answer == expected
    expected.member_id = ids[0]
    expected.members = [
        JoinGroupResponseMember(member_id=member_id, metadata=METADATA) for member_id in ids
    ]
    assert joins[0].answer == expected
    assert all(member_id.startswith("tests-") for member_id in ids)
    assert len(set(ids)) == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_member_is_told_its_id_first(group_node: GroupNode, version: int) -> None:
    """From version 4 on; before, it is let in at once (KIP-394)."""
    join = group_node.join(version=version)
    if version < 4:
        assert not join.is_answered
        return
    member_id = join.answer.member_id
    assert join.answer == JoinGroupResponse(
        error_code=ErrorCode.MEMBER_ID_REQUIRED,
        member_id=member_id,
        protocol_name=no_protocol(version),
    )
    assert member_id.startswith("tests-") and len(member_id) == len("tests-") + 36


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_refusals(
    group_node: GroupNode, version: int, changes: dict[str, Any], code: ErrorCode
) -> None:
    """Each mistake is answered at once, in a form that its version can carry."""
    assert group_node.join(version=version, **changes).answer == JoinGroupResponse(
        error_code=code,
        member_id=changes.get("member_id", ""),
        protocol_name=no_protocol(version),
    )


def test_version_0_has_no_rebalance_timeout(group_node: GroupNode) -> None:
    """The session timeout stands in for it: others are waited for as long."""
    (member_id,) = group_node.joined(version=0)
    assert group_node.group().members[member_id].rebalance_timeout_ms == SESSION_MS


def test_the_rebalance_timeout_is_the_clients(group_node: GroupNode) -> None:
    """From version 1 on the client says how long it may take to come back."""
    (member_id,) = group_node.joined(version=1)
    member = group_node.group().members[member_id]
    assert member.rebalance_timeout_ms == REBALANCE_MS
    assert (member.client_id, member.client_host) == ("tests", "/127.0.0.1")


def test_a_session_too_short_by_the_settings(
    make_group_node: Callable[..., GroupNode],
) -> None:
    """The limits are the broker's settings."""
    node = make_group_node("group.min.session.timeout.ms=20000")
    code = ErrorCode.INVALID_SESSION_TIMEOUT
    assert node.join(session_timeout_ms=19_999).answer.error_code == code
    assert not node.join(session_timeout_ms=20_000).is_answered


def test_a_full_group(make_group_node: Callable[..., GroupNode]) -> None:
    """group.max.size turns the next one away."""
    node = make_group_node("group.max.size=2")
    node.stable(2)
    answer = node.join(version=9).answer
    assert answer == JoinGroupResponse(
        error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, protocol_name=None
    )


def test_the_protocol_is_voted_for(group_node: GroupNode) -> None:
    """Of what all support, what most prefer; metadata is handed on byte for byte."""
    a = [JoinGroupRequestProtocol(name="range", metadata=b"\x00r\xff"), *PROTOCOLS]
    a[1] = JoinGroupRequestProtocol(name="sticky", metadata=b"\x00s\xff")
    joins = [
        group_node.join(protocols=a, version=7),
        group_node.join(protocols=a[::-1], version=3),
        group_node.join(protocols=a[::-1], version=3),
    ]
    joins[0] = group_node.join(joins[0].answer.member_id, 7, protocols=a)
    group_node.pass_ms(3 * DELAY_MS)
    assert {join.answer.protocol_name for join in joins} == {"sticky"}
    (members,) = (join.answer.members for join in joins if join.answer.members)
    assert [member.metadata for member in members] == [b"\x00s\xff"] * 3


def test_any_protocol_type(group_node: GroupNode) -> None:
    """Kafka Connect's workers, or anybody else, form groups of their own type."""
    connect = [JoinGroupRequestProtocol(name="sessioned", metadata=b"\x00\x01worker")]
    (member_id,) = group_node.joined(protocol_type="connect", protocols=connect)
    assert group_node.sync(member_id, assignments={member_id: b"\x00\xff"}).answer.assignment
    answer = group_node.join(version=9).answer
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_follower_that_lost_its_answer(group_node: GroupNode) -> None:
    """Asking again without news costs no rebalance."""
    ids = group_node.stable(2)
    answer = group_node.join(ids[1], 9).answer
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, ids[0])
    assert group_node.heartbeat(ids[0]) == ErrorCode.NONE


@pytest.mark.parametrize("version", range(5, 10))
def test_static_members(group_node: GroupNode, version: int) -> None:
    """An instance that comes back takes its place without a rebalance; its former self is fenced.

    From version 9 on a leader is told to leave the assignment as it is; before, it is told that
    somebody else leads.
    """
    first = group_node.join(version=version, group_instance_id="i")
    group_node.pass_ms(DELAY_MS)
    former = first.answer.member_id
    assert former.startswith("i-")
    assert first.answer.members == [
        JoinGroupResponseMember(member_id=former, group_instance_id="i", metadata=METADATA)
    ]
    group_node.sync(former, assignments={former: b"mine"}, group_instance_id="i")
    again = group_node.join(version=version, group_instance_id="i").answer
    assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 1)
    assert again.member_id.startswith("i-") and again.member_id != former
    assert again.skip_assignment is (version == 9)
    assert again.leader == (again.member_id if version == 9 else former)
    assert [member.member_id for member in again.members] == (
        [again.member_id] if version == 9 else []
    )
    sync = group_node.sync(again.member_id, group_instance_id="i").answer
    assert sync.assignment == b"mine"
    fenced = group_node.join(former, version, group_instance_id="i").answer
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_with_other_topics(group_node: GroupNode) -> None:
    """A restart that changes the subscription is a rebalance."""
    group_node.stable(version=9, group_instance_id="i")
    protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription("t", "u"))]
    join = group_node.join(version=9, group_instance_id="i", protocols=protocols)
    assert join.answer.generation_id == 2


def test_a_reason_is_accepted(group_node: GroupNode) -> None:
    """Versions 8 and 9 say why they join (KIP-800)."""
    join = group_node.join(version=8, reason="because")
    assert join.answer.error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_connection_that_is_lost(group_node: GroupNode) -> None:
    """The parked request is forgotten, and nobody is answered."""
    join = group_node.join()
    driver = group_node.broker.groups._driver(GROUP)
    assert len(driver._parked) == 1
    assert join.deferred is not None
    join.deferred.cancel()
    assert driver._parked == {}
    group_node.pass_ms(DELAY_MS)
    assert not join.is_answered
    assert len(group_node.group().members) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_coordinator_that_cannot_write(
    group_node: GroupNode, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Every version can be told to look for the coordinator again."""
    group_node.stable(group_id="other")
    log = group_node.broker.groups._driver(GROUP).partition.log
    monkeypatch.setattr(log, "failed", "broken")
    assert group_node.join(version=version).answer == JoinGroupResponse(
        error_code=ErrorCode.NOT_COORDINATOR, protocol_name=no_protocol(version)
    )
    monkeypatch.undo()
