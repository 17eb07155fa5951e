"""What describe and list say of a group, in every state."""

import pytest
from story import GROUP, HOST, RANGE, Story

from anabranch.coordinator.group.describe import (
    DescribedGroup,
    DescribedMember,
    ListedGroup,
    describe_group,
    list_groups,
)
from anabranch.model.errors import ErrorCode


def described(member_id: str, **changes) -> DescribedMember:
    values = {
        "member_id": member_id,
        "group_instance_id": None,
        "client_id": member_id.split("-")[0],
        "client_host": HOST,
        "metadata": b"",
        "assignment": b"",
    }
    return DescribedMember(**values | changes)


def test_a_group_that_is_not_there_is_dead():
    """With an error for those who know it."""
    assert describe_group("x", None) == DescribedGroup(
        error=ErrorCode.GROUP_ID_NOT_FOUND, group_id="x", state="Dead"
    )


def test_a_stable_group_is_described_with_protocol_metadata_and_assignments():
    """Everything that the members and the leader said."""
    story = Story()
    story.stable("a", "b")

    assert describe_group(GROUP, story.group) == DescribedGroup(
        group_id=GROUP,
        state="Stable",
        protocol_type="consumer",
        protocol_name="range",
        members=(
            described("a-1", metadata=RANGE[0][1], assignment=b"A"),
            described("b-2", metadata=RANGE[0][1], assignment=b"B"),
        ),
    )


def test_between_generations_there_is_no_protocol():
    """The members are there, with what they had; the metadata belongs to no protocol."""
    story = Story()
    a, _ = story.stable("a", "b", group_instance_id=None)
    story.join("d", group_instance_id="i")

    assert describe_group(GROUP, story.group) == DescribedGroup(
        group_id=GROUP,
        state="PreparingRebalance",
        protocol_type="consumer",
        members=(
            described("a-1", assignment=b"A"),
            described("b-2", assignment=b"B"),
            described("i-3", group_instance_id="i", client_id="d"),
        ),
    )
    story.join("a", a)
    story.join("b", "b-2")
    assert describe_group(GROUP, story.group).state == "CompletingRebalance"


def test_a_group_of_offsets_is_empty_without_a_protocol_type():
    """How tools know a simple group."""
    story = Story()
    story.commit(1)

    assert describe_group(GROUP, story.group) == DescribedGroup(group_id=GROUP, state="Empty")


@pytest.fixture
def groups():
    """An empty, a stable and a joining group."""
    story = Story()
    story.commit(1, group_id="empty")
    story.stable("a")
    story.join("b", group_id="joining")
    return [story.shard.group(name) for name in story.shard.group_ids()]


@pytest.mark.parametrize(
    ("states", "types", "names"),
    [
        ([], [], ["empty", "g", "joining"]),
        (["Stable"], [], ["g"]),
        (["stable", " EMPTY "], [], ["empty", "g"]),
        (["PreparingRebalance"], ["Classic"], ["joining"]),
        ([], ["classic", "consumer"], ["empty", "g", "joining"]),
        ([], ["consumer"], []),
        (["Nonsense"], [], []),
        ([], ["nonsense"], []),
    ],
)
def test_groups_are_listed_by_state_and_type(groups, states, types, names):
    """Filters ignore case; a name that means nothing matches nothing."""
    assert [group.group_id for group in list_groups(groups, states, types)] == names


def test_a_listed_group_says_what_it_is(groups):
    """Id, protocol type, state and type."""
    assert list_groups(groups)[:2] == [
        ListedGroup(group_id="empty", protocol_type="", state="Empty", type="classic"),
        ListedGroup(group_id="g", protocol_type="consumer", state="Stable", type="classic"),
    ]
