"""A group of JavaScript members under steady traffic, and what their histories must show.

Both clients rebalance eagerly in the classic protocol: what a member had in hand and could not
commit before it joined again goes to the next owner once more. So a record may be processed again,
but only as often as a commit of it is missing; nothing may be lost and nothing have two owners.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from js_checks import committed, new_topic, unique
from js_client import Target, run

from member_history import HistoryProcess, Partition, wait_for
from traffic import Traffic

# The broker under test is started with it; six heartbeats fit in, also on a busy machine.
SESSION_MS = 6_000
PARTITIONS = 6
_TRAFFIC_PERIOD_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record that a member processed, and whether its commit was confirmed."""

    partition: Partition
    offset: int
    at: float
    is_committed: bool


class JsMember(HistoryProcess):
    """One consumer in a Node process."""

    @property
    def member_id(self) -> str:
        return str(self.of("assigned")[-1]["member"])

    def processed(self) -> list[Record]:
        confirmed = {turn for event in self.of("committed") for turn in event["turns"]}
        return [
            Record(
                partition=(event["topic"], event["partition"]),
                offset=offset,
                at=event["at"],
                is_committed=event["turn"] in confirmed,
            )
            for event in self.of("processed")
            for offset in event["offsets"]
        ]


class Group:
    """One group, its topic, its members dead and alive, and the traffic for them."""

    def __init__(
        self,
        target: Target,
        library: str,
        purpose: str,
        *,
        protocol: str = "classic",
        traffic: type[Traffic] = Traffic,
    ) -> None:
        self.name = unique(library, purpose)
        self.topic = self.name
        self.members: list[JsMember] = []
        self.target = target
        self.library = library
        self.protocol = protocol
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
                for event in member.of("heartbeat", "refused", "crashed", "error")[-4:]:
                    print(f"{event['event']}: {event['error']}", file=sys.stderr)

    def start(self) -> None:
        """The topic, which has traffic from now on."""
        new_topic(self.target, self.topic, PARTITIONS)
        self.traffic.add(self.topic, PARTITIONS)

    def partitions(self) -> list[Partition]:
        """What the members share."""
        return sorted(self.traffic.acknowledged)

    def join(self) -> JsMember:
        """A new process."""
        name = f"member-{len(self.members)}"
        options = {"group": self.name, "topic": self.topic, "sessionMs": SESSION_MS}
        command = self.target.command(self.library, "member", protocol=self.protocol, **options)
        member = JsMember(name, command, self.target.work_dir / f"{self.name}-{name}.log")
        self.members.append(member)
        return member

    # Waiting --------------------------------------------------------------------------------------

    def settle(self, members: Sequence[JsMember]) -> None:
        """Wait until these own every partition once, in even shares, and all work."""

        def settled() -> bool:
            shares = [member.owned for member in members]
            sizes = [len(share) for share in shares]
            everything = sorted(partition for share in shares for partition in share)
            return everything == self.partitions() and max(sizes) - min(sizes) <= 1

        wait_for(settled, "every partition has one owner, in even shares", members)
        self.work(members)

    def work(self, members: Sequence[JsMember]) -> None:
        """Wait until each of them has committed once more."""
        now = time.monotonic()
        wait_for(
            lambda: all(member.of("committed", after=now) for member in members),
            "every member commits",
            members,
        )

    # The end --------------------------------------------------------------------------------------

    def processed(self) -> set[tuple[Partition, int]]:
        """The records that somebody has processed, by where they were sent."""
        return {(r.partition, r.offset) for member in self.members for r in member.processed()}

    def wanted_commits(self, ends: dict[Partition, int]) -> dict[Partition, int]:
        """What is committed once everything is, by the ends of the topic with traffic."""
        return ends

    def check_description(self, members: Sequence[JsMember]) -> None:
        """The broker's account of a classic group is that of its members."""
        if self.protocol == "classic":
            (told,) = run(self.target, self.library, "describe", group=self.name)
            assert told["state"].upper() == "STABLE", told
            described = {m["id"]: {(t, p) for t, p in m["partitions"]} for m in told["members"]}
            owned = {member.member_id: member.owned for member in members}
            assert described == owned, f"the broker says {described}, the members say {owned}"

    def finish(self) -> None:
        """Let everything be processed and close the members; then their histories must agree."""
        alive = [member for member in self.members if member.is_running]
        self.check_description(alive)
        ends = self.traffic.stop()
        everything = {(p, offset) for p, count in ends.items() for offset in range(count)}
        try:
            wait_for(lambda: self.processed() >= everything, "all processed", alive)
        except AssertionError as problem:
            missing = sorted(everything - self.processed())
            raise AssertionError(f"{len(missing)} records lost, {missing[:3]}: {problem}") from None
        wanted = self.wanted_commits(ends)
        wait_for(
            lambda: committed(self.target, self.name) == wanted, "every offset committed", alive
        )
        for member in alive:
            member.ask_to_close()
        for member in alive:
            member.close()
        assert self.processed() == everything, "records were processed that nobody sent"
        check_owners(self.members)
        check_duplicates(self.members)


def check_owners(members: Sequence[JsMember]) -> None:
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
        for record in member.processed():
            assert any(
                s.partition == record.partition and s.began <= record.at <= s.ended for s in own
            ), f"{member.name} processed {record} and did not own it"


def check_duplicates(members: Sequence[JsMember]) -> None:
    """A record is processed once, and once more for each time that its commit is missing."""
    records = [record for member in members for record in member.processed()]
    times = Counter((r.partition, r.offset) for r in records)
    allowed = Counter((r.partition, r.offset) for r in records if not r.is_committed)
    for (partition, offset), count in times.items():
        assert count <= 1 + allowed[partition, offset], (
            f"record {offset} of {partition} was processed {count} times without need"
        )
    again = sum(count - 1 for count in times.values())
    print(f"{'':<26}{len(times)} records, {again} of them processed again", flush=True)
