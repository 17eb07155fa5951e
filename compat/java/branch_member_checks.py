"""What groups on branch topics must live through, each member a Java process.

More members than the source has partitions, keyed traffic that never pauses. At the end the
members' histories are held against each other as for other groups (one owner of each branch at
every instant, nothing lost, nothing twice without need), and against what was sent: each record of
the source in one branch, each key in one branch, and its records in order across all members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from member_group import SESSION_MS, Group
from member_process import MemberProcess
from tool_checks import Target

from branch_topics import KeyedTraffic, Use, check_keys, create_branched
from member_history import Partition

Check = Callable[[Target], None]
PARTITIONS = 2
RANGES = 4
SERVER_ASSIGNOR = "uniform"


class BranchGroup(Group):
    """A group that subscribes to a branch topic; the traffic goes to its source."""

    traffic: KeyedTraffic

    def __init__(
        self, target: Target, purpose: str, assignor: str, protocol: str = "classic"
    ) -> None:
        super().__init__(target, f"branch-{purpose}", assignor, protocol, KeyedTraffic)
        self.source = f"{self.name}-source"

    def branch_topic(self, partitions: int = PARTITIONS, ranges: int = RANGES) -> None:
        """The source, which has traffic from now on, and the branch topic."""
        self._source_partitions = partitions
        self._branches = partitions * ranges
        servers = self._target.bootstrap_servers
        self.subscription = create_branched(servers, self.source, partitions, self._branches)
        self.traffic.add(self.source, partitions)

    def partitions(self) -> list[Partition]:
        return [(self.subscription, number) for number in range(self._branches)]

    def processed(self) -> set[tuple[Partition, int]]:
        """By partition of the source."""
        return {
            ((self.source, number % self._source_partitions), offset)
            for (_, number), offset in super().processed()
        }

    def wanted_commits(self, ends: dict[Partition, int]) -> dict[Partition, int]:
        """After the last record of each branch that has any; all have been processed by now."""
        after: dict[Partition, int] = {}
        for branch, offset in super().processed():
            after[branch] = max(after.get(branch, 0), offset + 1)
        return after

    def finish(self, faulty: Sequence[MemberProcess] = ()) -> None:
        super().finish(faulty)
        uses = [
            Use(event["at"], number, event["offset"], member.name)
            for member in self.members
            for event in member.of("processed")
            for _, number in event["partitions"]
        ]
        left = {(p, offset) for member in faulty for (_, p), offset in member.left_behind()}
        told = check_keys(uses, self.traffic.keys, self.source, self._source_partitions, left)
        print(f"{'':<26}{told}", flush=True)


def joins_and_leaves(assignor: str, protocol: str) -> Check:
    """Six members on two partitions: three at once, three later, two leave, one comes back."""

    def check(target: Target) -> None:
        with BranchGroup(target, "moving", assignor, protocol) as group:
            group.branch_topic()
            first = [group.join() for _ in range(3)]
            group.settle(first)
            later = [group.join() for _ in range(3)]
            group.settle([*first, *later])
            for member in first[:2]:
                member.close()
            group.settle([first[2], *later])
            group.settle([first[2], *later, group.join()])
            group.finish()

    return check


def one_killed(assignor: str, protocol: str) -> Check:
    """One of four members on one partition is killed at work; the others take over its keys."""

    def check(target: Target) -> None:
        with BranchGroup(target, "killed", assignor, protocol) as group:
            group.branch_topic(partitions=1, ranges=8)
            if protocol == "consumer":
                group.set_session(SESSION_MS)
            victim, *others = [group.join() for _ in range(4)]
            group.settle(group.members)
            victim.kill()
            group.settle(others)
            group.finish(faulty=[victim])

    return check


def upgraded(target: Target) -> None:
    """A classic group on a branch topic goes over to the consumer protocol, member by member."""
    with BranchGroup(target, "upgraded", "cooperative-sticky") as group:
        group.branch_topic(partitions=1, ranges=6)
        members = [group.join() for _ in range(3)]
        group.settle(members)
        for number in range(3):
            members[number].close()
            members[number] = group.join(protocol="consumer")
            group.settle(members)
        group.protocol = "consumer"
        group.finish()


def broker_killed(target: Target) -> None:
    """The broker is killed under a group at work; confirmed commits of branches stay."""
    with BranchGroup(target, "restart", SERVER_ASSIGNOR, "consumer") as group:
        group.branch_topic()
        members = [group.join() for _ in range(3)]
        group.settle(members)
        group.restart_broker()
        group.settle(members)
        group.finish()


SMALL_BRANCH_CHECKS: dict[str, Check] = {
    **{
        f"one of 4 members of a branch topic killed, {assignor}": one_killed(assignor, protocol)
        for assignor, protocol in (("range", "classic"), (SERVER_ASSIGNOR, "consumer"))
    },
    "branch topic: classic to consumer protocol": upgraded,
}
LARGE_BRANCH_CHECKS: dict[str, Check] = {
    **{
        f"branch topic: joins and leaves, {assignor}": joins_and_leaves(assignor, protocol)
        for assignor, protocol in (
            ("cooperative-sticky", "classic"),
            (SERVER_ASSIGNOR, "consumer"),
        )
    },
    "broker killed under 3 members of a branch topic": broker_killed,
}
