"""Branch topics in every suite: making them, traffic with keys, and the order of each key.

A branch topic made over P partitions has P x R partitions; number r * P + p shows the records of
partition p whose keys are in range r, with the offsets that they have there.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from member_history import Partition
from traffic import Traffic

SOURCE_CONFIG = "branch.source.topic"
_PROBE = "branch.ranges.per.partition"
_RECORDS_PER_TURN = 10
_KEYS_PER_PARTITION = 40
_WITHOUT_KEY = 0.1


def require_branch_topics(bootstrap_servers: str) -> None:
    """LookupError, which skips the check, when the broker has no branch topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    node = next(iter(admin.list_topics(timeout=20).brokers))
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node))
    (future,) = admin.describe_configs([resource]).values()
    if _PROBE not in future.result(20):
        raise LookupError("this broker has no branch topics")


def create_branch_topic(bootstrap_servers: str, name: str, source: str, branches: int) -> str:
    """A branch topic with so many partitions; returns its name."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    topic = NewTopic(name, branches, config={SOURCE_CONFIG: source})
    admin.create_topics([topic])[name].result(20)
    return name


def create_branched(bootstrap_servers: str, source: str, partitions: int, branches: int) -> str:
    """A topic of so many partitions and a branch topic of it; returns the latter's name."""
    require_branch_topics(bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(source, partitions)])[source].result(20)
    return create_branch_topic(bootstrap_servers, f"{source}.by-key", source, branches)


# Records ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """One record of a source topic as it was sent."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def sample(partitions: int, count: int, first_timestamp_ms: int) -> list[Sent]:
    """Records with and without keys and values, a millisecond apart; a key has one partition."""
    chosen = random.Random(count)
    records = []
    for number in range(count):
        kind = chosen.randrange(60)
        key = None if number % 7 == 0 else f"key{kind}".encode()
        value = None if number % 13 == 0 else f"{number} ".encode() * chosen.randrange(1, 12)
        partition = number % partitions if key is None else kind % partitions
        records.append(Sent(partition, key, value, first_timestamp_ms + number))
    return records


def send(bootstrap_servers: str, topic: str, records: Iterable[Sent], **settings: str) -> None:
    """Produce them; dots of a setting's name are written as underscores."""
    own = {name.replace("_", "."): value for name, value in settings.items()}
    problems: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            problems.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0, **own})
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            on_delivery=delivered,
            timestamp=record.timestamp_ms,
        )
    left = producer.flush(60)
    assert not left and not problems, f"{left} records left, {problems[:3]}"


# Traffic for groups -------------------------------------------------------------------------------


class KeyedTraffic(Traffic):
    """Traffic whose records have keys, a few without; `keys` tells them by partition and offset."""

    def __init__(self, bootstrap_servers: str, period_seconds: float) -> None:
        self.keys: dict[tuple[Partition, int], bytes | None] = {}
        super().__init__(bootstrap_servers, period_seconds)

    def _run(self) -> None:
        chosen = random.Random(7)
        while not self._stopping.wait(self._period_seconds):
            for topic, number in self.acknowledged:
                for _ in range(_RECORDS_PER_TURN):
                    key = f"{number}-{chosen.randrange(_KEYS_PER_PARTITION)}".encode()
                    self._producer.produce(
                        topic,
                        b"record",
                        None if chosen.random() < _WITHOUT_KEY else key,
                        number,
                        on_delivery=self._delivered,
                    )
            self._producer.poll(0.01)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        super()._delivered(error, message)
        if error is None:
            partition = (message.topic() or "", message.partition() or 0)
            self.keys[partition, message.offset() or 0] = message.key()


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """A record of a branch in the hands of a member."""

    at: float
    branch: int
    offset: int
    member: str


def check_keys(
    uses: Iterable[Use],
    keys: dict[tuple[Partition, int], bytes | None],
    source: str,
    partitions: int,
    repeatable: set[tuple[int, int]],
) -> str:
    """Each key is in one branch, and its records were processed in order by all members together.

    A record may be processed once more, and what follows it after that, when it is `repeatable`:
    a (branch, offset) that a member left uncommitted. What was found is returned as a sentence.
    """
    by_record: dict[tuple[Partition, int], int] = {}
    by_key: dict[tuple[int, bytes], list[Use]] = {}
    for use in sorted(uses):
        record = ((source, use.branch % partitions), use.offset)
        branch = by_record.setdefault(record, use.branch)
        assert branch == use.branch, f"{record} is in branches {branch} and {use.branch}"
        key = keys[record]
        if key is not None:
            by_key.setdefault((use.branch % partitions, key), []).append(use)
    for (partition, key), all_uses in by_key.items():
        branches = {use.branch for use in all_uses}
        assert len(branches) == 1, f"key {key!r} is in branches {branches}"
        offsets = sorted({use.offset for use in all_uses})
        places = {offset: place for place, offset in enumerate(offsets)}
        assert places[all_uses[0].offset] == 0, f"key {key!r} began at {all_uses[0]}"
        for earlier, later in itertools.pairwise(all_uses):
            place, next_place = places[earlier.offset], places[later.offset]
            again = next_place <= place and (later.branch, later.offset) in repeatable
            assert next_place == place + 1 or again, (
                f"order of key {key!r} of {source}-{partition} broken: {earlier}, then {later}"
            )
    moved = sum(len({use.member for use in all_uses}) > 1 for all_uses in by_key.values())
    return (
        f"{len(by_record)} records, {len(by_key)} keys in order, {moved} of them had several owners"
    )
