"""Stories of consumer groups that become classic ones when only classic members are left."""

import pytest
from consumer_story import names_of
from migration_story import (
    REBALANCE_MS,
    SESSION_MS,
    MigrationStory,
    assigned,
    subscription,
)

from anabranch.coordinator.group.classic_state import ClassicState
from anabranch.coordinator.group.consumer_settings import MigrationPolicy
from anabranch.model.errors import ErrorCode

PREPARING = "classic PreparingRebalance 3 range *a-1[t1]"


def mixed(**fields) -> MigrationStory:
    """A settled group of x, which speaks the consumer protocol, and a-1, which does not."""
    story = MigrationStory(t=2)
    story.stable("x", **fields)
    story.join_classic("a")
    story.ack("x")
    story.ack("x")
    story.join_classic("a", "a-1")
    story.sync("a-1", 3)
    story.wait(50)
    assert story.line == "Stable 3/3 a-1@3[t1] x@3[t0]"
    return story


def test_the_last_consumer_member_leaves():
    """The group is classic, in the generation of its epoch, and rebalances."""
    story = mixed()

    story.leave("x").gives(
        "x@-1",
        records=[
            "current x gone",
            "current a-1 gone",
            "target x gone",
            "target a-1 gone",
            "targets None never",
            "member x gone",
            "member a-1 gone",
            "epoch None",
            "classic Stable 3 range a-1[t1]",
        ],
        timers={
            "target": None,
            "refresh": None,
            "member-join a-1": None,
            "member-sync a-1": None,
            "x": None,
            "a-1": SESSION_MS,
            "join": REBALANCE_MS,
        },
        group=PREPARING,
    )
    story.heartbeat("a-1", 3).says("REBALANCE_IN_PROGRESS")
    story.join_classic("a", "a-1")
    assert story.line == "classic CompletingRebalance 4 range *a-1[t1]"
    story.sync("a-1", 4, {"a-1": assigned("t0 t1")}).says("range [t0 t1]")
    story.commit("t0", 1, "a-1", 4).says("NONE")


def test_the_last_consumer_member_is_silent():
    """Its session ends, and with it the consumer group."""
    story = mixed()
    for _ in range(9):
        story.wait(4_990)
        story.heartbeat("a-1", 3)
    [step] = story.wait(5_000)

    assert step.group == PREPARING


def test_the_last_consumer_member_does_not_give_up_in_time():
    """It is forgotten, and with it the consumer group."""
    story = MigrationStory(t=2)
    story.stable("x", rebalance_timeout_ms=6_000)
    story.join_classic("a")
    story.sync("a-1", 3)
    story.ack("x")
    assert story.line == "Reconciling 3/3 a-1@3?[] x@2![t0 -t1]"

    [step] = story.wait(6_000)

    assert step.timers["rebalance x"] is None
    assert step.group == "classic PreparingRebalance 3 range *a-1[]"


def test_the_last_consumer_member_is_removed_by_an_administrator():
    """By LeaveGroup, which takes members of both protocols."""
    story = mixed()
    step = story.leave_classic("x")
    assert step.says("x:NONE").group == PREPARING


def test_an_administrator_removes_members_of_both_protocols():
    """Those who are left go on."""
    story = mixed()
    story.join_classic("b")
    step = story.leave_classic("x", "b-4")
    assert step.group == "classic PreparingRebalance 4 range *a-1[t1]"


def test_a_group_of_consumer_members_alone_stays():
    """Nobody speaks the classic protocol any more, or nobody is left at all."""
    story = mixed()
    story.leave_classic("a-1")
    assert story.group.state.value == "Reconciling"
    story.leave("x")
    assert story.line == "Empty 5/5"


def test_a_member_that_is_away_for_a_while_holds_the_group():
    """A static member that left with -2 speaks the consumer protocol until its session ends."""
    story = mixed(instance_id="i-x")
    story.leave_for_a_while("x", "i-x")
    assert story.line == "Reconciling 3/3 a-1@3[t1] x@-2[t0]"
    for _ in range(9):
        story.heartbeat("a-1", 3)
        story.wait(5_000)
    assert story.line == PREPARING


@pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE, MigrationPolicy.DISABLED])
def test_the_policy_may_forbid_it(policy):
    """Then the group stays a consumer group of classic members, and can still change later."""
    story = mixed()
    story.configure(migration_policy=policy)
    story.leave("x")
    assert story.line == "Reconciling 4/4 a-1@3[t1]"

    story.configure(migration_policy=MigrationPolicy.DOWNGRADE)
    story.heartbeat("a-1", 3)
    story.join_classic("a", "a-1").says("a-1@4 range")
    story.sync("a-1", 4).says("range [t0 t1]")
    story.wait(50)
    story.join_classic("b").says("b-6@5 range")
    step = story.leave_classic("b-6")

    assert step.group == "classic PreparingRebalance 5 range *a-1[t0 t1]"


def test_only_with_a_member_that_goes_does_a_group_change():
    """Not with a target that was due, or with a look at the topics."""
    story = mixed()
    story.configure(migration_policy=MigrationPolicy.UPGRADE)
    story.leave("x")
    story.join_classic("b")
    story.configure(migration_policy=MigrationPolicy.BIDIRECTIONAL)

    story.wait(50)
    story.topics(t=3)
    story.wait(50)

    assert story.group.classic_members == 2


def test_a_group_larger_than_a_classic_group_may_be_stays():
    """`group.max.size` is for classic groups."""
    story = mixed()
    story.join_classic("b")
    story.broker(max_size=1)
    story.leave("x")
    assert story.group.classic_members == 2

    story.broker(max_size=2)
    story.join_classic("c")
    story.leave_classic("c-5")
    assert story.classic.state is ClassicState.PREPARING_REBALANCE


def test_the_protocol_is_voted_for():
    """Of those that all have, and the metadata of that one is kept in the journal."""
    story = mixed()
    both = (("range", subscription()), ("sticky", b"no consumer wrote this"))
    story.join_classic("a", "a-1", protocols=both)
    sticky = (("sticky", subscription(version=3)), ("range", subscription()))
    story.join_classic("b", protocols=sticky)
    story.join_classic("c", protocols=sticky)

    story.leave("x")

    group = story.classic
    assert group.protocol_name == "sticky"
    assert group.members["a-1"].assignment[:2] == b"\x00\x00"  # whatever it is, it can read 0
    assert group.members["b-5"].assignment[:2] == b"\x00\x03"
    assert group.members["a-1"].protocols == both


def test_what_members_hold_is_what_they_were_assigned():
    """Also what one has yet to give up: should the group be upgraded again, it is still its own."""
    story = MigrationStory(t=2)
    story.classic_stable({"a": "t0 t1"})
    story.join("x").says("x@2 every 50 []")

    story.leave("x")
    assert story.line == "classic PreparingRebalance 2 range *a-1[t0 t1]"
    story.join("y").says("y@3 every 50 []")


def test_a_restart_in_the_middle_of_it_loses_nothing():
    """The rebalance that nobody wrote down is begun again: what the last member had is assigned."""
    story = mixed()
    story.leave("x")

    step = story.restart()

    assert step.timers == {"a-1": SESSION_MS, "join": REBALANCE_MS}
    assert step.group == "classic PreparingRebalance 3 range a-1[t1]"
    story.heartbeat("a-1", 3).says("REBALANCE_IN_PROGRESS")
    step = story.join_classic("a", "a-1")
    assert step.wakes == {"join a": "a-1@4 range led by a-1 of a-1"}


def test_expressions_are_forgotten_too():
    """Nothing of the consumer group is left in the journal, nor among the timers."""
    story = MigrationStory(t=2)
    story.join("x", None, "t.*")
    story.resolve()
    story.join_classic("a")

    step = story.leave("x")

    assert "regex t.* gone" in step.records
    assert story.timers.deadline_ms(("refresh", "g")) is None
    assert story.line.startswith("classic PreparingRebalance")


# Static members -----------------------------------------------------------------------------------


def test_the_last_consumer_member_is_replaced_by_a_classic_one():
    """Nothing is free, and nothing has to move: the group is Stable at once."""
    story = mixed(instance_id="i-x")

    step = story.join_classic("x", group_instance_id="i-x")

    member_id = f"i-x-{story._numbers}"
    step.gives(
        f"{member_id}@3 range",
        records=[
            "current x gone",
            "current a-1 gone",
            "target x gone",
            "target a-1 gone",
            "targets None never",
            "member x gone",
            "member a-1 gone",
            "epoch None",
            f"classic Stable 3 range *a-1[t1] {member_id}[t0]",
        ],
        timers={
            "target": None,
            "refresh": None,
            "member-join a-1": None,
            "member-sync a-1": None,
            "x": None,
            "a-1": SESSION_MS,
            member_id: SESSION_MS,
        },
        group=f"classic Stable 3 range *a-1[t1] {member_id}[t0]",
    )
    story.sync(member_id, 3, group_instance_id="i-x").says("range [t0]")
    story.heartbeat("a-1", 3).says("NONE")
    story.restart()
    story.heartbeat("a-1", 3).says("NONE")


def test_somebody_alone_changes_to_the_classic_protocol():
    """It goes on with what it had."""
    story = MigrationStory(t=1)
    story.stable("x", instance_id="i-x")

    story.join_classic("x", group_instance_id="i-x").says("i-x-1@2 range")

    assert story.line == "classic Stable 2 range *i-x-1[t0]"


def test_the_answer_names_the_protocol_of_the_group():
    """Not the member's first one: its SyncGroup will be asked for it."""
    story = mixed(instance_id="i-x")
    both = (("sticky", subscription()), ("range", subscription()))

    step = story.join_classic("x", group_instance_id="i-x", protocols=both)

    member_id = f"i-x-{story._numbers}"
    step.says(f"{member_id}@3 range")
    story.sync(member_id, 3, group_instance_id="i-x", protocol_name="range").says("range [t0]")


def test_a_stale_target_calls_for_a_rebalance():
    """The member brings other topics: its JoinGroup waits with the others for a generation."""
    story = mixed(instance_id="i-x")

    step = story.join_classic("x", topics="u", group_instance_id="i-x")

    member_id = f"i-x-{story._numbers}"
    assert step.answer is None
    assert step.records[-1] == f"classic Stable 3 range a-1[t1] {member_id}[]"
    assert step.group == f"classic PreparingRebalance 3 range *a-1[t1] {member_id}?[]"
    assert step.timers["join"] == REBALANCE_MS
    step = story.join_classic("a", "a-1")
    assert set(step.wakes) == {"join a", "join x"}


def test_a_target_that_is_still_to_be_made_calls_for_a_rebalance():
    """Somebody has just left, and what it had is nobody's yet."""
    story = mixed(instance_id="i-x")
    story.join("y", "")
    story.join("z", "u")
    story.leave("z")
    story.leave("y")
    story.ack("x")
    story.join_classic("a", "a-1")
    assert story.line == "Assigning 6/4 a-1@4[t1] x@4[t0]"

    step = story.join_classic("x", group_instance_id="i-x")

    assert step.answer is None
    assert "PreparingRebalance 6" in step.group


def test_what_is_on_its_way_calls_for_a_rebalance():
    """The target is fresh, but a member waits for what another has not given up yet."""
    story = MigrationStory(t=2)
    story.stable("x", instance_id="i-x")
    story.join_classic("a")
    assert story.line == "Reconciling 3/3 a-1@3?[] x@2[t0 t1]"

    step = story.join_classic("x", group_instance_id="i-x")

    assert step.answer is None
    assert "PreparingRebalance 3" in step.group


def test_alone_and_stale_it_begins_a_generation():
    """There is nobody to wait for."""
    story = MigrationStory(t=1, u=1)
    story.stable("x", instance_id="i-x")

    step = story.join_classic("x", topics="u", group_instance_id="i-x")

    assert step.answer is None
    assert step.wakes == {"join x": "i-x-1@3 range led by i-x-1 of i-x-1"}
    assert step.group.startswith("classic CompletingRebalance 3 range *i-x-1[")


def test_a_replacement_of_a_classic_member_changes_no_protocol():
    """Also where the group has none but classic members, because it could not change before."""
    story = mixed()
    story.configure(migration_policy=MigrationPolicy.UPGRADE)
    story.join_classic("s", group_instance_id="i-s")
    story.leave("x")
    story.configure(migration_policy=MigrationPolicy.BIDIRECTIONAL)

    step = story.join_classic("s", group_instance_id="i-s")

    assert step.answer.error is ErrorCode.NONE
    assert story.group.classic_members == 2


def test_the_policy_may_forbid_a_replacement_to_change_the_protocol():
    """The member is replaced, in a consumer group of classic members."""
    story = mixed(instance_id="i-x")
    story.configure(migration_policy=MigrationPolicy.UPGRADE)

    story.join_classic("x", group_instance_id="i-x").says(f"i-x-{story._numbers}@3 range")

    assert names_of(story.member(f"i-x-{story._numbers}").assigned) == "t0"


def test_offsets_live_through_both_changes():
    """They belong to the group, whatever it speaks."""
    story = mixed()
    story.commit("t0", 7, "x", 3)
    story.leave("x")
    story.join("y")
    assert story.shard.offsets("g")["t", 0].offset == 7
