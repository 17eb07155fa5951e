"""Stories of heartbeats and of members that are not heard from."""

import pytest
from story import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    Story,
    join_refused,
    joined,
    sync_refused,
    synced,
    written,
)

from anabranch.coordinator.group import commands as c
from anabranch.model.errors import ErrorCode

ALIVE = c.HeartbeatAnswer()
REBALANCING = c.HeartbeatAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)


def test_a_heartbeat_keeps_a_member_alive():
    """The session runs anew from each heartbeat."""
    story = Story()
    a, b = story.stable("a", "b")

    story.wait(SESSION_MS - 1)
    story.heartbeat(a, 1).gives(
        answer=ALIVE, timers={a: SESSION_MS}, group="Stable 1 range *a-1=A b-2=B"
    )

    [step] = story.wait(1)
    step.gives(timers={b: None, "join": REBALANCE_MS}, group="PreparingRebalance 1 range *a-1=A")


def test_a_member_that_is_not_heard_from_is_removed_and_fenced():
    """A paused consumer that wakes up after its session finds itself unknown."""
    story = Story()
    a, b = story.stable("a", "b")

    story.live(SESSION_MS, a)
    story.join("a", a)
    story.sync(a, 2, {a: b"AB"})

    story.heartbeat(b, 1).fails(ErrorCode.UNKNOWN_MEMBER_ID, group="Stable 2 range *a-1=AB")
    story.commit(7, b, 1).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    assert story.shard.offsets("g") == {}


def test_the_last_member_that_expires_leaves_an_empty_group():
    """Written empty, with the time from which its offsets expire."""
    story = Story()
    [a] = story.stable("a")

    [step] = story.wait(SESSION_MS)

    step.gives(
        durable=[written(2, at_ms=START_MS + DELAY_MS + SESSION_MS)],
        timers={a: None, "join": None},
        group="Empty 2 -",
    )


def test_before_the_assignment_heartbeats_are_fine():
    """Consumers start them as soon as they have joined."""
    story = Story()
    a, _ = story.joined("a", "b")

    story.heartbeat(a, 1).gives(
        answer=ALIVE,
        timers={a: SESSION_MS},
        group="CompletingRebalance 1 range *a-1! b-2!",
    )


def test_during_a_rebalance_a_heartbeat_says_so_and_keeps_alive():
    """Members that have rejoined and members that have not are told the same."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)

    for member_id in (a, b):
        story.heartbeat(member_id, 1).gives(
            answer=REBALANCING,
            timers={member_id: SESSION_MS},
            group="PreparingRebalance 1 range *a-1?=A b-2=B",
        )


@pytest.mark.parametrize("generation_id", [-1, 0, 2])
def test_a_heartbeat_of_another_generation_is_refused(generation_id):
    """And does not keep alive."""
    story = Story()
    [a] = story.stable("a")

    story.heartbeat(a, generation_id).fails(ErrorCode.ILLEGAL_GENERATION)


def test_somebody_new_is_in_no_generation_yet():
    """Neither heartbeat nor sync nor commit, even with the number of the present generation."""
    story = Story()
    story.stable("a")
    story.join("b")
    group = "PreparingRebalance 1 range *a-1=A b-2+?"

    story.heartbeat("b-2", 1).fails(ErrorCode.ILLEGAL_GENERATION, group=group)
    story.sync("b-2", 1).fails(ErrorCode.ILLEGAL_GENERATION, group=group)
    story.commit(9, "b-2", 1).fails(ErrorCode.ILLEGAL_GENERATION, group=group)


def test_a_heartbeat_of_nobody_is_refused():
    """In a group that is not there, that is empty, that has others; and from a pending member."""
    story = Story()
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    story.heartbeat("a-1", 0).fails(unknown, group="none")
    story.join("p", requires_known_member_id=True)
    story.heartbeat("p-1", 0).fails(unknown, group="Empty 0 - (p-1)")
    story.joined("a")
    story.heartbeat("z-9", 1).fails(unknown)


def test_the_empty_group_id_is_refused():
    """Before anything is looked up."""
    Story(group_id="").heartbeat("a-1", 1).fails(ErrorCode.INVALID_GROUP_ID)


def test_a_member_whose_join_is_parked_is_not_expired():
    """It cannot send heartbeats while it waits; with its answer the session runs anew."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)

    steps = story.live(SESSION_MS + 1, b)
    assert [step.timers for step in steps] == [{}]

    story.join("b", b)
    assert story.timers.deadline_ms(("session", "g", a)) == story.now_ms + SESSION_MS


def test_a_member_whose_sync_is_parked_is_not_expired():
    """Until it is answered; then it has a whole session."""
    story = Story()
    a, b = story.joined("a", "b")
    story.sync(b, 1)
    story.live(3 * SESSION_MS, a)

    step = story.sync(a, 1, {b: b"B"})

    assert step.wakes == {"sync b-2": synced(b"B")}
    assert step.timers == {"sync": None, a: SESSION_MS, b: SESSION_MS}


def test_a_member_whose_sync_is_refused_has_a_whole_session_to_rejoin():
    """Its session may have run out while it was parked."""
    story = Story()
    a, b = story.joined("a", "b")
    story.sync(b, 1)
    story.live(2 * SESSION_MS, a)
    assert story.timers.deadline_ms(("session", "g", b)) is None

    step = story.join("d")

    assert step.wakes == {"sync b-2": sync_refused(ErrorCode.REBALANCE_IN_PROGRESS)}
    assert step.timers[b] == SESSION_MS


def test_a_member_that_expires_during_a_rebalance_is_not_awaited_any_more():
    """The others get their generation with the end of its session, not of the rebalance timeout."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)

    step = story.wait(SESSION_MS)[-1]

    step.gives(
        wakes={"join a'": joined(a, 2, leader_id=a, members=[a])},
        timers={b: None, "join": None, "sync": REBALANCE_MS, a: SESSION_MS},
        group="CompletingRebalance 2 range *a-1!=A",
    )


def test_a_member_that_expires_before_the_assignment_starts_the_rebalance_over():
    """The leader's assignment would give it something."""
    story = Story()
    a, b, d = story.joined("a", "b", "d")
    story.sync(d, 1)

    *_, step = story.live(SESSION_MS, a)

    step.gives(
        wakes={"sync d-3": sync_refused(ErrorCode.REBALANCE_IN_PROGRESS)},
        timers={b: None, "sync": None, "join": REBALANCE_MS, d: SESSION_MS},
        group="PreparingRebalance 1 range *a-1 d-3",
    )


def test_a_new_member_that_expires_during_the_initial_delay_is_told_to_join_anew():
    """The delay goes on for the others."""
    story = Story(initial_rebalance_delay_ms=3_600_000, new_member_join_timeout_ms=20_000)
    story.join("a")
    story.wait(1)
    story.join("b")

    [step] = story.wait(19_999)

    step.gives(
        wakes={"join a": join_refused(ErrorCode.UNKNOWN_MEMBER_ID)},
        timers={"a-1": None},
        group="PreparingRebalance 0 - *b-2+? initial,0 more",
    )


def test_timers_that_have_nothing_to_do_any_more_do_nothing():
    """Whatever is left of a timer by the time it fires is looked at anew."""
    story = Story()
    keys = [("join", "g"), ("sync", "g"), ("session", "g", "z-9")]
    for key in keys:
        story.submit(c.TimerFired(key=key)).gives(group="none")
    story.stable("a")
    for key in keys:
        story.submit(c.TimerFired(key=key)).gives(group="Stable 1 range *a-1=A")
