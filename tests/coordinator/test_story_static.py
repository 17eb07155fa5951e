"""Stories of static members (KIP-345): restart without a rebalance, fencing of former selves."""

import pytest
from story import (
    DELAY_MS,
    NEW_MEMBER_MS,
    RANGE,
    RANGE_AND_STICKY,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    STICKY_AND_RANGE,
    TOPIC,
    Story,
    created,
    join_refused,
    joined,
    member,
    subscription,
    sync_refused,
    synced,
    written,
)

from anabranch.coordinator.group import commands as c
from anabranch.model.errors import ErrorCode

FENCED = ErrorCode.FENCED_INSTANCE_ID
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


def static_pair(**changes) -> tuple[Story, str, str]:
    """A Stable group of the instances i and j, of which i leads."""
    story = Story()
    story.join("a", group_instance_id="i", **changes)
    story.join("b", group_instance_id="j", **changes)
    story.wait(2 * DELAY_MS)
    story.sync("j-2", 1, group_instance_id="j")
    story.sync("i-1", 1, {"i-1": b"I", "j-2": b"J"}, group_instance_id="i")
    return story, "i-1", "j-2"


def static(instance: str, metadata: bytes = RANGE[0][1]):
    return {
        "member_id": instance,
        "group_instance_id": instance.split("-")[0],
        "metadata": metadata,
    }


def test_a_static_member_joins_without_asking_for_an_id():
    """Its instance id is identity enough: no MEMBER_ID_REQUIRED, the id is made of the instance."""
    story = Story()

    story.join("a", group_instance_id="i", requires_known_member_id=True).gives(
        durable=[created()],
        timers={"i-1": NEW_MEMBER_MS, "join": DELAY_MS},
        group="PreparingRebalance 0 - *i-1+? initial,57000",
    )

    [step] = story.wait(DELAY_MS)
    told = c.JoinedMember(**static("i-1"))
    assert step.wakes == {"join a": joined("i-1", 1, leader_id="i-1", members=[told])}


def test_a_restarted_follower_costs_no_rebalance():
    """A new member id in the same generation, written so that it survives."""
    story, i, j = static_pair()

    story.join("b", group_instance_id="j", client_host="/10.0.0.9").gives(
        answer=joined("j-3", 1, leader_id=i),
        durable=[
            written(
                1,
                member(i, b"I", client_id="a", group_instance_id="i"),
                member("j-3", b"J", client_id="b", group_instance_id="j", client_host="/10.0.0.9"),
                at_ms=START_MS + 2 * DELAY_MS,
            )
        ],
        timers={j: None, "j-3": SESSION_MS},
        group="Stable 1 range *i-1=I j-3=J",
    )

    story.sync("j-3", 1, group_instance_id="j").gives(
        answer=synced(b"J"), timers={"j-3": SESSION_MS}, group="Stable 1 range *i-1=I j-3=J"
    )
    story.heartbeat(i, 1, "i").gives(
        answer=c.HeartbeatAnswer(), timers={i: SESSION_MS}, group="Stable 1 range *i-1=I j-3=J"
    )


def test_what_a_restarted_member_asks_for_is_new():
    """Client id, host and timeouts are those of the process that is there now."""
    story, i, j = static_pair()

    step = story.join(
        "b2",
        group_instance_id="j",
        client_host="/10.0.0.9",
        session_timeout_ms=7_000,
        rebalance_timeout_ms=90_000,
    )

    assert step.timers == {j: None, "j-3": 7_000}
    assert step.durable == [
        written(
            1,
            member(i, b"I", client_id="a", group_instance_id="i"),
            member(
                "j-3",
                b"J",
                client_id="b2",
                group_instance_id="j",
                client_host="/10.0.0.9",
                session_timeout_ms=7_000,
                rebalance_timeout_ms=90_000,
            ),
            at_ms=START_MS + 2 * DELAY_MS,
        )
    ]


def test_a_restarted_leader_is_told_to_skip_the_assignment():
    """KIP-814: it leads, hears who the members are, and does not assign again."""
    story, i, j = static_pair()

    story.join("a", group_instance_id="i", can_skip_assignment=True).gives(
        answer=joined(
            "i-3",
            1,
            leader_id="i-3",
            members=[c.JoinedMember(**static(j)), c.JoinedMember(**static("i-3"))],
            skip_assignment=True,
        ),
        durable=[
            written(
                1,
                member(j, b"J", client_id="b", group_instance_id="j"),
                member("i-3", b"I", client_id="a", group_instance_id="i"),
                at_ms=START_MS + 2 * DELAY_MS,
                leader_id="i-3",
            )
        ],
        timers={i: None, "i-3": SESSION_MS},
        group="Stable 1 range j-2=J *i-3=I",
    )


def test_a_restarted_leader_that_cannot_skip_is_not_told_that_it_leads():
    """It hears its former id as the leader's, so it syncs like a follower; yet it leads."""
    story, i, _j = static_pair()

    step = story.join("a", group_instance_id="i")

    assert step.answer == joined("i-3", 1, leader_id=i)
    assert step.group == "Stable 1 range j-2=J *i-3=I"
    story.join("a", "i-3", group_instance_id="i").gives(
        timers={"join": REBALANCE_MS}, group="PreparingRebalance 1 range j-2=J *i-3?=I"
    )


def test_a_restarted_follower_that_can_skip_has_nothing_to_skip():
    """Only a leader assigns."""
    story, i, _ = static_pair()

    step = story.join("b", group_instance_id="j", can_skip_assignment=True)

    assert step.answer == joined("j-3", 1, leader_id=i)


def test_the_former_self_of_an_instance_is_fenced_everywhere():
    """Heartbeat, sync, join, leave and commit with the old member id, as FENCED_INSTANCE_ID."""
    story, _, j = static_pair()
    story.join("b", group_instance_id="j")

    story.heartbeat(j, 1, "j").fails(FENCED)
    story.sync(j, 1, group_instance_id="j").fails(FENCED)
    story.join("b", j, group_instance_id="j").fails(FENCED, member_id=j)
    story.leave((j, "j")).fails_each(FENCED)
    story.commit(3, j, 1, group_instance_id="j").fails(FENCED)
    assert story.shard.offsets("g") == {}


def test_the_former_self_without_its_instance_id_is_unknown():
    """A client that does not say that it is static is just somebody who is not there."""
    story, _, j = static_pair()
    story.join("b", group_instance_id="j")

    story.heartbeat(j, 1).fails(UNKNOWN)
    story.commit(3, j, 1).fails(UNKNOWN)


def test_an_instance_that_nobody_knows_is_unknown():
    """A member id alone does not make somebody that instance."""
    story, i, _ = static_pair()

    story.heartbeat(i, 1, "k").fails(UNKNOWN)
    story.sync(i, 1, group_instance_id="k").fails(UNKNOWN)
    story.join("a", i, group_instance_id="k").fails(UNKNOWN, member_id=i)
    story.commit(3, i, 1, group_instance_id="k").fails(UNKNOWN)


def test_a_static_member_may_leave_its_instance_id_out():
    """Clients of versions before static membership send heartbeats without it."""
    story, i, _ = static_pair()

    story.heartbeat(i, 1).gives(
        answer=c.HeartbeatAnswer(), timers={i: SESSION_MS}, group="Stable 1 range *i-1=I j-2=J"
    )


def test_a_static_member_that_rejoins_under_its_own_id_is_a_member_like_any_other():
    """A follower without news gets its generation; with news it starts a rebalance."""
    story, i, j = static_pair()

    story.join("b", j, group_instance_id="j").gives(
        answer=joined(j, 1, leader_id=i),
        timers={j: SESSION_MS},
        group="Stable 1 range *i-1=I j-2=J",
    )
    story.join("b", j, group_instance_id="j", protocols=RANGE_AND_STICKY).gives(
        timers={"join": REBALANCE_MS}, group="PreparingRebalance 1 range *i-1=I j-2?=J"
    )


def test_an_instance_that_comes_back_with_other_topics_starts_a_rebalance():
    """Its assignment would not have them; Kafka does not look (KAFKA-12759)."""
    story, _i, j = static_pair()
    more = (("range", subscription(TOPIC, "payments")),)

    story.join("b", group_instance_id="j", protocols=more).gives(
        timers={j: None, "j-3": SESSION_MS, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range *i-1=I j-3?=J",
    )


def test_an_instance_that_comes_back_with_the_same_topics_in_other_words_does_not():
    """Order, version and user data (owned partitions, say) are no reason."""
    story, _i, _ = static_pair(protocols=(("range", subscription("x", "y")),))

    step = story.join(
        "b", group_instance_id="j", protocols=(("range", subscription("y", "x", version=3)),)
    )

    assert step.answer.error is ErrorCode.NONE
    assert step.group == "Stable 1 range *i-1=I j-3=J"


def test_an_instance_of_another_kind_of_group_is_not_looked_into():
    """Connect's metadata is not a subscription, whatever it looks like."""
    story = Story()
    kind = {"protocol_type": "connect", "group_instance_id": "i"}
    [w] = story.joined("w", protocols=(("v1", subscription("x")),), **kind)
    story.sync(w, 1, {w: b"W"})

    step = story.join("w", protocols=(("v1", subscription("y")),), **kind)

    assert step.group == "Stable 1 v1 *i-2=W"


def test_an_instance_that_would_change_the_protocol_starts_a_rebalance():
    """The assignment belongs to the protocol that was chosen."""
    story = Story()
    story.join("a", group_instance_id="i", protocols=RANGE_AND_STICKY)
    story.join("b", group_instance_id="j", protocols=STICKY_AND_RANGE)
    story.wait(2 * DELAY_MS)
    story.sync("i-1", 1, {"i-1": b"I", "j-2": b"J"})
    story.sync("j-2", 1)

    story.join("a", group_instance_id="i", protocols=STICKY_AND_RANGE).gives(
        timers={"i-1": None, "i-3": SESSION_MS, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range j-2=J *i-3?=I",
    )


def test_an_instance_with_more_protocols_but_the_same_choice_resumes():
    """What it could do as well is remembered, what is written is the choice."""
    story, i, _ = static_pair()

    step = story.join("b", group_instance_id="j", protocols=RANGE_AND_STICKY)

    assert step.answer == joined("j-3", 1, leader_id=i)
    assert step.durable[0].group.members["j-3"].protocols == RANGE
    assert story.group is not None
    assert story.group.members["j-3"].protocols == RANGE_AND_STICKY


def test_an_instance_that_comes_back_before_the_assignment_starts_the_rebalance_over():
    """The leader may already assign to the former id; whoever waits is told, the former fenced."""
    story = Story()
    story.join("a", group_instance_id="i")
    story.join("b", group_instance_id="j")
    story.join("d")
    story.wait(2 * DELAY_MS)
    story.sync("j-2", 1)
    story.sync("d-3", 1)

    story.join("b", group_instance_id="j").gives(
        wakes={
            "sync j-2": sync_refused(FENCED),
            "sync d-3": sync_refused(ErrorCode.REBALANCE_IN_PROGRESS),
        },
        timers={
            "j-2": None,
            "j-4": SESSION_MS,
            "sync": None,
            "d-3": SESSION_MS,
            "join": REBALANCE_MS,
        },
        group="PreparingRebalance 1 range *i-1 d-3 j-4?",
    )


def test_a_leading_instance_that_comes_back_before_the_assignment_leads_on():
    """Under its new id."""
    story = Story()
    story.join("a", group_instance_id="i")
    story.join("b")
    story.wait(2 * DELAY_MS)

    step = story.join("a", group_instance_id="i")

    assert step.group == "PreparingRebalance 1 range b-2 *i-3?"


def test_an_instance_that_comes_back_during_a_rebalance_takes_the_place_in_the_queue():
    """The former self's parked join is fenced, the new one completes the rebalance."""
    story, i, _j = static_pair()
    story.join("a", i, group_instance_id="i")

    story.join("a", group_instance_id="i").gives(
        wakes={"join a'": join_refused(FENCED, i)},
        timers={i: None, "i-4": SESSION_MS},
        group="PreparingRebalance 1 range j-2=J *i-4?=I",
    )

    step = story.join("b", group_instance_id="j")
    told = [c.JoinedMember(**static("i-4")), c.JoinedMember(**static("j-5"))]
    assert step.wakes == {
        "join a''": joined("i-4", 2, leader_id="i-4", members=told),
        "join b'": joined("j-5", 2, leader_id="i-4"),
    }


def test_an_instance_that_comes_back_behind_the_barrier_is_not_expired_there():
    """It is as new as its former self was, and waits as long, whatever its session timeout."""
    story = Story(initial_rebalance_delay_ms=60_000)
    story.join("a", group_instance_id="i")

    story.join("a", group_instance_id="i").gives(
        wakes={"join a": join_refused(FENCED, "i-1")},
        timers={"i-1": None, "i-2": NEW_MEMBER_MS},
        group="PreparingRebalance 0 - *i-2+? initial,0",
    )

    assert story.wait(2 * SESSION_MS) == []


def test_an_instance_that_has_not_synced_yet_comes_back_to_a_stable_group():
    """Nobody waits for the sync of its former self any more."""
    story = Story()
    story.join("a", group_instance_id="i")
    story.join("b", group_instance_id="j")
    story.wait(2 * DELAY_MS)
    story.sync("i-1", 1, {"i-1": b"I", "j-2": b"J"})
    assert story.group is not None

    step = story.join("b", group_instance_id="j")

    assert step.timers == {"j-2": None, "sync": None, "j-3": SESSION_MS}
    assert step.group == "Stable 1 range *i-1=I j-3=J"


def test_a_static_member_is_kept_though_it_does_not_rejoin():
    """It may be restarting: the generation begins with it, and another one leads."""
    story, i, j = static_pair()
    story.join("b", j, group_instance_id="j", protocols=RANGE_AND_STICKY)

    *_, step = story.live(REBALANCE_MS, i)

    assert step.wakes["join b'"].leader_id == j
    assert [m.member_id for m in step.wakes["join b'"].members] == [i, j]
    assert step.group == "CompletingRebalance 2 range i-1!=I *j-2!=J"
    assert step.timers == {"join": None, "sync": REBALANCE_MS, i: SESSION_MS, j: SESSION_MS}


def test_if_no_static_member_rejoins_the_rebalance_waits_on():
    """They are kept until their sessions end; then the group is empty."""
    story = Story()
    story.join("a", group_instance_id="i")
    [_, b] = story.joined("b")
    story.sync("i-1", 1, {"i-1": b"I"})
    story.sync(b, 1)
    story.leave(b)

    *_, step = story.live(REBALANCE_MS, "i-1")
    step.gives(timers={"join": REBALANCE_MS}, group="PreparingRebalance 1 range *i-1=I")

    [step] = story.wait(SESSION_MS)
    step.gives(
        durable=[written(2, at_ms=story.now_ms)],
        timers={"i-1": None, "join": None},
        group="Empty 2 -",
    )


def test_a_wait_for_static_members_without_a_rebalance_timeout_does_not_spin():
    """Asked for 0 ms, they are looked for once a second until their sessions end."""
    story = Story(initial_rebalance_delay_ms=0)
    zero = {"rebalance_timeout_ms": 0}
    story.join("a", group_instance_id="i", **zero)
    story.join("b", group_instance_id="j", **zero)
    story.fire()
    story.sync("i-1", 1, {"i-1": b"I", "j-2": b"J"})
    story.sync("j-2", 1)
    story.leave(("", "j"))
    story.fire().gives(timers={"join": 1_000}, group="PreparingRebalance 1 range *i-1=I")

    steps = story.wait(SESSION_MS)

    assert 5 <= len(steps) <= 11
    assert story.shard.groups["g"].state.value == "Empty"


def test_a_static_member_that_is_not_heard_from_is_removed_like_any_other():
    """Its session timeout is how long it may be away."""
    story, i, j = static_pair()

    *_, step = story.live(SESSION_MS, i)

    step.gives(timers={j: None, "join": REBALANCE_MS}, group="PreparingRebalance 1 range *i-1=I")
    story.join("b", group_instance_id="j").gives(
        timers={"j-3": NEW_MEMBER_MS}, group="PreparingRebalance 1 range *i-1=I j-3+?"
    )


def test_each_restart_has_an_id_of_its_own():
    """So that every former self is fenced."""
    story, _, _ = static_pair()

    ids = [story.join("b", group_instance_id="j").answer.member_id for _ in range(3)]

    assert ids == ["j-3", "j-4", "j-5"]
    for former in ids[:2]:
        story.heartbeat(former, 1, "j").fails(FENCED)


@pytest.mark.parametrize("changes", [{"protocols": ()}, {"protocol_type": "connect"}])
def test_an_instance_that_shares_no_protocol_is_refused_and_fences_nobody(changes):
    """The former self goes on."""
    story, _, j = static_pair()

    story.join("b", group_instance_id="j", **changes).fails(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    assert story.heartbeat(j, 1, "j").answer == c.HeartbeatAnswer()


def test_a_rolling_restart_of_all_instances_is_one_generation():
    """Every instance restarts, leader and followers: nobody rejoins, assignments stay."""
    story = Story()
    names = ["i", "j", "k"]
    for name in names:
        story.join(name, group_instance_id=name)
    story.wait(2 * DELAY_MS)
    for member_id in ("j-2", "k-3"):
        story.sync(member_id, 1)
    story.sync("i-1", 1, {"i-1": b"I", "j-2": b"J", "k-3": b"K"})

    for name in names:
        story.wait(2_000)
        answer = story.join(name, group_instance_id=name, can_skip_assignment=True).answer
        assert answer.generation_id == 1
        got = story.sync(answer.member_id, 1, group_instance_id=name).answer
        assert got == synced(name.upper().encode())

    assert story.group is not None
    assert story.group.state.value == "Stable"
    assert story.group.leader_id == "i-4"
