"""DeleteGroups: a group goes when nobody is in it, with everything it committed."""

import pytest
from group_calls import GROUP, GroupNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

VERSIONS = range(4)


@pytest.fixture
def node(group_node: GroupNode) -> GroupNode:
    group_node.create_topic("t", 2)
    return group_node


def result(version: int, group_id: str, code: ErrorCode, message: str) -> DeletableGroupResult:
    """Messages come with version 3."""
    return DeletableGroupResult(
        group_id=group_id, error_code=code, error_message=message if version >= 3 else None
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_each_group_has_an_answer(node: GroupNode, version: int) -> None:
    """Empty groups go, groups with members stay, and what is not there is said to be so."""
    node.commit(1, 0, 1)
    node.commit(2, group_id="kept")
    node.stable(group_id="used")
    node.join(group_id="joining")
    request = DeleteGroupsRequest(groups_names=[GROUP, "used", "absent", "joining"])
    assert node.call(request, version) == DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=GROUP),
            result(
                version,
                "used",
                ErrorCode.NON_EMPTY_GROUP,
                "Group used has members. Stop them first.",
            ),
            result(version, "absent", ErrorCode.GROUP_ID_NOT_FOUND, "Group absent not found."),
            result(
                version,
                "joining",
                ErrorCode.NON_EMPTY_GROUP,
                "Group joining has members. Stop them first.",
            ),
        ]
    )
    assert [group.group_id for group in node.broker.groups.all_groups()] == [
        "joining",
        "kept",
        "used",
    ]
    assert node.broker.groups.offsets(GROUP) == {}


def test_a_group_that_had_members(node: GroupNode) -> None:
    """When the last member has gone the group can go, also for good."""
    (member_id,) = node.stable()
    node.commit(1, member_id=member_id, generation_id=1)
    node.pass_ms(10_000)
    assert node.call(DeleteGroupsRequest(groups_names=[GROUP])).results[0].error_code == 0
    driver = node.broker.groups._driver(GROUP)
    driver.load()
    assert driver.shard.group_ids() == []
    answer = node.call(DeleteGroupsRequest(groups_names=[GROUP]))
    assert answer.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_empty_group_id(node: GroupNode) -> None:
    """Offsets of clients from before groups can be deleted like all others, as in Kafka."""
    node.commit(1, group_id="")
    answer = node.call(DeleteGroupsRequest(groups_names=[""]))
    assert answer == DeleteGroupsResponse(results=[DeletableGroupResult(group_id="")])
    (again,) = node.call(DeleteGroupsRequest(groups_names=[""])).results
    assert again.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_twice_in_one_request(node: GroupNode) -> None:
    """What is there twice is answered once, as in Kafka."""
    node.commit(1)
    answer = node.call(DeleteGroupsRequest(groups_names=[GROUP, GROUP]))
    assert answer == DeleteGroupsResponse(results=[DeletableGroupResult(group_id=GROUP)])


@pytest.mark.parametrize("version", VERSIONS)
def test_no_groups(node: GroupNode, version: int) -> None:
    """An empty list has an empty answer."""
    assert node.call(DeleteGroupsRequest(), version) == DeleteGroupsResponse()


def test_answers_that_wait_for_the_disk(node: GroupNode) -> None:
    """The answer to several groups comes when the last of them is durably gone."""
    node.commit(1, group_id="a")
    node.commit(1, group_id="b")
    topic = node.broker.topics.get("__consumer_offsets")
    assert topic is not None
    node.broker.topics.set_configs(topic, {**topic.configs, "flush.on.acks.all": "true"})
    call = node.begin(DeleteGroupsRequest(groups_names=["a", "absent", "b"]))
    node.loop.finish_jobs()
    assert not call.is_answered
    node.loop.finish_jobs()
    assert [one.error_code for one in call.answer.results] == [0, ErrorCode.GROUP_ID_NOT_FOUND, 0]


def test_a_coordinator_that_cannot_write(node: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group whose end is not written down is still there."""
    node.commit(1)
    driver = node.broker.groups._driver(GROUP)
    with monkeypatch.context() as broken:
        broken.setattr(driver.partition.log, "failed", "broken")
        (answer,) = node.call(DeleteGroupsRequest(groups_names=[GROUP])).results
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    assert "broken" in answer.error_message
    driver.load()
    assert driver.shard.group_ids() == [GROUP]
