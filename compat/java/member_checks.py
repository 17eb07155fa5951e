"""What groups of Java members must live through, each member a process; one function per check.

The traffic never pauses while members come, go, die and freeze. At the end of every check the
members' own histories are held against each other: one owner for each partition at every instant,
every record processed, twice only after a fault, and the offsets right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from branch_member_checks import LARGE_BRANCH_CHECKS, SMALL_BRANCH_CHECKS
from consumer_member_checks import LARGE_CONSUMER_CHECKS, SMALL_CONSUMER_CHECKS
from group_watcher import watcher_of
from member_group import ASSIGNORS, SESSION_MS, Group
from member_process import MemberProcess, member_command
from tool_checks import Target

from member_history import offsets_of, wait_for
from report import Row, rows_of

Check = Callable[[Target], None]


def starting_at_once(count: int, assignor: str) -> Check:
    """So many members that start together share the partitions."""

    def check(target: Target) -> None:
        with Group(target, f"{count}-at-once", assignor) as group:
            group.topic()
            group.settle([group.join() for _ in range(count)])
            group.finish()

    return check


def one_restarted(assignor: str) -> Check:
    """A member alone gets everything, and its successor goes on where it was."""

    def check(target: Target) -> None:
        with Group(target, "one", assignor) as group:
            group.topic()
            first = group.join()
            group.settle([first])
            first.close()
            group.settle([group.join()])
            group.finish()

    return check


def starting_apart(assignor: str) -> Check:
    """Three members start two seconds apart, while the ones before them work."""

    def check(target: Target) -> None:
        with Group(target, "apart", assignor) as group:
            group.topic()
            for number in range(3):
                if number:
                    time.sleep(2)
                group.join()
            group.settle(group.members)
            group.finish()

    return check


def one_killed(assignor: str) -> Check:
    """One of three is killed at work: the others take over what it had."""

    def check(target: Target) -> None:
        with Group(target, "killed", assignor) as group:
            group.topic()
            victim, *others = [group.join() for _ in range(3)]
            group.settle(group.members)
            victim.kill()
            died_at = victim.ended_at
            group.settle(others)
            group.finish(faulty=[victim])
            taken = [e["at"] for other in others for e in other.of("assigned", after=died_at)]
            # Its last heartbeat may be older than its death by an interval and a bit.
            assert min(taken) - died_at > SESSION_MS / 2000, "taken over before its session ended"

    return check


def one_frozen(assignor: str) -> Check:
    """One of three is stopped between its work and its commit, for longer than its session.

    When it goes on, its commit goes out before its client has noticed anything; it is the broker
    that refuses it, and what the others have committed meanwhile stays.
    """
    # The client's thread for heartbeats waits this long after it has noticed how late it is, and
    # so does not find out before the commit does; connecting again must not wait at all.
    slow_to_notice = {
        "retry_backoff_ms": "2500",
        "retry_backoff_max_ms": "2500",
        "reconnect_backoff_ms": "0",
        "reconnect_backoff_max_ms": "0",
    }

    def check(target: Target) -> None:
        with Group(target, "frozen", assignor) as group:
            group.topic()
            others = [group.join() for _ in range(2)]
            group.settle(others)
            zombie = group.join(member_hold_after="20", **slow_to_notice)
            wait_for(lambda: bool(zombie.of("holding")), "the third has work to commit", [zombie])
            zombie.freeze()
            group.settle(others)
            late = {partition: offset + 1 for partition, offset in sorted(zombie.left_behind())}
            wait_for(
                lambda: all(group.committed()[p] > offset for p, offset in late.items()),
                "the others commit more than it has to commit",
                others,
            )
            zombie.release()
            before = group.committed()
            zombie.thaw()
            wait_for(lambda: bool(zombie.of("refused")), "its commit is refused", [zombie])
            (refused,) = zombie.of("refused")
            after = group.committed()
            asked = offsets_of(refused)
            assert asked == late, f"it was to commit {late} and asked for {asked}"
            assert all(after[p] >= before[p] for p in before), f"{before} became {after}"
            _check_refused_by_broker(zombie.stderr(), refused)
            group.settle(group.members)
            group.finish(faulty=[zombie])

    return check


def _check_refused_by_broker(client_log: str, refused: dict[str, object]) -> None:
    """The client says what the broker answered; when it refuses by itself it sends nothing."""
    assert "CommitFailedException" in str(refused["error"]), refused
    answers = [line for line in client_log.splitlines() if "OffsetCommit failed with" in line]
    assert len(answers) == 1, f"{len(answers)} commits were refused by the broker: {client_log}"
    codes = ("The coordinator is not aware of this member", "generation id is not valid")
    assert any(code in answers[0] for code in codes), answers


def static_restarted(assignor: str) -> Check:
    """A rolling restart of static members: nobody else notices, the generation stays."""

    def check(target: Target) -> None:
        with Group(target, "static", assignor) as group:
            group.topic()

            def join(number: int) -> MemberProcess:
                return group.join(group_instance_id=f"i{number}", session_timeout_ms="30000")

            members = [join(number) for number in range(3)]
            group.settle(members)
            generation = members[0].generation
            for number in range(3):
                before = members[number]
                others = [member for member in members if member is not before]
                told = [member.rebalances() for member in others]
                share = before.owned
                before.close()
                assert len(group.described()["members"]) == 3, (
                    "a static member that restarts is a member"
                )
                members[number] = join(number)
                group.settle(members)
                assert members[number].owned == share, "it came back to other partitions"
                assert [member.rebalances() for member in others] == told, "others were disturbed"
                generations = [member.generation for member in members]
                assert generations == [generation] * 3, f"{generation} became {generations}"
            group.finish()

    return check


def broker_killed(assignor: str) -> Check:
    """The broker is killed under ten members and comes back: they go on as if nothing was.

    With its default settings the Java client forgets all metadata when it can reach no broker, and
    the group's leader may then ask for a rebalance, because its topic seems to have no partitions.
    That is the client's own wish; here it keeps what it knows.
    """

    def check(target: Target) -> None:
        with Group(target, "broker", assignor) as group:
            group.topic()
            keeping = {"metadata_recovery_strategy": "none", "session_timeout_ms": "30000"}
            members = [group.join(**keeping) for _ in range(10)]
            group.settle(members)
            told = [member.rebalances() for member in members]
            (generation,) = {member.generation for member in members}
            group.restart_broker()
            group.work(members)
            assert {member.generation for member in members} == {generation}, "a new generation"
            assert [member.rebalances() for member in members] == told, "somebody was disturbed"
            group.finish()

    return check


def broker_killed_under_forgetful(assignor: str) -> Check:
    """The same with the client's default settings: a rebalance may follow, and nothing is lost."""

    def check(target: Target) -> None:
        with Group(target, "forgetful", assignor) as group:
            group.topic()
            members = [group.join(session_timeout_ms="30000") for _ in range(3)]
            group.settle(members)
            group.restart_broker()
            group.settle(members)
            group.finish()

    return check


# Few members, and mostly waiting: two of these at a time.
_SMALL_CHECKS: dict[str, Check] = {
    "1 member and its successor, cooperative-sticky": one_restarted("cooperative-sticky"),
    **{f"3 members starting at once, {a}": starting_at_once(3, a) for a in ASSIGNORS},
    "3 members starting 2 s apart, roundrobin": starting_apart("roundrobin"),
    **{f"one of 3 members killed, {a}": one_killed(a) for a in ASSIGNORS},
    **{
        f"one of 3 members frozen past its session, {a}": one_frozen(a)
        for a in ("sticky", "cooperative-sticky")
    },
    **{
        f"rolling restart of 3 static members, {a}": static_restarted(a)
        for a in ("range", "cooperative-sticky")
    },
}
_LARGE_CHECKS: dict[str, Check] = {
    **{
        f"10 members starting at once, {a}": starting_at_once(10, a)
        for a in ("range", "cooperative-sticky")
    },
    **{
        f"broker killed under 10 members, {a}": broker_killed(a)
        for a in ("roundrobin", "cooperative-sticky")
    },
    "broker killed under 3 members with the client's defaults, cooperative-sticky": (
        broker_killed_under_forgetful("cooperative-sticky")
    ),
}


def member_rows(target: Target, only: str) -> Iterator[Row]:
    """Run the checks whose name has `only` in it."""
    member_command()  # makes what the processes share, before two threads want it
    small = _SMALL_CHECKS | SMALL_CONSUMER_CHECKS | SMALL_BRANCH_CHECKS

    def rows(name: str) -> list[Row]:
        return list(rows_of("members", {name: small[name]}, target, only))

    try:
        with ThreadPoolExecutor(max_workers=2) as pool:
            for some in pool.map(rows, small):
                yield from some
        large = _LARGE_CHECKS | LARGE_CONSUMER_CHECKS | LARGE_BRANCH_CHECKS
        yield from rows_of("members", large, target, only)
    finally:
        watcher_of(target.bootstrap_servers).close()
