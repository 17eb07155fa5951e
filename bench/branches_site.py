"""What all parts of the benchmark of branches need: topics, records, and the server's CPU time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.branch.slots import branch_of_slot, slot_of_key
from driver import DriverError
from server_process import ServerProcess

KEYS = 10_000
CODECS = ("none", "lz4", "zstd")

_LIMIT_S = 30
# Values repeat after so many, which is beyond what a compressor sees of one batch.
_VALUES = 20_000
_STATES = ("new", "paid", "packed", "shipped", "returned")
_topic_numbers = itertools.count(1)


def cpu_seconds(server: ServerProcess) -> float:
    """As `ServerProcess.cpu_seconds`, in nanoseconds instead of hundredths, of living threads."""
    tasks = Path(f"/proc/{server.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


# Topics -------------------------------------------------------------------------------------------


def create_topic(server: ServerProcess, name: str) -> str:
    """A new topic of one partition; returns its name, which begins with `name`."""
    topic = f"{name}-{next(_topic_numbers)}"
    _create(server, NewTopic(topic, num_partitions=1, replication_factor=1))
    return topic


def create_branch_topic(server: ServerProcess, topic: str, branches: int) -> str:
    name = f"{topic}.by-key-{branches}"
    configs = {"branch.source.topic": topic}
    _create(server, NewTopic(name, num_partitions=branches, replication_factor=1, config=configs))
    return name


def delete_topics(server: ServerProcess, topics: Sequence[str]) -> None:
    # The name keeps the client alive, without which its futures fail.
    admin = _admin(server)
    for future in admin.delete_topics(list(topics)).values():
        future.result(_LIMIT_S)


def _create(server: ServerProcess, topic: NewTopic) -> None:
    admin = _admin(server)
    for future in admin.create_topics([topic]).values():
        future.result(_LIMIT_S)


def _admin(server: ServerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})


# Records ------------------------------------------------------------------------------------------


def key_of(number: int) -> bytes:
    """The key of a topic's record with this number."""
    return b"customer-%05d" % (number % KEYS)


def records_of_branch(branch: int, branches: int, count: int) -> int:
    """How many of a topic's first `count` records are in a branch."""
    whole, rest = divmod(count, KEYS)
    return sum(
        whole + (number < rest)
        for number in range(min(KEYS, count))
        if branch_of_slot(slot_of_key(key_of(number)), branches) == branch
    )


def make_values(size: int) -> list[bytes]:
    """Values that look and compress like JSON; the same every time."""
    dice = random.Random(size)
    values = []
    for _ in range(_VALUES):
        text = ""
        while len(text) < size:
            text += (
                f'{{"id":"{dice.randbytes(16).hex()}","amount":{dice.randrange(10**7)},'
                f'"sku":"{dice.randbytes(8).hex()}","state":"{dice.choice(_STATES)}"}},'
            )
        values.append(text[:size].encode())
    return values


def fill(server: ServerProcess, topic: str, *, count: int, size: int, codec: str = "none") -> None:
    """Produce `count` records with keys and with values of `size` bytes."""
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "compression.type": codec,
            "log_level": 0,
        }
    )
    keys = [key_of(number) for number in range(KEYS)]
    values = make_values(size)
    for number in range(count):
        while True:
            try:
                producer.produce(topic, values[number % _VALUES], keys[number % KEYS])
                break
            except BufferError:
                producer.poll(0.01)
    if left := producer.flush(60):
        raise DriverError(f"{left:,} records of {topic} were not delivered in 60 s")
