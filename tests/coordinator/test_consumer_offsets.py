"""Stories of commits and fetches of a consumer group: which epochs are good for what (KIP-1251)."""

import pytest
from consumer_story import ConsumerStory

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.consumer_offsets import check_fetch
from anabranch.model.errors import ErrorCode

NONE = ErrorCode.NONE
STALE = ErrorCode.STALE_MEMBER_EPOCH
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


def between_epochs() -> ConsumerStory:
    """a: t0 and t1 since epoch 2, moved on to 3, then t2 since 4; b left."""
    story = ConsumerStory(t=3).stable("a", "b")
    assert story.line == "Stable 3/3 a@3[t0 t1] b@3[t2]"
    story.leave("b")
    story.settle()
    assert story.line == "Stable 4/4 a@4[t0 t1 t2]"
    assert list(story.member("a").assigned.values()) == [2, 2, 4]
    return story


def test_the_present_epoch_commits():
    story = between_epochs()
    step = story.commit("t0 t2", 5, "a", 4)
    assert step.answer == c.CommitAnswer(errors=(NONE, NONE))
    assert step.records == ["offset t0 5", "offset t2 5"]
    assert step.timers == {}, "a commit is no heartbeat"


@pytest.mark.parametrize("epoch", [2, 3])
def test_an_older_epoch_commits_what_the_member_has_had_since(epoch):
    """The group moved on, the partition did not."""
    assert between_epochs().commit("t0 t1", 5, "a", epoch).answer.error is NONE


@pytest.mark.parametrize(("unit", "epoch"), [("t0", 1), ("t2", 3), ("t0 t2", 3), ("t9", 3)])
def test_an_older_epoch_does_not_commit_what_came_later_or_never(unit, epoch):
    """One partition that is not the member's takes the others with it."""
    between_epochs().commit(unit, 5, "a", epoch).fails(STALE)


@pytest.mark.parametrize("epoch", [5, -1])
def test_epochs_that_the_member_never_was_at(epoch):
    between_epochs().commit("t0", 5, "a", epoch).fails(STALE)


def test_what_is_being_given_up_can_still_be_committed():
    """The last thing a consumer does before it lets go is to commit."""
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.beat("a", 2, "t0 t1")
    assert story.line == "Reconciling 3/3 a@2![t0 -t1] b@3?[]"
    assert story.commit("t1", 5, "a", 2).answer.error is NONE
    story.beat("a", 2, "t0")
    story.commit("t1", 6, "a", 2).fails(STALE)
    assert story.commit("t0", 6, "a", 2).answer.error is NONE


def test_what_is_being_given_up_has_its_epoch_too():
    story = ConsumerStory(t=2).stable("a")
    story.topics(u=1)
    story.beat("a", 2, subscribed_topic_names=("t", "u"))
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0 t1 u0]"
    story.join("b", "t,u")
    story.ack("a")
    assert story.line == "Reconciling 4/4 a@3![t0 t1 -u0] b@4?[]"
    assert story.commit("u0", 5, "a", 3).answer.error is NONE
    story.commit("u0", 5, "a", 2).fails(STALE)


def test_a_stranger_does_not_commit():
    story = between_epochs()
    story.commit("t0", 5, "b", 3).fails(UNKNOWN)
    story.commit("t0", 5, "", -1).fails(UNKNOWN)


def test_nobody_in_particular_commits_while_the_group_is_empty():
    story = between_epochs()
    story.leave("a")
    assert story.commit("t0", 5).answer.error is NONE
    story.commit("t0", 5, "a", 4).fails(UNKNOWN)


def test_a_version_that_knows_no_epochs_does_not_commit():
    story = between_epochs()
    story.commit("t0", 5, "a", 4, knows_group_id_not_found=False).fails(
        ErrorCode.UNSUPPORTED_VERSION
    )


def test_a_member_that_is_away_does_not_commit():
    story = ConsumerStory(t=1).stable("a", instance_id="i")
    story.leave_for_a_while("a", "i")
    story.commit("t0", 5, "a", 2).fails(STALE)


def test_a_member_that_came_back_commits_from_its_new_epoch():
    """Its partitions never were another's: any epoch of its new self is good for them."""
    story = ConsumerStory(t=1).stable("a", instance_id="i")
    story.leave_for_a_while("a", "i")
    story.join("a2", instance_id="i")
    assert story.commit("t0", 5, "a2", 2).answer.error is NONE
    story.commit("t0", 5, "a", 2).fails(UNKNOWN)


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, NONE),
        ("", -1, NONE),
        ("a", 4, NONE),
        ("a", 3, NONE),
        ("a", 2, STALE),
        ("a", 5, STALE),
        ("a", -1, STALE),
        ("b", 3, UNKNOWN),
        (None, 4, UNKNOWN),
    ],
)
def test_who_may_fetch(member_id, epoch, error):
    """The epoch before is good as well, unlike in Kafka: what it may read is the same."""
    assert check_fetch(between_epochs().group, member_id, epoch) is error


def test_offsets_of_topics_in_use_are_not_deleted():
    """By name or by expression; those of others are."""
    story = ConsumerStory(t=1, u=1, v=1).stable("a", topics="t", regex="u")
    story.commit("t0 u0 v0", 5, "a", story.member("a").member_epoch)
    step = story.submit(c.DeleteOffsets(group_id="g", partitions=(("t", 0), ("u", 0), ("v", 0))))
    used = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert step.answer.errors == (used, used, NONE)
    assert step.records == ["offset v0 gone"]


def test_offsets_of_topics_in_use_do_not_expire():
    """The others do, counted from their commit; an empty group goes with the last of them."""
    story = ConsumerStory(t=1, u=1).stable("a")
    story.commit("t0 u0", 5, "a", 2)
    story.now_ms += story.settings.offsets_retention_ms
    assert story.submit(c.ExpireOffsets()).records == ["offset u0 gone"]
    story.leave("a")
    assert story.submit(c.ExpireOffsets()).records == [
        "offset t0 gone",
        "targets None never",
        "epoch None",
    ]
    assert story.line == "none"


def test_an_empty_group_with_offsets_is_kept():
    story = ConsumerStory(t=1).stable("a")
    story.commit("t0", 5, "a", 2)
    story.leave("a")
    assert story.submit(c.ExpireOffsets()).records == []
    assert story.line == "Empty 3/3"


def test_a_group_that_only_has_offsets_becomes_a_consumer_group():
    """An admin committed for it before anybody joined."""
    story = ConsumerStory(t=1)
    story.commit("t0", 5)
    assert story.line == "classic Empty"
    assert story.join("a").group == "Stable 2/2 a@2[t0]"
    assert story.shard.offsets("g")["t", 0].offset == 5
