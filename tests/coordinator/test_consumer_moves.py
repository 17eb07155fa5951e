"""Ranges that change hands because somebody outside says so: by load, or because one is stuck."""

import dataclasses
from typing import Any

import pytest
from consumer_story import ConsumerStory, Step, topic, units
from test_consumer_ranges import HALF, join, owners, part, settle, shared

from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_commands import MoveRanges, RangeMove
from anabranch.model.units import SLOT_COUNT, Unit

QUARTER = SLOT_COUNT // 4


def two() -> ConsumerStory:
    """Each of two members has half of a partition; a second topic belongs to a third alone."""
    story = shared(t=1)
    join(story, "a", "b")
    assert owners(story) == {part("t0", 0, HALF): "a", part("t0", HALF, SLOT_COUNT): "b"}
    return story


def move(
    story: ConsumerStory,
    *moves: tuple[Unit, str | None],
    cause: Cause = Cause.LOAD,
    epoch: int | None = None,
    group_id: str = "g",
) -> Step:
    return story.submit(
        MoveRanges(
            group_id=group_id,
            group_epoch=story.group.group_epoch if epoch is None else epoch,
            moves=tuple(RangeMove(*one) for one in moves),
            cause=cause,
        )
    )


def stays(story: ConsumerStory, *moves: tuple[Unit, str | None], **fields: Any) -> None:
    """Such a move changes nothing, and nobody is told."""
    before = story.line
    move(story, *moves, **fields).gives(group=before)


def loads(story: ConsumerStory) -> dict[str, int]:
    return {
        member_id: sum(unit.slots.end - unit.slots.first for unit in member.assigned)
        for member_id, member in story.group.members.items()
    }


# What a move is -----------------------------------------------------------------------------------


def test_a_range_goes_to_the_member_that_was_named() -> None:
    """A new epoch, what members hold in the new pieces, both targets, and nothing else yet."""
    story = two()
    low, moving = part("t0", 0, QUARTER), part("t0", QUARTER, HALF)
    high = part("t0", HALF, SLOT_COUNT)
    story.wait(1000)
    now = story.now_ms - 1_700_000_000_000
    move(story, (moving, "b")).gives(
        records=[
            "epoch 4",
            "current a 2->3 t0[0-16384]@2 t0[16384-32768]@2",
            "target a t0[0-16384]",
            "target b t0[16384-32768] t0[32768-65536]",
            f"targets 4 +{now}",
        ],
        timers={"target": None},
        group="Reconciling 4/4 a@3[t0[0-16384] t0[16384-32768]] b@3[t0[32768-65536]]",
    )
    assert story.beat("b", 3, "", shares=True).answer.error.name == "NONE"
    assert story.member("b").assigned == {high: 3}, "not before its owner gave it up"
    settle(story)
    assert owners(story) == {low: "a", moving: "b", high: "b"}
    assert story.member("b").assigned[moving] == 4, "a move is a new ownership"
    assert story.member("b").assigned[high] == 3, "what stays keeps its epoch"


@pytest.mark.parametrize("cause", [Cause.LOAD, Cause.STUCK])
def test_the_cause_is_told(cause: Cause) -> None:
    """Metrics count why groups were assigned anew."""
    story = two()
    assert move(story, (part("t0", 0, 5), "b"), cause=cause).causes == [cause.value]


def test_several_moves_are_one_target() -> None:
    """Later moves see what the earlier ones did; the epoch grows once."""
    story = two()
    move(
        story,
        (part("t0", 0, 10), "b"),
        (part("t0", HALF, HALF + 10), "a"),
        (part("t0", 5, 10), "a"),
    )
    settle(story)
    assert story.group.group_epoch == 4
    had = {unit.slots: owner for unit, owner in owners(story).items()}
    assert had[(0, 5)] == "b" and had[(HALF, HALF + 10)] == "a"
    assert loads(story) == {"a": HALF - 5 + 10, "b": HALF + 5 - 10}


def test_a_move_may_name_slots_of_several_members() -> None:
    """Everybody gives its part of them to the one that was named."""
    story = two()
    join(story, "c")
    move(story, (units("t0")[0], "c"))
    settle(story)
    assert loads(story) == {"a": 0, "b": 0, "c": SLOT_COUNT}


# Who gets it --------------------------------------------------------------------------------------


def test_without_a_target_it_goes_to_whoever_has_least() -> None:
    """By slots where nothing is known of their weight; never to its owner."""
    story = two()
    join(story, "c")
    least = min((slots, member_id) for member_id, slots in loads(story).items())[1]
    others = [member_id for member_id in "abc" if member_id != least]
    stuck = next(unit for unit, owner in owners(story).items() if owner == others[0])
    slot = part("t0", stuck.slots.first, stuck.slots.first + 1)
    move(story, (slot, None), cause=Cause.STUCK)
    settle(story)
    assert owners(story)[slot] == least
    # And from the one that has least to the second.
    mine = next(unit for unit, owner in owners(story).items() if owner == least)
    slot = part("t0", mine.slots.first, mine.slots.first + 1)
    second = min(others, key=lambda member_id: (loads(story)[member_id], member_id))
    move(story, (slot, None), cause=Cause.STUCK)
    settle(story)
    assert next(o for u, o in owners(story).items() if u.slots.first == slot.slots.first) == second


def test_without_a_target_weights_count_where_they_are_known() -> None:
    """Whoever has few heavy slots has more than whoever has many light ones."""
    story = two()
    join(story, "c")
    by_owner = {owner: unit for unit, owner in owners(story).items()}
    key = units("t0")[0][:2]
    for heavy, light in (("b", "c"), ("c", "b")):
        heavy_slot = by_owner[heavy].slots.end - 1
        story.surroundings.slot_weights = lambda group_id, slot=heavy_slot: {
            key: SlotWeights({slot: 10 * SLOT_COUNT})
        }
        slot = min(story.group.target("a")).slots.first
        move(story, (part("t0", slot, slot + 1), None))
        taken = story.group.target(light)
        assert any(unit.slots.first <= slot < unit.slots.end for unit in taken)
        settle(story)


def test_a_partition_of_which_nothing_is_known_counts_like_the_others() -> None:
    """Else whoever has it would seem to have nothing beside measured loads."""
    story = shared(t=3)
    join(story, "a", "b", "c")
    by_owner = {owner: unit for unit, owner in owners(story).items()}
    assert {unit.slots.end for unit in by_owner.values()} == {SLOT_COUNT}
    measured = {
        by_owner["a"][:2]: SlotWeights(base=1000),
        by_owner["c"][:2]: SlotWeights(base=2),
    }
    story.surroundings.slot_weights = lambda group_id: measured
    move(story, (by_owner["a"]._replace(slots=part("t0", 0, 1).slots), None))
    settle(story)
    assert loads(story) == {"a": SLOT_COUNT - 1, "b": SLOT_COUNT, "c": SLOT_COUNT + 1}


def test_with_nobody_else_nothing_moves() -> None:
    """One member keeps what is stuck."""
    story = shared(t=1)
    join(story, "a")
    stays(story, (part("t0", 0, 1), None), cause=Cause.STUCK)


# What is refused ----------------------------------------------------------------------------------


def test_what_was_decided_for_another_epoch() -> None:
    """The group has gone on, or waits for a target."""
    story = two()
    stays(story, (part("t0", 0, 10), "b"), epoch=2)
    stays(story, (part("t0", 0, 10), "b"), epoch=5)
    story.join("c", shares=True)
    story.join("d", shares=True)
    assert story.group.group_epoch > story.group.target_epoch
    stays(story, (part("t0", 0, 10), "b"))
    stays(story, (part("t0", 0, 10), "b"), epoch=story.group.target_epoch)


def test_topics_that_have_changed_meanwhile() -> None:
    """The new target that they call for comes first."""
    story = two()
    story.topics(t=dataclasses.replace(story.image.topics["t"], partitions=2))
    stays(story, (part("t0", 0, 10), "b"))


def test_groups_that_are_no_consumer_groups() -> None:
    """One that nobody knows has nothing to move."""
    story = two()
    stays(story, (part("t0", 0, 10), "b"), group_id="other")


def test_members_that_are_gone_or_take_no_ranges() -> None:
    """Nobody gets a part who did not say that it takes parts, nor of topics it does not want."""
    story = shared(t=2, u=1)
    join(story, "a", "b", topics="t")
    join(story, "c", topics="u")
    join(story, "s", shares=False, topics="t")
    mine = next(unit for unit, owner in owners(story).items() if owner == "a")
    some = mine._replace(slots=part("t0", mine.slots.first, mine.slots.first + 1).slots)
    for target in ("gone", "c", "s"):
        stays(story, (some, target))
    of_stock = next(unit for unit, owner in owners(story).items() if owner == "s")
    stays(story, (of_stock._replace(slots=part("t0", 0, 5).slots), "a"))
    stays(story, (of_stock, "a"))


def test_static_members_that_are_away() -> None:
    """They keep what they have, and get nothing before they are back."""
    story = shared(t=1)
    join(story, "a")
    join(story, "b", instance_id="i")
    epoch = story.member("b").member_epoch
    story.send("b", -2, instance_id="i")
    assert epoch > 0 and story.member("b").member_epoch == -2
    mine = next(unit for unit, owner in owners(story).items() if owner == "a")
    slot = part("t0", mine.slots.first, mine.slots.first + 1)
    stays(story, (slot, "b"))
    stays(story, (slot, None))


def test_topics_that_are_not_shared_or_not_there() -> None:
    """A topic that may not be cut is not, whoever asks."""
    story = ConsumerStory(t=1)
    join(story, "a", "b")
    stays(story, (part("t0", 0, 10), "b"), (part("t0", 0, 10), "a"))
    story = two()
    stays(story, (part("x0", 0, 10), "b"), (part("t7", 0, 10), "b"))
    assert topic("t", 1).is_shareable is False


def test_what_is_there_already() -> None:
    """A range that its owner shall have, and one that goes and comes back, are no moves."""
    story = two()
    stays(story, (part("t0", 0, 10), "a"))
    stays(story, (part("t0", 0, 10), "b"), (part("t0", 0, 10), "a"))
    move(story, (part("t0", 0, 10), "b"))
    settle(story)
    stays(story, (part("t0", 0, 10), "b"))


# What comes after ---------------------------------------------------------------------------------


def test_a_member_that_falls_silent_while_it_gives_up() -> None:
    """The range comes back to those who are left."""
    story = two()
    move(story, (part("t0", 0, 10), "b"))
    story.leave("a")
    settle(story)
    assert loads(story) == {"b": SLOT_COUNT}


def test_a_restart_between_move_and_hand_over() -> None:
    """The target is in the journal: it goes on where it was."""
    story = two()
    move(story, (part("t0", 0, 10), "b"))
    story.restart()
    settle(story)
    assert loads(story) == {"a": HALF - 10, "b": HALF + 10}
