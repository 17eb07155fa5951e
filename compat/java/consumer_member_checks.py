"""What groups of the consumer protocol (KIP-848) must live through, each member a Java process.

As for the classic groups the traffic never pauses, and at the end of every check the members'
histories are held against each other and against what the broker describes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from member_group import SESSION_MS, Group
from member_process import MemberProcess
from member_traffic import Flow
from tool_checks import Target

from member_history import offsets_of, partitions_of, wait_for

Check = Callable[[Target], None]
PROTOCOL = "consumer"


def scaling(target: Target) -> None:
    """One member, then ten, then three; partitions that do not move keep their pace."""
    with Group(target, "scale", "uniform", PROTOCOL) as group:
        group.topic()
        group.settle([group.join()])
        growing = Flow(group.members, group.traffic)
        for _ in range(9):
            group.join()
        group.settle(group.members)
        told = growing.check()
        staying, leaving = group.members[:3], group.members[3:]
        shrinking = Flow(staying, group.traffic)
        for member in leaving:
            member.ask_to_close()
        for member in leaving:
            member.close()
        group.settle(staying)
        print(f"{'':<26}1 to 10: {told}; to 3: {shrinking.check()}", flush=True)
        group.finish()


def one_killed(target: Target) -> None:
    """One of three is killed at work: the others take over when its session is over."""
    with Group(target, "consumer-killed", "uniform", PROTOCOL) as group:
        group.topic()
        group.set_session(SESSION_MS)
        victim, *others = [group.join() for _ in range(3)]
        group.settle(group.members)
        share = victim.owned
        victim.kill()
        group.settle(others)
        group.finish(faulty=[victim])
        taken = [
            event["at"]
            for other in others
            for event in other.of("assigned", after=victim.ended_at)
            if share & set(partitions_of(event))
        ]
        # Its last heartbeat may be older than its death by an interval and a bit.
        waited = min(taken) - victim.ended_at
        assert waited > SESSION_MS / 2000, f"taken over after {waited:.1f} s, within its session"


def one_frozen(target: Target) -> None:
    """One of three is stopped between its work and its commit, for longer than its session.

    When it goes on, its commit reaches the broker, which refuses it, and what the others have
    committed meanwhile stays. Then it joins again.
    """
    with Group(target, "consumer-frozen", "uniform", PROTOCOL) as group:
        group.topic()
        group.set_session(SESSION_MS)
        others = [group.join() for _ in range(2)]
        group.settle(others)
        zombie = group.join(member_hold_after="20")
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
        refused = offsets_of(zombie.of("refused")[0])
        after = group.committed()
        assert refused == late, f"it was to commit {late} and asked for {refused}"
        assert all(after[p] >= before[p] for p in before), f"{before} became {after}"
        group.settle(group.members)
        assert zombie.of("lost"), "its client was never told of its loss"
        # The client says what the broker has answered; it may have asked again before it knew.
        answers = [line for line in zombie.stderr().splitlines() if "OffsetCommit failed" in line]
        assert len(answers) == len(zombie.of("refused")), zombie.stderr()
        assert all("UNKNOWN_MEMBER_ID" in line for line in answers), zombie.stderr()
        group.finish(faulty=[zombie])


def static_restarted(target: Target) -> None:
    """Static members restart one by one: the others notice nothing, and the epoch stays.

    The broker's range assignor gives the partitions.
    """
    with Group(target, "consumer-static", "range", PROTOCOL) as group:
        group.topic()

        def join(number: int) -> MemberProcess:
            return group.join(group_instance_id=f"i{number}")

        members = [join(number) for number in range(3)]
        group.settle(members)
        epoch = group.described()["epoch"]
        for number in range(3):
            before = members[number]
            others = [member for member in members if member is not before]
            told = [member.rebalances() for member in others]
            share = before.owned
            before.close()
            members[number] = join(number)
            group.settle(members)
            assert members[number].owned == share, "it came back to other partitions"
            assert [member.rebalances() for member in others] == told, "others were disturbed"
            described = group.described()
            assert described["epoch"] == epoch, f"{epoch} became {described}"
            assert {each["instance"] for each in described["members"]} == {"i0", "i1", "i2"}
        group.finish()


def pattern(target: Target) -> None:
    """Members subscribe to a pattern that the broker resolves, and topics come while they work."""
    with Group(target, "pattern", "uniform", PROTOCOL) as group:
        group.subscription = f"{group.name}-(orders|payments)-[0-9]+"
        group.topic(f"{group.name}-orders-1", 4)
        members = [group.join(member_pattern="true") for _ in range(2)]
        group.settle(members)
        group.topic(f"{group.name}-payments-1", 6)
        group.settle(members)
        group.topic(f"{group.name}-orders-22", 2)
        members.append(group.join(member_pattern="true"))
        group.settle(members)
        group.finish()


def churn(target: Target) -> None:
    """Members come and go without a pause, and no commit of a partition still owned is refused.

    Those who stay have a commit under way all the time, also while an answer carries a new epoch.
    """
    with Group(target, "churn", "uniform", PROTOCOL) as group:
        group.topic()
        staying = [group.join(member_commit_always="true") for _ in range(2)]
        group.settle(staying)
        for _ in range(3):
            guest = group.join()
            group.settle([*staying, guest])
            guest.ask_to_close()
            successor = group.join()
            guest.close()
            wait_for(lambda s=successor: bool(s.of("committed")), "it works", [successor])  # type: ignore[misc]
            successor.close()
        group.settle(staying)
        for member in group.members:
            # Also what the client may have tried again by itself.
            assert "OffsetCommit failed" not in member.stderr(), member.stderr()
        group.finish()


def upgraded_and_back(assignor: str) -> Check:
    """A working classic group goes over to the consumer protocol member by member, and back."""

    def check(target: Target) -> None:
        with Group(target, f"upgrade-{assignor}", assignor) as group:
            group.topic()
            members = [group.join() for _ in range(3)]
            group.settle(members)
            for protocol in ("consumer", "classic"):
                for number in range(3):
                    members[number].close()
                    members[number] = group.join(protocol)
                    group.settle(members)
                group.protocol = protocol
                group.assignment()
            group.finish()

    return check


def broker_killed(target: Target) -> None:
    """The broker is killed while a member has not given up yet what others wait for.

    After its restart nobody gets these partitions before the member has given them up, no epoch
    goes back, and the reconciliation completes.
    """
    with Group(target, "reconciling", "uniform", PROTOCOL) as group:
        group.topic()
        first = group.join(member_hold_revoke="true")
        group.settle([first])
        others = [group.join() for _ in range(2)]
        wait_for(lambda: bool(first.of("revoking")), "it is asked to give up", group.members)
        wait_for(lambda: len(group.described("Reconciling")["members"]) == 3, "all are members")
        before = group.described("Reconciling")
        group.restart_broker()
        _check_epochs(before, group.described("Reconciling"))
        owed = set(partitions_of(first.of("revoking")[0]))
        assert all(not other.owned & owed for other in others), "given away too early"
        assert not first.of("revoked"), "it has not given up anything yet"
        first.release()
        group.settle(group.members)
        _check_epochs(before, group.described())
        group.finish()


def _check_epochs(before: dict[str, Any], after: dict[str, Any]) -> None:
    """The group's, the target's and every member's are at least what they were."""
    epochs = [
        {
            "group": group["epoch"],
            "target": group["target_epoch"],
            **{member["id"]: member["epoch"] for member in group["members"]},
        }
        for group in (before, after)
    ]
    told = f"{before} became {after}"
    assert epochs[0].keys() == epochs[1].keys(), told
    assert all(epochs[1][name] >= epoch for name, epoch in epochs[0].items()), told


SMALL_CONSUMER_CHECKS: dict[str, Check] = {
    "consumer protocol: one of 3 members killed": one_killed,
    "consumer protocol: one of 3 members frozen past its session": one_frozen,
    "consumer protocol: rolling restart of 3 static members, range": static_restarted,
    "consumer protocol: a pattern, topics created live": pattern,
    "consumer protocol: commits under churn": churn,
    **{
        f"classic to consumer protocol and back, {a}": upgraded_and_back(a)
        for a in ("range", "cooperative-sticky")
    },
}
LARGE_CONSUMER_CHECKS: dict[str, Check] = {
    "consumer protocol: 1, then 10, then 3 members": scaling,
    "consumer protocol: broker killed in a reconciliation": broker_killed,
}
