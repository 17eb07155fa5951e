"""ConsumerGroupHeartbeat: joins, hand-overs, leaves, and a sentence with every refusal."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from consumer_group_calls import PARTITIONS, ConsumerNode, Member, partitions, settle
from group_calls import GROUP, REBALANCE_MS

from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from support.fake_loop import FakeLoop

SESSION_MS = 45_000


# Joining ------------------------------------------------------------------------------------------


def test_a_member_of_version_0_gets_an_id(consumer_node: ConsumerNode) -> None:
    """The broker makes the member id where the client has none."""
    answer = consumer_node.enter("", version=0)
    assert answer.error_code == ErrorCode.NONE
    assert answer.error_message is None
    assert answer.member_id and answer.member_id in consumer_node.consumer_group.members
    again = consumer_node.enter("", version=0)
    assert again.member_id not in ("", None, answer.member_id)


@pytest.mark.parametrize("version", [0, 1])
def test_a_first_member(consumer_node: ConsumerNode, version: int) -> None:
    """It gets every partition with the answer to its first heartbeat, and its epoch."""
    answer = consumer_node.enter("m", version)
    assert (answer.error_code, answer.member_id) == (ErrorCode.NONE, "m")
    assert partitions(answer) == list(range(PARTITIONS))
    assert answer.assignment is not None
    (topic,) = answer.assignment.topic_partitions
    assert topic.topic_id == consumer_node.topic_id
    assert answer.member_epoch == consumer_node.consumer_group.group_epoch > 0
    assert answer.heartbeat_interval_ms > 0


@pytest.mark.parametrize("version", [0, 1])
def test_nothing_new_is_said_in_nothing(consumer_node: ConsumerNode, version: int) -> None:
    """A heartbeat without news is answered without an assignment; a full one with it."""
    member = Member(consumer_node, "m")
    plain = consumer_node.beat("m", member.epoch, version)
    assert plain.error_code == ErrorCode.NONE
    assert plain.member_epoch == member.epoch
    assert plain.assignment is None
    full = consumer_node.beat(
        "m",
        member.epoch,
        version,
        rebalance_timeout_ms=REBALANCE_MS,
        subscribed_topic_names=["t"],
        owned=member.owned,
    )
    assert partitions(full) == member.owned


def test_where_a_member_comes_from(consumer_node: ConsumerNode) -> None:
    """Client id and address are kept, the address as Java writes it."""
    member = Member(consumer_node, "m")
    kept = consumer_node.consumer_group.members[member.member_id]
    assert (kept.client_id, kept.client_host) == ("tests", "/127.0.0.1")


def test_a_topic_that_is_not_there_yet(consumer_node: ConsumerNode) -> None:
    """A subscription to it is fine, and an empty assignment is told, not left out."""
    answer = consumer_node.enter("m", subscribed_topic_names=["later"])
    assert answer.error_code == ErrorCode.NONE
    assert partitions(answer) == []
    consumer_node.create_topic("later", 2)
    consumer_node.pass_ms(1)
    told = consumer_node.beat("m", answer.member_epoch)
    assert told.member_epoch > answer.member_epoch
    assert partitions(told) == [0, 1]


def test_a_topic_that_grows_and_goes(consumer_node: ConsumerNode) -> None:
    """Partitions that are added are assigned, and those of a deleted topic taken away."""
    member = Member(consumer_node, "m")
    consumer_node.broker.topics.grow(consumer_node.broker.topics.get("t"), 6, consumer_node.now_ms)
    consumer_node.pass_ms(1)
    member.beat()
    assert member.owned == [0, 1, 2, 3, 4, 5]
    consumer_node.broker.delete_topic(consumer_node.broker.topics.get("t"))
    consumer_node.pass_ms(1)
    member.beat()
    assert member.owned == []


# Hand-overs ---------------------------------------------------------------------------------------


def test_a_hand_over(consumer_node: ConsumerNode) -> None:
    """What moves is first given up and confirmed; nobody gets it before."""
    first = Member(consumer_node, "a")
    second = Member(consumer_node, "b")
    assert second.owned == []
    told = first.beat()
    assert told.assignment is not None, "it is told what it may keep"
    kept = list(first.owned)
    assert len(kept) == 2
    second.confirm()
    assert second.owned == [], "its owner has not confirmed yet"
    first.beat()
    second.confirm()
    assert second.owned == [], "a heartbeat without the list confirms nothing"
    first.confirm()
    second.confirm()
    assert sorted([*kept, *second.owned]) == list(range(PARTITIONS))
    assert consumer_node.consumer_group.is_settled


def test_ten_members_share_and_three_stay(consumer_node: ConsumerNode) -> None:
    """Members come and go; what is left is shared by those who are left, once each."""
    members = [Member(consumer_node, f"m{number}") for number in range(10)]
    settle(*members)
    assert sorted(p for member in members for p in member.owned) == list(range(PARTITIONS))
    for member in members[3:]:
        assert consumer_node.beat(member.member_id, -1).error_code == ErrorCode.NONE
    settle(*members[:3])
    assert sorted(p for member in members[:3] for p in member.owned) == list(range(PARTITIONS))


def test_a_lost_answer(consumer_node: ConsumerNode) -> None:
    """A member that did not hear of its new epoch may say the old one once more."""
    first = Member(consumer_node, "a")
    old = first.epoch
    Member(consumer_node, "b")
    first.beat()
    first.confirm()
    assert first.epoch > old
    again = consumer_node.beat("a", old, owned=first.owned)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, first.epoch)


# Leaving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_leaving(consumer_node: ConsumerNode, version: int) -> None:
    """Epoch -1 leaves at once; the group stays, empty."""
    Member(consumer_node, "m")
    answer = consumer_node.beat("m", -1, version)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", -1)
    assert consumer_node.consumer_group.state.value == "Empty"
    assert consumer_node.beat("m", -1, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_restarts(consumer_node: ConsumerNode) -> None:
    """Epoch -2 keeps its place for a new process with the same instance id."""
    first = Member(consumer_node, "a", instance_id="i")
    second = Member(consumer_node, "b", instance_id="j")
    settle(first, second)
    epoch = consumer_node.consumer_group.group_epoch
    answer = consumer_node.beat("a", -2, instance_id="i")
    assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, -2)
    back = Member(consumer_node, "a2", instance_id="i")
    assert back.owned == first.owned
    assert consumer_node.consumer_group.group_epoch == epoch, "nobody else noticed"


def test_a_member_that_is_silent(consumer_node: ConsumerNode) -> None:
    """It is out after a session, and what it had is somebody else's."""
    silent = Member(consumer_node, "a")
    consumer_node.pass_ms(SESSION_MS - 1)
    other = Member(consumer_node, "b")
    assert other.owned == []
    consumer_node.pass_ms(2)
    other.confirm()
    assert other.owned == list(range(PARTITIONS))
    answer = consumer_node.beat("a", silent.epoch)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert "a is not a member of group g" in (answer.error_message or "")


def test_a_member_that_does_not_give_up(consumer_node: ConsumerNode) -> None:
    """Heartbeats alone do not keep it in: after its rebalance timeout it is fenced."""
    slow = Member(consumer_node, "a", rebalance_timeout_ms=5_000)
    heir = Member(consumer_node, "b")
    slow.beat()
    for _ in range(4):
        consumer_node.pass_ms(1_250)
        if "a" in consumer_node.consumer_group.members:
            slow.beat()
    heir.confirm()
    assert heir.owned == list(range(PARTITIONS))
    assert consumer_node.beat("a", slow.epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restarted_broker_knows_its_members(
    consumer_node: ConsumerNode, make_consumer_node: Callable[..., ConsumerNode]
) -> None:
    """Epochs and assignments come back from the journal, in the middle of a hand-over."""
    first, second = Member(consumer_node, "a"), Member(consumer_node, "b")
    first.beat()
    epoch = consumer_node.consumer_group.group_epoch
    consumer_node.close()
    first.node = second.node = again = make_consumer_node()
    assert again.consumer_group.group_epoch == epoch
    settle(first, second)
    assert sorted(first.owned + second.owned) == list(range(PARTITIONS))


# Regular expressions ------------------------------------------------------------------------------


def test_a_regular_expression(consumer_node: ConsumerNode, loop: FakeLoop) -> None:
    """It is matched off the loop with all topics but internal ones, and again when one appears."""
    answer = consumer_node.enter("m", subscribed_topic_names=[], subscribed_topic_regex="[t_].*")
    assert answer.error_code == ErrorCode.NONE
    assert partitions(answer) == [], "nothing is known yet"
    assert loop.finish_jobs() == 1
    told = consumer_node.beat("m", answer.member_epoch)
    assert partitions(told) == list(range(PARTITIONS))
    consumer_node.create_topic("t2", 1)
    consumer_node.pass_ms(1)
    assert loop.finish_jobs() == 1
    more = consumer_node.beat("m", told.member_epoch)
    assert len(partitions(more)) == PARTITIONS + 1
    (matched,) = consumer_node.consumer_group.regexes.values()
    assert matched.topics == {"t", "t2"}


def test_a_match_that_fails(
    consumer_node: ConsumerNode, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said in the log, hurts nobody, and is made up for when the next topic appears."""

    def fail(regexes: object, names: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("anabranch.broker.shard_driver.match_topics", fail)
        answer = consumer_node.enter("m", subscribed_topic_names=[], subscribed_topic_regex="t.*")
        assert loop.finish_jobs() == 1
    assert consumer_node.consumer_group.regexes == {}
    consumer_node.create_topic("t2", 1)
    consumer_node.pass_ms(1)
    assert loop.finish_jobs() == 1
    told = consumer_node.beat("m", answer.member_epoch)
    assert len(partitions(told)) == PARTITIONS + 1


# Refusals -----------------------------------------------------------------------------------------

JOINING: dict[str, Any] = {"member_epoch": 0, "rebalance_timeout_ms": 1000, "topic_partitions": []}
SOME = [TopicPartitions(topic_id=bytes(16), partitions=[0])]
NAMES: dict[str, Any] = {"subscribed_topic_names": ["t"]}

# What is asked of a group with a member "m" and the static member "s" (instance "i"), the code, and
# what the sentence has to tell.
REFUSALS: dict[str, tuple[dict[str, Any], ErrorCode, str]] = {
    "no group": ({"group_id": ""}, ErrorCode.INVALID_REQUEST, "GroupId"),
    "no member id": ({"member_id": ""}, ErrorCode.INVALID_REQUEST, "MemberId"),
    "empty instance": ({"instance_id": ""}, ErrorCode.INVALID_REQUEST, "InstanceId"),
    "empty rack": ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "RackId"),
    "epoch -3": ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid: -3"),
    "epoch -2 without instance": ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST, "InstanceId"),
    "join without timeout": (
        {**JOINING, **NAMES, "rebalance_timeout_ms": -1},
        ErrorCode.INVALID_REQUEST,
        "RebalanceTimeoutMs",
    ),
    "join owning something": (
        {**JOINING, **NAMES, "topic_partitions": SOME},
        ErrorCode.INVALID_REQUEST,
        "TopicPartitions",
    ),
    "join without the list": (
        {**JOINING, **NAMES, "topic_partitions": None},
        ErrorCode.INVALID_REQUEST,
        "TopicPartitions",
    ),
    "join without subscription": (JOINING, ErrorCode.INVALID_REQUEST, "SubscribedTopicNames"),
    "unknown assignor": (
        {"server_assignor": "by-moon"},
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        "by-moon.*uniform, range",
    ),
    "broken expression": (
        {"subscribed_topic_regex": "(t"},
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        r"\(t.*missing.*RE2",
    ),
    "unknown group": (
        {"group_id": "other"},
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group other not found",
    ),
    "leaving an unknown group": (
        {"group_id": "other", "member_epoch": -1},
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group other not found",
    ),
    "unknown member": ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID, "x is not a member"),
    "unknown leaver": (
        {"member_id": "x", "member_epoch": -1},
        ErrorCode.UNKNOWN_MEMBER_ID,
        "x is not a member",
    ),
    "unknown instance": (
        {"member_id": "x", "instance_id": "j"},
        ErrorCode.UNKNOWN_MEMBER_ID,
        "j is not a member",
    ),
    "unknown instance leaving": (
        {"member_id": "x", "instance_id": "j", "member_epoch": -2},
        ErrorCode.UNKNOWN_MEMBER_ID,
        "j is not a member",
    ),
    "epoch of the future": (
        {"member_epoch": 99},
        ErrorCode.FENCED_MEMBER_EPOCH,
        "not 99.*rejoin with epoch 0",
    ),
    "somebody else's instance": (
        {"member_id": "x", "instance_id": "i", "member_epoch": 1},
        ErrorCode.FENCED_INSTANCE_ID,
        "x was fenced.*instance id i",
    ),
    "leaving by somebody else's instance": (
        {"member_id": "x", "instance_id": "i", "member_epoch": -1},
        ErrorCode.FENCED_INSTANCE_ID,
        "x was fenced.*instance id i",
    ),
    "an instance that lives": (
        {**JOINING, **NAMES, "member_id": "x", "instance_id": "i"},
        ErrorCode.UNRELEASED_INSTANCE_ID,
        "held by member s.*Stop that one",
    ),
    "no room": (
        {**JOINING, **NAMES, "member_id": "x"},
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        "2 members.*group.consumer.max.size",
    ),
    "no room for an instance": (
        {**JOINING, **NAMES, "member_id": "x", "instance_id": "j"},
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        "2 members.*group.consumer.max.size",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_every_refusal_has_a_sentence(
    make_consumer_node: Callable[..., ConsumerNode], case: str
) -> None:
    """Code and message say what is wrong; nothing of the group changes."""
    node = make_consumer_node("group.consumer.max.size=2")
    settle(Member(node, "m"), Member(node, "s", instance_id="i"))
    before = node.describe_consumer()
    changes, code, sentence = REFUSALS[case]
    asked: dict[str, Any] = {"group_id": GROUP, "member_id": "m", "member_epoch": 3}
    epoch = node.consumer_group.members["m"].member_epoch
    asked["member_epoch"] = epoch
    answer = node.call(ConsumerGroupHeartbeatRequest(**asked | changes), 1)
    assert answer.error_code == code
    assert_sentence(answer.error_message, sentence)
    assert answer.assignment is None
    assert node.describe_consumer() == before


def assert_sentence(message: str | None, pattern: str) -> None:
    assert message is not None
    assert re.search(pattern, message, re.DOTALL), message
    assert message.endswith("."), message


def test_all_codes_of_the_protocol_are_refused_with() -> None:
    """Every error that Kafka documents for this API is in the table, or has a test of its own."""
    elsewhere = {
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,  # there is no authorization yet
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,  # journals are read before the listeners open
    }
    documented = {
        *elsewhere,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
    }
    assert {code for _, code, _ in REFUSALS.values()} | elsewhere == documented


@pytest.mark.parametrize("version", [0, 1])
def test_the_protocol_is_turned_off(
    make_consumer_node: Callable[..., ConsumerNode], version: int
) -> None:
    """Without `consumer` among the protocols nobody gets in, and the message names the setting."""
    node = make_consumer_node("group.coordinator.rebalance.protocols=classic")
    answer = node.enter("m", version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert_sentence(answer.error_message, "group.coordinator.rebalance.protocols")
    assert node.broker.groups.group(GROUP) is None


def test_a_coordinator_that_cannot(consumer_node: ConsumerNode) -> None:
    """A journal that takes no more records is NOT_COORDINATOR, with the reason."""
    Member(consumer_node, "m")
    consumer_node.broker.groups.stop()
    answer = consumer_node.enter("n")
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    assert_sentence(answer.error_message, "shutting down")


def test_an_empty_classic_group_becomes_a_consumer_group(consumer_node: ConsumerNode) -> None:
    """What was committed in it stays."""
    assert consumer_node.commit(7, 0) == [ErrorCode.NONE]
    assert not isinstance(consumer_node.group(), ConsumerGroup)
    member = Member(consumer_node, "m")
    assert member.owned == list(range(PARTITIONS))
    assert consumer_node.broker.groups.offsets(GROUP)[("t", 0)].offset == 7
