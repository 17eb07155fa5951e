"""Stories of groups that are full: group.max.size."""

from story import REBALANCE_MS, SESSION_MS, Story, join_refused, joined

from anabranch.model.errors import ErrorCode

FULL = ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_full_group_takes_no_newcomer():
    """In every state, and a refused newcomer changes nothing."""
    story = Story(max_size=2)
    story.join("a")
    story.join("b")
    story.join("c").fails(FULL, group="PreparingRebalance 0 - *a-1+? b-2+? initial,57000 more")

    story.wait(6_000)
    story.join("c").fails(FULL, group="CompletingRebalance 1 range *a-1! b-2!")
    story.join("c", requires_known_member_id=True).fails(FULL)

    story.sync("b-2", 1)
    story.sync("a-1", 1, {"a-1": b"A", "b-2": b"B"})
    story.join("c", group_instance_id="i").fails(FULL, group="Stable 1 range *a-1=A b-2=B")
    story.join("c", requires_known_member_id=True).fails(FULL)


def test_members_of_a_full_group_may_rejoin():
    """They have their place, in every state."""
    story = Story(max_size=2)
    a, b = story.stable("a", "b")

    story.join("a", a).gives(
        timers={"join": REBALANCE_MS}, group="PreparingRebalance 1 range *a-1?=A b-2=B"
    )
    step = story.join("b", b)
    assert step.group == "CompletingRebalance 2 range *a-1!=A b-2!=B"
    assert story.join("b", b).answer == joined(b, 2, leader_id=a)


def test_a_member_that_waits_in_a_full_rebalance_may_ask_again():
    """It is one of those that were first."""
    story = Story(max_size=1)
    story.join("a")

    story.join("a", "a-1").gives(
        wakes={"join a": join_refused(ErrorCode.REBALANCE_IN_PROGRESS, "a-1")},
        group="PreparingRebalance 0 - *a-1+? initial,57000",
    )


def test_a_pending_member_that_finds_the_group_full_is_forgotten():
    """Ids are told to more than there is room for; who joins first stays."""
    story = Story(max_size=1)
    story.join("p", requires_known_member_id=True)
    story.join("q", requires_known_member_id=True)
    story.join("p", "p-1")

    story.join("q", "q-2").gives(
        answer=join_refused(FULL),
        timers={"q-2": None},
        group="PreparingRebalance 0 - *p-1+? initial,57000",
    )


def test_a_pending_member_that_is_turned_away_is_not_awaited_any_more():
    """The rebalance completes without it."""
    story = Story(max_size=2)
    [a] = story.stable("a")
    story.join("q", requires_known_member_id=True)
    story.join("b")
    story.join("a", a).gives(group="PreparingRebalance 1 range *a-1?=A b-3+? (q-2)")

    story.join("q", "q-2").gives(
        answer=join_refused(FULL),
        wakes={
            "join a'": joined(a, 2, leader_id=a, members=[a, "b-3"]),
            "join b": joined("b-3", 2, leader_id=a),
        },
        timers={
            "q-2": None,
            "join": None,
            "sync": REBALANCE_MS,
            a: SESSION_MS,
            "b-3": SESSION_MS,
        },
        group="CompletingRebalance 2 range *a-1!=A b-3!",
    )


def test_with_a_lower_limit_the_first_to_rejoin_stay():
    """After a restart with a lower limit the group rebalances; the last one is turned away."""
    story = Story()
    a, b, d = story.stable("a", "b", "d")

    story.restart(max_size=2).gives(
        timers={a: SESSION_MS, b: SESSION_MS, d: SESSION_MS, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range *a-1=A b-2=B d-3=D",
    )
    story.join("d", d)
    story.join("b", b).gives(group="PreparingRebalance 1 range *a-1=A b-2?=B d-3?=D")

    story.join("a", a).gives(
        answer=join_refused(FULL),
        wakes={
            "join b'": joined(b, 2, leader_id=b, members=[b, d]),
            "join d'": joined(d, 2, leader_id=b),
        },
        timers={a: None, "join": None, "sync": REBALANCE_MS, b: SESSION_MS, d: SESSION_MS},
        group="CompletingRebalance 2 range *b-2!=B d-3!=D",
    )


def test_a_group_that_is_just_full_goes_on_after_a_restart():
    """The limit itself is allowed."""
    story = Story()
    a, b = story.stable("a", "b")

    story.restart(max_size=2).gives(
        timers={a: SESSION_MS, b: SESSION_MS}, group="Stable 1 range *a-1=A b-2=B"
    )


def test_a_former_self_is_fenced_rather_than_told_that_the_group_is_full():
    """Its instance has a place, but it is not the instance any more."""
    story = Story(max_size=1)
    [a] = story.stable("a", group_instance_id="i")
    story.join("a", group_instance_id="i")

    story.join("a", a, group_instance_id="i").fails(ErrorCode.FENCED_INSTANCE_ID, member_id=a)


def test_a_member_of_a_full_group_that_says_it_is_somebody_else_stays_a_member():
    """It is refused for that, but keeps its place."""
    story = Story(max_size=1)
    [a] = story.stable("a")

    story.join("a", a, group_instance_id="i").fails(
        ErrorCode.UNKNOWN_MEMBER_ID, member_id=a, group="Stable 1 range *a-1=A"
    )


def test_a_static_member_comes_back_to_a_full_group():
    """It takes its own place; Kafka refuses it."""
    story = Story(max_size=1)
    [a] = story.stable("a", group_instance_id="i")

    step = story.join("a", group_instance_id="i")
    assert step.answer == joined("i-2", 1, leader_id=a)
    assert step.group == "Stable 1 range *i-2=A"

    story.join("a", "i-2", group_instance_id="i")
    step = story.join("a", group_instance_id="i")
    assert step.group == "CompletingRebalance 3 range *i-4!"


def test_a_static_member_comes_back_while_a_full_group_rebalances():
    """The place is that of its former self, which waits."""
    story = Story(max_size=1)
    story.join("a", group_instance_id="i")

    step = story.join("a", group_instance_id="i")

    assert step.wakes == {"join a": join_refused(ErrorCode.FENCED_INSTANCE_ID, "i-1")}
    assert step.group == "PreparingRebalance 0 - *i-2+? initial,57000"
