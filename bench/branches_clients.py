"""Stock librdkafka clients in processes of their own: a steady producer, and consumers that count.

Run as a program this file is such a process: `produce` or `consume` and a JSON object with what to
do. Both end when their stdin does. The value of a record begins with the moment it was handed to
the producer, on the machine's monotonic clock, so that any process can tell how old it is.

All settings are librdkafka's defaults, but for statistics, which the figures are taken from:
requests and bytes are what librdkafka itself counts.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Producer, TopicPartition

from branches_site import KEYS, key_of, make_values
from driver import DriverError

_TICK_S = 0.001
_POLL_S = 0.1
_STATISTICS_MS = 100
_STAMP_BYTES = 8
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyLoad:
    """What the producer sends: as many records a second, a few every millisecond."""

    bootstrap_servers: str
    topic: str
    size: int
    records_per_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """One consumer for each list of partitions; `is_tail` is whether they begin at the end."""

    bootstrap_servers: str
    topic: str
    assignments: list[list[int]]
    is_tail: bool
    settings: dict[str, Any] = field(default_factory=dict)


# The processes ------------------------------------------------------------------------------------


def produce(load: SteadyLoad) -> None:
    producer = Producer({"bootstrap.servers": load.bootstrap_servers, "log_level": 0})
    fillings = make_values(load.size - _STAMP_BYTES)
    keys = [key_of(number) for number in range(KEYS)]
    began_s = time.monotonic()
    sent = 0
    while not select.select([sys.stdin], [], [], _TICK_S)[0]:
        due = int((time.monotonic() - began_s) * load.records_per_second)
        stamp = time.monotonic_ns().to_bytes(_STAMP_BYTES, "big")
        for number in range(sent, due):
            producer.produce(
                load.topic, stamp + fillings[number % len(fillings)], keys[number % KEYS]
            )
        sent = max(due, sent)
        producer.poll(0)
    producer.flush(5)


class CountingConsumer:
    """One consumer with the thread that polls it."""

    def __init__(self, readers: Readers, partitions: Sequence[int]) -> None:
        self.records = self.value_bytes = 0
        self.latencies_us: list[int] = []
        self.is_timed = False
        self.has_records = threading.Event()
        # The last statistics, and those at the beginning of the measurement.
        self.latest: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self._must_end = threading.Event()
        offset = OFFSET_END if readers.is_tail else OFFSET_BEGINNING
        self._assignment = [TopicPartition(readers.topic, p, offset) for p in partitions]
        self._consumer = Consumer(
            {
                "bootstrap.servers": readers.bootstrap_servers,
                "group.id": "bench-manual-assignment",
                "log_level": 0,
                "statistics.interval.ms": _STATISTICS_MS,
                "stats_cb": self._take_statistics,
                **readers.settings,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self) -> None:
        self.first = self.latest
        self.is_timed = True

    def stop(self) -> None:
        self._must_end.set()
        self._thread.join(10)

    def _run(self) -> None:
        self._consumer.assign(self._assignment)
        poll = self._consumer.poll
        while not self._must_end.is_set():
            message = poll(_POLL_S)
            if message is None or message.error() is not None:
                continue
            value = message.value() or b""
            if self.is_timed:
                sent_ns = int.from_bytes(value[:_STAMP_BYTES], "big")
                self.latencies_us.append((time.monotonic_ns() - sent_ns) // 1000)
            self.records += 1
            self.value_bytes += len(value)
            if self.records == 1:
                self.has_records.set()

    def _take_statistics(self, text: str) -> None:
        statistics = json.loads(text)
        brokers = statistics["brokers"].values()
        self.latest = {
            "at_s": statistics["ts"] / 1e6,
            "fetches": sum(broker["req"].get("Fetch", 0) for broker in brokers),
            "received_bytes": sum(broker["rxbytes"] for broker in brokers),
            "sent_bytes": sum(broker["txbytes"] for broker in brokers),
            "records": self.records,
        }


def consume(readers: Readers) -> None:
    """Commands are lines on stdin: `begin`, `end`, `count`; each is answered by a JSON line."""
    consumers = [CountingConsumer(readers, partitions) for partitions in readers.assignments]
    for consumer in consumers:
        consumer.start()
    for line in sys.stdin:
        command = line.strip()
        answer: dict[str, Any] = {}
        if command == "ready":
            answer["is_ready"] = all(consumer.has_records.wait(_LIMIT_S) for consumer in consumers)
        elif command == "begin":
            for consumer in consumers:
                consumer.begin()
        elif command == "count":
            answer["records"] = sum(consumer.records for consumer in consumers)
        elif command == "end":
            answer = _figures(consumers)
        print(json.dumps(answer), flush=True)
    for consumer in consumers:
        consumer.stop()


def _figures(consumers: Sequence[CountingConsumer]) -> dict[str, Any]:
    """What happened since `begin`, by librdkafka's own last count; rates are summed."""
    for consumer in consumers:
        consumer.is_timed = False
    time.sleep(3 * _STATISTICS_MS / 1000)
    rates: dict[str, float] = dict.fromkeys(("fetches", "received_bytes", "records"), 0.0)
    for consumer in consumers:
        if consumer.first:
            seconds = consumer.latest["at_s"] - consumer.first["at_s"]
            for name in rates:
                rates[name] += (consumer.latest[name] - consumer.first[name]) / seconds
    latencies = sorted(us for consumer in consumers for us in consumer.latencies_us)
    return {
        **{f"{name}_per_s": rate for name, rate in rates.items()},
        "received_bytes": sum(consumer.latest["received_bytes"] for consumer in consumers),
        "fetches": sum(consumer.latest["fetches"] for consumer in consumers),
        "records": sum(consumer.records for consumer in consumers),
        "value_bytes": sum(consumer.value_bytes for consumer in consumers),
        "p50_us": latencies[len(latencies) // 2] if latencies else None,
        "p99_us": latencies[len(latencies) * 99 // 100] if latencies else None,
    }


# The parent's side --------------------------------------------------------------------------------


@contextlib.contextmanager
def _child(command: str, what: SteadyLoad | Readers) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), command, json.dumps(asdict(what))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextlib.contextmanager
def steady_load(load: SteadyLoad) -> Iterator[None]:
    """Produce for the time of the block."""
    with _child("produce", load) as process:
        yield
        if process.poll() is not None:
            raise DriverError(f"the producer ended with code {process.returncode}")


class ReaderProcess:
    """The consumers of one process; its lifetime is `with reading(...)`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise DriverError(f"the consumers ended with code {self._process.wait(20)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_until_ready(self) -> None:
        if not self.ask("ready")["is_ready"]:
            raise DriverError(f"a consumer got nothing in {_LIMIT_S:.0f} s")

    def wait_for(self, records: int) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while (count := self.ask("count")["records"]) < records:
            if time.monotonic() > deadline:
                raise DriverError(f"{count:,} of {records:,} records after {_LIMIT_S:.0f} s")
            time.sleep(0.02)


@contextlib.contextmanager
def reading(readers: Readers) -> Iterator[ReaderProcess]:
    with _child("consume", readers) as process:
        yield ReaderProcess(process)


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    if sys.argv[1] == "produce":
        produce(SteadyLoad(**given))
    else:
        consume(Readers(**given))
