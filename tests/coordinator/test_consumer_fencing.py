"""Stories of epochs: which ones a heartbeat may carry, and who has to start over."""

import pytest
from consumer_story import ConsumerStory

from anabranch.coordinator.group.consumer_records import CurrentWritten
from anabranch.coordinator.group.consumer_state import MemberState
from anabranch.model.errors import ErrorCode

FENCED = ErrorCode.FENCED_MEMBER_EPOCH


def moved_on() -> ConsumerStory:
    """b was moved from epoch 3 to 4 with all that c had, by an answer that it may not have got."""
    story = ConsumerStory(t=3).stable("b", "c")
    story.leave("c")
    story.wait(50)
    assert story.line == "Reconciling 4/4 b@3[t0 t1]"
    story.beat("b", 3)
    assert story.line == "Stable 4/4 b@4[t0 t1 t2]"
    return story


def test_the_present_epoch_is_right():
    moved_on().beat("b", 4).says("b@4 every 100")


def test_a_later_epoch_is_fenced():
    moved_on().beat("b", 5, "t0 t1").fails(FENCED, "epoch 4", "not 5", "rejoin")


@pytest.mark.parametrize("owned", ["", "t0", "t0 t1", "t0 t1 t2"])
def test_the_epoch_before_is_right_for_who_owns_no_more_than_it_was_given(owned):
    """Only our answer was lost; it comes again."""
    answer = moved_on().beat("b", 3, owned).answer
    assert answer.error is ErrorCode.NONE
    assert answer.member_epoch == 4
    assert (answer.assignment is None) == (owned == "t0 t1 t2")


def test_the_epoch_before_is_fenced_without_the_units_that_prove_it():
    moved_on().beat("b", 3).fails(FENCED)


def test_the_epoch_before_is_fenced_for_who_owns_more():
    story = ConsumerStory(t=3).stable("b")
    story.join("c")
    story.beat("b", 2, "t0 t1 t2")
    story.beat("b", 2, "t0 t1")
    assert story.member("b").member_epoch == 3
    story.beat("b", 2, "t0 t1 t2").fails(FENCED)


def test_an_epoch_older_than_that_is_fenced():
    moved_on().beat("b", 2, "").fails(FENCED)


def test_fencing_removes_nobody():
    """The client has to let go and rejoin; until it does, nobody gets what it has."""
    story = moved_on()
    story.beat("b", 9).fails(FENCED)
    assert story.line == "Stable 4/4 b@4[t0 t1 t2]"
    story.join("b").says("b@4 every 100 [t0 t1 t2]")


def test_a_stranger_is_unknown():
    story = moved_on()
    story.beat("z", 4).fails(ErrorCode.UNKNOWN_MEMBER_ID, "z")
    story.beat("c", 3).fails(ErrorCode.UNKNOWN_MEMBER_ID, "c")


def test_a_stable_member_may_start_over():
    """KAFKA-19233: epoch 0 of a member that is known is a rejoin."""
    story = ConsumerStory(t=1).stable("a")
    story.join("a").says("a@2 every 100 [t0]")


def test_a_member_that_owes_may_start_over_and_owes_no_more():
    """It owns nothing when it joins, which confirms that it let go."""
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.beat("a", 2, "t0 t1")
    story.join("a").says("a@3 every 50 [t0]", "current a 2->3 t0@2")
    story.beat("b", 3, "").says("b@3 every 50 [t1]", "current b 3->3 t1@3")


def test_a_member_that_waits_may_start_over():
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.join("b").says("b@3 every 50 []")
    assert story.line == "Reconciling 3/3 a@2[t0 t1] b@3?[]"


def in_an_unknown_state() -> ConsumerStory:
    """As if a newer version had written a member's state and an older one reads it."""
    story = ConsumerStory(t=1).stable("a")
    member = story.member("a").with_(state=MemberState.UNKNOWN)
    record = CurrentWritten(group_id="g", member_id="a", member=member)
    story.records.append(record)
    story.shard.replay(record)
    return story


@pytest.mark.parametrize("owned", [None, "t0"])
def test_a_member_in_a_state_that_is_not_known_has_to_start_over(owned):
    in_an_unknown_state().beat("a", 2, owned).fails(FENCED, "rejoin")


def test_a_member_in_a_state_that_is_not_known_starts_over_from_nothing():
    story = in_an_unknown_state()
    assert story.beat("a", 2, "").group == "Stable 2/2 a@2[t0]"
    story = in_an_unknown_state()
    assert story.join("a").group == "Stable 2/2 a@2[t0]"
