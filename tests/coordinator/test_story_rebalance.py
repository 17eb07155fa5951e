"""Stories of rebalances: who rejoins, who does not, and who leads then."""

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
    TOPIC,
    Story,
    join_refused,
    joined,
    left,
    member,
    subscription,
    sync_refused,
    synced,
    written,
)

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.draft import join_timer
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard
from anabranch.model.errors import ErrorCode

REBALANCING = c.HeartbeatAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)
OTHER_TOPIC = (("range", subscription(TOPIC, "payments")),)


def test_a_newcomer_makes_the_others_rejoin():
    """A second consumer comes: the first hears of it by heartbeat, rejoins, and both go on."""
    story = Story()
    [a] = story.stable("a")

    story.join("b").gives(
        timers={"b-2": NEW_MEMBER_MS, "join": REBALANCE_MS},
        group="PreparingRebalance 1 range *a-1=A b-2+?",
    )

    story.heartbeat(a, 1).gives(
        answer=REBALANCING,
        timers={a: SESSION_MS},
        group="PreparingRebalance 1 range *a-1=A b-2+?",
    )

    story.join("a", a).gives(
        wakes={
            "join a'": joined(a, 2, leader_id=a, members=[a, "b-2"]),
            "join b": joined("b-2", 2, leader_id=a),
        },
        timers={"join": None, "sync": REBALANCE_MS, a: SESSION_MS, "b-2": SESSION_MS},
        group="CompletingRebalance 2 range *a-1!=A b-2!",
    )

    story.sync("b-2", 2).gives(
        timers={"b-2": SESSION_MS}, group="CompletingRebalance 2 range *a-1!=A b-2~"
    )

    story.sync(a, 2, {a: b"0", "b-2": b"1"}).gives(
        answer=synced(b"0"),
        wakes={"sync b-2": synced(b"1")},
        durable=[written(2, member(a, b"0"), member("b-2", b"1"), at_ms=story.now_ms)],
        timers={"sync": None, a: SESSION_MS, "b-2": SESSION_MS},
        group="Stable 2 range *a-1=0 b-2=1",
    )


def test_whoever_does_not_rejoin_in_time_is_removed():
    """The rebalance timeout ends the wait; the others are a generation without the missing one."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)

    *_, step = story.live(REBALANCE_MS, b)

    step.gives(
        wakes={"join a'": joined(a, 2, leader_id=a, members=[a])},
        timers={b: None, "join": None, "sync": REBALANCE_MS, a: SESSION_MS},
        group="CompletingRebalance 2 range *a-1!=A",
    )
    story.heartbeat(b, 2).fails(ErrorCode.UNKNOWN_MEMBER_ID)


def test_newcomers_extend_the_first_delay_only():
    """A rebalance of a group with members ends with its timeout, whoever else comes meanwhile."""
    story = Story()
    [a] = story.stable("a")
    story.join("b")
    story.join("d")

    *_, step = story.live(REBALANCE_MS, a)

    assert sorted(step.wakes) == ["join b", "join d"]
    assert step.group == "CompletingRebalance 2 range *b-2! d-3!"


def test_a_leader_that_does_not_rejoin_is_followed_by_one_that_did():
    """The first of those that rejoined leads, and is told who the members are."""
    story = Story()
    a, b, d = story.stable("a", "b", "d")
    story.join("d", d, protocols=OTHER_TOPIC)
    story.join("b", b)

    steps = story.live(REBALANCE_MS, a)

    steps[-1].gives(
        wakes={
            "join b'": joined(
                b,
                2,
                leader_id=b,
                members=[
                    b,
                    c.JoinedMember(member_id=d, group_instance_id=None, metadata=OTHER_TOPIC[0][1]),
                ],
            ),
            "join d'": joined(d, 2, leader_id=b),
        },
        timers={
            a: None,
            "join": None,
            "sync": REBALANCE_MS,
            b: SESSION_MS,
            d: SESSION_MS,
        },
        group="CompletingRebalance 2 range *b-2!=B d-3!=D",
    )


def test_if_nobody_rejoins_the_group_is_empty():
    """All gone at once: the group is written empty and starts over with whoever comes."""
    story = Story()
    a, b = story.stable("a", "b", rebalance_timeout_ms=5_000)
    story.join("c", requires_known_member_id=True)
    story.leave(a)

    [step] = story.wait(5_000)

    step.gives(
        durable=[written(2, at_ms=story.now_ms)],
        timers={b: None, "join": None},
        group="Empty 2 - (c-3)",
    )


def test_a_leader_that_rejoins_starts_a_rebalance():
    """It may know of partitions that the group does not have yet, though nothing else changed."""
    story = Story()
    a, _ = story.stable("a", "b")

    story.join("a", a).gives(
        timers={"join": REBALANCE_MS}, group="PreparingRebalance 1 range *a-1?=A b-2=B"
    )


def test_a_follower_that_asks_again_gets_the_generation_it_is_in():
    """It lost its answer, the group is Stable: no rebalance for that, but a sign of life."""
    story = Story()
    a, b = story.stable("a", "b")

    story.join("b", b).gives(
        answer=joined(b, 1, leader_id=a),
        timers={b: SESSION_MS},
        group="Stable 1 range *a-1=A b-2=B",
    )


def test_a_follower_with_news_starts_a_rebalance():
    """Other topics, or other protocols, concern everybody."""
    story = Story()
    a, b = story.stable("a", "b")

    story.join("b", b, protocols=OTHER_TOPIC).gives(
        timers={"join": REBALANCE_MS}, group="PreparingRebalance 1 range *a-1=A b-2?=B"
    )

    step = story.join("a", a)
    told = step.wakes["join a'"].members
    assert [m.metadata for m in told] == [RANGE[0][1], OTHER_TOPIC[0][1]]


@pytest.mark.parametrize("index", [0, 1])
def test_a_member_that_asks_again_before_the_assignment_gets_its_answer_again(index):
    """In CompletingRebalance leader and follower alike are told of the generation once more."""
    story = Story()
    ids = story.joined("a", "b")

    story.join("ab"[index], ids[index]).gives(
        answer=joined(ids[index], 1, leader_id=ids[0], members=ids if index == 0 else []),
        timers={ids[index]: SESSION_MS},
        group="CompletingRebalance 1 range *a-1! b-2!",
    )


def test_news_before_the_assignment_start_the_rebalance_over():
    """Those who wait for the assignment are told that there will be none."""
    story = Story()
    _, b, d = story.joined("a", "b", "d")
    story.sync(d, 1)

    story.join("b", b, protocols=OTHER_TOPIC).gives(
        wakes={"sync d-3": sync_refused(ErrorCode.REBALANCE_IN_PROGRESS)},
        timers={"sync": None, "join": REBALANCE_MS, d: SESSION_MS},
        group="PreparingRebalance 1 range *a-1 b-2? d-3",
    )


def test_a_newcomer_before_the_assignment_starts_the_rebalance_over():
    """The leader's assignment would not know the newcomer."""
    story = Story()
    a, b = story.joined("a", "b")
    story.sync(b, 1)

    story.join("d").gives(
        wakes={"sync b-2": sync_refused(ErrorCode.REBALANCE_IN_PROGRESS)},
        timers={"sync": None, "join": REBALANCE_MS, b: SESSION_MS, "d-3": NEW_MEMBER_MS},
        group="PreparingRebalance 1 range *a-1 b-2 d-3+?",
    )
    story.sync(a, 1, {a: b"A"}).fails(ErrorCode.REBALANCE_IN_PROGRESS)


def test_a_rejoin_during_the_rebalance_is_parked_like_the_others():
    """And changes what the member asks for."""
    story = Story()
    a, b = story.stable("a", "b", protocols=RANGE_AND_STICKY)
    story.join("a", a, protocols=RANGE_AND_STICKY)

    story.join(
        "b2",
        b,
        protocols=STICKY,
        session_timeout_ms=7_000,
        rebalance_timeout_ms=90_000,
        client_host="/10.0.0.9",
    ).gives(
        wakes={
            "join a'": joined(a, 2, leader_id=a, members=[a, b], protocol=STICKY[0]),
            "join b2": joined(b, 2, leader_id=a, protocol=STICKY[0]),
        },
        timers={"join": None, "sync": 90_000, a: SESSION_MS, b: 7_000},
        group="CompletingRebalance 2 sticky *a-1!=A b-2!=B",
    )
    assert story.group is not None
    assert story.group.members[b].client_id == "b2"
    assert story.group.members[b].client_host == "/10.0.0.9"


def test_a_rejoin_asked_twice_during_a_rebalance_is_answered_twice():
    """The first is superseded, the second gets the generation."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)

    story.join("a", a).gives(
        wakes={"join a'": join_refused(ErrorCode.REBALANCE_IN_PROGRESS, a)},
        group="PreparingRebalance 1 range *a-1?=A b-2=B",
    )

    step = story.join("b", b)
    assert sorted(step.wakes) == ["join a''", "join b'"]


def test_the_longest_rebalance_timeout_of_all_members_counts():
    """A member that needs long is given its time, whoever started the rebalance."""
    story = Story()
    story.join("a", rebalance_timeout_ms=5_000)
    story.join("b", rebalance_timeout_ms=120_000)
    story.wait(10_000)

    assert story.timers.deadline_ms(("sync", "g")) == START_MS + 5_000 + 120_000


def test_a_rebalance_timeout_below_zero_counts_as_none():
    """Nobody is waited for, but nothing breaks."""
    story = Story()
    a = "a-1"
    story.join("a", rebalance_timeout_ms=-1)
    story.now_ms += DELAY_MS
    story.fire()
    story.sync(a, 1, {a: b"A"})

    story.join("b", rebalance_timeout_ms=-1).gives(
        timers={"b-2": NEW_MEMBER_MS, "join": 0}, group="PreparingRebalance 1 range *a-1=A b-2+?"
    )
    step = story.fire()
    assert step.wakes == {"join b": joined("b-2", 2, leader_id="b-2", members=["b-2"])}
    assert step.timers == {a: None, "join": None, "sync": 0, "b-2": SESSION_MS}


def test_the_last_one_leaving_during_a_rebalance_completes_it():
    """Everybody else had already rejoined."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)

    story.leave(b).gives(
        answer=left((b, None, ErrorCode.NONE)),
        wakes={"join a'": joined(a, 2, leader_id=a, members=[a])},
        timers={b: None, "join": None, "sync": REBALANCE_MS, a: SESSION_MS},
        group="CompletingRebalance 2 range *a-1!=A",
    )


def test_kafka_connect_is_a_group_like_any_other():
    """Protocol type, protocol, metadata and assignment of a kind that is not known here."""
    story = Story()
    protocols = (("sessioned", b"\x00\x02worker"), ("default", b"\x00\x00"))
    [w] = story.joined("w", protocol_type="connect", protocols=protocols)

    story.sync(w, 1, {w: b"\xff\xfe"}, protocol_type="connect", protocol_name="sessioned").gives(
        answer=c.SyncAnswer(
            protocol_type="connect", protocol_name="sessioned", assignment=b"\xff\xfe"
        ),
        durable=[
            written(
                1,
                member(w, b"\xff\xfe", protocols=protocols[:1]),
                at_ms=story.now_ms,
                protocol_type="connect",
                protocol_name="sessioned",
            )
        ],
        timers={"sync": None, w: SESSION_MS},
        group="Stable 1 sessioned *w-1=\ufffd\ufffd",
    )


def test_the_leader_hears_last():
    """The leader is answered after the others, so that they wait for its assignment together."""
    shard, waiters = GroupShard(GroupSettings(initial_rebalance_delay_ms=1000)), {}
    for waiter, name in enumerate("abc", 1):
        command = c.JoinGroup(
            group_id="g",
            member_id="",
            group_instance_id=None,
            client_id=name,
            client_host="",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=RANGE,
            requires_known_member_id=False,
            can_skip_assignment=True,
            waiter=waiter,
            unique=name,
        )
        for record in shard.decide(command, 0).records:
            shard.replay(record)
        waiters[waiter] = name
    leader_waiter = 1
    result = shard.decide(c.TimerFired(key=join_timer("g")), 1000)
    for record in result.records:
        shard.replay(record)
    result = shard.decide(c.TimerFired(key=join_timer("g")), 2000)
    assert [wake.waiter for wake in result.wakes][-1] == leader_waiter
    assert len(result.wakes[-1].response.members) == len(waiters) == len(result.wakes)
