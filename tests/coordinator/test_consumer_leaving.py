"""Stories of leaving a consumer group: by its own will, by silence, by not letting go in time."""

from consumer_story import REBALANCE_MS, SESSION_MS, ConsumerStory

from anabranch.coordinator.group import commands as c
from anabranch.model.errors import ErrorCode


def test_who_leaves_is_forgotten_and_the_others_share():
    """Three tombstones, the next epoch, and a target at once, without anybody's heartbeat."""
    story = ConsumerStory(t=2).stable("a", "b")
    story.wait(100)

    story.leave("a").gives(
        "a@-1",
        records=[
            "current a gone",
            "target a gone",
            "member a gone",
            "epoch 4",
            "target b t0 t1",
            f"targets 4 +{story.now_ms - 1_700_000_000_000}",
        ],
        timers={"a": None, "rebalance a": None, "target": None},
        group="Reconciling 4/4 b@3[t1]",
    )
    story.beat("b", 3).says("b@4 every 50 [t0 t1]", "current b 3->4 t0@4 t1@3")


def test_the_target_waits_for_the_interval_after_a_leave_too():
    story = ConsumerStory(t=2).stable("a", "b")
    story.join("c")
    story.leave("c").gives(
        "c@-1",
        records=["current c gone", "target c gone", "member c gone", "epoch 5"],
        timers={"c": None, "rebalance c": None, "target": 50},
        group="Assigning 5/4 a@3[t0] b@3[t1]",
    )
    assert [step.timers for step in story.wait(50)] == [{"target": None}]


def test_when_the_last_one_leaves_the_target_is_that_of_nobody():
    """Its time is none, so that the next member need not wait."""
    story = ConsumerStory(t=1).stable("a")
    story.leave("a").gives(
        "a@-1",
        records=["current a gone", "target a gone", "member a gone", "epoch 3", "targets 3 never"],
        timers={"a": None, "rebalance a": None, "target": None},
        group="Empty 3/3",
    )
    story.join("b").says(
        "b@4 every 50 [t0]",
        "member b t",
        "epoch 4",
        "target b t0",
        f"targets 4 +{story.now_ms - 1_700_000_000_000}",
        "current b 0->4 t0@4",
    )


def test_a_static_member_may_leave_for_good():
    story = ConsumerStory(t=1).stable("a", instance_id="i")
    assert story.leave("a", "i").group == "Empty 3/3"


def test_only_members_leave():
    story = ConsumerStory(t=1).stable("a", instance_id="i")
    story.leave("z").fails(ErrorCode.UNKNOWN_MEMBER_ID, "z")
    story.leave("a", "k").fails(ErrorCode.UNKNOWN_MEMBER_ID, "k")
    story.leave("z", "i").fails(ErrorCode.FENCED_INSTANCE_ID, "a")
    story.leave_for_a_while("z", "i").fails(ErrorCode.FENCED_INSTANCE_ID)
    story.leave_for_a_while("a", "k").fails(ErrorCode.UNKNOWN_MEMBER_ID)
    assert story.line == "Stable 2/2 a@2[t0]"


def test_who_is_silent_for_a_session_is_gone():
    """Its partitions are free at once; every heartbeat starts the session anew."""
    story = ConsumerStory(t=2).stable("a", "b")
    story.wait(SESSION_MS - 1_000)
    story.ack("b")

    [step] = story.wait(1_000)

    assert step.causes == ["session-expired"]
    assert step.group == "Reconciling 4/4 b@3[t1]"
    assert step.timers == {"a": None, "rebalance a": None, "target": None}
    story.beat("a", 3).fails(ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_refused_heartbeat_is_no_sign_of_life():
    story = ConsumerStory(t=1).stable("a")
    story.wait(SESSION_MS - 60)
    story.beat("a", 7).fails(ErrorCode.FENCED_MEMBER_EPOCH)
    story.wait(60)
    assert story.line == "Empty 3/3"


def test_a_member_that_does_not_let_go_in_time_is_gone():
    """It has its rebalance timeout, counted from when it was told; heartbeats do not help it."""
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.beat("a", 2, "t0 t1")
    for _ in range(5):
        story.wait(REBALANCE_MS // 5 - 1)
        story.beat("a", 2, "t0 t1")
        story.beat("b", 3, "")
    assert story.line == "Reconciling 3/3 a@2![t0 -t1] b@3?[]"

    [step] = story.wait(5)

    assert step.causes == ["rebalance-timeout"]
    assert step.group == "Reconciling 4/4 b@3?[]"
    story.beat("b", 3, "").says("b@4 every 50 [t0 t1]", "current b 3->4 t0@4 t1@4")
    story.beat("a", 2, "t0").fails(ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_member_that_let_go_in_time_has_no_deadline_any_more():
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.beat("a", 2, "t0 t1")
    story.beat("a", 2, "t0")
    assert story.submit(c.TimerFired(key=("rebalance", "g", "a"))).records == []


def test_timers_of_who_is_gone_do_nothing():
    story = ConsumerStory(t=1).stable("a")
    story.leave("a")
    for key in (("session", "g", "a"), ("rebalance", "g", "a"), ("target", "g"), ("refresh", "g")):
        step = story.submit(c.TimerFired(key=key))
        assert (step.records, step.timers) == ([], {})
    assert story.submit(c.TimerFired(key=("session", "h", "a"))).records == []


def test_a_member_that_leaves_while_it_owes_releases_what_it_owed():
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.beat("a", 2, "t0 t1")
    story.wait(60)
    story.leave("a")
    story.beat("b", 3, "").says("b@4 every 50 [t0 t1]", "current b 3->4 t0@4 t1@4")


def test_an_empty_group_can_be_deleted_and_one_with_members_cannot():
    story = ConsumerStory(t=1).stable("a")
    assert story.submit(c.DeleteGroup(group_id="g")).answer.error is ErrorCode.NON_EMPTY_GROUP
    story.leave("a")
    step = story.submit(c.DeleteGroup(group_id="g"))
    assert step.records == ["targets None never", "epoch None"]
    assert step.group == "none"
    assert story.join("a").group == "Stable 2/2 a@2[t0]"
