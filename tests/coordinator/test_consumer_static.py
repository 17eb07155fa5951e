"""Stories of static members: restart without a rebalance, and who may use an instance id."""

import pytest
from consumer_story import SESSION_MS, ConsumerStory

from anabranch.model.errors import ErrorCode

UNRELEASED = ErrorCode.UNRELEASED_INSTANCE_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


def static_pair() -> ConsumerStory:
    """a is the instance i, b the instance j; each has one partition."""
    story = ConsumerStory(t=2)
    for member_id, instance in (("a", "i"), ("b", "j")):
        story.join(member_id, instance_id=instance)
        story.settle()
    assert story.line == "Stable 3/3 a@3[t0] b@3[t1]"
    return story


def test_a_static_member_leaves_for_a_while_and_keeps_its_place():
    """One record, no epoch; its session goes on from the last heartbeat."""
    story = static_pair()
    story.leave_for_a_while("a", "i").gives(
        "a@-2",
        records=["current a -2->-2 t0@0"],
        group="Reconciling 3/3 a@-2[t0] b@3[t1]",
    )


def test_its_next_self_gets_the_same_partitions_at_once():
    """A new member id under the same instance id, without a new epoch or target."""
    story = static_pair()
    story.leave_for_a_while("a", "i")

    story.join("a2", instance_id="i").gives(
        "a2@3 every 50 [t0]",
        records=[
            "current a gone",
            "target a gone",
            "member a gone",
            "member a2 t instance_id=i",
            "target a2 t0",
            "current a2 0->0 t0@0",
            "current a2 0->3 t0@0",
        ],
        timers={"a": None, "rebalance a": None, "a2": SESSION_MS},
        group="Stable 3/3 a2@3[t0] b@3[t1]",
    )
    story.beat("a", 3, instance_id="i").fails(FENCED, "a", "i")


def test_it_may_come_back_under_its_own_id():
    story = static_pair()
    story.leave_for_a_while("a", "i")
    story.join("a", instance_id="i").says("a@3 every 50 [t0]", "current a -2->3 t0@0")
    assert story.line == "Stable 3/3 a@3[t0] b@3[t1]"


def test_it_may_come_back_with_other_topics():
    """The subscription is news like anybody's."""
    story = static_pair()
    story.topics(u=1)
    story.leave_for_a_while("a", "i")
    step = story.join("a2", "t,u", instance_id="i")
    assert step.causes == ["join"]
    assert "member a2 t,u instance_id=i" in step.records
    story.settle()
    assert story.line == "Stable 4/4 a2@4[t0 u0] b@4[t1]"


def test_it_may_come_back_with_another_assignor():
    story = static_pair()
    story.leave_for_a_while("a", "i")
    step = story.join("a2", instance_id="i", server_assignor="range")
    assert step.causes == ["assignor"]


def test_who_does_not_come_back_in_time_is_gone():
    story = static_pair()
    story.leave_for_a_while("a", "i")
    story.wait(SESSION_MS - 1_000)
    story.ack("b")
    story.wait(1_000)
    assert story.line == "Reconciling 4/4 b@3[t1]"
    story.join("a2", instance_id="i")
    assert len(story.group.members) == 2


def test_what_it_owed_is_free_while_it_is_away():
    """Whoever leaves has let go of everything; what it may keep stays its own."""
    story = ConsumerStory(t=2)
    story.join("a", instance_id="i")
    story.settle()
    story.join("b")
    story.beat("a", 2, "t0 t1", instance_id="i")
    assert story.line == "Reconciling 3/3 a@2![t0 -t1] b@3?[]"

    story.leave_for_a_while("a", "i").gives(
        "a@-2",
        records=["current a -2->-2 t0@0"],
        timers={"rebalance a": None},
        group="Reconciling 3/3 a@-2[t0] b@3?[]",
    )
    story.beat("b", 3, "").says("b@3 every 50 [t1]", "current b 3->3 t1@3")


def test_a_heartbeat_that_a_leave_overtook_does_not_bring_the_member_back():
    """Or its next self would be locked out until the session ends."""
    story = static_pair()
    story.leave_for_a_while("a", "i")
    story.beat("a", 3, "t0", instance_id="i").fails(ErrorCode.FENCED_MEMBER_EPOCH)
    assert story.join("a2", instance_id="i").answer.error is ErrorCode.NONE


def test_an_instance_id_is_not_given_to_another_while_its_member_lives():
    story = static_pair()
    story.join("z", instance_id="i").fails(UNRELEASED, "a", "i")


@pytest.mark.parametrize("owned", ["t0", ""])
def test_a_static_member_whose_join_answer_was_lost_is_let_in(owned):
    """Kafka would lock it out until its session ends."""
    story = static_pair()
    story.join("a", instance_id="i").says("a@3 every 100 [t0]")
    story.beat("a", 3, owned, instance_id="i")
    assert story.line == "Stable 3/3 a@3[t0] b@3[t1]"


def test_an_instance_id_is_who_a_member_is():
    """With an epoch it has to be known, and to be that member's."""
    story = static_pair()
    story.beat("a", 3, instance_id="k").fails(UNKNOWN, "k")
    story.beat("z", 3, instance_id="i").fails(FENCED, "i")
    story.beat("b", 3, instance_id="i").fails(FENCED, "i")


def test_a_member_may_take_another_instance_id():
    """The old one is free then (KAFKA-20747)."""
    story = static_pair()
    story.join("a", instance_id="k").says("a@3 every 100 [t0]", "member a t instance_id=k")
    assert story.group.static_members == {"k": "a", "j": "b"}
    assert story.join("z", instance_id="i").answer.error is ErrorCode.NONE


def test_a_dynamic_member_may_become_static():
    story = ConsumerStory(t=1).stable("a")
    story.join("a", instance_id="i").says("a@2 every 100 [t0]", "member a t instance_id=i")


def test_a_static_member_is_fenced_by_epochs_too():
    story = static_pair()
    story.beat("a", 9, "", instance_id="i").fails(ErrorCode.FENCED_MEMBER_EPOCH)


def test_a_second_leave_for_a_while_changes_nothing():
    story = static_pair()
    story.leave_for_a_while("a", "i")
    line = story.line
    story.leave_for_a_while("a", "i")
    assert story.line == line


def test_a_successor_that_is_a_member_already_takes_the_place():
    """It joined without an instance id before; what it had is free."""
    story = static_pair()
    story.join("c")
    story.settle()
    story.leave_for_a_while("a", "i")
    assert story.join("c", instance_id="i").answer.error is ErrorCode.NONE
    story.settle()
    assert sorted(story.group.members) == ["b", "c"]
    assert len(story.group.owners) == 2


def test_a_static_member_that_comes_back_to_a_new_target():
    """The group went on while it was away: it gets what is its own now."""
    story = static_pair()
    story.leave_for_a_while("a", "i")
    story.topics(t=4)
    story.wait(50)
    step = story.join("a2", instance_id="i")
    assert step.group.startswith("Reconciling 4/4 a2@4[t0 t")
    story.settle()
    assert len(story.group.owners) == 4
