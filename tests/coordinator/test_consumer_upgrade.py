"""Stories of classic groups that become consumer groups while their members live."""

import random

import pytest
from consumer_story import names_of, units
from migration_story import (
    REBALANCE_MS,
    SESSION_MS,
    ClassicClient,
    ConsumerClient,
    MigrationStory,
    Scene,
    TwoOwners,
    assigned,
    subscription,
)

from anabranch.coordinator.group.consumer_settings import MigrationPolicy
from anabranch.model.errors import ErrorCode

NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
CONSUMER_MS = 45_000


def test_a_stable_group_goes_on_where_it_was():
    """The generation is the epoch, the last assignment is target and property, and one joins."""
    story = MigrationStory(t=4)
    story.classic_stable({"a": "t0 t1", "b": "t2 t3"})
    assert story.line == "classic Stable 1 range *a-1[t0 t1] b-2[t2 t3]"

    story.join("x").gives(
        "x@2 every 50 []",
        records=[
            "classic gone",
            "member a-1 t (range 10000)",
            "member b-2 t (range 10000)",
            "epoch 1",
            "target a-1 t0 t1",
            "target b-2 t2 t3",
            "targets 1 never",
            "current a-1 1->1 t0@1 t1@1",
            "current b-2 1->1 t2@1 t3@1",
            "member x t",
            "epoch 2",
            "target b-2 t2",
            "target x t3",
            "targets 2 +6000",
            "current x 0->2?",
        ],
        timers={
            "join": None,
            "sync": None,
            "a-1": SESSION_MS,
            "b-2": SESSION_MS,
            "target": None,
            "x": CONSUMER_MS,
        },
        group="Reconciling 2/2 a-1@1[t0 t1] b-2@1[t2 t3] x@2?[]",
    )


def test_members_behind_the_barrier_are_told_to_rejoin():
    """In PreparingRebalance the parked JoinGroups are answered, and the join timer is off."""
    story = MigrationStory(t=4)
    a, _ = story.classic_stable({"a": "t0 t1", "b": "t2 t3"})
    story.join_classic("c").gives(
        group="classic PreparingRebalance 1 range *a-1[t0 t1] b-2[t2 t3] c-5?[]"
    )
    story.join_classic("a", a).says(None)

    step = story.join("x")

    assert step.wakes == {
        "join a": f"REBALANCE_IN_PROGRESS {a}",
        "join c": "REBALANCE_IN_PROGRESS c-5",
    }
    assert step.timers["join"] is None
    assert step.timers["c-5"] == SESSION_MS
    assert step.group == "Reconciling 2/2 a-1@1[t0 t1] b-2@1[t2 t3] c-5@1[] x@2?[]"
    story.join_classic("a", a).says("a-1@2 range")


def test_members_that_wait_for_their_assignment_are_told_to_rejoin():
    """In CompletingRebalance the parked SyncGroups are answered, and what they had counts."""
    story = MigrationStory(t=4)
    a, b = story.classic_stable({"a": "t0 t1 t2 t3", "b": ""})
    story.join_classic("a", a)
    story.join_classic("b", b)
    story.sync(b, 2).gives(group="classic CompletingRebalance 2 range *a-1[t0 t1 t2 t3] b-2~[]")

    step = story.join("x")

    assert step.wakes == {"sync b-2": "REBALANCE_IN_PROGRESS"}
    assert step.timers["sync"] is None
    assert step.group == "Reconciling 3/3 a-1@2[t0 t1 t2 t3] b-2@2[] x@3?[]"


def test_a_group_that_never_had_a_generation_is_upgraded():
    """In its first rebalance a group has no protocol and generation 0, which is no epoch."""
    story = MigrationStory(t=2)
    story.join_classic("a")

    step = story.join("x")

    assert step.wakes == {"join a": "REBALANCE_IN_PROGRESS a-1"}
    assert step.group == "Reconciling 2/2 a-1@1[] x@2[t1]"


def test_an_empty_group_is_upgraded_whatever_the_policy():
    """There is nobody to carry over: the group starts at its first epoch."""
    story = MigrationStory(t=1)
    story.configure(migration_policy=MigrationPolicy.DISABLED)
    [a] = story.classic_stable({"a": "t0"})
    story.join_classic("b", requires_known_member_id=True)
    story.leave_classic(a)
    assert story.line == "classic PreparingRebalance 1 range"

    step = story.join("x")

    assert step.records[0] == "classic gone"
    assert step.timers == {
        "join": None,
        "sync": None,
        "b-3": None,
        "target": None,
        "x": CONSUMER_MS,
    }
    assert step.group == "Stable 2/2 x@2[t0]"


def test_a_refused_heartbeat_leaves_an_empty_group_as_it_is():
    """What is wrong in form does not cost the group its generation."""
    story = MigrationStory(t=1)
    [a] = story.classic_stable({"a": "t0"})
    story.leave_classic(a)

    story.join("x", rebalance_timeout_ms=-1).fails(ErrorCode.INVALID_REQUEST)

    assert story.line == "classic Empty 2 -"


def test_a_member_of_another_epoch_does_not_upgrade():
    """Nobody has joined a classic group by the consumer protocol."""
    story = MigrationStory(t=1)
    story.classic_stable({"a": "t0"})

    story.beat("x", 1).fails(NOT_FOUND, "not found")


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [MigrationPolicy.DOWNGRADE, MigrationPolicy.DISABLED])
def test_the_policy_may_forbid_it(policy):
    """The message says which setting it was."""
    story = MigrationStory(t=1)
    story.configure(migration_policy=policy)
    story.classic_stable({"a": "t0"})

    story.join("x").fails(NOT_FOUND, f"migration.policy is {policy.value}")

    assert story.line == "classic Stable 1 range *a-1[t0]"


def test_groups_of_other_protocol_types_are_not_upgraded():
    """Workers of Connect are no consumers."""
    story = MigrationStory(t=1)
    story.classic_stable({"a": b""}, protocol_type="connect")

    story.join("x").fails(NOT_FOUND, "protocol type connect")


def test_a_group_larger_than_a_consumer_group_may_be_is_not_upgraded():
    """The members that are there count; the one that comes is then refused for itself."""
    story = MigrationStory(t=3)
    story.classic_stable({"a": "t0", "b": "t1", "c": "t2"})

    story.configure(max_size=2)
    story.join("x").fails(NOT_FOUND, "has 3 members", "may have 2")
    story.configure(max_size=3)
    story.join("x").fails(ErrorCode.GROUP_MAX_SIZE_REACHED)

    assert story.line.startswith("classic Stable 1")


def test_subscriptions_that_cannot_be_read_are_refused():
    """There would be no telling what the member wants."""
    story = MigrationStory(t=1)
    story.classic_stable({"a": "t0"}, protocols=(("own", b"\x00"),))

    story.join("x").fails(NOT_FOUND, "the subscription of member a-1")


def test_assignments_that_cannot_be_read_are_refused():
    """There would be no telling what the member owns."""
    story = MigrationStory(t=1)
    story.classic_stable({"a": b"\x00\x01\x00"})

    story.join("x").fails(NOT_FOUND, "the assignment of member a-1")


def test_user_data_of_a_custom_assignor_is_refused():
    """Nobody but the assignor understands it, and nobody would send it any more."""
    story = MigrationStory(t=1)
    story.classic_stable({"a": assigned("t0", user_data=b"mine")})

    story.join("x").fails(NOT_FOUND, "user data", "range")


def test_empty_user_data_is_none():
    """Some clients write no bytes in place of null."""
    story = MigrationStory(t=1)
    story.classic_stable({"a": assigned("t0", user_data=b"")})

    story.join("x").says("x@2 every 50 []")


@pytest.mark.parametrize("assignor", ["sticky", "cooperative-sticky"])
def test_user_data_of_sticky_assignors_is_of_no_use(assignor):
    """librdkafka writes what a member had before into its assignment, and never reads it."""
    story = MigrationStory(t=1)
    protocols = ((assignor, subscription("t")),)
    story.classic_stable({"a": assigned("t0", user_data=b"old")}, protocols=protocols)

    story.join("x").says("x@2 every 50 []")


def test_a_partition_with_two_owners_is_refused():
    """An assignor that gives everything to everybody has no place in a consumer group."""
    story = MigrationStory(t=2)
    story.classic_stable({"a": "t0 t1", "b": "t1"})

    story.join("x").fails(NOT_FOUND, "partition 1 of t", "more than one")


def test_a_heartbeat_wrong_in_form_wakes_nobody():
    """The group is not touched by what no group would take."""
    story = MigrationStory(t=1)
    story.join_classic("a")

    story.join("x", rebalance_timeout_ms=-1).fails(ErrorCode.INVALID_REQUEST)
    story.join("x", None, "(").fails(ErrorCode.INVALID_REGULAR_EXPRESSION)


# What is carried over -----------------------------------------------------------------------------


def test_members_keep_what_they_said_of_themselves():
    """Instance, rack, timeouts and all protocols of a member come over."""
    story = MigrationStory(t=1)
    protocols = (
        ("range", subscription("u,t", version=3, rack_id="r1")),
        ("sticky", subscription("u,t", version=3, rack_id="r1")),
    )
    [a] = story.classic_stable(
        {"a": "t0"}, protocols=protocols, group_instance_id="i-a", rebalance_timeout_ms=7_000
    )

    story.join("x")

    member = story.member(a)
    assert (member.instance_id, member.rack_id, member.client_id) == ("i-a", "r1", "a")
    assert member.rebalance_timeout_ms == 7_000
    assert member.subscribed_topic_names == ("t", "u")
    assert member.classic is not None
    assert member.classic.protocols == protocols


def test_topics_that_are_gone_are_dropped():
    """An assignment is by name, and a name may mean nothing any more."""
    story = MigrationStory(t=1)
    story.classic_stable({"a": "t0 u0"})

    story.join("x")

    assert names_of(story.member("a-1").assigned) == "t0"


def test_what_a_cooperative_member_has_yet_to_give_up_is_not_given_to_another():
    """It owned t1 when it joined, and was assigned less: until it rejoins it owes t1."""
    story = MigrationStory(t=2)
    a, b = story.classic_stable({"a": "t0 t1", "b": ""})
    story.join_classic("a", a, owned="t0 t1")
    story.join_classic("b", b)
    story.sync(a, 2, {a: assigned("t0"), b: assigned()})
    story.sync(b, 2)

    step = story.join("x")

    assert "current a-1 2->2! t0@2 -t1@2" in step.records
    assert step.timers["rebalance a-1"] == REBALANCE_MS
    assert step.group == "Reconciling 3/3 a-1@2![t0 -t1] b-2@2[] x@3[]"
    story.heartbeat(a, 2).says("REBALANCE_IN_PROGRESS")
    story.join_classic("a", a, owned="t0").says("a-1@3 range")
    assert story.member(a).pending_revocation == {}


def test_a_claim_does_not_stand_against_an_assignment():
    """What the leader gave to another is the other's, whatever a member says it still owns."""
    story = MigrationStory(t=2)
    a, b = story.classic_stable({"a": "t0", "b": "t1"})
    story.join_classic("a", a, owned="t0 t1")
    story.join_classic("b", b)
    story.sync(a, 2, {a: assigned("t0"), b: assigned("t1")})
    story.sync(b, 2)

    story.join("x")

    assert story.member(a).pending_revocation == {}
    assert names_of(story.member(b).assigned) == "t1"


def test_of_two_claims_the_later_generation_counts():
    """A member that was away may say that it owns what has long been another's."""
    story = MigrationStory(t=1)
    stale = (("range", subscription(owned="t0", version=2, generation_id=1)),)
    fresh = (("range", subscription(owned="t0", version=2, generation_id=5)),)
    story.join_classic("a", protocols=stale)
    story.join_classic("b", protocols=fresh)

    story.join("x")

    assert story.member("a-1").pending_revocation == {}
    assert names_of(story.member("b-2").pending_revocation) == "t0"


# Static members -----------------------------------------------------------------------------------


def test_a_static_member_comes_back_with_the_other_protocol():
    """It takes the place of its classic self, which is fenced, and nothing moves."""
    story = MigrationStory(t=2)
    [a] = story.classic_stable({"a": "t0 t1"}, group_instance_id="i-a")

    story.join("x", instance_id="i-a").gives(
        "x@1 every 100 [t0 t1]",
        records=[
            "classic gone",
            "member i-a-1 t instance_id=i-a (range 10000)",
            "epoch 1",
            "target i-a-1 t0 t1",
            "targets 1 never",
            "current i-a-1 1->1 t0@1 t1@1",
            "current i-a-1 gone",
            "target i-a-1 gone",
            "member i-a-1 gone",
            "member x t instance_id=i-a (range 10000)",
            "target x t0 t1",
            "current x 0->0 t0@1 t1@1",
            "member x t instance_id=i-a",
            "current x 0->1 t0@1 t1@1",
        ],
        group="Stable 1/1 x@1[t0 t1]",
    )
    story.heartbeat(a, 1, "i-a").fails(ErrorCode.FENCED_INSTANCE_ID)


def test_a_static_member_that_brings_nothing_new_still_ends_a_rebalance():
    """The group was on its way to a new assignment, and gets one."""
    story = MigrationStory(t=2)
    story.classic_stable({"a": "t0 t1", "b": ""})
    story.join_classic("c", group_instance_id="i-c")
    assert "PreparingRebalance" in story.line

    step = story.join("x", instance_id="i-c")

    assert step.records[4:5] == ["epoch 2"]
    assert step.causes == ["other"]
    assert "targets 1 never" in step.records
    assert step.group.startswith("Reconciling 2/2 a-1@1[t0 t1] b-2@1[] x@2?[")


def test_a_settled_group_goes_on_in_any_generation():
    """Nothing is computed again where the member that comes changes nothing."""
    story = MigrationStory(t=1)
    [a] = story.classic_stable({"a": "t0"}, group_instance_id="i-a")
    story.join_classic("a", a, group_instance_id="i-a")
    story.sync(a, 2, {a: assigned("t0")}, group_instance_id="i-a")

    step = story.join("x", instance_id="i-a")

    assert step.causes == [""]
    assert [words for words in step.records if "targets" in words] == ["targets 2 never"]
    assert step.group == "Stable 2/2 x@2[t0]"


def test_partitions_that_nobody_asked_for_are_given_up_after_an_upgrade():
    """A custom assignor may give a member what it has not subscribed to."""
    story = MigrationStory(t=2, u=1)
    story.join_classic("a", group_instance_id="i-a")
    a, b = story.classic_joined("b")
    story.sync(a, 1, {a: assigned("t0"), b: assigned("t1 u0")}, group_instance_id="i-a")

    story.join("x", instance_id="i-a").says("x@2 every 50 [t0]")

    assert names_of(story.group.target(b)) == "t1"


def test_partitions_that_are_nobodys_are_assigned_after_an_upgrade():
    """A topic grew, and the classic leader had not noticed."""
    story = MigrationStory(t=1)
    story.classic_stable({"a": "t0"}, group_instance_id="i-a")
    story.topics(t=2)

    story.join("x", instance_id="i-a").says("x@2 every 50 [t0 t1]")


def test_a_member_by_expression_upgrades_without_an_epoch():
    """What the expression matches is not known yet: nothing changes but the protocol."""
    story = MigrationStory(t=2)
    story.classic_stable({"a": "t0 t1"})

    step = story.join("x", None, "t.*")

    assert step.group == "Stable 1/1 a-1@1[t0 t1] x@1[]"
    story.resolve()
    assert story.line == "Reconciling 2/2 a-1@1[t0 t1] x@1[]"


# A life -------------------------------------------------------------------------------------------


def check_all_is_well(scene: Scene) -> None:
    """Everything is with somebody, evenly, and can be committed."""
    story = scene.story
    held = [client.held for client in scene.clients.values()]
    topic = story.image.topics["t"]
    assert sorted(unit.partition for some in held for unit in some) == list(range(topic.partitions))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    for client in scene.clients.values():
        assert client.commit() == "NONE"


@pytest.mark.parametrize("is_cooperative", [False, True])
@pytest.mark.parametrize("is_static", [False, True])
def test_a_group_is_upgraded_member_by_member_and_back(is_cooperative, is_static):
    """Three classic members are restarted one by one, and again; nobody ever shares a partition."""
    scene = Scene(MigrationStory(t=7))

    def client(kind, name, **how):
        return kind(scene, name, f"i-{name}" if is_static else None, **how)

    for name in "abc":
        scene.add(client(ClassicClient, name, is_cooperative=is_cooperative))
    scene.settle()
    assert scene.story.line.startswith("classic Stable 1 ")
    for name in "abc":
        scene.clients[name].leave()
        scene.add(client(ConsumerClient, name))
        scene.settle()
        assert scene.story.line.startswith("Stable ")
        check_all_is_well(scene)
    for name, state in zip("abc", ["Stable ", "Stable ", "classic Stable "], strict=True):
        scene.clients[name].leave()
        scene.add(client(ClassicClient, name, is_cooperative=is_cooperative))
        scene.settle()
        assert scene.story.line.startswith(state)
        check_all_is_well(scene)


@pytest.mark.parametrize("seed", range(24))
def test_whatever_happens_there_are_no_two_owners_and_all_ends_well(seed):
    """Clients of both protocols come, go and are killed, and the broker is, in any order."""
    chance = random.Random(seed)
    story = MigrationStory(t=chance.choice((2, 5, 8)))
    scene = Scene(story)
    is_cooperative, is_static = chance.random() < 0.5, chance.random() < 0.4
    names = "abcd"[: chance.choice((2, 3, 4))]

    def add(name):
        instance_id = f"i-{name}" if is_static else None
        if chance.random() < 0.5:
            scene.add(ConsumerClient(scene, name, instance_id))
        else:
            scene.add(ClassicClient(scene, name, instance_id, is_cooperative=is_cooperative))

    for _ in range(120):
        draw, here = chance.random(), sorted(scene.clients)
        absent = [name for name in names if name not in scene.clients]
        if absent and draw < 0.25:
            add(chance.choice(absent))
        elif here and draw < 0.30 and scene.clients[here[0]].can_leave:
            scene.clients[here[0]].leave()
        elif here and draw < 0.32:
            del scene.clients[chance.choice(here)]  # killed
        elif draw < 0.34:
            story.restart()
        elif draw < 0.5:
            story.wait(chance.choice((0, 10, 100, 1_000)))
        elif here:
            scene.step(chance.choice(here))
    for name in names:
        if name not in scene.clients:
            add(name)
    for _ in range(60):  # until those who were killed are forgotten
        for name in sorted(scene.clients):
            scene.step(name)
        story.wait(1_000)
    scene.settle(300)
    check_all_is_well(scene)


def test_two_owners_are_noticed():
    """The check of the stories above can fail."""
    scene = Scene(MigrationStory(t=1))
    for name in "ab":
        scene.add(ClassicClient(scene, name))
    for client in scene.clients.values():
        client.held = set(units("t0"))

    with pytest.raises(TwoOwners, match="t0 is with a and b"):
        scene.check_owners()
