"""Assignors that share partitions, by name and through the whole shard: votes, order, KIP-X."""

from itertools import pairwise

from consumer_story import ConsumerStory, names_of, units
from test_consumer_ranges import HALF, check_cover, join, owners, part, settle, shareable, shared

from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.cooperative.unit_cuts import ranges_by_partition
from anabranch.coordinator.group.consumer_describe import describe_consumer_group
from anabranch.model.errors import ErrorCode
from anabranch.model.units import SLOT_COUNT, Unit

THIRDS = [0, SLOT_COUNT // 3, SLOT_COUNT * 2 // 3, SLOT_COUNT]


def sharing(assignors: tuple[str, ...], **partitions: int) -> ConsumerStory:
    story = ConsumerStory(assignors=assignors)
    story.topics(**{name: shareable(name, count) for name, count in partitions.items()})
    return story


def assigned(story: ConsumerStory) -> dict[str, str]:
    """Whose slots are whose, in words, whatever the epochs."""
    return {
        member_id: names_of(
            Unit(*place, slots)
            for place, ranges in ranges_by_partition(member.assigned).items()
            for slots in ranges
        )
        for member_id, member in story.group.members.items()
    }


def used(story: ConsumerStory) -> str:
    environment = story.shard.environment(story.group_id)
    return describe_consumer_group(story.group, environment).assignor


# KIP-X's tables -----------------------------------------------------------------------------------


def test_five_members_on_three_partitions() -> None:
    """KIP-X's table for round robin: the fourth and fifth share with the first and second."""
    story = shared(t=3)
    join(story, "m1", "m2", "m3", "m4", "m5", topics="t", server_assignor="key-range-round-robin")
    assert assigned(story) == {
        "m1": f"t0[0-{HALF}]",
        "m4": f"t0[{HALF}-{SLOT_COUNT}]",
        "m2": f"t1[0-{HALF}]",
        "m5": f"t1[{HALF}-{SLOT_COUNT}]",
        "m3": "t2",
    }
    assert used(story) == "key-range-round-robin"


def test_five_members_on_two_and_three_partitions() -> None:
    """KIP-X's table for range: topic by topic, members in a row for each partition."""
    story = sharing(("uniform", "key-range-range"), t=2, u=3)
    join(story, "m1", "m2", "m3", "m4", "m5", topics="t,u")
    thirds = [f"t0[{first}-{end}]" for first, end in pairwise(THIRDS)]
    assert assigned(story) == {
        "m1": f"{thirds[0]} u0[0-{HALF}]",
        "m2": f"{thirds[1]} u0[{HALF}-{SLOT_COUNT}]",
        "m3": f"{thirds[2]} u1[0-{HALF}]",
        "m4": f"t1[0-{HALF}] u1[{HALF}-{SLOT_COUNT}]",
        "m5": f"t1[{HALF}-{SLOT_COUNT}] u2",
    }
    assert used(story) == "key-range-range"


def test_members_that_leave_them() -> None:
    """KIP-X's assignors share anew with every change; everything keeps having one owner."""
    story = shared(t=3)
    join(story, "m1", "m2", "m3", "m4", "m5", topics="t", server_assignor="key-range-round-robin")
    for gone in ("m2", "m5", "m1"):
        story.leave(gone)
        settle(story)
        check_cover(story, "t", 3)
    assert assigned(story) == {"m3": "t0 t2", "m4": "t1"}


# Which one it is ----------------------------------------------------------------------------------


def test_without_a_vote_it_is_line_cut() -> None:
    """A group in which nobody shares has the first one of the configuration."""
    story = shared(t=1)
    join(story, "a", shares=False)
    assert used(story) == "uniform"
    join(story, "b")
    assert used(story) == "line-cut"


def test_votes_for_assignors_that_cannot_share_do_not_count() -> None:
    """Where partitions are shared; one stock member would stop all others else."""
    story = shared(t=2)
    join(story, "a", "b")
    join(story, "s", shares=False, server_assignor="range")
    assert used(story) == "line-cut"
    assert story.group.held_ranges
    join(story, "c", server_assignor="key-range-range")
    assert used(story) == "key-range-range"


def test_a_vote_that_changes_the_assignor_is_a_cause() -> None:
    """As in Kafka; one that does not is none."""
    story = shared(t=1)
    join(story, "a", "b", "c")
    epochs = {member_id: story.member(member_id).member_epoch for member_id in "abc"}

    def vote(member_id: str, name: str) -> list[str]:
        owned = tuple(story.member(member_id).assigned)
        epoch = epochs[member_id]
        step = story.send(member_id, epoch, owned=owned, shares=True, server_assignor=name)
        return step.causes

    assert vote("a", "line-cut") == []
    assert vote("b", "uniform") == [], "nobody asks it while partitions are shared"
    assert vote("a", "key-range-range") == ["assignor"]
    settle(story)
    assert used(story) == "key-range-range"
    thirds = [f"t0[{first}-{end}]" for first, end in pairwise(THIRDS)]
    assert assigned(story) == dict(zip("abc", thirds, strict=True))


def test_unknown_names_are_refused() -> None:
    """The names that are offered are told."""
    story = shared(t=1)
    story.join("a", shares=True, server_assignor="by-moon").fails(
        ErrorCode.UNSUPPORTED_ASSIGNOR, "by-moon", "line-cut, key-range-round-robin"
    )


# Whole partitions ---------------------------------------------------------------------------------


def test_line_cut_gives_out_whole_partitions_as_uniform_does() -> None:
    """While nobody shares: the same targets, so that changing to it moves nothing."""
    story = ConsumerStory(t=4)
    join(story, "a", "b", shares=False)
    before = assigned(story)
    owned = tuple(story.member("a").assigned)
    epoch = story.member("a").member_epoch
    step = story.send("a", epoch, owned=owned, server_assignor="line-cut")
    assert step.causes == ["assignor"]
    settle(story)
    assert assigned(story) == before
    assert used(story) == "line-cut"


def test_the_others_give_out_whole_partitions_in_their_order() -> None:
    """Round robin in one circle over all topics; range topic by topic."""
    for name, shares in (
        ("key-range-round-robin", {"a": "t0 t2 u1", "b": "t1 u0"}),
        ("key-range-range", {"a": "t0 t1 u0", "b": "t2 u1"}),
    ):
        story = ConsumerStory(t=3, u=2)
        join(story, "a", "b", shares=False, server_assignor=name, topics="t,u")
        assert assigned(story) == shares
        assert used(story) == name
        story.topics(t=None)
        settle(story)
        assert assigned(story) == {"a": "u0", "b": "u1"}


def test_from_ranges_to_whole_partitions() -> None:
    """When the last one that shares is gone, whoever is left has partitions, and the vote stays."""
    story = shared(t=2)
    join(story, "a", "b", "c", topics="t", server_assignor="key-range-range")
    assert story.group.held_ranges
    story.leave("b")
    story.leave("c")
    epoch = story.member("a").member_epoch
    story.send("a", epoch, owned=tuple(story.member("a").assigned), shares=False)
    settle(story)
    assert assigned(story) == {"a": "t0 t1"}


# Weights ------------------------------------------------------------------------------------------


def test_line_cut_goes_by_weights_where_they_are_known() -> None:
    """After a load was measured, who joins next gets a share of it and not of the slots."""
    story = shared(t=1)
    join(story, "a")
    key = units("t0")[0][:2]
    heavy = dict.fromkeys(range(100), 1000)
    story.surroundings.slot_weights = lambda group_id: {key: SlotWeights(heavy)}
    join(story, "b")
    edges = {unit.slots.end for unit in owners(story)}
    assert min(edges) < 200, "half of the work is in the first hundred slots"
    assert sum(owner == "a" for owner in owners(story).values()) == 1


def test_kip_x_goes_by_width_whatever_the_weights() -> None:
    """That is how these are meant to be."""
    story = shared(t=1)
    key = units("t0")[0][:2]
    story.surroundings.slot_weights = lambda group_id: {key: SlotWeights({0: SLOT_COUNT})}
    join(story, "a", "b", server_assignor="key-range-range")
    assert owners(story) == {part("t0", 0, HALF): "a", part("t0", HALF, SLOT_COUNT): "b"}
