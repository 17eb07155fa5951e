"""ConsumerGroupDescribe, and what the APIs of classic groups say of consumer groups."""

from collections.abc import Callable
from typing import Any

import pytest
from consumer_group_calls import PARTITIONS, ConsumerNode, Member, settle
from group_calls import GROUP

from anabranch.model.authorization import GROUP_OPERATIONS, operations_bits
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.consumer_group_describe import (
    MEMBER_TYPE_CONSUMER,
    MEMBER_TYPE_UNKNOWN,
    ConsumerGroupDescribeRequest,
)
from anabranch.wire.messages.delete_groups import DeleteGroupsRequest
from anabranch.wire.messages.describe_groups import DescribeGroupsRequest
from anabranch.wire.messages.list_groups import ListGroupsRequest
from anabranch.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)


def shown(assignment: Any) -> dict[str, list[int]]:
    return {topic.topic_name: topic.partitions for topic in assignment.topic_partitions}


@pytest.mark.parametrize("version", [0, 1])
def test_a_settled_group(consumer_node: ConsumerNode, version: int) -> None:
    """State, epochs and assignor of the group; description and assignment of each member."""
    first = Member(consumer_node, "a", instance_id="i", rack_id="r")
    second = Member(consumer_node, "b")
    settle(first, second)
    group = consumer_node.describe_consumer(version=version)
    assert (group.error_code, group.error_message) == (ErrorCode.NONE, None)
    assert (group.group_id, group.group_state, group.assignor_name) == (GROUP, "Stable", "uniform")
    assert group.group_epoch == group.assignment_epoch == first.epoch
    one, other = group.members
    assert (one.member_id, one.instance_id, one.rack_id) == ("a", "i", "r")
    assert (other.member_id, other.instance_id, other.rack_id) == ("b", None, None)
    assert one.member_epoch == other.member_epoch == group.group_epoch
    assert (one.client_id, one.client_host) == ("tests", "/127.0.0.1")
    assert (one.subscribed_topic_names, one.subscribed_topic_regex) == (["t"], None)
    for described, member in ((one, first), (other, second)):
        assert shown(described.assignment) == {"t": member.owned}
        assert described.assignment == described.target_assignment
        assert described.assignment.topic_partitions[0].topic_id == consumer_node.topic_id
        kind = MEMBER_TYPE_CONSUMER if version else MEMBER_TYPE_UNKNOWN
        assert described.member_type == kind
    assert group.movements == []


def test_a_group_on_its_way(consumer_node: ConsumerNode) -> None:
    """What has yet to be given up is still its owner's, and the heir has it in its target."""
    first, _second = Member(consumer_node, "a"), Member(consumer_node, "b")
    told_ms = consumer_node.now_ms
    first.beat()
    consumer_node.pass_ms(700)
    group = consumer_node.describe_consumer(include_movements=True)
    assert group.group_state == "Reconciling"
    one, other = group.members
    assert shown(one.assignment) == {"t": list(range(PARTITIONS))}
    assert shown(one.target_assignment) == {"t": first.owned}
    assert shown(other.assignment) == {}
    moving = shown(other.target_assignment)["t"]
    assert sorted(first.owned + moving) == list(range(PARTITIONS))
    assert one.member_epoch < group.group_epoch == other.member_epoch
    assert [
        (m.topic_name, m.partition, m.from_member_id, m.to_member_id, m.state, m.since_ms)
        for m in group.movements
    ] == [("t", partition, "a", "b", "revoking", told_ms) for partition in moving]
    assert {(m.first_hash, m.last_hash) for m in group.movements} == {(0, 2**63 - 1)}
    first.confirm()
    group = consumer_node.describe_consumer(include_movements=True)
    assert [(m.partition, m.from_member_id, m.to_member_id, m.state) for m in group.movements] == [
        (partition, "", "b", "assigning") for partition in moving
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_movements_are_for_those_who_ask(consumer_node: ConsumerNode, version: int) -> None:
    """Clients that stumble over unknown tags never meet ours."""
    Member(consumer_node, "a"), Member(consumer_node, "b")
    assert consumer_node.describe_consumer(version=version).movements == []
    asking = consumer_node.describe_consumer(version=version, include_movements=True)
    assert len(asking.movements) == PARTITIONS // 2


def test_a_topic_that_is_gone(consumer_node: ConsumerNode) -> None:
    """Its partitions are left out, whoever still holds them."""
    Member(consumer_node, "a")
    consumer_node.broker.delete_topic(consumer_node.broker.topics.get("t"))
    (member,) = consumer_node.describe_consumer().members
    assert shown(member.assignment) == {}
    assert member.subscribed_topic_names == ["t"]


def test_an_empty_group(consumer_node: ConsumerNode) -> None:
    """A group without members is Empty and keeps its epoch."""
    Member(consumer_node, "a")
    consumer_node.beat("a", -1)
    group = consumer_node.describe_consumer()
    assert (group.group_state, group.members) == ("Empty", [])
    assert group.group_epoch == group.assignment_epoch > 1


def test_many_groups_at_once(consumer_node: ConsumerNode) -> None:
    """Each is answered for itself, in the order of the request."""
    consumer_node.stable(group_id="old")
    Member(consumer_node, "a")
    answer = consumer_node.call(ConsumerGroupDescribeRequest(group_ids=["x", GROUP, "old"]))
    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("x", ErrorCode.GROUP_ID_NOT_FOUND),
        (GROUP, ErrorCode.NONE),
        ("old", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert answer.groups[0].error_message == "Group x not found."
    assert answer.groups[2].error_message == "Group old is not a consumer group."


def test_authorized_operations(consumer_node: ConsumerNode) -> None:
    """They are told to those who ask, and not for a group that is not there."""
    Member(consumer_node, "a")
    asked = consumer_node.describe_consumer(include_authorized_operations=True)
    assert asked.authorized_operations == operations_bits(GROUP_OPERATIONS)
    assert consumer_node.describe_consumer().authorized_operations == -(2**31)
    missing = consumer_node.describe_consumer("x", include_authorized_operations=True)
    assert missing.authorized_operations == -(2**31)


def test_the_protocol_is_turned_off(make_consumer_node: Callable[..., ConsumerNode]) -> None:
    """Where no consumer group can be there is none to describe; clients ask the other API then."""
    node = make_consumer_node("group.coordinator.rebalance.protocols=classic")
    group = node.describe_consumer()
    assert (group.group_id, group.error_code) == (GROUP, ErrorCode.UNSUPPORTED_VERSION)
    assert "group.coordinator.rebalance.protocols" in group.error_message


def test_a_coordinator_that_cannot(consumer_node: ConsumerNode) -> None:
    """A shard that serves nothing describes nothing."""
    Member(consumer_node, "a")
    consumer_node.broker.groups.stop()
    assert consumer_node.describe_consumer().error_code == ErrorCode.NOT_COORDINATOR


# APIs that classic groups have too ----------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_knows_classic_groups_only(
    consumer_node: ConsumerNode, version: int
) -> None:
    """A consumer group is Dead there, and GROUP_ID_NOT_FOUND from version 6 on, as in Kafka."""
    Member(consumer_node, "a")
    (group,) = consumer_node.call(DescribeGroupsRequest(groups=[GROUP]), version).groups
    assert (group.group_state, group.members) == ("Dead", [])
    if version < 6:
        assert group.error_code == ErrorCode.NONE
    else:
        assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group.error_message == "Group g is not a classic group."


def listed(node: ConsumerNode, version: int = 5, **filters: Any) -> list[tuple[str, ...]]:
    answer = node.call(ListGroupsRequest(**filters), version)
    assert answer.error_code == ErrorCode.NONE
    return [
        (group.group_id, group.protocol_type, group.group_state, group.group_type)
        for group in answer.groups
    ]


@pytest.fixture
def both_kinds(consumer_node: ConsumerNode) -> ConsumerNode:
    """A stable classic group, an empty one, a consumer group on its way and an empty one."""
    consumer_node.stable(group_id="classic")
    consumer_node.commit(1, 0, group_id="offsets-only")
    Member(consumer_node, "a"), Member(consumer_node, "b")
    consumer_node.enter("c", group_id="left")
    consumer_node.beat("c", -1, group_id="left")
    return consumer_node


CLASSIC_ROW = ("classic", "consumer", "Stable", "classic")
OFFSETS_ROW = ("offsets-only", "", "Empty", "classic")
MOVING_ROW = (GROUP, "consumer", "Reconciling", "consumer")
LEFT_ROW = ("left", "consumer", "Empty", "consumer")


def test_both_kinds_are_listed(both_kinds: ConsumerNode) -> None:
    """Each with its own states, under its type."""
    assert listed(both_kinds) == [CLASSIC_ROW, MOVING_ROW, LEFT_ROW, OFFSETS_ROW]


@pytest.mark.parametrize("version", range(5))
def test_lists_of_older_versions(both_kinds: ConsumerNode, version: int) -> None:
    """They have both kinds too, without what the version has no place for."""
    expected = [CLASSIC_ROW, MOVING_ROW, LEFT_ROW, OFFSETS_ROW]
    assert listed(both_kinds, version) == [
        (group_id, protocol_type, state if version >= 4 else "", "")
        for group_id, protocol_type, state, _ in expected
    ]


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ({"types_filter": ["consumer"]}, [MOVING_ROW, LEFT_ROW]),
        ({"types_filter": ["CLASSIC"]}, [CLASSIC_ROW, OFFSETS_ROW]),
        (
            {"types_filter": ["Classic", "consumer"]},
            [CLASSIC_ROW, MOVING_ROW, LEFT_ROW, OFFSETS_ROW],
        ),
        ({"types_filter": ["share"]}, []),
        ({"states_filter": ["reconciling"]}, [MOVING_ROW]),
        ({"states_filter": ["Empty"]}, [LEFT_ROW, OFFSETS_ROW]),
        ({"states_filter": ["Stable", "Assigning"]}, [CLASSIC_ROW]),
        ({"states_filter": ["empty"], "types_filter": ["consumer"]}, [LEFT_ROW]),
        ({"states_filter": ["Stable"], "types_filter": ["consumer"]}, []),
    ],
)
def test_filters(
    both_kinds: ConsumerNode, filters: dict[str, Any], rows: list[tuple[str, ...]]
) -> None:
    """States and types in any case; both have to fit where both are given."""
    assert listed(both_kinds, **filters) == rows


@pytest.mark.parametrize("version", range(4))
def test_deleting_a_consumer_group(consumer_node: ConsumerNode, version: int) -> None:
    """Only an empty one goes, with all it committed."""
    member = Member(consumer_node, "a")
    assert consumer_node.commit(5, 0, member_id="a", generation_id=member.epoch) == [0]
    request = DeleteGroupsRequest(groups_names=[GROUP])
    (refused,) = consumer_node.call(request, version).results
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
    if version >= 3:
        assert refused.error_message == "Group g has members. Stop them first."
    consumer_node.beat("a", -1)
    (deleted,) = consumer_node.call(request, version).results
    assert deleted.error_code == ErrorCode.NONE
    assert consumer_node.broker.groups.group(GROUP) is None
    assert consumer_node.describe_consumer().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_group_stays_deleted(
    consumer_node: ConsumerNode, make_consumer_node: Callable[..., ConsumerNode]
) -> None:
    """Nothing of it comes back from the journal."""
    Member(consumer_node, "a")
    consumer_node.beat("a", -1)
    consumer_node.call(DeleteGroupsRequest(groups_names=[GROUP]))
    consumer_node.close()
    assert make_consumer_node().broker.groups.group(GROUP) is None


def delete_offset(node: ConsumerNode, topic: str) -> tuple[int, list[int]]:
    partition = OffsetDeleteRequestPartition(partition_index=0)
    request = OffsetDeleteRequest(
        group_id=GROUP, topics=[OffsetDeleteRequestTopic(name=topic, partitions=[partition])]
    )
    answer = node.call(request)
    return answer.error_code, [p.error_code for t in answer.topics for p in t.partitions]


def test_deleting_offsets_of_a_consumer_group(consumer_node: ConsumerNode) -> None:
    """Those of topics that a member is subscribed to stay."""
    consumer_node.create_topic("u")
    consumer_node.commit(5, 0)
    consumer_node.commit(6, 0, topic="u")
    Member(consumer_node, "a")
    assert delete_offset(consumer_node, "t") == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert delete_offset(consumer_node, "u") == (0, [ErrorCode.NONE])
    assert set(consumer_node.broker.groups.offsets(GROUP)) == {("t", 0)}
    consumer_node.beat("a", -1)
    assert delete_offset(consumer_node, "t") == (0, [ErrorCode.NONE])
    assert not consumer_node.broker.groups.offsets(GROUP)
