"""The driver of a shard: who waits is answered once, timers, and a journal that fails."""

from collections.abc import Callable
from typing import Any

import pytest
from group_kit import (
    DELAY_MS,
    GROUP,
    NOW_MS,
    SESSION_MS,
    TOPIC,
    Groups,
    failing_append,
)

from anabranch.broker.partition import Partition
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.classic_state import ClassicState
from anabranch.coordinator.runtime.result import Result, TimerChange, Wake
from anabranch.model.errors import ErrorCode, KafkaError

NONE = ErrorCode.NONE
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
Lines = list[tuple[str, dict[str, Any]]]


def names(lines: Lines) -> list[str]:
    return [name for name, _ in lines]


# Parked requests --------------------------------------------------------------------------------


def test_parked_requests_are_answered_once(groups: Groups) -> None:
    """Joins wait behind the barrier and syncs for the leader; each gets one answer, none stays."""
    joins = [groups.join(client) for client in "abc"]
    assert not any(join.is_answered for join in joins)
    groups.pass_ms(2 * DELAY_MS)
    ids = [join.answer.member_id for join in joins]
    syncs = [groups.sync(member_id, 1) for member_id in ids[1:]]
    assert not any(sync.is_answered for sync in syncs)
    given = tuple((member_id, member_id.encode()) for member_id in ids)
    syncs.insert(0, groups.sync(ids[0], 1, assignments=given))
    assert [sync.answer.assignment for sync in syncs] == [one.encode() for one in ids]
    groups.pass_ms(SESSION_MS - 1)
    assert [len(one.outcomes) for one in joins + syncs] == [1] * 6
    assert groups.driver._parked == {}


def test_a_decision_can_answer_its_own_request(groups: Groups) -> None:
    """Somebody alone in a group that rejoins has waited for nobody."""
    (member_id,) = groups.stable("a")
    again = groups.join("a", member_id)
    assert again.deferred is not None
    assert (again.answer.error, again.answer.generation_id) == (NONE, 2)
    assert groups.driver._parked == {}


def test_a_superseded_request_is_answered(groups: Groups) -> None:
    """A member that joins again while its join is parked leaves nobody waiting."""
    ids = groups.stable("a", "b")
    first = groups.join("a", ids[0])
    second = groups.join("a", ids[0])
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    groups.join("b", ids[1])
    assert second.answer.generation_id == 2
    assert groups.driver._parked == {}


def test_a_connection_that_is_lost_leaves_nothing(groups: Groups) -> None:
    """Its parked request is forgotten; its member stays until its session or its turn ends."""
    ids = groups.stable("a", "b")
    lost = groups.join("b", ids[1], protocols=(("range", b"news"),))
    assert lost.deferred is not None
    lost.deferred.cancel()
    assert groups.driver._parked == {}
    assert groups.state() == (ClassicState.PREPARING_REBALANCE, 1, ids)
    kept = groups.join("a", ids[0])
    assert kept.answer.generation_id == 2
    waiting = groups.sync(ids[0], 2, assignments=((ids[0], b"all"),))
    assert waiting.error is NONE
    assert groups.state() == (ClassicState.STABLE, 2, ids)
    for _ in range(4):
        groups.pass_ms(SESSION_MS // 2)
        groups.heartbeat(ids[0], 2)
    assert groups.state() == (ClassicState.PREPARING_REBALANCE, 2, ids[:1])
    assert lost.outcomes == []


def test_lost_connections_do_not_pile_up(groups: Groups) -> None:
    """Clients that give up and ask again, for ever, take no more room than one of them."""
    ids = groups.joined("a", "b")
    for _ in range(50):
        sync = groups.sync(ids[1], 1)
        assert len(groups.driver._parked) == 1
        assert sync.deferred is not None
        sync.deferred.cancel()
    assert groups.driver._parked == {}


def test_an_answer_that_cannot_be_given_takes_no_other_with_it(
    groups: Groups, lines: Lines
) -> None:
    """A connection that breaks while it is answered is reported; the next one is answered."""
    joins = [groups.join(client) for client in "ab"]

    def broken(answer: Any) -> None:
        raise RuntimeError("broken")

    assert joins[0].deferred is not None
    joins[0].deferred.deliver_to(broken)
    groups.pass_ms(2 * DELAY_MS)
    assert joins[1].error is NONE
    assert lines == [("coordinator.answer.failed", {"error": "RuntimeError('broken')"})]


def test_stopping_tells_all_who_wait(groups: Groups) -> None:
    """At the end parked requests are sent elsewhere, and so is whoever comes later."""
    join = groups.join("a")
    groups.broker.groups.stop()
    assert join.error is NOT_COORDINATOR
    assert groups.loop.armed == []
    assert groups.commit(1).error is NOT_COORDINATOR
    assert groups.join("b").error is NOT_COORDINATOR


# Time -------------------------------------------------------------------------------------------


def test_one_alarm_for_all_timers(groups: Groups) -> None:
    """However many members there are, the loop holds one alarm, at the nearest deadline."""
    groups.joined(*"abc")
    (alarm,) = groups.loop.armed
    assert alarm.due_ms - groups.loop.now_ms == SESSION_MS


def test_no_timers_no_alarm(groups: Groups) -> None:
    """A group without members waits for nothing."""
    groups.commit(1)
    assert groups.loop.alarms == []


def test_heartbeats_do_not_move_the_alarm(groups: Groups) -> None:
    """Deadlines that move later are noticed when the alarm rings, not before."""
    (member_id,) = groups.stable("a")
    made = len(groups.loop.alarms)
    (alarm,) = groups.loop.armed
    for _ in range(3):
        groups.pass_ms(SESSION_MS // 4)
        assert groups.heartbeat(member_id, 1).error is NONE
    assert (len(groups.loop.alarms), groups.loop.armed) == (made, [alarm])
    groups.pass_ms(SESSION_MS // 4)
    assert alarm.has_rung
    assert groups.state()[0] is ClassicState.STABLE
    (alarm,) = groups.loop.armed
    assert alarm.due_ms - groups.loop.now_ms == SESSION_MS * 3 // 4
    groups.pass_ms(SESSION_MS * 3 // 4)
    assert groups.state() == (ClassicState.EMPTY, 2, [])


def test_an_earlier_deadline_moves_the_alarm(groups: Groups) -> None:
    """A deadline before the alarm has its own alarm at once, and the old one is taken back."""
    groups.join("a")
    (first,) = groups.loop.armed
    assert first.due_ms == DELAY_MS
    groups.pass_ms(DELAY_MS)
    (session,) = groups.loop.armed
    assert session.due_ms - groups.loop.now_ms == SESSION_MS
    groups.join("z", group_id="other", session_timeout_ms=6_000)
    (earlier,) = groups.loop.armed
    assert earlier.due_ms - groups.loop.now_ms == DELAY_MS
    assert session.is_cancelled


def test_the_last_timer_that_is_cancelled(groups: Groups) -> None:
    """An alarm for a timer that is gone rings for nothing, once."""
    (member_id,) = groups.stable("a")
    groups.leave(member_id)
    assert groups.state() == (ClassicState.EMPTY, 2, [])
    groups.pass_ms(SESSION_MS)
    assert groups.loop.armed == []


def test_a_session_ends(groups: Groups) -> None:
    """A member that is not heard from is gone after its session timeout, not before."""
    ids = groups.stable("a", "b")
    groups.pass_ms(SESSION_MS - 1)
    assert groups.heartbeat(ids[0], 1).error is NONE
    groups.pass_ms(1)
    assert groups.state() == (ClassicState.PREPARING_REBALANCE, 1, [ids[0]])
    assert groups.heartbeat(ids[0], 1).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_setting_the_clock_ends_no_session(groups: Groups) -> None:
    """Sessions go by a clock that nobody sets; what is written down goes by the one on the wall."""
    ids = groups.stable("a")
    groups.now_ms += 24 * 3_600_000
    groups.pass_ms(SESSION_MS - 1)
    assert groups.heartbeat(ids[0], 1).error is NONE
    groups.pass_ms(SESSION_MS - 1)
    assert groups.heartbeat(ids[0], 1).error is NONE
    groups.now_ms -= 48 * 3_600_000
    groups.commit(7, member_id=ids[0], generation_id=1)
    committed = groups.broker.groups.offsets(GROUP)[TOPIC, 0]
    assert committed.commit_timestamp_ms == groups.now_ms
    groups.pass_ms(SESSION_MS)
    assert groups.state()[0] is ClassicState.EMPTY
    assert groups.group().state_timestamp_ms == groups.now_ms


def test_many_timers_at_once_take_turns(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """When very many sessions end together, others get the loop in between."""
    groups.stable(*"abcdef")
    real = groups.driver._time_is_up

    def slow(key: Any) -> None:
        groups.steady_ms += 3
        real(key)

    monkeypatch.setattr(groups.driver, "_time_is_up", slow)
    groups.pass_ms(SESSION_MS - 1)
    (alarm,) = groups.loop.armed
    groups.steady_ms += 1
    alarm.ring()
    assert len(groups.group().members) == 4
    (alarm,) = groups.loop.armed
    assert alarm.due_ms == groups.loop.now_ms


def test_a_timer_whose_decision_fails_comes_again(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """A bug in one group costs it time, and the others nothing."""
    groups.stable("a")
    groups.stable("z", group_id="other")
    real = groups.driver.shard.decide

    def broken(command: c.Command, now_ms: int) -> Result:
        if isinstance(command, c.TimerFired) and GROUP in command.key:  # type: ignore[operator]
            raise RuntimeError("broken")
        return real(command, now_ms)

    monkeypatch.setattr(groups.driver.shard, "decide", broken)
    groups.pass_ms(SESSION_MS)
    assert names(lines) == ["coordinator.timer.failed"]
    assert groups.state("other")[0] is ClassicState.EMPTY
    assert groups.state()[0] is ClassicState.STABLE
    monkeypatch.undo()
    groups.pass_ms(SESSION_MS)
    assert groups.state()[0] is ClassicState.EMPTY


# A journal that fails ---------------------------------------------------------------------------


def test_a_failed_append_reloads_the_shard(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """Whoever asked and whoever waited look for the coordinator again, and find what was written.

    The journal knows the group as it was when it became Stable: the member that was on its way
    in is not part of it.
    """
    ids = groups.stable("a", "b")
    groups.commit(5, member_id=ids[0], generation_id=1)
    before = groups.image()
    newcomer = groups.join("c")
    assert groups.state()[0] is ClassicState.PREPARING_REBALANCE
    with monkeypatch.context() as broken:
        broken.setattr(groups.log, "append", failing_append)
        refused = groups.commit(6, member_id=ids[0], generation_id=1)
    assert refused.error is NOT_COORDINATOR
    assert newcomer.error is NOT_COORDINATOR
    assert groups.image() == before
    assert groups.offset() == 5
    assert groups.driver._parked == {}
    assert lines == [
        (
            "coordinator.shard.failed",
            {"shard": "__consumer_offsets-0", "reason": "the write failed"},
        )
    ]
    assert groups.heartbeat(ids[1], 1).error is NONE
    assert groups.commit(7, member_id=ids[0], generation_id=1).error is NONE
    assert groups.offset() == 7


def test_a_join_whose_group_cannot_be_written(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that would have been parked is refused once, and leaves no group behind."""
    groups.commit(1, group_id="other")
    monkeypatch.setattr(groups.log, "append", failing_append)
    join = groups.join("a")
    assert join.error is NOT_COORDINATOR
    assert groups.driver._parked == {}
    assert groups.broker.groups.group(GROUP) is None


def test_a_join_that_breaks_leaves_nothing_parked(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong while a request is parked, nobody waits for it afterwards."""
    groups.commit(1)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(groups.log, "append", broken)
    with pytest.raises(RuntimeError, match="broken"):
        groups.join("a")
    assert groups.driver._parked == {}


def test_the_alarm_after_a_reload(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read again has sessions that run, whatever alarm there was before."""
    ids = groups.stable("a")
    groups.pass_ms(SESSION_MS // 2)
    (alarm,) = groups.loop.armed
    alarm.cancel()
    groups.driver._clock._alarm = None
    with monkeypatch.context() as broken:
        broken.setattr(groups.log, "append", failing_append)
        groups.commit(6, member_id=ids[0], generation_id=1)
    (alarm,) = groups.loop.armed
    assert alarm.due_ms - groups.loop.now_ms == SESSION_MS
    groups.pass_ms(SESSION_MS)
    assert groups.state()[0] is ClassicState.EMPTY


def test_a_timer_that_cannot_be_written(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """A member whose going cannot be written down stays, and its session begins anew."""
    groups.stable("a")
    with monkeypatch.context() as broken:
        broken.setattr(groups.log, "append", failing_append)
        groups.pass_ms(SESSION_MS)
        assert groups.state()[0] is ClassicState.STABLE
    assert names(lines) == ["coordinator.shard.failed"]
    groups.pass_ms(SESSION_MS)
    assert groups.state()[0] is ClassicState.EMPTY


def test_a_journal_that_keeps_failing_is_not_read_again_and_again(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a journal holds up everybody, so that a full disk must not cause it all the time."""
    groups.commit(1)
    loads = []
    real = groups.driver.load
    monkeypatch.setattr(groups.driver, "load", lambda: (loads.append(1), real()))
    with monkeypatch.context() as broken:
        broken.setattr(groups.log, "append", failing_append)
        for _ in range(5):
            assert groups.commit(2).error is NOT_COORDINATOR
        assert len(loads) == 1
        groups.pass_ms(999)
        assert groups.commit(2).error is NOT_COORDINATOR
        assert len(loads) == 1
        groups.pass_ms(1)
        assert len(loads) == 2
        assert groups.offset() == 1
        assert groups.commit(2).error is NOT_COORDINATOR
    groups.pass_ms(1_000)
    assert groups.commit(3).error is NONE
    assert groups.offset() == 3


def test_queries_of_a_shard_in_a_pause_are_refused(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that a group has committed nothing when nobody knows."""
    groups.commit(1)
    monkeypatch.setattr(groups.log, "append", failing_append)
    groups.commit(2)
    groups.commit(2)
    with pytest.raises(Exception, match="the write failed"):
        groups.broker.groups.offsets(GROUP)
    with pytest.raises(Exception, match="the write failed"):
        groups.broker.groups.group(GROUP)
    assert groups.broker.groups.all_groups() == []


def test_a_decision_too_large_for_the_journal(groups: Groups, lines: Lines) -> None:
    """Only the request that is too large is refused; nobody else on the shard notices."""
    groups.stable("z", group_id="other")
    ids = groups.joined("a", "b")
    waiting = groups.sync(ids[1], 1)
    huge = groups.sync(ids[0], 1, assignments=((ids[0], bytes(65 * 1024 * 1024)),))
    assert huge.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not waiting.is_answered
    assert groups.state("other")[0] is ClassicState.STABLE
    assert lines == []
    assert groups.sync(ids[0], 1, assignments=((ids[1], b"yours"),)).error is NONE
    assert waiting.answer.assignment == b"yours"


def test_a_member_id_that_the_journal_cannot_hold(groups: Groups, lines: Lines) -> None:
    """A client id near the limit of a string makes a member id beyond it: its sync is refused."""
    ids = groups.joined("x" * 32_767)
    assert groups.sync(ids[0], 1).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.driver._parked == {}
    assert lines == []


def test_a_replay_that_breaks_is_a_reload(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """If a bug keeps a written decision out of memory, memory is made anew from the journal."""
    groups.commit(1)
    join = groups.join("a")

    def broken(record: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(groups.driver.shard, "replay", broken)
    with pytest.raises(RuntimeError, match="broken"):
        groups.commit(2, group_id="other")
    assert join.error is NOT_COORDINATOR
    assert names(lines) == ["coordinator.shard.failed"]
    assert (groups.offset(), groups.offset("other")) == (1, 2)


def test_a_log_that_failed_is_refused_until_the_next_start(
    make_groups: Callable[..., Groups], lines: Lines
) -> None:
    """A journal that nobody can trust any more is not read again; a start recovers it."""
    groups = make_groups()
    ids = groups.stable("a")
    groups.commit(5, member_id=ids[0], generation_id=1)
    groups.log.failed = "syncing to disk failed"
    join = groups.join("b")  # soft: nothing is written
    assert groups.commit(6, member_id=ids[0], generation_id=1).error is NOT_COORDINATOR
    assert join.error is NOT_COORDINATOR
    assert names(lines) == ["coordinator.shard.failed", "coordinator.shard.refused"]
    assert "start the broker again" in lines[1][1]["next_step"]
    assert groups.heartbeat(ids[0], 1).error is NOT_COORDINATOR
    groups.pass_ms(10 * SESSION_MS)
    assert groups.loop.armed == []
    assert len(lines) == 2
    copy = groups.copied(groups.folder.with_name("copy"))
    again = make_groups(folder=copy)
    assert again.offset() == 5
    assert again.state() == (ClassicState.STABLE, 1, ids)
    with pytest.raises(Exception, match="__consumer_offsets-0 failed"):
        groups.close()


def test_refusals_do_not_pile_up(groups: Groups) -> None:
    """A shard that is refused for days keeps nothing of all the requests that it refused."""
    groups.commit(1)
    groups.broker.groups.stop()
    groups.commit(1)
    with pytest.raises(KafkaError):
        groups.broker.groups.offsets(GROUP)
    assert groups.driver.refusal is not None
    assert groups.driver.refusal.__traceback__ is None


# Records that have to be on disk ----------------------------------------------------------------


@pytest.fixture
def synced(groups: Groups) -> Groups:
    """A broker whose journal is synced before anybody is answered."""
    groups.commit(1, group_id="first")
    topic = groups.broker.topics.get("__consumer_offsets")
    assert topic is not None
    groups.broker.topics.set_configs(topic, {**topic.configs, "flush.on.acks.all": "true"})
    return groups


def test_no_answer_before_the_sync(synced: Groups) -> None:
    """A commit is answered when the disk has it, and not before."""
    commit = synced.commit(5)
    assert not commit.is_answered
    assert synced.loop.finish_jobs() == 1
    assert commit.error is NONE
    assert synced.log.recovery_point == synced.log.log_end_offset


def test_all_who_wait_share_a_sync(synced: Groups) -> None:
    """While a sync runs the others gather; one more is enough for all of them."""
    commits = [synced.commit(offset, group_id=f"g{offset}") for offset in range(10)]
    assert len(synced.loop.jobs) == 1
    synced.loop.finish_jobs()
    assert [commit.is_answered for commit in commits] == [True] + [False] * 9
    assert synced.loop.finish_jobs() == 1
    assert [commit.error for commit in commits] == [NONE] * 10
    assert synced.loop.jobs == []


def test_what_writes_nothing_waits_for_nothing(synced: Groups) -> None:
    """Heartbeats and the barrier of a rebalance have nothing to do with the disk."""
    join = synced.join("a")
    synced.loop.finish_jobs()  # of the record that the group exists
    synced.pass_ms(DELAY_MS)
    assert join.error is NONE
    assert synced.heartbeat(join.answer.member_id, 1).error is NONE
    assert synced.loop.jobs == []
    commit = synced.commit(5, group_id="other")
    assert synced.heartbeat(join.answer.member_id, 1).error is NONE
    assert not commit.is_answered
    synced.loop.finish_jobs()


def test_woken_requests_wait_for_the_sync_too(synced: Groups) -> None:
    """An assignment is handed out when it is durable, to the leader and to all who waited."""
    joins = [synced.join(client) for client in "ab"]
    synced.loop.finish_jobs()
    synced.pass_ms(2 * DELAY_MS)
    leader, follower = (join.answer.member_id for join in joins)
    waiting = synced.sync(follower, 1)
    leading = synced.sync(leader, 1, assignments=((follower, b"f"), (leader, b"l")))
    assert not waiting.is_answered and not leading.is_answered
    synced.loop.finish_jobs()
    assert (waiting.answer.assignment, leading.answer.assignment) == (b"f", b"l")


def test_a_sync_that_fails(synced: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    """Nobody is told that something is safe that may not be, and nothing is served after that."""
    joins = [synced.join(client) for client in "ab"]
    synced.loop.finish_jobs()
    synced.pass_ms(2 * DELAY_MS)
    leader, follower = (join.answer.member_id for join in joins)
    woken = synced.sync(follower, 1)
    leading = synced.sync(leader, 1, assignments=((follower, b"f"),))
    late = synced.commit(9, group_id="late")
    parked = synced.join("z", group_id="parked")

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("os.fdatasync", broken)
        synced.loop.finish_jobs()
    synced.loop.finish_jobs()
    codes = [one.error for one in (woken, leading, late, parked)]
    assert codes == [NOT_COORDINATOR] * 4
    assert names(lines).count("coordinator.shard.refused") == 1
    assert synced.commit(1).error is NOT_COORDINATOR
    assert synced.broker.groups.all_groups() == []
    with pytest.raises(Exception, match="failed"):
        synced.close()


def test_a_sync_that_cannot_begin(
    synced: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """Without a free descriptor the commit is refused, and the shard goes on."""

    def no_more(fd: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("os.dup", no_more)
        commit = synced.commit(5)
    assert commit.error is NOT_COORDINATOR
    assert names(lines) == ["log.flush.failed", "coordinator.shard.failed"]
    again = synced.commit(6)
    synced.loop.finish_jobs()
    assert again.error is NONE
    assert synced.offset() == 6


def test_a_connection_lost_before_the_sync_ended(synced: Groups) -> None:
    """What nobody waits for any more is committed all the same."""
    commit = synced.commit(5)
    assert commit.deferred is not None
    commit.deferred.cancel()
    synced.loop.finish_jobs()
    assert commit.outcomes == []
    assert synced.offset() == 5


# Consumers of the journal itself ----------------------------------------------------------------


def test_fetches_of_the_journal_are_told(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a timer wrote reaches those who read the journal, as what a request wrote does."""
    groups.stable("a")
    marked: list[tuple[Partition, int]] = []
    woken: list[int] = []
    monkeypatch.setattr(
        groups.broker.purgatory, "mark", lambda partition, size: marked.append((partition, size))
    )
    monkeypatch.setattr(groups.driver._clock, "_after", lambda: woken.append(len(marked)))
    before = groups.log.size_bytes
    groups.pass_ms(SESSION_MS)
    assert marked == [(groups.driver.partition, groups.log.size_bytes - before)]
    assert woken[-1] == 1


# Nothing at all ---------------------------------------------------------------------------------


def test_effects_without_a_cause(groups: Groups) -> None:
    """Waking somebody who is not there, or cancelling what was never set, does nothing."""
    groups.commit(1)
    timers = (TimerChange(("join", "x"), None),)
    result = Result(response="r", timers=timers, wakes=(Wake(99, "w"),))
    assert groups.driver._apply(c.ExpireOffsets(), result, NOW_MS) is None
    assert groups.loop.armed == []
