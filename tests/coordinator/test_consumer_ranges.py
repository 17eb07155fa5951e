"""Groups whose members share partitions by key range: grants, cuts, hand-overs, mixed company.

A unit is written with its slots, `t0[0-32768]`, unless it is the whole partition.
"""

import dataclasses
import random
from itertools import pairwise
from typing import Any

import pytest
from consumer_story import INTERVAL_MS, ConsumerStory, topic, units

from anabranch.coordinator.cooperative.unit_cuts import joined_units as joined
from anabranch.coordinator.group.consumer_ranges import owned_units, whole_partitions_of
from anabranch.coordinator.group.consumer_state import ConsumerMember
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

HALF = SLOT_COUNT // 2


def shareable(name: str, partitions: int) -> Any:
    return dataclasses.replace(topic(name, partitions), is_shareable=True)


def shared(**partitions: int) -> ConsumerStory:
    """A story whose topics may be shared."""
    story = ConsumerStory()
    story.topics(**{name: shareable(name, count) for name, count in partitions.items()})
    return story


def part(word: str, first: int, end: int) -> Unit:
    (unit,) = units(word)
    return unit._replace(slots=SlotRange(first, end))


def join(story: ConsumerStory, *member_ids: str, **fields: Any) -> None:
    for member_id in member_ids:
        story.join(member_id, **{"shares": True} | fields)
        settle(story)


def settle(story: ConsumerStory) -> None:
    """Everybody does what it is told, in the form in which it joined."""
    for _ in range(12):
        before = story.line
        story.wait(INTERVAL_MS)
        for member_id, client in sorted(story.clients.items()):
            member = story.group.members.get(member_id)
            if member is not None:
                client.owned = client.told
                story.send(
                    member_id,
                    client.epoch,
                    owned=tuple(sorted(client.owned)),
                    shares=member.shares,
                )
        if before == story.line:
            return
    raise AssertionError(f"not settled: {story.line}")


def owners(story: ConsumerStory) -> dict[Unit, str]:
    return {
        unit: member.member_id
        for member in story.group.members.values()
        for unit in joined(member.assigned)
    }


# Sharing ------------------------------------------------------------------------------------------


def test_two_members_share_one_partition() -> None:
    """The first has it all; the second gets its half when the first gave it up."""
    story = shared(t=1)
    join(story, "a")
    assert story.line == "Stable 2/2 a@2[t0]"
    story.join("b", shares=True)
    story.wait(INTERVAL_MS)
    assert story.group.target_epoch == 3
    step = story.beat("b", 3, "", shares=True)
    assert story.member("b").assigned == {}, "nothing is given before it is free"
    # The first is told to give up a half, and confirms it with what it has left, cut as it likes.
    step = story.beat("a", 2, "t0", shares=True)
    kept = joined(story.member("a").assigned)
    assert len(kept) == 1 and next(iter(kept)).slots != ALL_SLOTS
    assert step.answer.assignment == tuple(kept)
    step = story.send("a", 2, owned=tuple(kept), shares=True)
    assert step.answer.member_epoch == 3
    settle(story)
    halves = owners(story)
    assert sorted(halves) == [part("t0", 0, HALF), part("t0", HALF, SLOT_COUNT)]
    assert set(halves.values()) == {"a", "b"}
    assert story.group.state.value == "Stable"


def test_epochs_tell_since_when() -> None:
    """What a member kept has its first epoch, what it got later a later one; both are told."""
    story = shared(t=1)
    join(story, "a", "b")
    (kept,) = story.member("a").assigned.values()
    (given,) = story.member("b").assigned.values()
    assert kept < given
    step = story.join("b", shares=True)
    assert step.answer.epochs == tuple(story.member("b").assigned.values())
    assert step.answer.shares
    assert story.beat("a", story.member("a").member_epoch, shares=True).answer.epochs is None


def test_members_come_and_go() -> None:
    """Everything always has one owner; whoever leaves frees its ranges for the others."""
    story = shared(t=2)
    for member_id in ("a", "b", "c", "d", "e"):
        join(story, member_id)
        check_cover(story, "t", 2)
    loads = [
        sum(unit.slots.end - unit.slots.first for unit in member.assigned)
        for member in story.group.members.values()
    ]
    assert max(loads) <= 1.11 * 2 * SLOT_COUNT / 5
    for member_id in ("c", "a", "e"):
        story.leave(member_id)
        settle(story)
        check_cover(story, "t", 2)
    for member in story.group.members.values():
        assert len(whole_partitions_of(sorted(member.assigned))) == 1


def check_cover(story: ConsumerStory, name: str, partitions: int) -> None:
    """Ranges of different members have no slot in common, and leave none out."""
    for number in range(partitions):
        held = sorted(
            unit.slots for unit in owners(story) if unit[:2] == units(f"{name}{number}")[0][:2]
        )
        assert held[0].first == 0 and held[-1].end == SLOT_COUNT
        assert all(one.end == other.first for one, other in pairwise(held))


def test_topics_that_may_not_be_shared() -> None:
    """They are given whole, whatever the members would take."""
    story = ConsumerStory(t=1)
    join(story, "a", "b")
    assert sorted(map(len, (story.member(m).assigned for m in "ab"))) == [0, 1]
    assert story.group.held_ranges == 0
    story.topics(t=shareable("t", 1))
    settle(story)
    assert len(owners(story)) == 2
    story.topics(t=topic("t", 1))
    settle(story)
    assert len(set(owners(story).values())) == 1


def test_stock_members_have_whole_partitions() -> None:
    """A member that does not share gets a partition of its own, or waits until it is whole."""
    story = shared(t=3)
    join(story, "a", "b")
    join(story, "s", shares=False)
    stock = story.member("s")
    assert whole_partitions_of(sorted(stock.assigned)) and not stock.shares
    assert all(unit.slots == ALL_SLOTS for unit in joined(stock.assigned))
    check_cover(story, "t", 3)
    story.leave("s")
    settle(story)
    check_cover(story, "t", 3)


def test_a_member_may_change_its_mind() -> None:
    """Who shares no more gets whole partitions with the next target, and the other way round."""
    story = shared(t=1)
    join(story, "a", "b")
    assert story.group.sharing_members == 2
    epoch = story.member("b").member_epoch
    step = story.send("b", epoch, owned=tuple(story.member("b").assigned), shares=False)
    assert step.causes == ["subscription"]
    assert story.group.sharing_members == 1
    settle(story)
    for member in story.group.members.values():
        whole = whole_partitions_of(sorted(member.assigned))
        assert len(whole) == (1 if member.assigned else 0)


def test_a_lost_answer_is_repeated() -> None:
    """The epoch before is accepted with ranges that fit what the member was last given."""
    story = shared(t=1)
    join(story, "a", "b")
    (unit,) = joined(story.member("a").assigned)
    join(story, "c")
    settle(story)
    member = story.member("a")
    (kept,) = joined(member.assigned)
    assert kept.slots != unit.slots
    before = member.previous_member_epoch
    assert before < member.member_epoch
    for owned, is_taken in (((unit,), False), ((kept,), True)):
        answer = story.send("a", before, owned=owned, shares=True).answer
        assert (answer.error.name == "NONE") == is_taken


def test_who_falls_silent_while_draining() -> None:
    """The time to give ranges up is the rebalance timeout; then others get them."""
    story = shared(t=1)
    join(story, "a")
    story.join("b", shares=True)
    story.wait(INTERVAL_MS)
    story.beat("a", 2, "t0", shares=True)
    assert story.member("a").pending_revocation
    for _ in range(3):
        story.wait(20_000)
        story.beat("b", story.member("b").member_epoch, "", shares=True)
        if "a" in story.group.members:
            story.beat("a", 2, "t0", shares=True)
    story.wait(INTERVAL_MS)
    story.beat("b", story.member("b").member_epoch, "", shares=True)
    assert "a" not in story.group.members
    settle(story)
    assert list(owners(story)) == list(units("t0"))


def test_a_restart_keeps_ranges() -> None:
    """The journal has them; nobody is moved by it."""
    story = shared(t=1)
    join(story, "a", "b", "c")
    before = owners(story), story.line
    story.restart()
    settle(story)
    assert (owners(story), story.line) == before


def test_cuts_do_not_pile_up() -> None:
    """After many members came and went the last one has few units, one for each time it got some.

    They are not joined further: since when a member has a range is what it is fenced by.
    """
    story = shared(t=1)
    chance = random.Random(5)
    join(story, "m0", "m1")
    for number in range(2, 30):
        join(story, f"m{number}")
        gone = chance.choice(sorted(story.group.members))
        story.leave(gone)
        settle(story)
    story.leave(sorted(story.group.members)[0])
    settle(story)
    assert len(story.group.members) == 1
    (member,) = story.group.members.values()
    assert whole_partitions_of(sorted(member.assigned)) == list(units("t0"))
    assert len(member.assigned) == len(joined(member.assigned)) < 12


# What a member says it owns -----------------------------------------------------------------------


def member_with(*held: Unit, pending: tuple[Unit, ...] = ()) -> ConsumerMember:
    return ConsumerMember(
        member_id="m",
        assigned=dict.fromkeys(held, 1),
        pending_revocation=dict.fromkeys(pending, 1),
    )


def test_ranges_are_looked_up_among_the_units_held() -> None:
    """However the member cuts what it owns, it is found again; what it was not given stays."""
    low, mid, high = part("t0", 0, 10), part("t0", 10, 20), part("t0", 30, 40)
    member = member_with(low, high, pending=(mid,))
    assert owned_units(member, None) is None
    assert owned_units(member, ()) == ()
    assert owned_units(member, (part("t0", 0, 20),)) == (low, mid)
    assert owned_units(member, (part("t0", 5, 20),)) == (mid, part("t0", 5, 10))
    assert owned_units(member, units("t0")) == (
        low,
        high,
        mid,
        part("t0", 20, 30),
        part("t0", 40, SLOT_COUNT),
    )
    assert owned_units(member, (part("t1", 0, 20),)) == (part("t1", 0, 20),)
    assert owned_units(member_with(*units("t0 t1")), units("t1 t7")) == units("t1 t7")


def test_neighbours_since_the_same_epoch_are_one() -> None:
    """Only those: another epoch is another ownership, another partition another thing."""
    low, mid, high = part("t0", 0, 10), part("t0", 10, 20), part("t0", 20, 30)
    other = part("t1", 30, 40)
    assert joined({low: 1, mid: 1, high: 2, other: 2}) == {
        part("t0", 0, 20): 1,
        high: 2,
        other: 2,
    }


def test_only_whole_partitions_are_told_to_stock_members() -> None:
    """Pieces that make up a partition are one; parts of one are nothing."""
    pieces = (part("t0", 0, 10), part("t0", 10, SLOT_COUNT), part("t1", 0, 10))
    assert whole_partitions_of(pieces) == list(units("t0"))
    assert whole_partitions_of(units("t0 t1")) == units("t0 t1")


@pytest.mark.parametrize("seed", range(6))
def test_at_random(seed: int) -> None:
    """Members join, leave, fall silent and change their minds; no slot ever has two owners."""
    chance = random.Random(seed)
    story = shared(t=2)
    join(story, "m0")
    for number in range(1, 25):
        members = sorted(story.group.members)
        match chance.randrange(5):
            case 0 | 1:
                story.join(f"m{number}", shares=chance.random() < 0.7)
            case 2 if len(members) > 1:
                story.leave(chance.choice(members))
            case 3:
                story.restart()
            case _:
                for member_id in members:
                    client = story.clients.get(member_id)
                    if client is not None and chance.random() < 0.7:
                        client.owned = client.told
                        story.send(
                            member_id,
                            client.epoch,
                            owned=tuple(client.owned),
                            shares=story.member(member_id).shares,
                        )
        story.wait(chance.choice([1, INTERVAL_MS, 1000]))
        no_slot_twice(story)
    settle(story)
    check_cover(story, "t", 2)


def no_slot_twice(story: ConsumerStory) -> None:
    held = sorted(unit for member in story.group.members.values() for unit in member.held)
    for one, other in pairwise(held):
        assert one[:2] != other[:2] or one.slots.end <= other.slots.first
