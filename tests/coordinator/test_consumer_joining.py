"""Stories of joining a consumer group: the form of a heartbeat, first members, subscriptions."""

import pytest
from consumer_story import SESSION_MS, ConsumerStory, units

from anabranch.model.errors import ErrorCode

INVALID = ErrorCode.INVALID_REQUEST


def test_the_first_member_gets_everything_at_once():
    """One heartbeat makes the group, its first epoch, a target, and hands it out."""
    story = ConsumerStory(t=2)

    story.join("a").gives(
        "a@2 every 50 [t0 t1]",
        records=[
            "member a t",
            "epoch 2",
            "target a t0 t1",
            "targets 2 +0",
            "current a 0->2 t0@2 t1@2",
        ],
        timers={"a": SESSION_MS, "target": None},
        group="Stable 2/2 a@2[t0 t1]",
    )
    story.beat("a", 2, "t0 t1").gives(
        "a@2 every 100", timers={"a": SESSION_MS}, group="Stable 2/2 a@2[t0 t1]"
    )


def test_a_second_member_gets_its_share_when_the_first_has_let_go():
    """The target follows within the interval; the newcomer waits for what the other still has."""
    story = ConsumerStory(t=2).stable("a")

    story.join("b").gives(
        "b@3 every 50 []",
        records=[
            "member b t",
            "epoch 3",
            "target a t0",
            "target b t1",
            "targets 3 +50",
            "current b 0->3?",
        ],
        timers={"b": SESSION_MS, "target": None},
        group="Reconciling 3/3 a@2[t0 t1] b@3?[]",
    )
    story.beat("a", 2).gives(
        "a@2 every 50 [t0]",
        records=["current a 2->2! t0@2 -t1@2"],
        timers={"a": SESSION_MS, "rebalance a": 60_000},
        group="Reconciling 3/3 a@2![t0 -t1] b@3?[]",
    )
    story.beat("b", 3, "").gives(
        "b@3 every 50", timers={"b": SESSION_MS}, group="Reconciling 3/3 a@2![t0 -t1] b@3?[]"
    )
    story.beat("a", 2, "t0").gives(
        "a@3 every 50",
        records=["current a 2->3 t0@2"],
        timers={"a": SESSION_MS, "rebalance a": None},
        group="Reconciling 3/3 a@3[t0] b@3?[]",
    )
    story.beat("b", 3).gives(
        "b@3 every 50 [t1]",
        records=["current b 3->3 t1@3"],
        timers={"b": SESSION_MS},
        group="Stable 3/3 a@3[t0] b@3[t1]",
    )


def test_a_member_that_joins_within_the_interval_starts_at_the_old_target():
    """It has an epoch to be at, with nothing, until the timer brings the target (KIP-1263)."""
    story = ConsumerStory(t=2)
    story.join("a")

    story.join("b").gives(
        "b@2 every 50 []",
        records=["member b t", "epoch 3", "current b 0->2"],
        timers={"b": SESSION_MS, "target": 50},
        group="Assigning 3/2 a@2[t0 t1] b@2[]",
    )
    [step] = story.wait(50)
    step.gives(
        records=["target a t0", "target b t1", "targets 3 +50"],
        timers={"target": None},
        group="Reconciling 3/3 a@2[t0 t1] b@2[]",
    )


def test_a_hundred_members_make_a_few_targets():
    """All that join within one interval share one computation."""
    story = ConsumerStory(t=8, checks_replay=False)
    for number in range(100):
        story.join(f"m{number:02}")
    assert (story.group.group_epoch, story.group.target_epoch) == (101, 2)

    story.wait(50)

    assert (story.group.group_epoch, story.group.target_epoch) == (101, 101)


def test_without_an_interval_every_change_makes_a_target():
    story = ConsumerStory(t=2)
    story.configure(assignment_interval_ms=0)
    story.join("a")
    assert "targets 3 +0" in story.join("b").records


def test_a_target_of_the_future_holds_up_nobody():
    """A clock that was set back must not keep a group waiting for the time to come again."""
    story = ConsumerStory(t=2).stable("a")
    story.now_ms -= 3_600_000
    story.join("b")
    assert (story.group.group_epoch, story.group.target_epoch) == (3, 3)


def test_a_member_without_a_subscription_is_a_member():
    """It bumps nothing: an empty list and an empty expression are legal."""
    story = ConsumerStory(t=2)

    story.join("a", "").gives(
        "a@1 every 100 []",
        records=["member a -", "current a 0->1"],
        timers={"a": SESSION_MS},
        group="Stable 1/1 a@1[]",
    )
    story.join("b", None, "").says("b@1 every 100 []", "member b - //", "current b 0->1")


def test_a_topic_that_is_not_there_yet_is_subscribed_to():
    story = ConsumerStory()
    story.join("a", "t").says(
        "a@2 every 50 []", "member a t", "epoch 2", "targets 2 +0", "current a 0->2"
    )


def test_the_server_makes_an_id_for_a_client_that_brings_none():
    """Version 0: an empty id joins, and the answer says who it is."""
    story = ConsumerStory(t=1)
    step = story.join("", has_own_member_id=False, unique="made")
    assert step.answer.member_id == "made"
    assert step.group == "Stable 2/2 made@2[t0]"


def test_a_heartbeat_without_an_id_is_refused():
    """From version 1 always; before, unless it joins."""
    story = ConsumerStory(t=1).stable("a")
    story.join("").fails(INVALID, "MemberId")
    story.beat("", 2, has_own_member_id=False).fails(INVALID, "MemberId")
    story.send("", -1, has_own_member_id=False).fails(INVALID, "MemberId")


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": units("t0")},
        {"subscribed_topic_names": None},
    ],
    ids=str,
)
def test_a_join_of_the_wrong_form_is_refused(fields):
    """Names that are empty, and what a join has to say and does not."""
    story = ConsumerStory(t=1)
    story.join("a", **fields).fails(INVALID)
    assert story.line == "none"


@pytest.mark.parametrize("epoch", [-3, -100])
def test_epochs_that_mean_nothing_are_refused(epoch):
    story = ConsumerStory(t=1).stable("a")
    story.send("a", epoch, instance_id="i").fails(INVALID, str(epoch))


def test_a_static_leave_needs_an_instance_id():
    story = ConsumerStory(t=1).stable("a")
    story.leave_for_a_while("a", None).fails(INVALID, "InstanceId")


def test_an_assignor_that_is_not_offered_is_refused():
    """The message says which ones are."""
    story = ConsumerStory(t=1)
    story.join("a", server_assignor="sticky").fails(
        ErrorCode.UNSUPPORTED_ASSIGNOR, "sticky", "uniform, range"
    )


def test_nobody_joins_a_group_that_is_not_there_without_epoch_zero():
    story = ConsumerStory(t=1)
    for epoch in (1, -1):
        story.send("a", epoch).fails(ErrorCode.GROUP_ID_NOT_FOUND)
    story.send("a", -2, instance_id="i").fails(ErrorCode.GROUP_ID_NOT_FOUND)


def test_a_new_subscription_takes_away_at_once_what_is_not_wanted():
    """Also within the interval, when there is no target yet that says so."""
    story = ConsumerStory(t=1, u=1)
    story.join("a", "t,u")

    story.beat("a", 2, "t0 u0", subscribed_topic_names=("u",)).gives(
        "a@2 every 50 [u0]",
        records=["member a u", "epoch 3", "current a 2->2! u0@2 -t0@2"],
        timers={"a": SESSION_MS, "rebalance a": 60_000, "target": 50},
        group="Assigning 3/2 a@2![u0 -t0]",
    )
    story.beat("a", 2, "u0").says("a@2 every 50", "current a 2->2 u0@2")


def test_a_subscription_dropped_by_who_owns_nothing_of_it_needs_no_revocation():
    """The owned list of the same heartbeat confirms it."""
    story = ConsumerStory(t=1, u=1)
    story.join("a", "t,u")
    story.beat("a", 2, "u0", subscribed_topic_names=("u",)).says(
        "a@2 every 50 [u0]", "member a u", "epoch 3", "current a 2->2 u0@2"
    )


def test_a_member_that_owes_owes_more_when_it_drops_a_topic():
    story = ConsumerStory(t=2, u=1).stable("a", topics="t,u")
    story.join("b", "t")
    story.beat("a", 2)
    owed = set(story.group.owners)
    assert story.member("a").pending_revocation

    story.beat("a", 2, "t0 t1 u0", subscribed_topic_names=("t",))

    assert set(story.member("a").held) == owed
    assert units("u0")[0] in story.member("a").pending_revocation
    story.settle()
    assert story.group.state.value == "Stable"


def test_news_that_no_assignment_depends_on_bump_nothing():
    """Rack, timeout, client id and host are written down and no more."""
    story = ConsumerStory(t=1).stable("a")
    story.beat("a", 2, rack_id="r").says("a@2 every 100", "member a t rack_id=r")
    story.beat("a", 2, rebalance_timeout_ms=7).says(
        "a@2 every 100", "member a t rack_id=r rebalance_timeout_ms=7"
    )
    story.beat("a", 2, client_id="c", client_host="/h").says(
        "a@2 every 100",
        "member a t rack_id=r client_id=c client_host=/h rebalance_timeout_ms=7",
    )
    assert story.group.group_epoch == 2


def test_names_are_a_set():
    """The order of the names, and one that comes twice, are no news."""
    story = ConsumerStory(t=1, u=1).stable("a", topics="u,t")
    assert story.member("a").subscribed_topic_names == ("t", "u")
    story.beat("a", 2, subscribed_topic_names=("t", "u", "t")).says("a@2 every 100")


def test_the_assignor_that_most_ask_for_is_used():
    """A vote that changes the winner bumps the epoch; another does not."""
    story = ConsumerStory(t=4).stable("a", "b")
    assert story.group.group_epoch == 3

    step = story.beat("a", 3, server_assignor="range")
    assert step.causes == ["assignor"]
    story.settle()
    assert story.line == "Stable 4/4 a@4[t0 t1] b@4[t2 t3]"
    assert story.beat("b", 4, server_assignor="range").causes == []


def test_an_epoch_tells_its_cause():
    story = ConsumerStory(t=1)
    assert story.join("a").causes == ["join"]
    story.settle()
    assert story.beat("a", 2, subscribed_topic_names=("u",)).causes == ["subscription"]
    assert story.leave("a").causes == ["leave"]


def test_the_whole_assignment_is_told_to_who_says_everything():
    """After an error a client sends a full request, and wants a full answer."""
    story = ConsumerStory(t=1).stable("a")
    story.send("a", 2, **story.full("t", None, "t0")).says("a@2 every 100 [t0]")


def test_an_assignment_is_told_until_the_member_has_it():
    """A client may drop what it was told; its owned list shows it."""
    story = ConsumerStory(t=2).stable("a")
    story.beat("a", 2, "t0").says("a@2 every 100 [t0 t1]")
    story.beat("a", 2, "").says("a@2 every 100 [t0 t1]")
    story.beat("a", 2).says("a@2 every 100")
    story.beat("a", 2, "t0 t1").says("a@2 every 100")


def test_a_duplicate_of_a_heartbeat_changes_nothing():
    """In each state of a member: stable, owing, waiting."""
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    for member, epoch, owned in (("a", 2, "t0 t1"), ("b", 3, ""), ("a", 2, "t0"), ("b", 3, "")):
        story.beat(member, epoch, owned)
        line = story.line
        assert story.beat(member, epoch, owned).records == []
        assert story.line == line
    assert line == "Stable 3/3 a@3[t0] b@3[t1]"


def test_two_groups_do_not_see_each_other():
    story = ConsumerStory(t=1).stable("a")
    story.group_id = "h"
    assert story.join("a").group == "Stable 2/2 a@2[t0]"
    assert story.shard.consumer_members == 2
