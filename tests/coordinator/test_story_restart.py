"""Stories of a broker that dies: what the journal brings back, and what it cannot."""

from story import (
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    Story,
    committed,
    forgotten,
    forgotten_group,
    joined,
    line,
    synced,
)

from anabranch.coordinator.group import commands as c
from anabranch.model.errors import ErrorCode


def test_a_stable_group_goes_on_as_if_nothing_had_happened():
    """Members keep generation and assignment; each has a whole session to be heard from."""
    story = Story()
    a, b = story.stable("a", "b")
    story.commit(42, a, 1)
    story.wait(SESSION_MS - 1)

    story.restart().gives(
        timers={a: SESSION_MS, b: SESSION_MS}, group="Stable 1 range *a-1=A b-2=B"
    )

    story.heartbeat(b, 1).gives(
        answer=c.HeartbeatAnswer(),
        timers={b: SESSION_MS},
        group="Stable 1 range *a-1=A b-2=B",
    )
    assert story.sync(b, 1).answer == synced(b"B")
    story.commit(43, a, 1).gives(
        answer=c.CommitAnswer(errors=(ErrorCode.NONE,)),
        durable=[committed(43, at_ms=story.now_ms)],
        timers={a: SESSION_MS},
        group="Stable 1 range *a-1=A b-2=B",
    )


def test_a_member_that_died_with_the_broker_expires():
    """The session that was given at the restart runs out."""
    story = Story()
    a, b = story.stable("a", "b")
    story.restart()

    *_, step = story.live(SESSION_MS, a)

    step.gives(timers={b: None, "join": REBALANCE_MS}, group="PreparingRebalance 1 range *a-1=A")


def test_a_rebalance_under_way_is_forgotten():
    """The last generation stands; its members rejoin when something makes them."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("d")
    story.join("a", a)

    story.restart().gives(
        timers={a: SESSION_MS, b: SESSION_MS}, group="Stable 1 range *a-1=A b-2=B"
    )
    story.heartbeat("d-3", 1).fails(ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_generation_without_an_assignment_is_forgotten():
    """Its members are told to rejoin, and the next generation begins."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)
    story.join("b", b)
    assert line(story.group) == "CompletingRebalance 2 range *a-1!=A b-2!=B"

    story.restart()

    story.sync(a, 2, {a: b"X"}).fails(ErrorCode.ILLEGAL_GENERATION)
    story.commit(1, a, 2).fails(ErrorCode.ILLEGAL_GENERATION)
    story.join("a", a)
    step = story.join("b", b)
    assert step.wakes["join b''"] == joined(b, 2, leader_id=a)


def test_pending_members_start_over():
    """Their ids were told by a process that is gone."""
    story = Story()
    story.join("p", requires_known_member_id=True)

    story.restart().gives(group="Empty 0 -")

    story.join("p", "p-1").fails(ErrorCode.UNKNOWN_MEMBER_ID, member_id="p-1")


def test_after_a_restart_only_the_chosen_protocol_is_known_of_each_member():
    """So a member with more of them counts as changed when it rejoins, as in Kafka."""
    story = Story()
    protocols = (("range", b"r"), ("sticky", b"s"))
    _, b = story.stable("a", "b", protocols=protocols)
    story.restart()

    story.join("b", b, protocols=protocols).gives(
        timers={"join": REBALANCE_MS}, group="PreparingRebalance 1 range *a-1=A b-2?=B"
    )


def test_a_static_member_is_known_after_a_restart_and_its_former_self_is_fenced():
    """Instance ids and the id of the last restart are durable."""
    story = Story()
    [i] = story.stable("a", group_instance_id="i")
    story.join("a", group_instance_id="i")

    story.restart()

    story.heartbeat(i, 1, "i").fails(ErrorCode.FENCED_INSTANCE_ID)
    assert story.heartbeat("i-2", 1, "i").answer == c.HeartbeatAnswer()


def test_an_empty_group_keeps_its_generation():
    """The next generation is a later one."""
    story = Story()
    [a] = story.stable("a")
    story.leave(a)
    story.restart().gives(group="Empty 2 -")

    story.joined("a")

    assert story.generation == 3


def test_offsets_without_a_group_are_there():
    """A simple group has no record of its own."""
    story = Story()
    story.commit(5)

    story.restart().gives(group="Empty 0 -")

    assert story.shard.group_ids() == ["g"]
    assert story.shard.offsets("g") == {
        ("orders", 0): c.CommittedOffset(offset=5, commit_timestamp_ms=START_MS)
    }


def test_a_group_that_was_deleted_stays_so():
    """Tombstones are records too."""
    story = Story()
    [a] = story.stable("a")
    story.commit(1, a, 1)
    story.leave(a)
    story.delete_group()

    story.restart().gives(group="none")

    assert story.shard.group_ids() == []


def test_tombstones_of_what_is_not_there_are_passed_over():
    """Compaction may have removed what they are for."""
    story = Story()
    story.commit(1, group_id="h")
    story.records += [
        forgotten("orders", 0),
        forgotten("orders", 7, group_id="h"),
        forgotten_group(),
    ]

    story.restart().gives(group="none")

    assert story.shard.group_ids() == ["h"]
