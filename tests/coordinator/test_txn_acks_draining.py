"""Ranges and open transactions: nobody gets a range before it is known what of it is done.

Members come, go and give up ranges as in `test_consumer_ranges`, and have acknowledged records in
transactions meanwhile.
"""

from typing import Any

from consumer_story import GROUP, INTERVAL_MS, REBALANCE_MS, SESSION_MS, ConsumerStory, topic_id
from test_consumer_ranges import HALF, join, owners, settle, shared

from anabranch.coordinator.cooperative.commands import AbortTransactions
from anabranch.coordinator.cooperative.records import AckedRange, AcksForgotten, AcksPending
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.consumer_downgrade import with_tombstones
from anabranch.coordinator.group.consumer_draft import ConsumerDraft
from anabranch.coordinator.group.consumer_state import MemberState
from anabranch.coordinator.group.records import OffsetCommitted, OffsetPending, TransactionEnded
from anabranch.coordinator.runtime.result import Result
from anabranch.model.units import SLOT_COUNT, SlotRange

SLOTS = SlotRange(HALF + 100, HALF + 200)


def said(story: ConsumerStory, member_id: str, slots: SlotRange = SLOTS, producer: int = 7) -> None:
    """A member has acknowledged something of some slots in a transaction."""
    story.shard.replay(
        AcksPending(
            group_id=GROUP,
            topic_id=topic_id("t"),
            partition=0,
            producer_id=producer,
            member_id=member_id,
            producer_epoch=0,
            leader_epoch=0,
            acked=(AckedRange(slots, 5),),
        )
    )


def over(story: ConsumerStory, member_id: str, producer: int = 7) -> None:
    """The transaction has ended."""
    story.shard.replay(
        AcksForgotten(
            group_id=GROUP,
            topic_id=topic_id("t"),
            partition=0,
            producer_id=producer,
            member_id=member_id,
        )
    )


def units_of(story: ConsumerStory, member_id: str) -> list[tuple[int, int]]:
    member = story.group.members.get(member_id)
    return [] if member is None else sorted(tuple(unit.slots) for unit in member.assigned)


def one_with_all() -> ConsumerStory:
    story = shared(t=1)
    join(story, "a")
    return story


# Giving up ----------------------------------------------------------------------------------------


def test_a_range_that_was_given_up_waits_for_its_transaction() -> None:
    """Its next owner has everything else meanwhile, and this as soon as it is over."""
    story = one_with_all()
    said(story, "a")
    story.join("b", shares=True)
    settle(story)
    assert units_of(story, "b") == []
    assert story.member("b").state is MemberState.UNRELEASED_PARTITIONS
    assert units_of(story, "a") == [(0, HALF)]
    over(story, "a")
    story.wait(INTERVAL_MS)
    story.beat("b", story.member("b").member_epoch, "", shares=True)
    assert units_of(story, "b") == [(HALF, SLOT_COUNT)]


def test_ranges_that_no_transaction_touches_are_not_held_up() -> None:
    """What another partition, another group, or a neighbour has pending does not matter."""
    story = one_with_all()
    said(story, "a", SlotRange(HALF - 100, HALF))
    story.shard.replay(
        AcksPending(
            group_id="other",
            topic_id=topic_id("t"),
            partition=0,
            producer_id=8,
            member_id="a",
            producer_epoch=0,
            leader_epoch=0,
            acked=(AckedRange(SLOTS, 5),),
        )
    )
    join(story, "b")
    assert units_of(story, "b") == [(HALF, SLOT_COUNT)]


def test_who_gave_it_up_does_not_get_it_back_before() -> None:
    """It would do again what it has acknowledged, and both would count."""
    story = one_with_all()
    said(story, "a")
    story.join("b", shares=True)
    settle(story)
    step = story.send("b", -1)
    assert step.tasks == []
    settle(story)
    assert units_of(story, "a") == [(0, HALF)]
    over(story, "a")
    settle(story)
    assert units_of(story, "a") == [(0, HALF), (HALF, SLOT_COUNT)]


def test_a_member_keeps_what_it_has() -> None:
    """Its own transactions are no reason to take anything from it."""
    story = shared(t=1)
    join(story, "a", "b")
    for member_id in ("a", "b"):
        (slots,) = units_of(story, member_id)
        said(story, member_id, SlotRange(slots[0], slots[0] + 1), producer=int(slots[0]))
    before = owners(story)
    settle(story)
    assert owners(story) == before


def test_a_member_that_does_not_share_waits_too() -> None:
    """A stock member gets a partition when no transaction touches any part of it."""
    story = one_with_all()
    said(story, "a")
    story.join("s", shares=False)
    settle(story)
    step = story.send("a", -1)
    assert step.tasks == ["abort a 7"]
    settle(story)
    assert units_of(story, "s") == []
    over(story, "a")
    settle(story)
    assert units_of(story, "s") == [(0, SLOT_COUNT)]


def test_offsets_that_are_pending_hold_up_those_who_share() -> None:
    """They speak of all slots. Stock members ask for stable offsets, and need not wait."""
    for shares, expected in ((True, []), (False, [(0, SLOT_COUNT)])):
        story = shared(t=1)
        pending = OffsetCommitted(
            group_id=GROUP, topic="t", partition=0, value=c.CommittedOffset(offset=5)
        )
        story.shard.replay(OffsetPending(producer_id=7, producer_epoch=0, offset=pending))
        story.join("a", shares=shares)
        settle(story)
        assert units_of(story, "a") == expected
        story.shard.replay(
            TransactionEnded(producer_id=7, producer_epoch=0, coordinator_epoch=0, is_commit=False)
        )
        settle(story)
        assert units_of(story, "a") == [(0, SLOT_COUNT)]


# Going --------------------------------------------------------------------------------------------


def two_with_halves(**fields: Any) -> ConsumerStory:
    story = shared(t=1)
    join(story, "a")
    join(story, "b", **fields)
    said(story, "b", producer=7)
    said(story, "b", SlotRange(HALF, HALF + 1), producer=9)
    said(story, "a", SlotRange(0, 1), producer=8)
    return story


def test_who_leaves_has_its_transactions_aborted() -> None:
    """Those in which it acknowledged something of the group, and no others."""
    story = two_with_halves()
    assert story.send("b", -1).tasks == ["abort b 7 9"]
    settle(story)
    assert units_of(story, "a") == [(0, HALF)]
    over(story, "b", 7)
    settle(story)
    assert units_of(story, "a") == [(0, HALF)]
    over(story, "b", 9)
    settle(story)
    assert units_of(story, "a") == [(0, HALF), (HALF, SLOT_COUNT)]


def test_who_is_not_heard_from_has_its_transactions_aborted() -> None:
    """With the end of its session."""
    story = two_with_halves()
    tasks = []
    for _ in range(SESSION_MS // 5_000):
        for step in story.wait(5_000):
            tasks += step.tasks
        story.beat("a", story.member("a").member_epoch, shares=True)
    assert tasks == ["abort b 7 9"]
    assert "b" not in story.group.members


def test_who_does_not_give_up_in_time_has_its_transactions_aborted() -> None:
    """With the end of its rebalance timeout."""
    story = one_with_all()
    said(story, "a")
    story.join("b", shares=True)
    story.wait(INTERVAL_MS)
    tasks = []
    for _ in range(REBALANCE_MS // 5_000 + 1):
        for member_id in ("a", "b"):
            if member_id in story.group.members:
                story.beat(member_id, story.member(member_id).member_epoch, shares=True)
        for step in story.wait(5_000):
            tasks += step.tasks
    assert tasks == ["abort a 7"]
    assert "a" not in story.group.members


def test_who_leaves_for_a_while_has_its_transactions_aborted() -> None:
    """A static member; and who comes back as it gets nothing before they have ended."""
    story = two_with_halves(instance_id="i")
    assert story.send("b", -2, instance_id="i").tasks == ["abort b 7 9"]
    story.join("c", shares=True, instance_id="i")
    settle(story)
    assert units_of(story, "c") == []
    over(story, "b", 7)
    over(story, "b", 9)
    settle(story)
    assert units_of(story, "c") == [(HALF, SLOT_COUNT)]


def test_who_joins_again_has_its_transactions_aborted() -> None:
    """It starts over, and does not have what they touch before they have ended."""
    story = two_with_halves()
    step = story.join("b", shares=True)
    assert step.tasks == ["abort b 7 9"]
    assert units_of(story, "b") == []
    settle(story)
    assert units_of(story, "b") == []
    over(story, "b", 7)
    over(story, "b", 9)
    settle(story)
    assert units_of(story, "b") == [(HALF, SLOT_COUNT)]
    # Nothing is pending: it has what it had at once.
    step = story.join("b", shares=True)
    assert (step.tasks, units_of(story, "b")) == ([], [(HALF, SLOT_COUNT)])


def test_who_joins_again_while_it_gives_up() -> None:
    """What it owed and what it had: all that a transaction touches is gone from it."""
    story = one_with_all()
    said(story, "a")
    story.join("b", shares=True)
    story.wait(INTERVAL_MS)
    story.beat("a", story.member("a").member_epoch, "t0", shares=True)
    assert story.member("a").state is MemberState.UNREVOKED_PARTITIONS
    assert story.join("a", shares=True).tasks == ["abort a 7"]
    assert units_of(story, "a") == [(0, HALF)]
    settle(story)
    assert units_of(story, "b") == []
    over(story, "a")
    settle(story)
    assert units_of(story, "b") == [(HALF, SLOT_COUNT)]


def test_a_group_that_becomes_another_kind_aborts_them_too() -> None:
    """Whoever is left speaks the classic protocol; who is gone is gone all the same."""
    story = two_with_halves()
    draft = ConsumerDraft(story.group, story.shard.environment(GROUP), story.now_ms)
    draft.remove(story.member("b"))
    aborts = (AbortTransactions(group_id=GROUP, member_id="b", producers=((7, 0), (9, 0))),)
    assert with_tombstones(draft, Result()).tasks == aborts


def test_who_has_nothing_pending_goes_without_a_word() -> None:
    """Nobody's transaction is touched."""
    story = shared(t=1)
    join(story, "a", "b")
    assert story.send("b", -1).tasks == []
