"""Stories of members that leave: one, many, pending ones, by instance id."""

from story import (
    REBALANCE_MS,
    SESSION_MS,
    Story,
    join_refused,
    joined,
    left,
    sync_refused,
    written,
)

from anabranch.model.errors import ErrorCode

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID


def test_a_member_that_leaves_makes_the_others_rejoin():
    """At once, and it is unknown from then on."""
    story = Story()
    _a, b = story.stable("a", "b")

    story.leave(b).gives(
        answer=left((b, None, NONE)),
        timers={b: None, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range *a-1=A",
    )
    story.heartbeat(b, 1).fails(UNKNOWN)


def test_a_leader_that_leaves_is_followed_by_another():
    """The next one leads until the rebalance decides."""
    story = Story()
    a, b = story.stable("a", "b")

    story.leave(a).gives(
        answer=left((a, None, NONE)),
        timers={a: None, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range *b-2=B",
    )
    step = story.join("b", b)
    assert step.wakes == {"join b'": joined(b, 2, leader_id=b, members=[b])}


def test_the_last_member_leaves_an_empty_group():
    """Written at once."""
    story = Story()
    [a] = story.stable("a")

    story.leave(a).gives(
        answer=left((a, None, NONE)),
        durable=[written(2, at_ms=story.now_ms)],
        timers={a: None, "join": None},
        group="Empty 2 -",
    )


def test_many_leave_with_one_request_and_one_rebalance():
    """Each has an answer of its own; who is named twice has left the first time."""
    story = Story()
    _a, b, d = story.stable("a", "b", "d")

    story.leave(b, "z-9", d, b, "").gives(
        answer=left(
            (b, None, NONE),
            ("z-9", None, UNKNOWN),
            (d, None, NONE),
            (b, None, UNKNOWN),
            ("", None, UNKNOWN),
        ),
        timers={b: None, d: None, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range *a-1=A",
    )


def test_whoever_waits_and_leaves_is_answered():
    """A parked SyncGroup is refused as a parked JoinGroup is; the others rejoin."""
    story = Story()
    a, b, d = story.joined("a", "b", "d")
    story.sync(b, 1)
    story.sync(d, 1)

    story.leave(b).gives(
        answer=left((b, None, NONE)),
        wakes={
            "sync b-2": sync_refused(UNKNOWN),
            "sync d-3": sync_refused(ErrorCode.REBALANCE_IN_PROGRESS),
        },
        timers={b: None, "sync": None, "join": REBALANCE_MS, d: SESSION_MS},
        group="PreparingRebalance 1 range *a-1 d-3",
    )

    story.join("a", a)
    story.leave(a).gives(
        answer=left((a, None, NONE)),
        wakes={"join a'": join_refused(UNKNOWN)},
        timers={a: None},
        group="PreparingRebalance 1 range *d-3",
    )


def test_a_pending_member_can_leave():
    """It is forgotten; a Stable group does not rebalance for it."""
    story = Story()
    story.stable("a")
    story.join("p", requires_known_member_id=True)

    story.leave("p-2").gives(
        answer=left(("p-2", None, NONE)),
        timers={"p-2": None},
        group="Stable 1 range *a-1=A",
    )


def test_a_pending_member_that_leaves_an_empty_group_leaves_it_empty():
    """No rebalance of nobody, with an instance id or without."""
    story = Story()
    story.join("p", requires_known_member_id=True)
    story.join("q", requires_known_member_id=True)

    story.leave("p-1", ("q-2", "i")).gives(
        answer=left(("p-1", None, NONE), ("q-2", "i", NONE)),
        timers={"p-1": None, "q-2": None},
        group="Empty 0 -",
    )


def test_a_pending_member_of_a_group_that_has_become_empty_can_leave_or_expire():
    """The group stays as it is, in the generation it has."""
    story = Story()
    [a] = story.stable("a")
    story.join("p", requires_known_member_id=True)
    story.join("q", requires_known_member_id=True)
    story.leave(a)
    story.fire().gives(
        durable=[written(2, at_ms=story.now_ms)],
        timers={"join": None},
        group="Empty 2 - (p-2) (q-3)",
    )

    story.leave("p-2").gives(
        answer=left(("p-2", None, NONE)), timers={"p-2": None}, group="Empty 2 - (q-3)"
    )
    [step] = story.wait(SESSION_MS)
    step.gives(timers={"q-3": None}, group="Empty 2 -")


def test_a_pending_member_that_leaves_completes_the_rebalance():
    """It was the last one awaited."""
    story = Story()
    [a] = story.stable("a")
    story.join("p", requires_known_member_id=True)
    story.join("a", a)

    story.leave("p-2").gives(
        answer=left(("p-2", None, NONE)),
        wakes={"join a'": joined(a, 2, leader_id=a, members=[a])},
        timers={"p-2": None, "join": None, "sync": REBALANCE_MS, a: SESSION_MS},
        group="CompletingRebalance 2 range *a-1!=A",
    )


def test_a_static_member_is_removed_by_its_instance_id():
    """How an administrator removes one: no member id, and the answer shows none."""
    story = Story()
    story.join("a", group_instance_id="i")
    story.joined("b")

    story.leave(("", "i"), ("", "i"), ("", "nobody")).gives(
        answer=left(("", "i", NONE), ("", "i", UNKNOWN), ("", "nobody", UNKNOWN)),
        timers={"i-1": None, "sync": None, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range *b-2",
    )


def test_a_static_member_leaves_under_its_own_member_id_only():
    """A former self of the instance is fenced; without instance id the member id is enough."""
    story = Story()
    [a] = story.stable("a", group_instance_id="i")

    story.leave((a + "x", "i")).fails_each(FENCED)
    story.leave((a, "other")).fails_each(UNKNOWN)
    story.leave(a).gives(
        answer=left((a, None, NONE)),
        durable=[written(2, at_ms=story.now_ms)],
        timers={a: None, "join": None},
        group="Empty 2 -",
    )


def test_nobody_can_leave_a_group_that_is_not_there():
    """The answer is each member's, not the request's."""
    story = Story()

    story.leave("a-1", ("b-1", "i")).gives(
        answer=left(("a-1", None, UNKNOWN), ("b-1", "i", UNKNOWN)), group="none"
    )


def test_the_empty_group_id_is_refused():
    """Before anything is looked up."""
    Story(group_id="").leave("a-1").fails(ErrorCode.INVALID_GROUP_ID)
