"""A group of member processes under steady traffic, and what their histories must show."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, NewTopic
from member_process import MemberProcess, member_command, wait_for
from tool_checks import Target

PARTITIONS = 12
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
_TRAFFIC_PERIOD_SECONDS = 0.1


class Traffic:
    """Records that keep coming, the same number in each partition, until `stop`."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        # Idempotent: a restart of the broker must neither lose a record nor double it.
        settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True}
        self._producer = Producer({**settings, "log_level": 0})
        self._problems: list[str] = []
        self._rounds = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(_TRAFFIC_PERIOD_SECONDS):
            for partition in range(PARTITIONS):
                self._producer.produce(
                    self._topic, b"record", partition=partition, on_delivery=self._delivered
                )
            self._rounds += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._problems.append(str(error))

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()

    def stop(self) -> int:
        """Every record has been acknowledged; returns how many there are in each partition."""
        self.end()
        left = self._producer.flush(60)
        assert not left and not self._problems, f"{left} records left, {self._problems[:3]}"
        return self._rounds


class Group:
    """One group, its topic, its members dead and alive, and the traffic for them."""

    def __init__(self, target: Target, purpose: str, assignor: str) -> None:
        self.name = f"members-{purpose}-{time.time_ns() % 10**9}"
        self.members: list[MemberProcess] = []
        self._target = target
        self._properties = {
            "group.protocol": "classic",
            "partition.assignment.strategy": ASSIGNORS[assignor],
            "session.timeout.ms": str(SESSION_MS),
            "heartbeat.interval.ms": "300",
        }
        self._assignor = assignor
        client = {"bootstrap.servers": target.bootstrap_servers, "log_level": 0}
        self._admin = AdminClient(client)
        self._observer = Consumer({**client, "group.id": self.name})
        self._admin.create_topics([NewTopic(self.name, PARTITIONS)])[self.name].result(20)
        self._traffic = Traffic(target.bootstrap_servers, self.name)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self._traffic.end()
        self._observer.close()
        for member in self.members:
            member.kill()
            if failure:
                last = "\n".join(member.stderr().splitlines()[-8:])
                print(f"--- {self.name}, {member.name}'s client\n{last}", file=sys.stderr)

    def join(self, **properties: str) -> MemberProcess:
        """A new process; dots of a property's name are written as underscores."""
        own = {name.replace("_", "."): value for name, value in properties.items()}
        name = f"{own.get('group.instance.id', 'member')}-{len(self.members)}"
        pairs = [f"{key}={value}" for key, value in (self._properties | own).items()]
        where = [self._target.bootstrap_servers, self.name, self.name]
        stderr_path = self._target.work_dir / f"{self.name}-{name}.log"
        member = MemberProcess(name, [*member_command(), *where, *pairs], stderr_path)
        self.members.append(member)
        return member

    # Waiting --------------------------------------------------------------------------------------

    def settle(self, members: Sequence[MemberProcess]) -> None:
        """Wait until these own every partition once, in even shares, and all work."""

        def settled() -> bool:
            shares = [member.owned for member in members]
            sizes = [len(share) for share in shares]
            everything = sorted(partition for share in shares for partition in share)
            return everything == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1

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

    def committed(self) -> dict[int, int]:
        """The offset of each partition that has one.

        Asked for with a consumer, which does not join: librdkafka's admin client crashes when the
        coordinator answers that it is still loading, as it may after a restart.
        """
        partitions = [TopicPartition(self.name, number) for number in range(PARTITIONS)]
        answers: list[list[TopicPartition]] = []

        def answered() -> bool:
            with contextlib.suppress(KafkaException):
                answers.append(self._observer.committed(partitions, timeout=20))
            return bool(answers)

        wait_for(answered, "the coordinator tells the committed offsets")
        return {each.partition: each.offset for each in answers[0] if each.offset >= 0}

    def described(self) -> dict[str, set[int]]:
        """Member id to assignment by the coordinator's account, once it calls the group stable."""
        groups: list[ConsumerGroupDescription] = []

        def stable() -> bool:
            (future,) = self._admin.describe_consumer_groups([self.name]).values()
            groups.append(future.result(20))
            return bool(groups[-1].state == ConsumerGroupState.STABLE)

        wait_for(stable, "the group is stable")
        assert groups[-1].partition_assignor == self._assignor, groups[-1].partition_assignor
        return {
            member.member_id: {each.partition for each in member.assignment.topic_partitions}
            for member in groups[-1].members
        }

    # The end --------------------------------------------------------------------------------------

    def finish(self, faulty: Sequence[MemberProcess] = ()) -> None:
        """Let everything be processed and close the members; then their histories must agree.

        Only what a faulty member had processed and not committed may be processed again.
        """
        alive = [member for member in self.members if member.ended_at == float("inf")]

        def agreed() -> bool:
            told = {str(member.events[-1]["member"]): member.owned for member in alive}
            return self.described() == told

        wait_for(agreed, "the broker describes the shares that the members have", alive)
        each = self._traffic.stop()
        everything = {(p, offset) for p in range(PARTITIONS) for offset in range(each)}
        ends = dict.fromkeys(range(PARTITIONS), each)

        def processed() -> set[tuple[int, int]]:
            return {record for member in self.members for record in member.processed()}

        wait_for(lambda: processed() >= everything, "every record is processed", alive)
        wait_for(lambda: self.committed() == ends, "every offset is committed", alive)
        for member in alive:
            member.ask_to_close()
        for member in alive:
            member.close()
        assert processed() == everything, "records were processed that nobody had sent"
        assert self.committed() == ends, f"offsets at the end: {self.committed()}, not {each}"
        check_owners(self.members)
        check_duplicates(self.members, faulty)


def check_owners(members: Sequence[MemberProcess]) -> None:
    """No partition had two owners at any instant, and nobody processed what was not its own."""
    spans = sorted(
        (span for member in members for span in member.spans()), key=lambda span: span.began
    )
    for partition in range(PARTITIONS):
        of_partition = [span for span in spans if span.partition == partition]
        for earlier, later in itertools.pairwise(of_partition):
            assert earlier.ended <= later.began, f"two owners: {earlier} and {later}"
    for member in members:
        own = list(member.spans())
        for event in member.of("processed", "committed"):
            partitions = [event["partition"]] if "partition" in event else event["offsets"]
            for partition in map(int, partitions):
                assert any(
                    span.partition == partition and span.began <= event["at"] <= span.ended
                    for span in own
                ), f"{member.name} did not own what it {event['event']}: {event}"


def check_duplicates(members: Sequence[MemberProcess], faulty: Sequence[MemberProcess]) -> None:
    """A record is processed once, and once more for each faulty member that left it behind."""
    times = Counter(record for member in members for record in member.processed())
    allowed = Counter(record for member in faulty for record in member.left_behind())
    for (partition, offset), count in times.items():
        assert count <= 1 + allowed[partition, offset], (
            f"record {offset} of partition {partition} was processed {count} times without need"
        )
