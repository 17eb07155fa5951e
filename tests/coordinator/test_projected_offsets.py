"""Stories of offsets that follow from other commits of the group."""

import dataclasses

from story import GROUP, START_MS, TOPIC, Step, Story, committed

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.records import OffsetCommitted

TOPIC_ID = bytes(range(16))


def project(story: Story, offset: int, newest_commit_ms: int, read_ms: int | None = None) -> Step:
    """Project an offset of TOPIC-0 that follows from commits up to a time."""
    projected = c.ProjectedOffset(
        topic=TOPIC,
        topic_id=TOPIC_ID,
        partition=0,
        offset=offset,
        newest_commit_ms=newest_commit_ms,
        read_ms=story.now_ms if read_ms is None else read_ms,
    )
    step = story.submit(c.ProjectOffsets(group_id=GROUP, offsets=(projected,)))
    assert (step.answer, step.wakes, step.timers) == (None, {}, {})
    return step


def written(offset: int, at_ms: int) -> OffsetCommitted:
    value = CommittedOffset(offset=offset, commit_timestamp_ms=at_ms, topic_id=TOPIC_ID)
    return dataclasses.replace(committed(0, at_ms=at_ms), value=value)


def test_it_is_written_upwards_and_downwards_whoever_is_in_the_group():
    """No member is asked and none is disturbed; the time is that of what it follows from."""
    story = Story()
    story.stable("a")
    now_ms = story.now_ms
    first = project(story, 5, now_ms)
    assert first.durable == [written(5, now_ms)]
    assert first.group == "Stable 1 range *a-1=A"
    story.wait(10)
    assert project(story, 9, now_ms + 7, now_ms + 8).durable == [written(9, now_ms + 8)]
    assert project(story, 2, now_ms + 9, now_ms + 9).durable == [written(2, now_ms + 9)]


def test_what_says_nothing_new_is_not_written():
    """The journal does not grow while a group stands still."""
    story = Story()
    story.stable("a")
    project(story, 5, story.now_ms)
    story.wait(10)
    assert project(story, 5, story.now_ms).durable == []


def test_a_newer_commit_is_left_alone():
    """The group reads the partition itself by now, until it commits elsewhere again."""
    story = Story()
    story.commit(1, partition=1)
    story.wait(10)
    story.commit(40)
    committed_ms = story.now_ms
    assert project(story, 5, committed_ms - 1).durable == []
    assert story.shard.offsets(GROUP)[TOPIC, 0].offset == 40
    assert project(story, 5, committed_ms).durable == [written(5, committed_ms)]


def test_a_group_that_is_not_there_is_not_made():
    """It was deleted while somebody counted."""
    story = Story()
    assert project(story, 5, START_MS).durable == []
    assert story.shard.group(GROUP) is None
