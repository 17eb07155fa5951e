"""What the engine machine has found, told once more in small."""

from typing import Any

import pytest
from consumer_story import INTERVAL_MS
from cooperative_story import HIGH, LOW, ack
from engine_members import Member
from engine_oracle import Oracle
from engine_world import ALL_KEYS, GROUP, Commit, Told, World
from test_consumer_ranges import join, settle, shared

from anabranch.broker.deliveries import Deliveries
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.model.errors import ErrorCode
from anabranch.model.units import SLOT_COUNT


def epochs_of(story: Any, member_id: str) -> set[int]:
    return set(story.member(member_id).assigned.values())


@pytest.mark.parametrize("pause_ms", [0, 1_000])
def test_a_static_member_comes_back_to_its_ranges_at_a_new_epoch(pause_ms: int) -> None:
    """Fencing tokens grow: what its last self still does can be told from what it does now."""
    story = shared(t=1)
    join(story, "a", instance_id="i")
    join(story, "b")
    before = max(epochs_of(story, "a") | epochs_of(story, "b"))
    slots = {unit.slots for unit in story.member("a").assigned}
    story.wait(pause_ms)
    story.leave_for_a_while("a", "i")
    story.join("a2", instance_id="i", shares=True)
    settle(story)
    assert {unit.slots for unit in story.member("a2").assigned} == slots
    assert min(epochs_of(story, "a2")) > before


def test_a_static_member_that_comes_back_twice_at_once_waits_for_the_next_target() -> None:
    """The last target is too young for another one, and its epoch was its last self's."""
    story = shared(t=1)
    join(story, "a", instance_id="i")
    story.wait(INTERVAL_MS)
    story.leave_for_a_while("a", "i")
    story.join("a2", instance_id="i", shares=True)
    (before,) = epochs_of(story, "a2")
    story.leave_for_a_while("a2", "i")
    story.join("a3", instance_id="i", shares=True)
    assert epochs_of(story, "a3") == set()
    settle(story)
    (after,) = epochs_of(story, "a3")
    assert after > before


@pytest.mark.parametrize("pause_ms", [0, 1_000])
def test_a_static_member_that_shares_no_more_gets_whole_partitions(pause_ms: int) -> None:
    """The same instance comes back with another client, which knows nothing of key ranges."""
    story = shared(t=1)
    join(story, "a", instance_id="i")
    join(story, "b")
    story.wait(pause_ms)
    story.leave_for_a_while("a", "i")
    step = story.join("a2", instance_id="i")
    assert step.answer.error is ErrorCode.NONE
    settle(story)
    held = sum(unit.slots.end - unit.slots.first for unit in story.member("a2").assigned)
    assert held in (0, SLOT_COUNT)


def test_a_stock_member_waits_until_all_pieces_of_a_partition_are_free() -> None:
    """Whoever gave up its half first does not see a stock member work on a part."""
    story = shared(t=1)
    join(story, "a", "b")
    story.join("c")
    story.wait(INTERVAL_MS)
    client = story.clients["a"]
    for _ in range(2):
        story.send("a", client.epoch, owned=tuple(sorted(client.told)), shares=True)
        story.send("c", story.clients["c"].epoch, owned=())
    assert not story.member("a").assigned
    assert story.member("b").assigned or story.member("b").pending_revocation
    assert not story.member("c").assigned
    settle(story)
    held = sum(unit.slots.end - unit.slots.first for unit in story.member("c").assigned)
    assert held == SLOT_COUNT


# A broker that is only numbers, and a member ------------------------------------------------------


def world_with_a_member(keys: int = 8) -> tuple[World, Oracle, Member]:
    """One member has a partition with a record of each slot, and has read it all."""
    world = World(CooperativeSettings())
    oracle = Oracle(world)
    member = Member(world, oracle, "a")
    (log,) = world.logs.values()
    for key in ALL_KEYS[:keys]:
        log.append(key)
    for _ in range(2):
        member.beat()
        member.fetch(span=keys)
        while member.fetches:
            member.take_fetch(0)
    member.start(keys)
    return world, oracle, member


def test_what_is_withheld_is_done_in_all_ranges_that_are_asked_for() -> None:
    """A record of one range is not left out because those around it are done in another."""
    world, _, member = world_with_a_member()
    (place,) = world.logs
    acks = (ack(LOW, member.epoch, 0, (1, 6)), ack(HIGH, member.epoch, 0))
    world.commit(Commit("a", member.epoch, (Told(place, 0, acks),)))
    found = world.fetch("a", member.epoch, place, [LOW, HIGH], 0, 0, span=8)
    highs = {offset for offset, one in world.logs[place].records.items() if one.slot >= HIGH.first}
    assert {one.ident.offset for one in found.rows} >= highs
    found = world.fetch("a", member.epoch, place, [LOW], 0, 0, span=8)
    assert {one.ident.offset for one in found.rows} & set(range(1, 7)) == set()
    assert found.covered_offset == 8


def test_what_was_shown_in_an_earlier_ownership_does_not_count() -> None:
    """Since it has its ranges anew a member has seen what it was shown since then."""
    deliveries = Deliveries()
    deliveries.note(GROUP, bytes(16), 0, "a", 5, 100)
    deliveries.note(GROUP, bytes(16), 0, "a", 7, 30)
    assert deliveries.delivered(GROUP, bytes(16), 0, "a", 5) == 100
    assert deliveries.delivered(GROUP, bytes(16), 0, "a", 7) == 30


def test_what_the_broker_has_shown_before_it_was_started_nobody_knows() -> None:
    """Whoever has its ranges since then is believed as far as the log goes."""
    deliveries = Deliveries()
    deliveries.group_loaded(GROUP, 6)
    deliveries.note(GROUP, bytes(16), 0, "a", 6, 30)
    deliveries.note(GROUP, bytes(16), 0, "a", 7, 40)
    assert deliveries.delivered(GROUP, bytes(16), 0, "a", 6) is None
    assert deliveries.delivered(GROUP, bytes(16), 0, "a", 7) == 40


def test_what_was_done_before_the_broker_was_started_is_acknowledged_after_it() -> None:
    """The member goes on as if nothing had happened."""
    world, _, member = world_with_a_member()
    world.restart()
    while member.running:
        member.finish(0)
    member.commit()
    (place,) = world.logs
    assert world.committed(place) == 8
