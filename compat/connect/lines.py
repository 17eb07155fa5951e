"""Lines that go through connectors, and what must be true of where they come out.

A line is a key and its running number among the lines of that key, so that a file tells by itself
what is missing, what is there twice and whether keys are in order.
"""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

KEYS = 60
LINES_PER_SECOND = 300


class Lines:
    """Makes lines, each the next of its key."""

    def __init__(self, seed: str) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._choice = random.Random(seed)

    def next(self) -> tuple[str, str]:
        key = f"key-{self._choice.randrange(KEYS)}"
        self.counts[key] += 1
        return key, f"{key} {self.counts[key]}"

    @property
    def total(self) -> int:
        return self.counts.total()


class KeyedProducer:
    """Sends lines to a topic: `send` some, or `start` them and let them come until `stop`."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.lines = Lines(topic)
        self._topic = topic
        # Idempotent: a restart of the broker must neither lose a line nor double it.
        settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True}
        self._producer = Producer({**settings, "log_level": 0})
        self._problems: list[str] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, count: int) -> None:
        for _ in range(count):
            self._send_one()
        self._flush()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(10 / LINES_PER_SECOND):
            for _ in range(10):
                self._send_one()

    def stop(self) -> None:
        """Every line has been acknowledged."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._flush()

    def _send_one(self) -> None:
        key, line = self.lines.next()
        self._producer.produce(self._topic, line.encode(), key.encode(), on_delivery=self._told)
        self._producer.poll(0)

    def _told(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._problems.append(str(error))

    def _flush(self) -> None:
        left = self._producer.flush(60)
        assert not left and not self._problems, f"{left} lines left, {self._problems[:3]}"


class GrowingFile:
    """Lines in a file that a source reads while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = Lines(path.name)
        self.written: list[str] = []
        path.touch()

    def write(self, count: int) -> None:
        new = [self.lines.next()[1] for _ in range(count)]
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in new)
        self.written += new


# What came out ----------------------------------------------------------------------------------


def lines_of(path: Path) -> list[str]:
    """The whole lines of a sink's file."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def topic_lines(bootstrap_servers: str, topic: str) -> list[str]:
    """The committed records of a topic of one partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "compat-connect-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append((message.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()
    raise AssertionError(f"the end of {topic} was not reached in 30 s")


def check_once(found: Sequence[str], sent: Lines) -> None:
    """Every line is there once, and each key's lines are in order."""
    seen: collections.Counter[str] = collections.Counter()
    for place, line in enumerate(found):
        key, number = line.split()
        seen[key] += 1
        assert int(number) == seen[key], (
            f"line {place + 1} is {line!r}; the next of its key was {seen[key]}"
        )
    assert seen == sent.counts, f"{seen.total()} lines of {sent.total}"


def check_replayed(found: Sequence[str], sent: Lines) -> str:
    """Every line is there, and a key's lines are in order or go back to one that was there before.

    That is at least once, with replays in order. What was found is returned as a sentence.
    """
    highest: collections.Counter[str] = collections.Counter()
    last: dict[str, int] = {}
    for place, line in enumerate(found):
        key, text = line.split()
        number = int(text)
        follows = number == last.get(key, 0) + 1
        goes_back = number <= last.get(key, 0)
        assert follows or goes_back, (
            f"line {place + 1} is {line!r}, and line {last.get(key)} of its key came before"
        )
        last[key] = number
        highest[key] = max(highest[key], number)
    assert highest == sent.counts, f"{highest.total()} lines of {sent.total}"
    assert last == sent.counts, "a replay was not finished"
    return f"{sent.total} lines, {len(found) - sent.total} of them twice"
