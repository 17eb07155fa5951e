"""Stories of members that speak the classic protocol in a consumer group."""

import pytest
from consumer_story import names_of
from migration_story import REBALANCE_MS, SESSION_MS, MigrationStory, assigned, subscription

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.consumer_records import CurrentWritten
from anabranch.coordinator.group.consumer_settings import MigrationPolicy
from anabranch.coordinator.group.consumer_state import MemberState
from anabranch.model.errors import ErrorCode

INCONSISTENT = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID
STALE = ErrorCode.ILLEGAL_GENERATION
REBALANCE = "REBALANCE_IN_PROGRESS"


def mixed(partitions: int = 2) -> MigrationStory:
    """A settled group of x, which speaks the consumer protocol, and a-1, which does not."""
    story = MigrationStory(t=partitions)
    story.stable("x")
    story.join_classic("a").says("a-1@3 range")
    story.ack("x")
    story.ack("x")
    story.heartbeat("a-1", 3).says(REBALANCE)
    story.join_classic("a", "a-1").says("a-1@3 range")
    story.sync("a-1", 3)
    story.wait(50)
    assert story.group.state.value == "Stable"
    return story


# JoinGroup ----------------------------------------------------------------------------------------


def test_a_classic_member_joins():
    """It is answered at once, in the generation of its epoch, and nobody leads."""
    story = MigrationStory(t=2)
    story.stable("x")

    step = story.join_classic("a")

    step.gives(
        "a-1@3 range",
        records=[
            "member a-1 t (range 10000)",
            "epoch 3",
            "target x t0",
            "target a-1 t1",
            "targets 3 +50",
            "current a-1 0->3?",
        ],
        timers={
            "target": None,
            "a-1": SESSION_MS,
            "member-join a-1": None,
            "member-sync a-1": REBALANCE_MS,
        },
        group="Reconciling 3/3 a-1@3?[] x@2[t0 t1]",
    )
    assert step.answer.leader_id == ""
    assert step.answer.members == ()
    assert step.answer.protocol_type == "consumer"


def test_what_others_release_is_fetched_by_joining_again():
    """It is told to rejoin when all that it waits for is free, and not before."""
    story = MigrationStory(t=2)
    story.stable("x")
    story.join_classic("a")
    story.sync("a-1", 3).says("range []")

    story.heartbeat("a-1", 3).gives(
        "NONE", timers={"a-1": SESSION_MS}, group="Reconciling 3/3 a-1@3?[] x@2[t0 t1]"
    )
    story.ack("x")
    story.heartbeat("a-1", 3).says("NONE")
    story.ack("x")
    story.heartbeat("a-1", 3).gives(
        REBALANCE,
        timers={"a-1": SESSION_MS, "member-join a-1": REBALANCE_MS},
        group="Reconciling 3/3 a-1@3?[] x@3[t0]",
    )
    story.join_classic("a", "a-1").gives(
        "a-1@3 range",
        records=["current a-1 3->3 t1@3"],
        timers={
            "a-1": SESSION_MS,
            "member-join a-1": None,
            "member-sync a-1": REBALANCE_MS,
        },
        group="Stable 3/3 a-1@3[t1] x@3[t0]",
    )
    story.sync("a-1", 3).gives(
        "range [t1]",
        timers={"member-sync a-1": None, "a-1": SESSION_MS},
        group="Stable 3/3 a-1@3[t1] x@3[t0]",
    )


def test_an_eager_member_gives_up_everything_by_joining():
    """It owns nothing when it comes, so that it needs no second round."""
    story = mixed(partitions=4)
    story.join("y")
    story.ack("x")
    story.heartbeat("a-1", 3).says(REBALANCE)

    story.join_classic("a", "a-1").says("a-1@4 range")

    member = story.member("a-1")
    assert member.state is MemberState.STABLE
    assert member.assigned.keys() == story.group.target("a-1")


def test_a_cooperative_member_gives_up_in_two_rounds():
    """It keeps its generation while it owes something, and joins again without it."""
    story = MigrationStory(t=2)
    story.configure(migration_policy=MigrationPolicy.UPGRADE)  # alone, it would be classic again
    story.stable("x")
    story.join_classic("a")
    story.leave("x")
    story.wait(50)
    story.join_classic("a", "a-1")
    story.wait(50)
    assert story.line == "Stable 4/4 a-1@4[t0 t1]"
    story.sync("a-1", 4).says("range [t0 t1]")
    story.join("y").says("y@5 every 50 []")

    story.heartbeat("a-1", 4).says(REBALANCE)
    step = story.join_classic("a", "a-1", owned="t0 t1")
    step.says("a-1@4 range")
    assert step.timers["rebalance a-1"] == REBALANCE_MS
    assert step.group == "Reconciling 5/5 a-1@4![t0 -t1] y@5?[]"
    story.sync("a-1", 4).says("range [t0]")
    story.heartbeat("a-1", 4).says(REBALANCE)
    story.ack("y").says("y@5 every 50")
    step = story.join_classic("a", "a-1", owned="t0")
    step.says("a-1@5 range")
    assert step.timers["rebalance a-1"] is None
    story.ack("y").says("y@5 every 50 [t1]")
    assert story.line == "Stable 5/5 a-1@5[t0] y@5[t1]"


def test_a_dynamic_member_is_told_its_id_first():
    """From version 4 on; nothing is remembered of it, so that it may come with any id."""
    story = mixed()

    story.join_classic("b", requires_known_member_id=True).gives(
        f"MEMBER_ID_REQUIRED b-{story._numbers}", timers={}, group=story.line
    )
    story.join_classic("b", "b-7", requires_known_member_id=True).says("b-7@4 range")
    story.join_classic("c", group_instance_id="i-c", requires_known_member_id=True)
    assert story.group.static_members == {"i-c": f"i-c-{story._numbers}"}


def test_what_a_member_says_of_itself_is_taken_over():
    """Subscription, rack, timeouts and protocols; without news nothing is written."""
    story = mixed()
    protocols = (("range", subscription("u,t", version=3, rack_id="r")), ("sticky", b""))

    step = story.join_classic(
        "a", "a-1", protocols=protocols, session_timeout_ms=7_000, rebalance_timeout_ms=8_000
    )

    words = "member a-1 t,u rack_id=r rebalance_timeout_ms=8000 (range,sticky 7000)"
    assert step.records[:2] == [words, "epoch 4"]
    assert (step.timers["a-1"], step.timers["member-sync a-1"]) == (7_000, 8_000)
    again = story.join_classic(
        "a", "a-1", protocols=protocols, session_timeout_ms=7_000, rebalance_timeout_ms=8_000
    )
    assert again.records == []


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_session_timeouts_have_bounds(session_timeout_ms):
    """The same as in classic groups."""
    story = mixed()
    step = story.join_classic("b", session_timeout_ms=session_timeout_ms)
    step.fails(ErrorCode.INVALID_SESSION_TIMEOUT)


def test_with_migration_disabled_no_classic_member_joins():
    """Neither a new one nor one that is there."""
    story = mixed()
    story.configure(migration_policy=MigrationPolicy.DISABLED)

    story.join_classic("b").fails(INCONSISTENT)
    story.join_classic("a", "a-1").fails(INCONSISTENT)


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocols": (("sticky", subscription()),)},
        {"protocols": (("range", b"\x00"),)},
    ],
)
def test_protocols_that_do_not_fit_are_refused(changes):
    """Other types, no protocols, none in common with the classic members, bytes of no consumer."""
    mixed().join_classic("b", **changes).fails(INCONSISTENT)


def test_a_consumer_member_cannot_come_without_protocols():
    """It had none before, and now needs some."""
    mixed().join_classic("x", "x", protocols=()).fails(INCONSISTENT)


def test_the_first_classic_member_may_speak_what_it_likes():
    """Members of the consumer protocol have no say in it."""
    story = MigrationStory(t=1)
    story.stable("x")
    story.join_classic("a", protocols=(("own", subscription()),)).says("a-1@3 own")


def test_a_member_cannot_leave_the_others_behind():
    """Its own former protocols count among those of the others."""
    story = mixed()
    both = (("range", subscription()), ("sticky", subscription()))
    story.join_classic("a", "a-1", protocols=both).says("a-1@3 range")
    story.join_classic("a", "a-1", protocols=(("other", subscription()),)).fails(INCONSISTENT)
    story.join_classic("a", "a-1", protocols=both[1:]).says("a-1@3 sticky")


def test_a_full_group_takes_nobody_new():
    """Who is in it may come again, and so may an instance that comes back."""
    story = mixed()
    story.join_classic("s", group_instance_id="i-s")
    story.configure(max_size=3)

    story.join_classic("b").fails(ErrorCode.GROUP_MAX_SIZE_REACHED)
    story.join_classic("b", group_instance_id="i-b").fails(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert story.join_classic("a", "a-1").answer.error is ErrorCode.NONE
    assert story.join_classic("s", group_instance_id="i-s").answer.error is ErrorCode.NONE


def test_a_member_in_a_state_of_the_future_starts_over():
    """Classic clients do not know FENCED_MEMBER_EPOCH."""
    story = mixed()
    unknown = story.member("a-1").with_(state=MemberState.UNKNOWN)
    story.shard.replay(CurrentWritten(group_id="g", member_id="a-1", member=unknown))
    story.checks_replay = False

    story.join_classic("a", "a-1", owned="t1").fails(UNKNOWN)


def test_an_empty_consumer_group_starts_over_as_a_classic_one():
    """Whatever the policy; but not for a request that is refused."""
    story = MigrationStory(t=1)
    story.configure(migration_policy=MigrationPolicy.DISABLED)
    story.stable("x")
    story.leave("x")
    assert story.line == "Empty 3/3"

    story.join_classic("a", "a-1").fails(UNKNOWN)
    step = story.join_classic("a")

    assert step.records == ["targets None never", "epoch None", "classic Empty 0 -"]
    assert step.group == "classic PreparingRebalance 0 - *a-2?[]"


# Static members -----------------------------------------------------------------------------------


def static() -> MigrationStory:
    """A settled group of y and of the static members x, and s-1, which is classic."""
    story = MigrationStory(t=3)
    story.stable("y")
    story.join("x", instance_id="i-x")
    story.settle()
    story.join_classic("s", group_instance_id="i-s")
    story.settle()
    story.join_classic("s", "i-s-1", group_instance_id="i-s")
    story.sync("i-s-1", 4, group_instance_id="i-s")
    assert story.group.state.value == "Stable"
    return story


def test_a_classic_static_member_comes_back_under_a_new_id():
    """It has what it had, and its former self is fenced."""
    story = static()
    had = names_of(story.member("i-s-1").assigned)

    step = story.join_classic("s", group_instance_id="i-s")

    member_id = f"i-s-{story._numbers}"
    step.says(f"{member_id}@4 range")
    assert step.records[:3] == ["current i-s-1 gone", "target i-s-1 gone", "member i-s-1 gone"]
    assert step.timers["i-s-1"] is None
    assert step.timers["member-join i-s-1"] is None
    assert step.timers["member-sync i-s-1"] is None
    assert names_of(story.member(member_id).assigned) == had
    story.heartbeat("i-s-1", 4, "i-s").fails(FENCED)
    story.sync("i-s-1", 4, group_instance_id="i-s").fails(FENCED)
    story.join_classic("s", "i-s-1", group_instance_id="i-s").fails(FENCED)


def test_a_static_member_changes_to_the_classic_protocol():
    """Also while its former self is alive, which is fenced; nothing moves."""
    story = static()
    had = names_of(story.member("x").assigned)

    story.join_classic("x", group_instance_id="i-x").says(f"i-x-{story._numbers}@4 range")

    assert names_of(story.member(f"i-x-{story._numbers}").assigned) == had
    assert story.group.group_epoch == 4
    story.beat("x", 4, instance_id="i-x").fails(FENCED)


def test_a_static_member_changes_to_the_consumer_protocol():
    """Also while its classic self is alive."""
    story = static()
    had = names_of(story.member("i-s-1").assigned)

    story.join("z", instance_id="i-s").says(f"z@4 every 100 [{had}]")

    assert story.member("z").classic is None


def test_an_expression_goes_with_the_member_that_changes():
    """Classic clients resolve theirs themselves, and subscribe to names."""
    story = MigrationStory(t=2)
    story.join("y")
    story.join("x", None, "t.*", instance_id="i-x")
    story.resolve()
    story.settle()

    step = story.join_classic("x", group_instance_id="i-x")

    assert "regex t.* gone" in step.records
    assert story.member("i-x-1").subscribed_topic_regex == ""
    assert story.member("i-x-1").subscribed_topic_names == ("t",)


def test_an_unknown_instance_with_an_id_is_refused():
    """It was a member once, and has to start over."""
    story = mixed()
    story.join_classic("b", "b-1", group_instance_id="i-b").fails(UNKNOWN)


# SyncGroup ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_assignment_is_in_the_version_of_the_subscription(version):
    """A client gets what it can read."""
    story = MigrationStory(t=2)
    story.configure(migration_policy=MigrationPolicy.UPGRADE)
    story.stable("x")
    protocols = (("range", subscription(version=version)),)
    story.join_classic("a", protocols=protocols)
    story.leave("x")
    story.wait(50)
    story.join_classic("a", "a-1", protocols=protocols)

    step = story.sync("a-1", 4, protocol_type="consumer", protocol_name="range")

    assert step.answer == c.SyncAnswer(
        protocol_type="consumer",
        protocol_name="range",
        assignment=assigned("t0 t1", version=version),
    )


def test_a_sync_must_fit():
    """Unknown members, other protocols and generations are refused, in this order."""
    story = mixed()

    story.sync("b-1", 3).fails(UNKNOWN)
    story.sync("x", 3).fails(UNKNOWN)
    story.sync("a-1", 2).fails(STALE)
    story.sync("a-1", 4, protocol_type="connect").fails(STALE)
    story.sync("a-1", 3, protocol_type="connect").fails(INCONSISTENT)
    story.sync("a-1", 3, protocol_name="sticky").fails(INCONSISTENT)
    story.sync("a-1", 3, group_instance_id="i-a").fails(UNKNOWN)
    story.sync("a-1", 3).says("range [t1]")


def test_a_sync_that_was_overtaken_is_told_to_rejoin():
    """There is a newer target; the time to rejoin runs from the first time it was told."""
    story = mixed()
    story.join("y")
    assert story.group.target_epoch == 4

    story.sync("a-1", 3).gives(
        REBALANCE, timers={"member-join a-1": REBALANCE_MS}, group=story.line
    )
    story.wait(5_000)
    story.heartbeat("a-1", 3).says(REBALANCE)

    deadline_ms = story.timers.deadline_ms(("member-join", "g", "a-1"))
    assert deadline_ms == story.now_ms - 5_000 + REBALANCE_MS


def test_a_target_that_is_still_to_be_made_interrupts_nobody():
    """The group epoch has grown, and the assignment is delayed."""
    story = mixed()
    story.join("y")
    story.join("z")
    assert story.group.group_epoch == 5
    assert story.group.target_epoch == 4
    story.join_classic("a", "a-1").says("a-1@4 range")

    story.sync("a-1", 4).says(f"range [{names_of(story.member('a-1').assigned)}]")
    story.heartbeat("a-1", 4).says("NONE")
    story.wait(50)
    story.heartbeat("a-1", 4).says(REBALANCE)


def test_topics_that_are_gone_are_not_in_the_assignment():
    """They have no name any more; the next target is without them."""
    story = MigrationStory(t=1, u=1)
    story.configure(migration_policy=MigrationPolicy.UPGRADE)
    story.stable("x")
    story.join_classic("a", topics="t,u")
    story.leave("x")
    story.wait(50)
    story.join_classic("a", "a-1", topics="t,u")
    story.topics(u=None)

    story.sync("a-1", 4).says("range [t0]")


# Heartbeat ----------------------------------------------------------------------------------------


def test_a_heartbeat_must_fit():
    """Unknown members, members of the other protocol and other generations are refused."""
    story = mixed()

    story.heartbeat("b-1", 3).fails(UNKNOWN)
    story.heartbeat("x", 3).fails(UNKNOWN)
    story.heartbeat("a-1", 2).fails(STALE)
    story.heartbeat("a-1", 4).fails(STALE)
    story.heartbeat("a-1", 3, "i-a").fails(UNKNOWN)
    story.heartbeat("a-1", 3).gives("NONE", timers={"a-1": SESSION_MS}, group=story.line)


def test_a_silent_member_is_forgotten_after_its_own_session():
    """Not after that of the group."""
    story = mixed()
    story.configure(migration_policy=MigrationPolicy.UPGRADE)
    [step] = story.wait(SESSION_MS)
    assert step.records[:4] == [
        "current a-1 gone",
        "target a-1 gone",
        "member a-1 gone",
        "epoch 4",
    ]


def test_who_does_not_rejoin_in_time_is_forgotten():
    """Though it sends heartbeats all the while."""
    story = mixed()
    story.join("y")
    for _ in range(REBALANCE_MS // 5_000):
        story.heartbeat("a-1", 3).says(REBALANCE)
        story.wait(5_000)
        story.ack("x")
        story.ack("y")

    assert "a-1" not in story.group.members
    assert story.group.group_epoch == 5


def test_who_does_not_sync_in_time_is_forgotten():
    """Though it sends heartbeats all the while."""
    story = mixed()
    story.join_classic("a", "a-1")
    steps = []
    for _ in range(REBALANCE_MS // 5_000):
        story.heartbeat("a-1", 3).says("NONE")
        story.ack("x")
        steps += story.wait(5_000)

    assert [step.records[0] for step in steps] == ["current a-1 gone"]
    assert list(story.group.members) == ["x"]


@pytest.mark.parametrize("kind", ["member-join", "member-sync"])
def test_timers_of_somebody_who_is_gone_do_nothing(kind):
    """One may have fired already when the member left."""
    story = mixed()
    line = story.line
    story.submit(c.TimerFired(key=(kind, "g", "b-1"))).gives(timers={}, group=line)


def test_timers_of_a_member_that_changed_its_protocol_do_nothing():
    """The same id may be taken over by the consumer protocol."""
    story = mixed()
    story.join_classic("a", "a-1")
    story.join("a-1")
    for _ in range(REBALANCE_MS // 5_000):
        story.ack("x")
        story.ack("a-1")
        story.wait(5_000)

    assert "a-1" in story.group.members


# LeaveGroup ---------------------------------------------------------------------------------------


def test_members_leave_together():
    """Each has an answer of its own, and there is one epoch for all."""
    story = static()

    step = story.leave_classic("b-1", ("", "i-s"), ("s-9", "i-x"), ("", "i-x"), "y", "y")

    step.says("b-1:UNKNOWN_MEMBER_ID i-s:NONE s-9:FENCED_INSTANCE_ID i-x:NONE y:NONE y:NONE")
    assert step.causes == ["leave"]
    assert [words for words in step.records if words.startswith("epoch")] == ["epoch 5"]
    assert step.records.count("member y gone") == 1
    assert story.line == "Empty 5/5"


def test_a_member_leaves():
    """By its id; what it had is for the others."""
    story = mixed()

    step = story.leave_classic("a-1")

    step.says("a-1:NONE")
    assert step.causes == ["leave"]
    assert names_of(story.group.target("x")) == "t0 t1"


def test_who_is_not_there_cannot_leave():
    """And nothing happens."""
    story = mixed()
    line = story.line

    step = story.leave_classic("b-1", ("", "i-b"), ("a-1", "i-b"))

    step.gives("b-1:UNKNOWN_MEMBER_ID i-b:UNKNOWN_MEMBER_ID a-1:UNKNOWN_MEMBER_ID", group=line)


# Offsets ------------------------------------------------------------------------------------------


def test_commits_are_by_generation():
    """An epoch that is not the member's is a generation that is not, in words it knows."""
    story = mixed()

    story.commit("t1", 5, "a-1", 3).says("NONE")
    story.commit("t1", 5, "a-1", 4).says("ILLEGAL_GENERATION")
    story.commit("t0", 5, "a-1", 2).says("ILLEGAL_GENERATION")
    story.commit("t1", 5, "a-1", 3, knows_group_id_not_found=False).says("NONE")


def test_a_restart_changes_nothing_for_classic_members():
    """They are in the journal with all they brought."""
    story = mixed()
    line = story.line

    story.restart()

    assert story.line == line
    assert story.timers.deadline_ms(("session", "g", "a-1")) == story.now_ms + SESSION_MS
    story.heartbeat("a-1", 3).says("NONE")
    story.sync("a-1", 3).says("range [t1]")
