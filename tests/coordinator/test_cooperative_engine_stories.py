"""What the engine machine has found, told once more in small."""

from typing import Any

import pytest
from consumer_story import INTERVAL_MS
from test_consumer_ranges import join, settle, shared

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
