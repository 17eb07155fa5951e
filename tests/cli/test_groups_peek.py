"""`anabranch groups peek`: the records that a group has before it."""

import json
from collections.abc import Callable

from command_result import Result
from groups_kit import GroupsKit


def test_the_first_unread_record_of_each_partition_is_shown(
    groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """One line for each partition with lag, at what was committed; the rest is a note."""
    kit.commit("peeked", kit.topic("peeked", records=5), {0: 1, 1: 3, 2: 5})
    result = groups("peek", "peeked")
    assert result.code == 0, result.err
    header, *lines = result.out.splitlines()
    assert header.split() == [
        "TOPIC",
        "PARTITION",
        "LAG",
        "OFFSET",
        "TIMESTAMP",
        "AGE",
        "KEY",
        "VALUE",
    ]
    cells = [line.split() for line in lines]
    assert [line[1:4] for line in cells] == [["0", "4", "1"], ["1", "2", "3"]]
    assert [line[-1] for line in cells] == ["1", "3"]
    assert "Nothing to read: 1 of 3 partitions." in result.err


def test_more_records_and_one_partition_can_be_asked_for(
    groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """Fewer records than asked for are no failure; JSON has them whole."""
    topic = kit.topic("peeked-more", records=3)
    kit.commit("peeked-more", topic, {0: 1, 1: 0, 2: 0})
    result = groups(
        "peek",
        "peeked-more",
        "--partition",
        0,
        "--records",
        5,
        "--topic",
        topic,
        "--format",
        "json",
    )
    found = json.loads(result.out)
    assert [(record["offset"], record["value"]) for record in found] == [(1, "1"), (2, "2")]


def test_what_was_deleted_is_not_there_to_peek_at(
    groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """A group behind the log's start is shown the first record that is left, and stays put."""
    topic = kit.topic("peeked-gone", records=4)
    kit.commit("peeked-gone", topic, {0: 0})
    kit.delete_records(topic, 0, 2)
    (record,) = json.loads(groups("peek", "peeked-gone", "--format", "json").out)
    assert record["offset"] == 2
    assert kit.committed("peeked-gone") == {(topic, 0): 0}


def test_a_group_with_members_is_not_disturbed(
    groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """Looking joins nothing: the group has the same member afterwards."""
    topic = kit.topic("peeked-live", records=2)
    kit.commit("peeked-live", topic, {0: 1, 1: 1, 2: 1})
    with kit.member("peeked-live", topic, owning=3):
        before = json.loads(groups("describe", "peeked-live", "--format", "json").out)
        assert groups("peek", "peeked-live").code == 0
        after = json.loads(groups("describe", "peeked-live", "--format", "json").out)
    assert before[0]["members"] == after[0]["members"]
    assert len(after[0]["members"]) == 1


def test_a_partition_that_is_not_the_groups_is_refused(
    groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """What the group has nothing to do with is an error that names the next step."""
    kit.commit("peeked-other", kit.topic("peeked-other", records=1), {0: 0})
    result = groups("peek", "peeked-other", "--topic", "nowhere")
    assert result.code == 1
    assert "has no such partition" in result.err
    assert "groups describe peeked-other" in result.err
