"""Branch topics for tests: making them as users do, and logs that are awkward to branch."""

import itertools
import time
from collections.abc import Iterator, Sequence

from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.branch.slots import branch_of_slot, slot_of_key
from support.kafka_python_client import KafkaPython
from support.stock_clients import CODECS, EARLIEST, Received, ToSend

HOUR_MS = 3_600_000


def create_branched(
    bootstrap: str, source: str, ranges: int, partitions: int = 1, **configs: str
) -> str:
    """Create a topic and a branch topic over it, with a stock admin client; returns its name."""
    branch_topic = f"{source}.by-key"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = {name.replace("_", "."): value for name, value in configs.items()}
    for topic in (
        NewTopic(source, partitions, config=wanted),
        NewTopic(branch_topic, partitions * ranges, config={"branch.source.topic": source}),
    ):
        admin.create_topics([topic])[topic.topic].result(30)
    return branch_topic


def keys_of_branch(branch: int, ranges: int) -> Iterator[bytes]:
    """Keys whose records belong to one of the equal ranges, without end."""
    for number in itertools.count():
        key = b"key-%d" % number
        if branch_of_key(key, ranges) == branch:
            yield key


def branch_of_key(key: bytes, ranges: int) -> int:
    return branch_of_slot(slot_of_key(key), ranges)


def even_keys(count: int, ranges: int) -> list[str]:
    """Keys of which every range has as many as any other, or one more."""
    wanted = {r: (r + 1) * count // ranges - r * count // ranges for r in range(ranges)}
    keys: list[str] = []
    for number in itertools.count():
        key = f"order-{number}"
        branch = branch_of_key(key.encode(), ranges)
        if wanted[branch]:
            wanted[branch] -= 1
            keys.append(key)
        if len(keys) == count:
            return keys
    raise AssertionError("unreachable")


def mixed_batches(ranges: int) -> list[tuple[str, list[ToSend]]]:
    """What to send to one partition: a codec, and the records that go in one batch or a few.

    Every codec; keys that are null, empty, rare, or those of one branch for many batches; values
    that are null, empty or large; headers; one batch of one record; and at the end a tail in which
    only the first branch has records.
    """
    start_ms = time.time_ns() // 1_000_000 - HOUR_MS
    numbers = itertools.count()

    def record(key: bytes | None, value: bytes | None = None, *, headers: bool = False) -> ToSend:
        number = next(numbers)
        return ToSend(
            b"value %d " % number + b"." * (number * 7 % 60) if value is None else value,
            key,
            (("number", b"%d" % number), ("number", b""), ("ünique", b"\xff")) if headers else (),
            timestamp_ms=start_ms + 10 * number,
        )

    alone = next(keys_of_branch(0, ranges))
    batches = []
    for codec in CODECS:
        batches += [
            (codec, [record(b"key-%d" % (i % 37), headers=i % 5 == 0) for i in range(80)]),
            (codec, [record(None) for _ in range(150)]),
            (codec, [record(alone) for _ in range(40)]),
            (codec, [record(b""), record(b"", b""), record(b"key-1", b"x" * 40_000)]),
            (codec, [record(key) for key in (None, b"", b"key-2", None, b"key-3") * 6]),
            (codec, [record(alone)]),
        ]
    return batches + [("none", [record(alone) for _ in range(30)]) for _ in range(5)]


def send_batches(bootstrap: str, topic: str, batches: Sequence[tuple[str, list[ToSend]]]) -> None:
    """Send one group of records after the other, so that each makes batches of its own."""
    for codec, group in itertools.groupby(batches, key=lambda batch: batch[0]):
        with KafkaPython().producer(bootstrap, codec=codec) as producer:
            for _, records in group:
                assert all(d.error_code == 0 for d in producer.send(topic, records))


def read_plainly(bootstrap: str, topic: str, count: int, partitions: int = 1) -> list[Received]:
    """All `count` records of a topic, in the order of their partitions and offsets."""
    starts = dict.fromkeys(range(partitions), EARLIEST)
    with KafkaPython().consumer(bootstrap, topic, starts) as consumer:
        return sorted(consumer.take(count), key=lambda record: (record.partition, record.offset))
