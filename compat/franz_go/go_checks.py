"""What groups of franz-go members must live through; one function per check.

The traffic never pauses while members come, go, die and freeze. At the end of every check the
members' own histories are held against each other: one owner for each partition at every instant,
every record processed, twice only after a fault, no commit refused without one.
"""

from __future__ import annotations

from collections.abc import Callable

from go_group import SESSION_MS, Group, Target, flowing
from go_member import GoMember

from member_history import wait_for

Check = Callable[[Target], None]


def scaling(target: Target) -> None:
    """One member, then ten, then three."""
    with Group(target, "scale") as group:
        group.topic()
        first = group.join()
        group.settle([first])
        with flowing(group):
            for _ in range(9):
                group.join()
            group.settle(group.members)
        leaving, staying = group.members[3:], group.members[:3]
        with flowing(group):
            for member in leaving:
                member.ask_to_close()
            for member in leaving:
                member.close()
            group.settle(staying)
        group.finish()


def server_range(target: Target) -> None:
    """The server's range assignor, asked for by the members."""
    with Group(target, "range", balancer="range") as group:
        group.topic()
        members = [group.join() for _ in range(3)]
        group.settle(members)
        for member in members:
            numbers = sorted(number for _, number in member.owned)
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), f"no range: {numbers}"
        members[1].close()
        group.settle([members[0], members[2]])
        group.finish()


def killed(protocol: str, balancer: str) -> Check:
    """One of three is killed at work: the others take over what it had."""

    def check(target: Target) -> None:
        with Group(target, "killed", protocol=protocol, balancer=balancer) as group:
            group.topic()
            victim, *others = [group.join() for _ in range(3)]
            group.settle(group.members)
            share = victim.owned
            victim.kill()
            died_at = victim.ended_at
            group.settle(others)
            group.finish(faulty=[victim])
            taken = [
                event["at"]
                for other in others
                for event in other.of("assigned", after=died_at)
                if any((topic, number) in share for topic, number in event["partitions"])
            ]
            # Its last heartbeat may be older than its death by an interval and a bit.
            assert min(taken) - died_at > SESSION_MS / 2000, "taken over before its session ended"

    return check


def frozen(target: Target) -> None:
    """One of three is stopped between its work and its commit, for longer than its session.

    When it goes on, its commit reaches the broker, which refuses it, and what the others have
    committed meanwhile stays. Then it joins again.
    """
    with Group(target, "frozen") as group:
        group.topic()
        others = [group.join() for _ in range(2)]
        group.settle(others)
        zombie = group.join("-hold-after", "20")
        wait_for(lambda: bool(zombie.of("holding")), "the third has work to commit", [zombie])
        zombie.freeze()
        group.settle(others)
        late = [(partition, offset + 1) for partition, offset in zombie.left_behind()]

        def overtaken() -> bool:
            committed = group.committed()
            return all(committed.get(partition, 0) > offset for partition, offset in late)

        wait_for(overtaken, "the others have committed more than it will", others)
        zombie.release()
        before = group.committed()
        zombie.thaw()
        wait_for(lambda: bool(zombie.of("refused")), "its commit is refused", [zombie])
        (refused,) = zombie.of("refused")
        after = group.committed()
        assert refused["error"] == "UNKNOWN_MEMBER_ID", refused
        for topic, number, offset in refused["offsets"]:
            assert offset < before[topic, number], "the late commit would have changed nothing"
        assert all(after[p] >= before[p] for p in before), f"{before} became {after}"
        group.settle(group.members)
        assert zombie.of("lost"), "its client was never told of its loss"
        assert zombie.member_id != refused["member"], "it came back under the same member id"
        group.finish(faulty=[zombie])


def static_restarts(target: Target) -> None:
    """Static members restart one by one: the others notice nothing, and the epoch stays."""
    with Group(target, "static") as group:
        group.topic()

        def join(number: int) -> GoMember:
            flags = ("-instance", f"i{number}", "-static-leave")
            return group.join(*flags, name=f"i{number}")

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
            assert group.described()["epoch"] == epoch, "a new epoch"
        group.finish()


def static_killed(target: Target) -> None:
    """A static member is killed; its successor gets its name when the session has ended.

    Until then it is refused with UNRELEASED_INSTANCE_ID, and tries again.
    """
    with Group(target, "static-killed") as group:
        group.topic()
        other = group.join("-instance", "i0", name="i0")
        victim = group.join("-instance", "i1", name="i1")
        group.settle([other, victim])
        victim.kill()
        successor = group.join("-instance", "i1", name="i1")
        group.settle([other, successor])
        assert "UNRELEASED_INSTANCE_ID" in successor.stderr(), successor.stderr()
        group.finish(faulty=[victim, successor])


def regular_expression(target: Target) -> None:
    """Members subscribe to a pattern, and topics come while they work."""
    with Group(target, "regex") as group:
        group.subscription = [f"^{group.name}-(orders|payments)-[0-9]+$"]
        group.topic(f"{group.name}-orders-1", 4)
        members = [group.join("-regex") for _ in range(2)]
        group.settle(members)
        for name, partitions in (("payments-1", 6), ("orders-22", 2)):
            group.topic(f"{group.name}-{name}", partitions)
            group.settle(members)
        for member in group.described()["members"]:
            assert group.subscription[0] in member["regex"], member
        members.append(group.join("-regex"))
        group.settle(members)
        group.finish()


def churn(target: Target) -> None:
    """Members come and go without a pause; every commit is taken at the first attempt."""
    with Group(target, "churn") as group:
        group.topic()
        staying = [group.join() for _ in range(2)]
        group.settle(staying)
        for _ in range(10):
            guest = group.join()
            wait_for(lambda guest=guest: bool(guest.of("committed")), "it works", [guest])  # type: ignore[misc]
            guest.ask_to_close()
            successor = group.join()
            guest.close()
            wait_for(lambda s=successor: bool(s.of("committed")), "it works", [successor])  # type: ignore[misc]
            successor.close()
        group.settle(staying)
        group.finish()


def upgraded_and_back(target: Target) -> None:
    """A working classic group goes over to KIP-848 member by member, and back again."""
    with Group(target, "upgrade", protocol="classic", balancer="cooperative-sticky") as group:
        group.topic()
        members = [group.join() for _ in range(3)]
        group.settle(members)
        for protocol in ("consumer", "classic"):
            for number in range(3):
                members[number].close()
                members[number] = group.join(protocol=protocol)
                group.settle(members)
            group.protocol = protocol
            group.assignment()
        # A classic member has no epoch per partition: what it commits while the group moves on is
        # refused until it has joined again, by Apache Kafka too. It commits again then.
        group.finish(excused=["ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"])


CHECKS: dict[str, Check] = {
    "KIP-848: 1, then 10, then 3 members": scaling,
    "KIP-848: the server's range assignor": server_range,
    "KIP-848: one of 3 members killed": killed("consumer", "sticky"),
    "KIP-848: one of 3 members frozen past its session": frozen,
    "KIP-848: rolling restart of 3 static members": static_restarts,
    "KIP-848: a static member killed": static_killed,
    "KIP-848: a regular expression, topics created live": regular_expression,
    "KIP-848: commits under churn": churn,
    "classic to KIP-848 and back, member by member": upgraded_and_back,
    "classic: one of 3 members killed, cooperative-sticky": killed("classic", "cooperative-sticky"),
    "classic: one of 3 members killed, range": killed("classic", "range"),
}
