"""A group of member processes under steady traffic, and what their histories must show."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from group_watcher import watcher_of
from member_process import MemberProcess, member_command
from tool_checks import Target

from member_history import Partition, Span, offsets_of, partitions_of, wait_for
from traffic import Traffic

PARTITIONS = 12
_TRAFFIC_PERIOD_SECONDS = 0.1
ASSIGNORS = {
    name: f"org.apache.kafka.clients.consumer.{name_of_class}"
    for name, name_of_class in (
        ("range", "RangeAssignor"),
        ("roundrobin", "RoundRobinAssignor"),
        ("sticky", "StickyAssignor"),
        ("cooperative-sticky", "CooperativeStickyAssignor"),
    )
}
# Long enough for a busy machine, short enough to wait for.
SESSION_MS = 6_000
DEFAULT_SERVER_ASSIGNOR = "uniform"
SERVER_ASSIGNORS = (DEFAULT_SERVER_ASSIGNOR, "range")


class Group:
    """One group, its topics, its members dead and alive, and the traffic for them.

    `assignor` is one of the client's for a classic group and one of the broker's otherwise.
    """

    def __init__(
        self,
        target: Target,
        purpose: str,
        assignor: str,
        protocol: str = "classic",
        traffic: type[Traffic] = Traffic,
    ) -> None:
        self.name = f"members-{purpose}-{time.time_ns() % 10**9}"
        self.members: list[MemberProcess] = []
        self.subscription = self.name
        self.protocol = protocol
        self._target = target
        self._assignor = assignor
        client = {"bootstrap.servers": target.bootstrap_servers, "log_level": 0}
        self._admin = AdminClient(client)
        self._observer = Consumer({**client, "group.id": self.name})
        self.traffic = traffic(target.bootstrap_servers, _TRAFFIC_PERIOD_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self.traffic.end()
        self._observer.close()
        for member in self.members:
            member.kill()
            if failure:
                last = "\n".join(member.stderr().splitlines()[-8:])
                print(f"--- {self.name}, {member.name}'s client\n{last}", file=sys.stderr)

    def topic(self, name: str = "", partitions: int = PARTITIONS) -> None:
        """A topic that has traffic from now on."""
        name = name or self.name
        self._admin.create_topics([NewTopic(name, partitions)])[name].result(20)
        self.traffic.add(name, partitions)

    def partitions(self) -> list[Partition]:
        """What the members share."""
        return sorted(self.traffic.acknowledged)

    def set_session(self, session_ms: int) -> None:
        """How long the broker waits for a member of this group, by the consumer protocol."""
        entry = ConfigEntry(
            "consumer.session.timeout.ms",
            str(session_ms),
            incremental_operation=AlterConfigOpType.SET,
        )
        kind = ConfigResource.Type.GROUP
        resource = ConfigResource(kind, self.name, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(20)

    def join(self, protocol: str = "", **properties: str) -> MemberProcess:
        """A new process; dots of a property's name are written as underscores."""
        own = {name.replace("_", "."): value for name, value in properties.items()}
        own = {"group.protocol": protocol or self.protocol} | own
        if own["group.protocol"] == "classic":
            own = {
                "partition.assignment.strategy": ASSIGNORS[self._assignor],
                "session.timeout.ms": str(SESSION_MS),
                "heartbeat.interval.ms": "300",
            } | own
        elif self._assignor in SERVER_ASSIGNORS:
            own["group.remote.assignor"] = self._assignor
        name = f"{own.get('group.instance.id', 'member')}-{len(self.members)}"
        pairs = [f"{key}={value}" for key, value in own.items()]
        where = [self._target.bootstrap_servers, self.name, self.subscription]
        stderr_path = self._target.work_dir / f"{self.name}-{name}.log"
        member = MemberProcess(name, [*member_command(), *where, *pairs], stderr_path)
        self.members.append(member)
        return member

    def restart_broker(self) -> None:
        """Kill it and start it again: every commit that was confirmed must still be there."""
        if self._target.server is None:
            raise LookupError("needs a broker started here: it is killed")
        self._target.server.kill()
        confirmed = [member.confirmed() for member in self.members]
        self._target.server.start()
        committed = self.committed()
        for offsets in confirmed:
            for partition, offset in offsets.items():
                assert committed.get(partition, 0) >= offset, (
                    f"{partition} was committed at {offset}, now at {committed}"
                )

    # Waiting --------------------------------------------------------------------------------------

    def settle(self, members: Sequence[MemberProcess]) -> None:
        """Wait until these own every partition once, in even shares, and all work."""

        def settled() -> bool:
            shares = [member.owned for member in members]
            sizes = [len(share) for share in shares]
            everything = sorted(partition for share in shares for partition in share)
            return everything == self.partitions() and max(sizes) - min(sizes) <= 1

        wait_for(settled, "every partition has one owner, in even shares", members)
        self.work(members)

    def work(self, members: Sequence[MemberProcess]) -> None:
        """Wait until each of them has committed once more."""
        now = time.monotonic()
        wait_for(
            lambda: all(member.of("committed", after=now) for member in members),
            "every member commits",
            members,
        )

    # What the broker says -------------------------------------------------------------------------

    def committed(self) -> dict[Partition, int]:
        """The offset of each partition that has one.

        Asked for with a consumer, which does not join: librdkafka's admin client crashes when the
        coordinator answers that it is still loading, as it may after a restart.
        """
        partitions = [TopicPartition(*partition) for partition in self.partitions()]
        answers: list[list[TopicPartition]] = []

        def answered() -> bool:
            with contextlib.suppress(KafkaException):
                answers.append(self._observer.committed(partitions, timeout=20))
            return bool(answers)

        wait_for(answered, "the coordinator tells the committed offsets")
        return {
            (each.topic, each.partition): each.offset for each in answers[0] if each.offset >= 0
        }

    def described(self, state: str = "Stable") -> dict[str, Any]:
        """The group by the coordinator's account, once it is in this state."""
        documents: list[dict[str, Any]] = []

        def reached() -> bool:
            documents.append(watcher_of(self._target.bootstrap_servers).describe(self.name))
            return bool(documents[-1].get("state") == state)

        try:
            wait_for(reached, f"the group is {state}")
        except AssertionError as problem:
            raise AssertionError(f"{problem} {documents[-1]}") from None
        return documents[-1]

    def assignment(self) -> dict[str, set[Partition]]:
        """Member id to partitions by the coordinator's account, of a group at rest."""
        group = self.described()
        kind, assignor = "Classic", self._assignor
        if self.protocol == "consumer":
            kind = "Consumer"
            assignor = assignor if assignor in SERVER_ASSIGNORS else DEFAULT_SERVER_ASSIGNOR
            assert group["epoch"] == group["target_epoch"], group
            for member in group["members"]:
                assert sorted(member["assignment"]) == sorted(member["target"]), member
                assert member["epoch"] == group["epoch"], group
        assert (group["type"], group["assignor"]) == (kind, assignor), group
        return {each["id"]: {(t, p) for t, p in each["assignment"]} for each in group["members"]}

    # The end --------------------------------------------------------------------------------------

    def processed(self) -> set[tuple[Partition, int]]:
        """The records that somebody has processed, by where they were sent."""
        return {record for member in self.members for record in member.processed()}

    def wanted_commits(self, ends: dict[Partition, int]) -> dict[Partition, int]:
        """What is committed once everything is, by the ends of the topics with traffic."""
        return ends

    def finish(self, faulty: Sequence[MemberProcess] = ()) -> None:
        """Let everything be processed and close the members; then their histories must agree.

        Only what a faulty member had processed and not committed may be processed again, and only
        a faulty one may have lost partitions or have been refused a commit.
        """
        alive = [member for member in self.members if member.is_running]
        wait_for(
            lambda: self.assignment() == {member.member_id: member.owned for member in alive},
            "the broker describes the shares that the members have",
            alive,
        )
        ends = self.traffic.stop()
        everything = {(p, offset) for p, count in ends.items() for offset in range(count)}
        wait_for(lambda: self.processed() >= everything, "every record is processed", alive)
        wanted = self.wanted_commits(ends)
        wait_for(lambda: self.committed() == wanted, "every offset is committed", alive)
        for member in alive:
            member.ask_to_close()
        for member in alive:
            member.close()
        assert self.processed() == everything, "records were processed that nobody had sent"
        assert self.committed() == wanted, f"offsets at the end: {self.committed()}, not {wanted}"
        check_owners(self.members)
        check_duplicates(self.members, faulty)
        check_untroubled([member for member in self.members if member not in faulty])


def check_owners(members: Sequence[MemberProcess]) -> None:
    """No partition had two owners at any instant, and nobody processed what was not its own."""
    by_partition: dict[Partition, list[Span]] = {}
    for span in sorted((s for member in members for s in member.spans()), key=lambda s: s.began):
        by_partition.setdefault(span.partition, []).append(span)
    for spans in by_partition.values():
        for earlier, later in itertools.pairwise(spans):
            assert earlier.ended <= later.began, f"two owners: {earlier} and {later}"
    for member in members:
        own = list(member.spans())
        unaware = (member.frozen_at, member.unaware_until)
        records = [e for e in member.of("processed") if not unaware[0] < e["at"] < unaware[1]]
        used = [(p, e["at"]) for e in records for p in partitions_of(e)]
        used += [(p, e["at"]) for e in member.of("committed") for p in offsets_of(e)]
        for partition, at in used:
            assert any(s.partition == partition and s.began <= at <= s.ended for s in own), (
                f"{member.name} used {partition} at {at} and did not own it"
            )


def check_duplicates(members: Sequence[MemberProcess], faulty: Sequence[MemberProcess]) -> None:
    """A record is processed once, and once more for each faulty member that left it behind."""
    times = Counter(record for member in members for record in member.processed())
    allowed = Counter(record for member in faulty for record in member.left_behind())
    for (partition, offset), count in times.items():
        assert count <= 1 + allowed[partition, offset], (
            f"record {offset} of {partition} was processed {count} times without need"
        )


def check_untroubled(members: Sequence[MemberProcess]) -> None:
    """Nothing was lost, no commit refused for good, and no generation or epoch went back."""
    for member in members:
        # A classic client that closes while others move calls what it gives up lost.
        while_closing = member.events[-2:] if member.of("closed") else []
        troubles = [event for event in member.of("lost") if event not in while_closing]
        troubles += member.of("refused")
        assert not troubles, f"{member.name}: {troubles[0]}"
        generations = [event["generation"] for event in member.of("assigned", "committed")]
        assert generations == sorted(generations), f"{member.name}: {generations}"
