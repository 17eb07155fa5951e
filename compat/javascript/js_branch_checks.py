"""What a JavaScript client must be able to do with branch topics; one function per check.

It walks them to the end, and all branches together are the source: each record in one of them, the
same in every field. Members share one or two partitions by key, every key in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from js_checks import unique
from js_client import CODECS, LIBRARIES, Target, require_codec, walk
from js_group_checks import KINDS
from js_members import Group

from branch_topics import KeyedTraffic, Sent, Use, check_keys, create_branched, sample, send
from member_history import Partition

Check = Callable[[Target], None]
PARTITIONS = 2
RANGES = 4
_FIRST_TIMESTAMP_MS = 1_700_000_000_000


def check_union(plain: list[Any], branches: list[Any], partitions: int) -> None:
    """Each record of the source is in one branch, the same in every field, and keys do not mix."""
    assert plain, "there was nothing to compare"
    wanted = {(r["partition"], r["offset"]): r for r in plain}
    branch_of_key: dict[tuple[int, str], int] = {}
    last: dict[int, int] = {}
    for record in branches:
        branch, offset = record["partition"], record["offset"]
        original = wanted.pop((branch % partitions, offset), None)
        assert original is not None, f"twice, or not in the source: {record}"
        assert record == {**original, "partition": branch}, f"{record} was sent as {original}"
        assert offset > last.get(branch, -1), f"branch {branch}: {offset} after {last[branch]}"
        last[branch] = offset
        if record["key"] is not None:
            key = (branch % partitions, record["key"])
            assert branch_of_key.setdefault(key, branch) == branch, f"{key} in two branches"
    assert not wanted, f"{len(wanted)} records are in no branch, {list(wanted)[:3]}"


def union(library: str, codec: str) -> Check:
    def check(target: Target) -> None:
        require_codec(target, codec)
        source = unique(library, f"branched-{codec}")
        servers = target.bootstrap_servers
        branches = create_branched(servers, source, PARTITIONS, PARTITIONS * RANGES)
        records = sample(PARTITIONS, 3_000, _FIRST_TIMESTAMP_MS)
        send(servers, source, records, compression_type=codec, linger_ms="5")
        plain = walk(target, library, source, len(records))
        for options in ({"committed": True}, {"fetchBytes": 2_000}):
            got = walk(target, library, branches, len(records), **options)
            check_union(plain, got, PARTITIONS)

    return check


def idle(library: str) -> Check:
    """Branches without records are passed: what comes for them in the end arrives."""

    def check(target: Target) -> None:
        source = unique(library, "branched-idle")
        servers = target.bootstrap_servers
        branches = create_branched(servers, source, 1, 8)
        same_key = [Sent(0, b"the only key", b"x" * 500, _FIRST_TIMESTAMP_MS)] * 20_000
        many = [Sent(0, f"key {n}".encode(), b"y", _FIRST_TIMESTAMP_MS) for n in range(200)]
        send(servers, source, [*same_key, *many], linger_ms="5")
        found = walk(target, library, branches, 20_200)
        check_union(walk(target, library, source, 20_200), found, 1)
        assert {record["partition"] for record in found} == set(range(8)), "branches with records"

    return check


class BranchGroup(Group):
    """A group that subscribes to a branch topic; the traffic goes to its source."""

    traffic: KeyedTraffic

    def __init__(self, target: Target, library: str, purpose: str, protocol: str) -> None:
        super().__init__(
            target, library, f"branch-{purpose}", protocol=protocol, traffic=KeyedTraffic
        )
        self.source = f"{self.name}-source"

    def start_branches(self, partitions: int, ranges: int) -> None:
        """The source, which has traffic from now on, and the branch topic."""
        self._source_partitions = partitions
        self._branches = partitions * ranges
        servers = self.target.bootstrap_servers
        self.topic = create_branched(servers, self.source, partitions, self._branches)
        self.traffic.add(self.source, partitions)

    def partitions(self) -> list[Partition]:
        return [(self.topic, number) for number in range(self._branches)]

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

    def finish(self) -> None:
        super().finish()
        records = [(member.name, r) for member in self.members for r in member.processed()]
        uses = [Use(r.at, r.partition[1], r.offset, name) for name, r in records]
        left = {(r.partition[1], r.offset) for _, r in records if not r.is_committed}
        told = check_keys(uses, self.traffic.keys, self.source, self._source_partitions, left)
        print(f"{'':<26}{told}", flush=True)


def shared(library: str, protocol: str) -> Check:
    """Six members on two partitions, three of them leave."""

    def check(target: Target) -> None:
        with BranchGroup(target, library, "moving", protocol) as group:
            group.start_branches(PARTITIONS, RANGES)
            group.settle([group.join()])
            for count in (3, 6):
                while len(group.members) < count:
                    group.join()
                group.settle(group.members)
            leaving, staying = group.members[:3], group.members[3:]
            for member in leaving:
                member.ask_to_close()
            for member in leaving:
                member.close()
            group.settle(staying)
            group.finish()

    return check


def killed(library: str, protocol: str) -> Check:
    """One of four members on one partition is killed at work; the others take over its keys."""

    def check(target: Target) -> None:
        with BranchGroup(target, library, "killed", protocol) as group:
            group.start_branches(1, 8)
            victim, *others = [group.join() for _ in range(4)]
            group.settle(group.members)
            victim.kill()
            group.settle(others)
            group.finish()

    return check


BRANCH_CHECKS: dict[str, Check] = {
    **{
        f"{library}: branches are the topic, codec {codec}": union(library, codec)
        for library in LIBRARIES
        for codec in CODECS
    },
    **{f"{library}: branches without records are passed": idle(library) for library in LIBRARIES},
    **{f"{kind}: branch topic, joins and leaves": shared(*of) for kind, of in KINDS.items()},
    **{f"{kind}: branch topic, one of 4 members killed": killed(*of) for kind, of in KINDS.items()},
}
