"""Stories of members that join: the barrier, the initial delay, the choice of a protocol."""

import pytest
from story import (
    DELAY_MS,
    NEW_MEMBER_MS,
    RANGE,
    RANGE_AND_STICKY,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    STICKY,
    STICKY_AND_RANGE,
    Story,
    created,
    join_refused,
    joined,
    left,
    member,
    synced,
    written,
)

from anabranch.model.errors import ErrorCode


def test_first_member_waits_out_the_initial_delay_and_leads():
    """One consumer alone: created, parked for the delay, generation 1, and its own assignment."""
    story = Story()

    story.join("a").gives(
        durable=[created()],
        timers={"a-1": NEW_MEMBER_MS, "join": DELAY_MS},
        group="PreparingRebalance 0 - *a-1+? initial,57000",
    )

    assert story.wait(DELAY_MS - 1) == []

    [step] = story.wait(1)
    step.gives(
        wakes={"join a": joined("a-1", 1, leader_id="a-1", members=["a-1"])},
        timers={"join": None, "sync": REBALANCE_MS, "a-1": SESSION_MS},
        group="CompletingRebalance 1 range *a-1!",
    )

    story.sync("a-1", 1, {"a-1": b"A"}).gives(
        answer=synced(b"A"),
        durable=[written(1, member("a-1", b"A"), at_ms=START_MS + DELAY_MS)],
        timers={"sync": None, "a-1": SESSION_MS},
        group="Stable 1 range *a-1=A",
    )


def test_nobody_is_answered_before_everybody_has_joined():
    """Three consumers at once are one generation, and only the leader hears who the others are."""
    story = Story()
    story.join("a")

    story.join("b").gives(
        timers={"b-2": NEW_MEMBER_MS},
        group="PreparingRebalance 0 - *a-1+? b-2+? initial,57000 more",
    )

    story.join("c").gives(
        timers={"c-3": NEW_MEMBER_MS},
        group="PreparingRebalance 0 - *a-1+? b-2+? c-3+? initial,57000 more",
    )

    [step] = story.wait(DELAY_MS)
    step.gives(
        timers={"join": DELAY_MS},
        group="PreparingRebalance 0 - *a-1+? b-2+? c-3+? initial,54000",
    )

    [step] = story.wait(DELAY_MS)
    step.gives(
        wakes={
            "join a": joined("a-1", 1, leader_id="a-1", members=["a-1", "b-2", "c-3"]),
            "join b": joined("b-2", 1, leader_id="a-1"),
            "join c": joined("c-3", 1, leader_id="a-1"),
        },
        timers={
            "join": None,
            "sync": REBALANCE_MS,
            "a-1": SESSION_MS,
            "b-2": SESSION_MS,
            "c-3": SESSION_MS,
        },
        group="CompletingRebalance 1 range *a-1! b-2! c-3!",
    )


def test_the_initial_delay_is_extended_up_to_the_rebalance_timeout():
    """With somebody new in every slice it still ends at the first one's rebalance timeout."""
    story = Story()
    story.join("a", rebalance_timeout_ms=10_000)
    waited_ms = []
    for name in "bcde":
        story.join(name)
        began_ms = story.now_ms
        [step] = story.wait(next_timer_ms(story))
        waited_ms.append(story.now_ms - began_ms)

    assert waited_ms == [3_000, 3_000, 3_000, 1_000]
    assert sorted(step.wakes) == ["join a", "join b", "join c", "join d", "join e"]
    assert story.now_ms == START_MS + 10_000


def test_a_rebalance_timeout_shorter_than_the_delay_is_not_extended():
    """Then there is nothing left to extend by."""
    story = Story()
    story.join("a", rebalance_timeout_ms=1_000).gives(
        durable=[created()],
        timers={"a-1": NEW_MEMBER_MS, "join": DELAY_MS},
        group="PreparingRebalance 0 - *a-1+? initial,0",
    )
    story.join("b", rebalance_timeout_ms=1_000)

    [step] = story.wait(DELAY_MS)

    assert sorted(step.wakes) == ["join a", "join b"]
    story.sync("b-2", 1)
    story.sync("a-1", 1, {"a-1": b"A"}).gives(
        answer=synced(b"A"),
        wakes={"sync b-2": synced(b"")},
        durable=[
            written(
                1,
                member("a-1", b"A", rebalance_timeout_ms=1_000),
                member("b-2", b"", rebalance_timeout_ms=1_000),
                at_ms=START_MS + DELAY_MS,
            )
        ],
        timers={"sync": None, "a-1": SESSION_MS, "b-2": SESSION_MS},
        group="Stable 1 range *a-1=A b-2",
    )


def test_newcomers_of_an_earlier_delay_do_not_extend_a_later_one():
    """Each first generation of an empty group looks for newcomers anew."""
    story = Story()
    story.stable("a", "b", rebalance_timeout_ms=1_000)
    story.leave("a-1", "b-2")
    story.join("c")

    [step] = story.wait(DELAY_MS)

    assert list(step.wakes) == ["join c"]


def test_without_an_initial_delay_the_generation_begins_at_once():
    """A delay of 0 is a timer that is due now; newcomers do not make it fire for ever."""
    story = Story(initial_rebalance_delay_ms=0)
    story.join("a").gives(
        durable=[created()],
        timers={"a-1": NEW_MEMBER_MS, "join": 0},
        group="PreparingRebalance 0 - *a-1+? initial,60000",
    )
    story.join("b")

    extended, completed = story.wait(0)

    assert extended.group == "PreparingRebalance 0 - *a-1+? b-2+? initial,60000"
    assert sorted(completed.wakes) == ["join a", "join b"]


def test_a_new_member_is_told_its_id_first():
    """KIP-394: MEMBER_ID_REQUIRED, then the same client joins with the id and is a member."""
    story = Story()

    story.join("a", requires_known_member_id=True).gives(
        answer=join_refused(ErrorCode.MEMBER_ID_REQUIRED, "a-1"),
        durable=[created()],
        timers={"a-1": SESSION_MS},
        group="Empty 0 - (a-1)",
    )

    story.join("a", "a-1", requires_known_member_id=True).gives(
        timers={"a-1": NEW_MEMBER_MS, "join": DELAY_MS},
        group="PreparingRebalance 0 - *a-1+? initial,57000",
    )


def test_a_pending_member_that_never_comes_is_forgotten_with_its_session():
    """An id that was told and not used lasts for one session timeout."""
    story = Story()
    story.join("a", requires_known_member_id=True)

    [step] = story.wait(SESSION_MS)

    step.gives(timers={"a-1": None}, group="Empty 0 -")
    story.join("a", "a-1").fails(ErrorCode.UNKNOWN_MEMBER_ID, member_id="a-1", group="Empty 0 -")


def test_a_rebalance_waits_for_a_pending_member():
    """Everybody has rejoined, but somebody was told an id: its join completes the rebalance."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("c", requires_known_member_id=True).gives(
        answer=join_refused(ErrorCode.MEMBER_ID_REQUIRED, "c-3"),
        timers={"c-3": SESSION_MS},
        group="Stable 1 range *a-1=A b-2=B (c-3)",
    )
    story.join("a", a).gives(
        timers={"join": REBALANCE_MS},
        group="PreparingRebalance 1 range *a-1?=A b-2=B (c-3)",
    )
    story.join("b", b).gives(group="PreparingRebalance 1 range *a-1?=A b-2?=B (c-3)")

    story.join("c", "c-3").gives(
        wakes={
            "join a'": joined(a, 2, leader_id=a, members=[a, b, "c-3"]),
            "join b'": joined(b, 2, leader_id=a),
            "join c": joined("c-3", 2, leader_id=a),
        },
        timers={
            "join": None,
            "sync": REBALANCE_MS,
            a: SESSION_MS,
            b: SESSION_MS,
            "c-3": SESSION_MS,
        },
        group="CompletingRebalance 2 range *a-1!=A b-2!=B c-3!",
    )


def test_a_pending_member_that_expires_completes_the_rebalance():
    """Nobody waits longer for it than its session timeout."""
    story = Story()
    [a] = story.stable("a")
    story.join("b", requires_known_member_id=True)
    story.join("a", a).gives(
        timers={"join": REBALANCE_MS}, group="PreparingRebalance 1 range *a-1?=A (b-2)"
    )

    step = story.wait(SESSION_MS)[-1]

    step.gives(
        wakes={"join a'": joined(a, 2, leader_id=a, members=[a])},
        timers={"b-2": None, "join": None, "sync": REBALANCE_MS, a: SESSION_MS},
        group="CompletingRebalance 2 range *a-1!=A",
    )


def test_the_initial_delay_is_waited_out_though_a_pending_member_expires():
    """Before the first generation there may always be more to come."""
    story = Story(initial_rebalance_delay_ms=20_000)
    story.join("b", requires_known_member_id=True)
    story.join("a")

    [step] = story.wait(SESSION_MS)

    step.gives(timers={"b-1": None}, group="PreparingRebalance 0 - *a-2+? initial,40000")


def test_a_pending_id_does_not_belong_to_a_static_member():
    """Static members are never pending, so an id with an instance id is somebody else's."""
    story = Story()
    story.join("a", requires_known_member_id=True)

    story.join("a", "a-1", group_instance_id="i").fails(
        ErrorCode.UNKNOWN_MEMBER_ID, member_id="a-1", group="Empty 0 - (a-1)"
    )


def test_a_join_that_is_asked_again_supersedes_the_earlier_one():
    """The client gave up on its connection and asks again: both are answered, once each."""
    story = Story()
    story.join("a")

    story.join("a", "a-1").gives(
        wakes={"join a": join_refused(ErrorCode.REBALANCE_IN_PROGRESS, "a-1")},
        group="PreparingRebalance 0 - *a-1+? initial,57000",
    )

    [step] = story.wait(DELAY_MS)
    assert step.wakes == {"join a'": joined("a-1", 1, leader_id="a-1", members=["a-1"])}


def test_a_new_member_is_not_waited_with_for_more_than_five_minutes():
    """A client may be gone while its JoinGroup is parked; if not, it is told to join anew."""
    story = Story()
    [a] = story.stable("a", rebalance_timeout_ms=2 * NEW_MEMBER_MS)
    story.join("b")

    [step] = story.live(NEW_MEMBER_MS, a)

    step.gives(
        wakes={"join b": join_refused(ErrorCode.UNKNOWN_MEMBER_ID)},
        timers={"b-2": None},
        group="PreparingRebalance 1 range *a-1=A",
    )


def test_members_can_leave_before_the_first_generation():
    """With nobody left the delay ends in an empty group, one generation on."""
    story = Story()
    story.join("a")

    story.leave("a-1").gives(
        answer=left(("a-1", None, ErrorCode.NONE)),
        wakes={"join a": join_refused(ErrorCode.UNKNOWN_MEMBER_ID)},
        timers={"a-1": None},
        group="PreparingRebalance 0 - initial,57000",
    )

    [step] = story.wait(DELAY_MS)
    step.gives(
        durable=[written(1, at_ms=START_MS + DELAY_MS)], timers={"join": None}, group="Empty 1 -"
    )


def test_who_comes_when_all_have_left_again_may_be_of_another_kind():
    """The protocol type is that of the members, and there are none."""
    story = Story()
    story.join("a")
    story.leave("a-1")

    story.join("w", protocol_type="connect", protocols=(("compatible", b"x"),)).gives(
        timers={"w-2": NEW_MEMBER_MS},
        group="PreparingRebalance 0 - *w-2+? initial,57000 more",
    )

    story.wait(2 * DELAY_MS)
    assert story.answers["join w"] == joined(
        "w-2",
        1,
        leader_id="w-2",
        members=["w-2"],
        protocol=("compatible", b"x"),
        protocol_type="connect",
    )


def test_the_protocol_that_most_members_prefer_is_chosen():
    """Each member votes for the first of its protocols that all support."""
    story = Story()
    story.join("a", protocols=RANGE_AND_STICKY)
    story.join("b", protocols=STICKY_AND_RANGE)
    story.join("c", protocols=(("other", b""), *STICKY_AND_RANGE))
    story.wait(2 * DELAY_MS)

    assert story.answers["join a"] == joined(
        "a-1", 1, leader_id="a-1", members=["a-1", "b-2", "c-3"], protocol=STICKY[0]
    )
    assert story.answers["join b"] == joined("b-2", 1, leader_id="a-1", protocol=STICKY[0])


def test_the_leader_decides_a_tied_vote_though_it_came_later():
    """The first member is static and away; the second leads and its choice counts."""
    story = Story()
    story.join("a", protocols=STICKY_AND_RANGE, group_instance_id="i")
    story.join("b", protocols=RANGE_AND_STICKY)
    story.wait(2 * DELAY_MS)
    assert story.answers["join b"].protocol_name == "sticky"
    story.sync("i-1", 1)
    story.sync("b-2", 1)

    story.join("b", "b-2", protocols=(("range", b"news"), *STICKY))
    story.live(REBALANCE_MS, "i-1")

    answer = story.answers["join b'"]
    assert (answer.leader_id, answer.protocol_name) == ("b-2", "range")
    assert [told.member_id for told in answer.members] == ["i-1", "b-2"]

    # It leads on, though it is not the first member, as long as it rejoins.
    story.sync("b-2", 2)
    story.sync("i-1", 2)
    story.join("b", "b-2", protocols=RANGE_AND_STICKY)
    story.join("a", "i-1", protocols=RANGE_AND_STICKY, group_instance_id="i")
    assert story.answers["join b''"].leader_id == "b-2"


def test_the_leader_decides_a_tied_vote():
    """Two protocols with a vote each: the leader's first choice."""
    for first, chosen in ((RANGE_AND_STICKY, "range"), (STICKY_AND_RANGE, "sticky")):
        story = Story()
        story.join("a", protocols=first)
        story.join("b", protocols=first[::-1])
        story.wait(2 * DELAY_MS)
        assert story.answers["join b"].protocol_name == chosen


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": STICKY},
        {"protocols": ()},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ],
)
def test_who_shares_no_protocol_is_refused(changes):
    """INCONSISTENT_GROUP_PROTOCOL for a newcomer, a pending member and a member alike."""
    story = Story()
    story.join("p", requires_known_member_id=True)
    story.join("a")
    group = "PreparingRebalance 0 - *a-2+? (p-1) initial,57000"

    refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    story.join("b", **changes).fails(refused, group=group)
    story.join("p", "p-1", **changes).fails(refused, member_id="p-1", group=group)
    story.join("a", "a-2", **changes).fails(refused, member_id="a-2", group=group)


@pytest.mark.parametrize("changes", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_group_does_not_begin_without_a_protocol(changes):
    """Nothing is written of a group whose first member offers nothing."""
    story = Story()

    story.join("a", **changes).fails(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, group="none")


def test_a_member_id_in_a_group_that_does_not_exist_is_unknown():
    """The group may have been deleted meanwhile: the client starts over without an id."""
    story = Story()

    story.join("a", "a-1").fails(ErrorCode.UNKNOWN_MEMBER_ID, member_id="a-1", group="none")


def test_a_member_id_that_the_group_does_not_know_is_unknown():
    """Also in an empty group."""
    story = Story()
    story.commit(1)

    story.join("a", "a-1").fails(ErrorCode.UNKNOWN_MEMBER_ID, member_id="a-1", group="Empty 0 -")


def test_the_empty_group_id_is_refused():
    """A group needs a name to be joined."""
    story = Story(group_id="")

    story.join("a").fails(ErrorCode.INVALID_GROUP_ID)


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_session_timeouts_have_limits(session_timeout_ms):
    """group.min.session.timeout.ms and group.max.session.timeout.ms, both inclusive."""
    story = Story()

    story.join("a", session_timeout_ms=session_timeout_ms).fails(
        ErrorCode.INVALID_SESSION_TIMEOUT, group="none"
    )


@pytest.mark.parametrize("session_timeout_ms", [6_000, 1_800_000])
def test_session_timeouts_at_the_limits_are_fine(session_timeout_ms):
    """The limits themselves can be asked for."""
    story = Story()

    step = story.join("a", session_timeout_ms=session_timeout_ms)

    assert step.group.startswith("PreparingRebalance")


def test_a_group_that_only_had_offsets_gets_members():
    """A simple group becomes one that is known by a record of its own."""
    story = Story()
    story.commit(5)

    story.join("a").gives(
        durable=[created()],
        timers={"a-1": NEW_MEMBER_MS, "join": DELAY_MS},
        group="PreparingRebalance 0 - *a-1+? initial,57000",
    )
    assert story.shard.offsets("g")


def next_timer_ms(story: Story) -> int:
    deadline_ms = story.timers.deadline_ms(("join", "g"))
    assert deadline_ms is not None
    return deadline_ms - story.now_ms


def test_protocols_are_kept_byte_for_byte():
    """Metadata is opaque: whatever a client sends is what the leader gets."""
    story = Story()
    odd = bytes(range(256))
    story.join("a", protocols=(("range", odd),))
    story.wait(DELAY_MS)

    assert story.answers["join a"].members[0].metadata == odd
    assert RANGE[0][1] != odd
