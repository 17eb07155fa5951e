"""What franz-go must be able to do with branch topics; one function per check.

It walks them to the end, and all branches together are the source: each record in one of them, the
same in every field. Its members share one partition by key, and the histories that they tell show
one owner of each branch at every instant and the records of each key in order.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from go_group import Group, Target
from go_member import GoMember

from branch_topics import KeyedTraffic, Sent, Use, check_keys, create_branched, sample, send
from member_history import Partition

Check = Callable[[Target], None]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 2
RANGES = 4
WALK_TIMEOUT_SECONDS = 60
_Record = dict[str, Any]


# Walking ------------------------------------------------------------------------------------------


def walk(target: Target, topic: str, count: int, *flags: str) -> list[_Record]:
    """Every record of a topic, in the order in which the client gave them."""
    where = ["-bootstrap", target.bootstrap_servers, "-walk", str(count), *flags, topic]
    result = subprocess.run(
        [str(target.program), *where],
        capture_output=True,
        text=True,
        timeout=WALK_TIMEOUT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, f"{topic}: {result.stderr[-500:]}"
    return [json.loads(line) for line in result.stdout.splitlines()]


def check_union(plain: list[_Record], branches: list[_Record], partitions: int) -> None:
    """Each record of the source is in one branch, the same in every field, and keys do not mix."""
    assert plain, "there was nothing to compare"
    wanted = {(r["partition"], r["offset"]): r for r in plain}
    branch_of_key: dict[tuple[int, str], int] = {}
    last: dict[int, int] = {}
    for record in branches:
        branch, offset = record["partition"], record["offset"]
        original = wanted.pop((branch % partitions, offset), None)
        assert original is not None, f"twice, or not in the source: {record}"
        expected = {**original, "partition": branch}
        assert record == expected, f"{record} was sent as {original}"
        assert offset > last.get(branch, -1), f"branch {branch}: {offset} after {last[branch]}"
        last[branch] = offset
        if record["key"] is not None:
            key = (branch % partitions, record["key"])
            assert branch_of_key.setdefault(key, branch) == branch, f"{key} in two branches"
    assert not wanted, f"{len(wanted)} records are in no branch, {list(wanted)[:3]}"


def new_source(target: Target, purpose: str, branches: int, partitions: int) -> tuple[str, str]:
    source = f"franz-go-branched-{purpose}-{time.time_ns() % 10**9}"
    return source, create_branched(target.bootstrap_servers, source, partitions, branches)


def union(codec: str) -> Check:
    def check(target: Target) -> None:
        source, branches = new_source(target, codec, PARTITIONS * RANGES, PARTITIONS)
        records = sample(PARTITIONS, 3_000, 1_700_000_000_000)
        settings = {"compression_type": codec, "linger_ms": "5", "enable_idempotence": "true"}
        send(target.bootstrap_servers, source, records, **settings)
        plain = walk(target, source, len(records))
        assert len(plain) == len(records), f"{len(plain)} records in the source"
        for flags in ((), ("-committed",), ("-fetch-bytes", "2000")):
            check_union(plain, walk(target, branches, len(records), *flags), PARTITIONS)

    return check


def idle(target: Target) -> None:
    """Branches without records are passed: what comes for them in the end arrives."""
    source, branches = new_source(target, "idle", 8, 1)
    same_key = [Sent(0, b"the only key", b"x" * 500, 1_700_000_000_000)] * 20_000
    many_keys = [Sent(0, f"key {n}".encode(), b"y", 1_700_000_000_000) for n in range(200)]
    send(target.bootstrap_servers, source, [*same_key, *many_keys], linger_ms="5")
    count = len(same_key) + len(many_keys)
    found = walk(target, branches, count)
    check_union(walk(target, source, count), found, 1)
    assert {record["partition"] for record in found} == set(range(8)), "branches with records"


# Groups -------------------------------------------------------------------------------------------


class BranchGroup(Group):
    """A group that subscribes to a branch topic; the traffic goes to its source."""

    traffic: KeyedTraffic

    def __init__(self, target: Target, purpose: str, **kind: str) -> None:
        super().__init__(target, f"branch-{purpose}", traffic=KeyedTraffic, **kind)
        self.source = f"{self.name}-source"

    def branch_topic(self, partitions: int, ranges: int) -> None:
        """The source, which has traffic from now on, and the branch topic."""
        self._source_partitions = partitions
        self._branches = partitions * ranges
        servers = self._target.bootstrap_servers
        self.subscription = [create_branched(servers, self.source, partitions, self._branches)]
        self.traffic.add(self.source, partitions)

    def partitions(self) -> list[Partition]:
        return [(self.subscription[0], number) for number in range(self._branches)]

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

    def finish(self, faulty: Sequence[GoMember] = (), excused: Sequence[str] = ()) -> None:
        super().finish(faulty, excused)
        uses = [
            Use(record.at, record.partition[1], record.offset, member.name)
            for member in self.members
            for record in member.processed()
        ]
        left = {(p, offset) for member in faulty for (_, p), offset in member.left_behind()}
        told = check_keys(uses, self.traffic.keys, self.source, self._source_partitions, left)
        print(f"{'':<26}{told}", flush=True)


def joins_and_leaves(protocol: str, balancer: str) -> Check:
    """Eight members on two partitions, come one after the other; five of them leave."""

    def check(target: Target) -> None:
        with BranchGroup(target, "moving", protocol=protocol, balancer=balancer) as group:
            group.branch_topic(PARTITIONS, RANGES)
            group.settle([group.join()])
            for count in (3, 8):
                while len(group.members) < count:
                    group.join()
                group.settle(group.members)
            leaving, staying = group.members[:5], group.members[5:]
            for member in leaving:
                member.ask_to_close()
            for member in leaving:
                member.close()
            group.settle(staying)
            group.finish()

    return check


def killed(protocol: str, balancer: str) -> Check:
    """One of four members on one partition is killed at work; the others take over its keys."""

    def check(target: Target) -> None:
        with BranchGroup(target, "killed", protocol=protocol, balancer=balancer) as group:
            group.branch_topic(1, 8)
            victim, *others = [group.join() for _ in range(4)]
            group.settle(group.members)
            victim.kill()
            group.settle(others)
            group.finish(faulty=[victim])

    return check


BRANCH_CHECKS: dict[str, Check] = {
    **{f"branches are the topic, codec {codec}": union(codec) for codec in CODECS},
    "branches without records are passed": idle,
    "branch topic: joins and leaves, KIP-848": joins_and_leaves("consumer", "sticky"),
    "branch topic: joins and leaves, classic": joins_and_leaves("classic", "cooperative-sticky"),
    "branch topic: one of 4 members killed, KIP-848": killed("consumer", "sticky"),
    "branch topic: one of 4 members killed, classic range": killed("classic", "range"),
}
