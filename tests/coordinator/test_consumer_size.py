"""Stories of group.consumer.max.size."""

from consumer_story import ConsumerStory

from anabranch.model.errors import ErrorCode

FULL = ErrorCode.GROUP_MAX_SIZE_REACHED


def full() -> ConsumerStory:
    story = ConsumerStory(t=2)
    story.configure(max_size=2)
    return story.stable("a").stable("s", instance_id="i")


def test_a_full_group_takes_nobody_new():
    """Dynamic or static; the message says how many there may be."""
    story = full()
    story.join("z").fails(FULL, "2", "group.consumer.max.size")
    story.join("z", instance_id="k").fails(FULL)


def test_members_of_a_full_group_stay_and_start_over():
    story = full()
    assert story.beat("a", 3).answer.error is ErrorCode.NONE
    assert story.join("a").answer.error is ErrorCode.NONE
    assert story.join("a", instance_id="k").answer.error is ErrorCode.NONE
    assert story.join("s", instance_id="i").answer.error is ErrorCode.NONE


def test_a_static_member_returns_to_a_full_group():
    """It takes its own place (KAFKA-20601)."""
    story = full()
    story.leave_for_a_while("s", "i")
    assert story.join("s2", instance_id="i").answer.error is ErrorCode.NONE


def test_there_is_room_again_when_somebody_leaves():
    story = full()
    story.leave("a")
    assert story.join("z").answer.error is ErrorCode.NONE


def test_a_limit_that_was_lowered_sends_nobody_away():
    story = full()
    story.configure(max_size=1)
    assert story.beat("a", 3).answer.error is ErrorCode.NONE
    story.restart()
    assert sorted(story.group.members) == ["a", "s"]
