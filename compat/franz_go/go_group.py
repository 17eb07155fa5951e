"""A group of member processes under steady traffic, and what their histories must show."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
)
from confluent_kafka.admin import AdminClient, NewTopic
from go_member import GoMember

from member_history import Partition, wait_for
from traffic import Traffic

PARTITIONS = 20
# The broker under test is started with it; three heartbeats fit in, also on a busy machine.
SESSION_MS = 3_000
# The least part of its records that a partition without a change of owner goes on delivering.
UNMOVED_SHARE = 0.95
_TRAFFIC_PERIOD_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The broker under test, the member program, and where its logs go."""

    bootstrap_servers: str
    program: Path
    work_dir: Path


class Group:
    """One group, its topics, its members dead and alive, and the traffic for them."""

    def __init__(
        self,
        target: Target,
        purpose: str,
        *,
        protocol: str = "consumer",
        balancer: str = "sticky",
        traffic: type[Traffic] = Traffic,
    ) -> None:
        self.name = f"franz-go-{purpose}-{time.time_ns() % 10**9}"
        self.members: list[GoMember] = []
        self.subscription = [self.name]
        self._target = target
        self.protocol = protocol
        self._balancer = balancer
        self._admin = AdminClient({"bootstrap.servers": target.bootstrap_servers, "log_level": 0})
        self.traffic = traffic(target.bootstrap_servers, _TRAFFIC_PERIOD_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self.traffic.end()
        for member in self.members:
            member.kill()
            if failure:
                last = "\n".join(member.stderr().splitlines()[-6:])
                print(f"--- {self.name}, {member.name}'s client\n{last}", file=sys.stderr)

    def topic(self, name: str = "", partitions: int = PARTITIONS) -> None:
        """A topic that has traffic from now on."""
        name = name or self.name
        self._admin.create_topics([NewTopic(name, partitions)])[name].result(20)
        self.traffic.add(name, partitions)

    def partitions(self) -> list[Partition]:
        """What the members share."""
        return sorted(self.traffic.acknowledged)

    def join(self, *flags: str, protocol: str = "", name: str = "member") -> GoMember:
        """A new process."""
        name = f"{name}-{len(self.members)}"
        protocol = protocol or self.protocol
        kind = ["-protocol", protocol, "-balancer", self._balancer]
        command = [*self._program(), *kind, "-session-ms", str(SESSION_MS), *flags]
        stderr_path = self._target.work_dir / f"{self.name}-{name}.log"
        member = GoMember(name, [*command, *self.subscription], stderr_path)
        self.members.append(member)
        return member

    def _program(self) -> list[str]:
        where = ["-bootstrap", self._target.bootstrap_servers, "-group", self.name]
        return [str(self._target.program), *where]

    # Waiting --------------------------------------------------------------------------------------

    def settle(self, members: Sequence[GoMember]) -> None:
        """Wait until these own every partition once, in even shares, and all work."""

        def settled() -> bool:
            shares = [member.owned for member in members]
            sizes = [len(share) for share in shares]
            everything = sorted(partition for share in shares for partition in share)
            return everything == self.partitions() and max(sizes) - min(sizes) <= 1

        wait_for(settled, "every partition has one owner, in even shares", members)
        self.work(members)

    def work(self, members: Sequence[GoMember]) -> None:
        """Wait until each of them has committed once more."""
        now = time.monotonic()
        wait_for(
            lambda: all(member.of("committed", after=now) for member in members),
            "every member commits",
            members,
        )

    # What the broker says -------------------------------------------------------------------------

    def committed(self) -> dict[Partition, int]:
        asked = ConsumerGroupTopicPartitions(self.name)
        (future,) = self._admin.list_consumer_group_offsets([asked]).values()
        return {(p.topic, p.partition): p.offset for p in future.result(20).topic_partitions}

    def described(self) -> dict[str, Any]:
        """ConsumerGroupDescribe as franz-go reads it, once the broker calls the group stable."""
        documents: list[dict[str, Any]] = []

        def stable() -> bool:
            command = [*self._program(), "-describe"]
            output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
            documents.append(json.loads(output.stdout))
            return bool(documents[-1]["state"] == "Stable")

        wait_for(stable, "the group is stable")
        return documents[-1]

    def assignment(self) -> dict[str, set[Partition]]:
        """Member id to partitions by the broker's account, of a stable group."""
        if self.protocol == "consumer":
            described = self.described()
            assignor = "range" if self._balancer == "range" else "uniform"
            assert described["assignor"] == assignor, described
            for member in described["members"]:
                assert member["assignment"] == member["target"], f"stable, and yet: {member}"
                assert member["epoch"] == described["epoch"], f"stable, and yet: {described}"
            return {m["id"]: {(t, p) for t, p in m["assignment"]} for m in described["members"]}
        (future,) = self._admin.describe_consumer_groups([self.name]).values()
        group: Any = future.result(20)
        assert group.state == ConsumerGroupState.STABLE, group.state
        assert group.partition_assignor == self._balancer, group.partition_assignor
        return {
            member.member_id: {(p.topic, p.partition) for p in member.assignment.topic_partitions}
            for member in group.members
        }

    # The end --------------------------------------------------------------------------------------

    def processed(self) -> set[tuple[Partition, int]]:
        """The records that somebody has processed, by where they were sent."""
        return {(r.partition, r.offset) for member in self.members for r in member.processed()}

    def wanted_commits(self, ends: dict[Partition, int]) -> dict[Partition, int]:
        """What is committed once everything is, by the ends of the topics with traffic."""
        return ends

    def finish(self, faulty: Sequence[GoMember] = (), excused: Sequence[str] = ()) -> None:
        """Let everything be processed and close the members; then their histories must agree.

        Only what a faulty member had processed and not committed may be processed again, and only
        a faulty member may have been refused a commit, but for `excused` errors, or told of one.
        """
        alive = [member for member in self.members if member.is_running]
        described = self.assignment()
        told = {member.member_id: member.owned for member in alive}
        assert described == told, f"the broker says {described}, the members say {told}"
        ends = self.traffic.stop()
        everything = {(p, offset) for p, count in ends.items() for offset in range(count)}
        try:
            wait_for(lambda: self.processed() >= everything, "all processed", alive)
        except AssertionError as problem:
            missing = sorted(everything - self.processed())
            raise AssertionError(f"{len(missing)} records lost, {missing[:3]}: {problem}") from None
        wanted = self.wanted_commits(ends)
        wait_for(lambda: self.committed() == wanted, "every offset committed", alive)
        for member in alive:
            member.ask_to_close()
        for member in alive:
            member.close()
        assert self.processed() == everything, "records were processed that nobody sent"
        assert self.committed() == wanted, f"offsets at the end: {self.committed()}, not {wanted}"
        check_owners(self.members)
        check_duplicates(self.members, faulty)
        check_untroubled([m for m in self.members if m not in faulty], excused)


def check_owners(members: Sequence[GoMember]) -> None:
    """No partition had two owners at any instant, and nobody processed what was not its own."""
    spans = sorted((s for member in members for s in member.spans()), key=lambda s: s.began)
    by_partition: dict[Partition, list[Any]] = {}
    for span in spans:
        by_partition.setdefault(span.partition, []).append(span)
    for of_partition in by_partition.values():
        for earlier, later in itertools.pairwise(of_partition):
            assert earlier.ended <= later.began, f"two owners: {earlier} and {later}"
    for member in members:
        own = list(member.spans())
        used = [(record.partition, record.at) for record in member.processed()]
        used += [((t, p), e["at"]) for e in member.of("committed") for t, p, _ in e["offsets"]]
        for partition, at in set(used):
            assert any(s.partition == partition and s.began <= at <= s.ended for s in own), (
                f"{member.name} used {partition} at {at} and did not own it"
            )


def check_duplicates(members: Sequence[GoMember], faulty: Sequence[GoMember]) -> None:
    """A record is processed once, and once more for each faulty member that left it behind."""
    times = Counter((r.partition, r.offset) for member in members for r in member.processed())
    allowed = Counter(record for member in faulty for record in member.left_behind())
    for (partition, offset), count in times.items():
        assert count <= 1 + allowed[partition, offset], (
            f"record {offset} of {partition} was processed {count} times without need"
        )


def check_untroubled(members: Sequence[GoMember], excused: Sequence[str]) -> None:
    """No commit was refused, not even for a moment, and the client had no error to report."""
    for member in members:
        troubles = [e for e in member.of("refused") if e["error"] not in excused]
        troubles += member.of("error", "lost")
        troubles += [event for event in member.of("committed") if event.get("repeated")]
        assert not troubles, f"{member.name}: {troubles[0]}"


@contextlib.contextmanager
def flowing(group: Group) -> Iterator[None]:
    """Partitions that keep their owner over the block, and a second more, keep their pace.

    What the members processed of them in this time is held against what arrived in them.
    """
    before = {partition: m for m in group.members for partition in m.owned}
    began = time.monotonic()
    yield
    time.sleep(1)
    ended = time.monotonic()
    unmoved = {p for p, m in before.items() if _held(m, p, began, ended)}
    assert unmoved, "every partition has changed its owner"
    arrived = sum(began <= at < ended for p in unmoved for at in group.traffic.acknowledged[p])
    times: dict[Partition, list[float]] = {partition: [] for partition in unmoved}
    for record in itertools.chain.from_iterable(m.processed() for m in group.members):
        if record.partition in unmoved and began <= record.at < ended:
            times[record.partition].append(record.at)
    processed = sum(map(len, times.values()))
    pauses = (b - a for each in times.values() for a, b in itertools.pairwise(sorted(each)))
    found = (
        f"{len(unmoved)} partitions that did not move delivered {processed} of {arrived} records"
        f" in {ended - began:.1f} s, longest pause {max(pauses, default=0.0) * 1000:.0f} ms"
    )
    assert processed >= UNMOVED_SHARE * arrived, found
    print(f"{'':<26}{found}", flush=True)


def _held(member: GoMember, partition: Partition, began: float, ended: float) -> bool:
    """Whether it was the owner all the time."""
    spans = [span for span in member.spans() if span.partition == partition]
    return any(span.began <= began and span.ended >= ended for span in spans)
