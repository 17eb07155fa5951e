"""Stories of SyncGroup: the leader's assignment, and those who never ask for theirs."""

import pytest
from story import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    Story,
    joined,
    member,
    sync_refused,
    synced,
    written,
)

from anabranch.model.errors import ErrorCode

STABLE_MS = START_MS + 2 * DELAY_MS


def test_a_follower_waits_for_the_leader():
    """Its request is parked until the leader brings the assignment."""
    story = Story()
    a, b = story.joined("a", "b")

    story.sync(b, 1).gives(timers={b: SESSION_MS}, group="CompletingRebalance 1 range *a-1! b-2~")

    story.wait(50)
    story.sync(a, 1, {a: b"A", b: b"B"}).gives(
        answer=synced(b"A"),
        wakes={"sync b-2": synced(b"B")},
        durable=[written(1, member(a, b"A"), member(b, b"B"), at_ms=STABLE_MS + 50)],
        timers={"sync": None, a: SESSION_MS, b: SESSION_MS},
        group="Stable 1 range *a-1=A b-2=B",
    )


def test_a_follower_may_come_after_the_leader():
    """Then its assignment is already there; the time to ask for it runs on until it does."""
    story = Story()
    a, b = story.joined("a", "b")

    story.sync(a, 1, {a: b"A", b: b"B"}).gives(
        answer=synced(b"A"),
        durable=[written(1, member(a, b"A"), member(b, b"B"), at_ms=STABLE_MS)],
        timers={a: SESSION_MS},
        group="Stable 1 range *a-1=A b-2!=B",
    )

    story.sync(b, 1).gives(
        answer=synced(b"B"),
        timers={b: SESSION_MS, "sync": None},
        group="Stable 1 range *a-1=A b-2=B",
    )


def test_what_the_leader_does_not_assign_is_empty_and_strangers_are_ignored():
    """An assignment for somebody who is not in the group goes nowhere."""
    story = Story()
    a, b = story.joined("a", "b")
    story.sync(b, 1)

    story.sync(a, 1, {a: b"A", "nobody-9": b"X"}).gives(
        answer=synced(b"A"),
        wakes={"sync b-2": synced(b"")},
        durable=[written(1, member(a, b"A"), member(b, b""), at_ms=STABLE_MS)],
        timers={"sync": None, a: SESSION_MS, b: SESSION_MS},
        group="Stable 1 range *a-1=A b-2",
    )


def test_assignments_stay_byte_for_byte():
    """Nothing is read from them and nothing is encoded anew."""
    story = Story()
    [a] = story.joined("a")
    odd = bytes(range(256)) * 3

    step = story.sync(a, 1, {a: odd})

    assert step.answer.assignment is odd


def test_in_a_stable_group_a_sync_is_answered_with_what_there_is():
    """The leader's second assignment changes nothing: the generation has one already."""
    story = Story()
    a, b = story.stable("a", "b")

    story.sync(a, 1, {a: b"X", b: b"Y"}).gives(
        answer=synced(b"A"), timers={a: SESSION_MS}, group="Stable 1 range *a-1=A b-2=B"
    )
    story.sync(b, 1, {a: b"X", b: b"Y"}).gives(
        answer=synced(b"B"), timers={b: SESSION_MS}, group="Stable 1 range *a-1=A b-2=B"
    )


def test_a_follower_cannot_assign():
    """Assignments of anybody but the leader are not looked at."""
    story = Story()
    a, b = story.joined("a", "b")

    story.sync(b, 1, {a: b"X", b: b"Y"}).gives(
        timers={b: SESSION_MS}, group="CompletingRebalance 1 range *a-1! b-2~"
    )
    story.sync(a, 1, {a: b"A", b: b"B"})

    assert story.answers["sync b-2"] == synced(b"B")


def test_a_sync_that_is_asked_again_supersedes_the_earlier_one():
    """Both are answered, once each."""
    story = Story()
    a, b = story.joined("a", "b")
    story.sync(b, 1)

    story.sync(b, 1).gives(
        wakes={"sync b-2": sync_refused(ErrorCode.REBALANCE_IN_PROGRESS)},
        timers={b: SESSION_MS},
        group="CompletingRebalance 1 range *a-1! b-2~",
    )

    assert story.sync(a, 1, {b: b"B"}).wakes == {"sync b-2'": synced(b"B")}


def test_during_a_rebalance_there_is_nothing_to_sync():
    """The member has to rejoin first."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)

    story.sync(b, 1).fails(
        ErrorCode.REBALANCE_IN_PROGRESS, group="PreparingRebalance 1 range *a-1?=A b-2=B"
    )


@pytest.mark.parametrize("generation_id", [-1, 0, 2])
def test_another_generation_is_refused(generation_id):
    """Also when the member is known, and in a Stable group."""
    story = Story()
    a, _ = story.joined("a", "b")

    story.sync(a, generation_id, {a: b"X"}).fails(
        ErrorCode.ILLEGAL_GENERATION, group="CompletingRebalance 1 range *a-1! b-2!"
    )
    story.sync(a, 1)
    story.sync(a, generation_id).fails(ErrorCode.ILLEGAL_GENERATION)


def test_who_is_not_a_member_is_refused():
    """A stranger, a pending member, and anybody in a group that is empty or not there."""
    story = Story()
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    story.sync("a-1", 0).fails(unknown, group="none")
    story.join("p", requires_known_member_id=True)
    story.sync("p-1", 0).fails(unknown, group="Empty 0 - (p-1)")
    story.joined("a")
    story.sync("z-9", 1).fails(unknown)
    story.sync("", 1).fails(unknown)


def test_the_empty_group_id_is_refused():
    """Before anything is looked up."""
    Story(group_id="").sync("a-1", 1).fails(ErrorCode.INVALID_GROUP_ID)


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_type": "connect"},
        {"protocol_name": "sticky"},
        {"protocol_type": "consumer", "protocol_name": ""},
    ],
)
def test_another_protocol_than_the_generation_has_is_refused(changes):
    """KIP-559: a client that understood something else must not go on with it."""
    story = Story()
    [a] = story.joined("a")

    story.sync(a, 1, {a: b"A"}, **changes).fails(
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL, group="CompletingRebalance 1 range *a-1!"
    )


def test_the_protocol_of_the_generation_is_accepted():
    """Type and name as they were answered."""
    story = Story()
    [a] = story.joined("a")

    step = story.sync(a, 1, {a: b"A"}, protocol_type="consumer", protocol_name="range")

    assert step.answer == synced(b"A")


def test_a_leader_that_never_assigns_is_removed_and_the_others_rejoin():
    """The sync timer ends the wait; those who waited are told to rejoin."""
    story = Story()
    a, b = story.joined("a", "b")
    story.sync(b, 1)

    *_, step = story.live(REBALANCE_MS, a)

    step.gives(
        wakes={"sync b-2": sync_refused(ErrorCode.REBALANCE_IN_PROGRESS)},
        timers={a: None, "sync": None, "join": REBALANCE_MS, b: SESSION_MS},
        group="PreparingRebalance 1 range *b-2",
    )
    story.join("b", b).gives(
        wakes={"join b'": joined(b, 2, leader_id=b, members=[b])},
        timers={"join": None, "sync": REBALANCE_MS, b: SESSION_MS},
        group="CompletingRebalance 2 range *b-2!",
    )


def test_a_follower_that_never_syncs_is_removed_from_a_stable_group():
    """It sends heartbeats, but it does not know what it owns."""
    story = Story()
    a, b, d = story.joined("a", "b", "d")
    story.sync(a, 1, {a: b"A", b: b"B", d: b"D"})
    story.sync(b, 1)

    [step] = story.live(REBALANCE_MS, a, b, d)

    step.gives(
        timers={d: None, "sync": None, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range *a-1=A b-2=B",
    )


def test_if_nobody_syncs_the_group_is_empty():
    """All members of the generation are removed, and none is left to rejoin."""
    story = Story()
    a, b = story.joined("a", "b")

    [step] = story.live(REBALANCE_MS, a, b)

    step.gives(
        durable=[written(2, at_ms=STABLE_MS + REBALANCE_MS)],
        timers={a: None, b: None, "sync": None, "join": None},
        group="Empty 2 -",
    )


def test_when_all_have_synced_nobody_is_removed():
    """The sync timer is gone with the last one."""
    story = Story()
    a, b = story.stable("a", "b")

    assert story.live(2 * REBALANCE_MS, a, b) == []
