"""A group at work: eight stock consumers on one partition, plain and as a branch topic.

The group is complete before the first record is produced, so that no join is in the time: it begins
with the producer and ends when the last record is worked off. Work is a pause of 2 ms, as that of
a consumer that waits for a database. The ideal is all work divided by the number of consumers. Keys
are hashed, so that with 400 of them the busiest of eight consumers has about a fifth more than its
share: the time is also compared with its work alone.
"""

from __future__ import annotations

import contextlib
import json
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from branches_site import create_branch_topic, create_topic, delete_topics
from driver import DriverError
from server_process import ServerProcess

CONSUMERS = 8
KEYS = 400
WORK_MS = 2.0
PLAIN, EIGHT, MORE = 0, 8, 24
PROTOCOLS = ("classic", "consumer")

_JOIN_LIMIT_S = 60.0
_SLACK = 3.0  # times the work of a single consumer, before it is given up


@dataclass(frozen=True, slots=True)
class Done:
    """A record that a worker is through with."""

    worker: int
    key: str
    sequence: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one group."""

    protocol: str
    branches: int
    records: int
    seconds: float
    workers: int
    busiest: int
    repeated: int
    disordered: int


def measure_work(
    server: ServerProcess, count: int, progress: Callable[[str], None]
) -> list[Outcome]:
    outcomes = []
    for branches in (PLAIN, EIGHT, MORE):
        for protocol in PROTOCOLS:
            progress(f"work: {_title(branches)}, {protocol} group")
            outcomes.append(_measure(server, branches, protocol, count))
    return outcomes


def _measure(server: ServerProcess, branches: int, protocol: str, count: int) -> Outcome:
    topic = create_topic(server, "work")
    read = create_branch_topic(server, topic, branches) if branches else topic
    with _workers(server, read, protocol) as (lines, processes):
        _wait_for_assignment(lines, branches or 1)
        began_s = time.monotonic()
        _produce(server, topic, count)
        done = _collect(lines, processes, count)
    delete_topics(server, [read, topic] if branches else [topic])
    return outcome_of(done, began_s, protocol=protocol, branches=branches)


def _produce(server: ServerProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    keys = [number % KEYS for number in range(count)]
    random.Random(1).shuffle(keys)
    sequences: Counter[int] = Counter()
    for key in keys:
        producer.produce(topic, str(sequences[key]), f"key-{key:03}")
        sequences[key] += 1
    if left := producer.flush(60):
        raise DriverError(f"{left:,} records of {topic} were not delivered in 60 s")


# Workers ------------------------------------------------------------------------------------------

_Lines = queue.Queue[tuple[int, list[str]]]


@contextlib.contextmanager
def _workers(
    server: ServerProcess, topic: str, protocol: str
) -> Iterator[tuple[_Lines, Sequence[subprocess.Popen[str]]]]:
    """The group's processes, and what they say."""
    settings: dict[str, Any] = {
        "bootstrap.servers": server.bootstrap_servers,
        "group.id": f"{topic}-{protocol}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    given = json.dumps({"settings": settings, "topic": topic, "work_ms": WORK_MS})
    program = str(Path(__file__).with_name("branches_worker.py"))
    lines: _Lines = queue.Queue()
    processes: list[subprocess.Popen[str]] = []
    try:
        for number in range(CONSUMERS):
            process = subprocess.Popen(
                [sys.executable, program, given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            threading.Thread(target=_listen, args=[number, process, lines], daemon=True).start()
        yield lines, processes
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listen(number: int, process: subprocess.Popen[str], lines: _Lines) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put((number, line.split()))


def _wait_for_assignment(lines: _Lines, partitions: int) -> None:
    """Until all partitions are assigned, as evenly as they can be, and stay so for a second."""
    least = partitions // CONSUMERS
    owned = dict.fromkeys(range(CONSUMERS), 0)
    heard: set[int] = set()
    deadline_s = time.monotonic() + _JOIN_LIMIT_S
    while True:
        is_settled = sum(owned.values()) == partitions and min(owned.values()) >= least
        # A consumer of a classic group hears of its empty share, one of a KIP-848 group does not.
        try:
            number, line = lines.get(timeout=3.0 if is_settled else 10.0)
        except queue.Empty:
            if is_settled:
                return
            line = []
        if line:
            heard.add(number)
            owned[number] = int(line[1])
        if time.monotonic() > deadline_s:
            raise DriverError(f"the group is not complete in {_JOIN_LIMIT_S:.0f} s: {owned}")


def _collect(lines: _Lines, processes: Sequence[subprocess.Popen[str]], count: int) -> list[Done]:
    done: list[Done] = []
    left = {(f"key-{key:03}", n) for key in range(KEYS) for n in range(-(-count // KEYS))}
    left = {(key, n) for key, n in left if n * KEYS + int(key[4:]) < count}
    deadline_s = time.monotonic() + 10 + _SLACK * count * WORK_MS / 1000
    while left:
        if time.monotonic() > deadline_s:
            raise DriverError(f"{len(left):,} of {count:,} records were never worked on")
        try:
            number, line = lines.get(timeout=1.0)
        except queue.Empty:
            if any(process.poll() is not None for process in processes):
                raise DriverError("a worker has ended") from None
            continue
        if line[0] == "done":
            done.append(Done(number, line[1], int(line[2]), float(line[3])))
            left.discard((line[1], int(line[2])))
    return done


# Figures ------------------------------------------------------------------------------------------


def outcome_of(done: Sequence[Done], began_s: float, *, protocol: str, branches: int) -> Outcome:
    by_worker = Counter(one.worker for one in done)
    seen: set[tuple[str, int]] = set()
    expected: Counter[str] = Counter()
    repeated = disordered = 0
    for one in sorted(done, key=lambda one: one.at_s):
        if (one.key, one.sequence) in seen:
            repeated += 1
        elif one.sequence != expected[one.key]:
            disordered += 1
        seen.add((one.key, one.sequence))
        expected[one.key] = max(expected[one.key], one.sequence + 1)
    return Outcome(
        protocol=protocol,
        branches=branches,
        records=len(seen),
        seconds=max(one.at_s for one in done) - began_s,
        workers=len(by_worker),
        busiest=max(by_worker.values()),
        repeated=repeated,
        disordered=disordered,
    )


def ideal_seconds(outcome: Outcome) -> float:
    return outcome.records * WORK_MS / 1000 / CONSUMERS


def work_rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    rows = [["topic", "group", "at work", "busiest", "time", "ideal", "x ideal", "x busiest"]]
    rows[0] += ["repeated", "out of order"]
    rows.append(["", "", "", "records", "s", "s", "", "", "", ""])
    for one in outcomes:
        rows.append(
            [
                _title(one.branches),
                one.protocol,
                f"{one.workers} of {CONSUMERS}",
                f"{one.busiest:,}",
                f"{one.seconds:.2f}",
                f"{ideal_seconds(one):.2f}",
                f"{one.seconds / ideal_seconds(one):.2f}",
                f"{one.seconds / (one.busiest * WORK_MS / 1000):.2f}",
                str(one.repeated),
                str(one.disordered),
            ]
        )
    return rows


def _title(branches: int) -> str:
    return f"{branches} branches" if branches else "plain, 1 partition"
