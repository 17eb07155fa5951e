"""ListGroups: every group, or those of a state and a type."""

import pytest
from group_calls import GroupNode

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.join_group import JoinGroupRequestProtocol
from anabranch.wire.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)


@pytest.fixture
def node(group_node: GroupNode) -> GroupNode:
    """A broker with a group in each state, and one that only has offsets."""
    group_node.create_topic("t")
    group_node.commit(1, group_id="simple")
    group_node.stable(group_id="stable")
    protocols = [JoinGroupRequestProtocol(name="x", metadata=b"x")]
    group_node.joined(group_id="completing", protocol_type="connect", protocols=protocols)
    group_node.join(group_id="preparing")
    return group_node


EVERY = {
    "completing": ("connect", "CompletingRebalance"),
    "preparing": ("consumer", "PreparingRebalance"),
    "simple": ("", "Empty"),
    "stable": ("consumer", "Stable"),
}


@pytest.mark.parametrize("version", range(6))
def test_every_group(node: GroupNode, version: int) -> None:
    """By name; the state from version 4 on, the type from version 5 on."""
    answer = node.call(ListGroupsRequest(), version)
    assert answer == ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group_id,
                protocol_type=protocol_type,
                group_state=state if version >= 4 else "",
                group_type="classic" if version >= 5 else "",
            )
            for group_id, (protocol_type, state) in EVERY.items()
        ]
    )


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["Stable"], ["stable"]),
        (["stable", "EMPTY"], ["simple", "stable"]),
        (["PreparingRebalance", "CompletingRebalance"], ["completing", "preparing"]),
        (["Dead"], []),
        (["nonsense"], []),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
def test_of_a_state(node: GroupNode, version: int, states: list[str], expected: list[str]) -> None:
    """States in any case; one that does not exist matches nothing."""
    answer = node.call(ListGroupsRequest(states_filter=states), version)
    assert [group.group_id for group in answer.groups] == expected
    assert answer.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("types", "expected"),
    [(["classic"], list(EVERY)), (["Classic", "share"], list(EVERY)), (["consumer"], [])],
)
def test_of_a_type(node: GroupNode, types: list[str], expected: list[str]) -> None:
    """Types in any case, from version 5 on."""
    answer = node.call(ListGroupsRequest(types_filter=types), 5)
    assert [group.group_id for group in answer.groups] == expected


def test_both(node: GroupNode) -> None:
    """A group has to pass every filter."""
    request = ListGroupsRequest(states_filter=["empty"], types_filter=["classic"])
    assert [group.group_id for group in node.call(request).groups] == ["simple"]
    request.types_filter = ["streams"]
    assert node.call(request).groups == []


@pytest.mark.parametrize("version", range(6))
def test_no_groups(group_node: GroupNode, version: int) -> None:
    """A broker without groups lists none, and makes no journal for it."""
    assert group_node.call(ListGroupsRequest(), version) == ListGroupsResponse()
    assert len(group_node.broker.topics) == 0


def test_a_shard_that_cannot_be_read(node: GroupNode) -> None:
    """Its groups are not known here, which is no error of the list, as in Kafka."""
    driver = node.broker.groups._driver("stable")
    driver.refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "broken")
    assert node.call(ListGroupsRequest()) == ListGroupsResponse()
