"""The console over a large broker: how soon its pages are there, and what watching them costs.

    .venv/bin/python bench/console.py            # some three minutes
    .venv/bin/python bench/console.py --quick    # 100 groups, 1,000 partitions, some 40 seconds

A broker gets 10,000 partitions with records and 1,000 groups: all have committed on ten partitions,
every fifth has a member. Then

- each page is asked for, once after a start and then again and again, over a connection of its own:
  until the first byte of the answer, and until the last;
- one producer sends one record at a time, 100 times a second, and each is timed: alone, and while
  several pages are watched live. Both take turns, and what counts is the ratio.

The tables go to stdout, all single figures to a JSON file in bench/results/.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.cli.raw_client import RawClient
from anabranch.coordinator.group.consumer_protocol import (
    Subscription,
    encode_assignment,
    encode_subscription,
)
from anabranch.wire.header import write_request_header
from anabranch.wire.messages.join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from anabranch.wire.messages.sync_group import (
    SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from anabranch.wire.record_batch import Record, build_batch
from broker import RESULTS, Progress
from machine import describe_machine
from server_process import BUILD, HOST, ServerProcess, anabranch, free_port, terminated_as_exit

TOPIC_PARTITIONS = 100
GROUP_PARTITIONS = 10
RECORDS_EACH = 3
SESSION_MS = 1_800_000
PRODUCES_PER_S = 100
PRODUCE_VERSION = 9
TOPIC = "topic-000"
GROUP = "group-0000"
# What is watched while a producer is timed; a page that is watched is made once a second.
WATCHED = ("/", "/topics", "/groups", f"/topics/{TOPIC}", f"/groups/{GROUP}", "/groups?sort=-lag")
PAGES = (
    ("Overview", "/"),
    ("Topics", "/topics"),
    ("Topics, by lag", "/topics?sort=-lag"),
    ("Topics, as CSV", "/topics?format=csv"),
    ("Topic: Messages, newest", f"/topics/{TOPIC}"),
    ("Topic: Messages, one key", f"/topics/{TOPIC}?key=nobody&from=oldest"),
    ("Topic: Partitions", f"/topics/{TOPIC}?tab=partitions"),
    ("Topic: Groups", f"/topics/{TOPIC}?tab=groups"),
    ("Topic: Configuration", f"/topics/{TOPIC}?tab=configuration"),
    ("Groups", "/groups"),
    ("Groups, filtered", "/groups?q=group-00"),
    ("Group: Lag", f"/groups/{GROUP}"),
    ("Group: Members", f"/groups/{GROUP}?tab=members"),
    ("Group: Assignment", f"/groups/{GROUP}?tab=assignment"),
    ("Group: Timeline", f"/groups/{GROUP}?tab=timeline"),
    ("Group: Offsets", f"/groups/{GROUP}?tab=offsets"),
    ("Transactions", "/transactions"),
    ("Configuration", "/configuration"),
    ("Search", "/search?q=group-00"),
    ("Metrics", "/metrics"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    groups: int
    partitions: int
    repeats: int
    rounds: int
    seconds: float


FULL = Plan(groups=1_000, partitions=10_000, repeats=20, rounds=3, seconds=10.0)
QUICK = Plan(groups=100, partitions=1_000, repeats=5, rounds=2, seconds=4.0)


class BenchError(Exception):
    """The broker did not do what it should."""


# Filling the broker -------------------------------------------------------------------------------


def topic_name(number: int) -> str:
    return f"topic-{number:03}"


def fill(server: ServerProcess, plan: Plan, progress: Progress) -> None:
    topics = [topic_name(number) for number in range(plan.partitions // TOPIC_PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    for start in range(0, len(topics), 10):
        progress(f"topics {start} of {len(topics)}")
        wanted = [NewTopic(name, TOPIC_PARTITIONS, 1) for name in topics[start : start + 10]]
        for future in admin.create_topics(wanted, operation_timeout=120).values():
            future.result(120)
    progress("records")
    producer = Producer(
        {"bootstrap.servers": server.bootstrap_servers, "linger.ms": 200, "log_level": 0}
    )
    for number in range(plan.partitions):
        topic, partition = topics[number // TOPIC_PARTITIONS], number % TOPIC_PARTITIONS
        for i in range(RECORDS_EACH):
            producer.produce(topic, f'{{"number": {i}}}', key=f"key-{i}", partition=partition)
        producer.poll(0)
    if producer.flush(120):
        raise BenchError("the records were not delivered")
    progress("groups")
    with RawClient(HOST, server.port, 60.0) as client:
        for number in range(plan.groups):
            make_group(client, number, len(topics))


def make_group(client: RawClient, number: int, topics: int) -> None:
    """A group that has committed, and every fifth one with a member that stays."""
    group_id, topic = f"group-{number:04}", topic_name(number % topics)
    first = number // topics * GROUP_PARTITIONS % TOPIC_PARTITIONS
    partitions = range(first, first + GROUP_PARTITIONS)
    answer = client.send(
        OFFSET_COMMIT,
        OffsetCommitRequest(
            group_id=group_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=1, committed_metadata=""
                        )
                        for index in partitions
                    ],
                )
            ],
        ),
        last_version=9,
    )
    if any(one.error_code for found in answer.topics for one in found.partitions):
        raise BenchError(f"{group_id} could not commit")
    if number % 5 == 0:
        join(client, group_id, topic, partitions)


def join(client: RawClient, group_id: str, topic: str, partitions: Sequence[int]) -> None:
    metadata = encode_subscription(Subscription(topics=(topic,)))
    joined = client.send(
        JOIN_GROUP,
        JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        ),
        last_version=3,
    )
    assignment = encode_assignment(1, [(topic, list(partitions))])
    synced = client.send(
        SYNC_GROUP,
        SyncGroupRequest(
            group_id=group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)
            ],
        ),
        last_version=3,
    )
    if joined.error_code or synced.error_code:
        raise BenchError(f"{group_id} could not be joined")


# Pages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetch:
    first_byte_ms: float
    whole_ms: float
    size_bytes: int


def fetch(port: int, path: str) -> Fetch:
    with closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        first = time.perf_counter()
        body = answer.read()
        ended = time.perf_counter()
    if answer.status != 200:
        raise BenchError(f"{path}: {answer.status} {body[-500:]!r}")
    return Fetch((first - began) * 1e3, (ended - began) * 1e3, len(body))


def measure_pages(port: int, plan: Plan, progress: Progress) -> dict[str, list[Fetch]]:
    figures: dict[str, list[Fetch]] = {}
    for name, path in PAGES:
        progress(f"page {name}")
        figures[name] = []
        for _ in range(plan.repeats):
            figures[name].append(fetch(port, path))
            # Long enough that a survey is made anew now and then, as for a person.
            time.sleep(0.15)
    return figures


# Watching -----------------------------------------------------------------------------------------


@contextmanager
def watched(port: int, paths: Sequence[str]) -> Iterator[None]:
    """Live pages, read by threads as browsers would."""
    with ExitStack() as stack:
        for path in paths:
            stream = stack.enter_context(closing(socket.create_connection((HOST, port), 60)))
            request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
            stream.sendall(request.encode())
            threading.Thread(target=_drain, args=[stream], daemon=True).start()
        time.sleep(1.5)
        yield


def _drain(stream: socket.socket) -> None:
    try:
        while stream.recv(65536):
            pass
    except OSError:
        pass  # closed from this side


class TimedProducer:
    """Sends one record at a time and takes the time until it is acknowledged."""

    def __init__(self, port: int) -> None:
        batch = build_batch([Record(0, int(time.time() * 1000), b"key", bytes(100))], base_offset=0)
        request = ProduceRequest(
            acks=1,
            timeout_ms=30_000,
            topic_data=[
                TopicProduceData(
                    name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)]
                )
            ],
        )
        head = write_request_header(PRODUCE.key, PRODUCE_VERSION, 1, "bench", flexible=True)
        body = b"".join(map(bytes, [head, *PRODUCE.encode_request(PRODUCE_VERSION)(request)]))
        self._frame = struct.pack(">i", len(body)) + body
        self._socket = socket.create_connection((HOST, port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def run(self, seconds: float) -> list[float]:
        """Milliseconds of each, at a steady pace; a slow one is followed at once by the next."""
        taken = []
        began = time.perf_counter()
        for number in range(int(seconds * PRODUCES_PER_S)):
            time.sleep(max(began + number / PRODUCES_PER_S - time.perf_counter(), 0))
            sent = time.perf_counter()
            self._socket.sendall(self._frame)
            self._answer()
            taken.append((time.perf_counter() - sent) * 1e3)
        return taken

    def _answer(self) -> None:
        content = self._socket.recv(65536)
        while len(content) < 4 or len(content) < 4 + struct.unpack_from(">i", content)[0]:
            content += self._socket.recv(65536)


def measure_watching(
    server: ServerProcess, port: int, plan: Plan, progress: Progress
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Times of produces, and how much CPU time the broker used, without and with live pages."""
    figures: dict[str, list[float]] = {"alone": [], "watched": []}
    cpu = {"alone": 0.0, "watched": 0.0}
    with closing(TimedProducer(server.port)) as producer:
        producer.run(1.0)
        for number in range(plan.rounds):
            for kind, paths in (("alone", ()), ("watched", WATCHED)):
                progress(f"produce, round {number + 1} of {plan.rounds}, {kind}")
                with watched(port, paths):
                    before = server.cpu_seconds()
                    figures[kind] += producer.run(plan.seconds)
                    cpu[kind] += (server.cpu_seconds() - before) / plan.seconds / plan.rounds
    return figures, cpu


# Showing ------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def show_pages(figures: dict[str, list[Fetch]]) -> str:
    lines = [
        "| Page | first byte p50 | whole p50 | whole, longest | size |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, fetches in figures.items():
        first = statistics.median(one.first_byte_ms for one in fetches)
        whole = statistics.median(one.whole_ms for one in fetches)
        longest = max(one.whole_ms for one in fetches)
        size = fetches[-1].size_bytes / 1000
        lines.append(
            f"| {name} | {first:.1f} ms | {whole:.1f} ms | {longest:.1f} ms | {size:.0f} kB |"
        )
    return "\n".join(lines)


def show_watching(figures: dict[str, list[float]], cpu: dict[str, float]) -> str:
    alone, with_pages = figures["alone"], figures["watched"]
    lines = [
        f"| Produce of one record | alone | {len(WATCHED)} live pages | ratio |",
        "|---|--:|--:|--:|",
    ]
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        first, second = percentile(alone, share), percentile(with_pages, share)
        lines.append(f"| {name} | {first:.2f} ms | {second:.2f} ms | {second / first:.2f}x |")
    lines.append(f"| broker's CPU | {cpu['alone']:.1%} | {cpu['watched']:.1%} | |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    plan = QUICK if parser.parse_args().quick else FULL
    progress = Progress()
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    port = free_port()
    overrides = [f"console.listeners={HOST}:{port}", "group.initial.rebalance.delay.ms=0"]
    with terminated_as_exit(), tempfile.TemporaryDirectory(dir=BUILD / "bench") as work:
        server = anabranch(data_dir=Path(work) / "anabranch", overrides=overrides)
        try:
            with server:
                fill(server, plan, progress)
                progress("first page")
                opened = fetch(port, "/groups")
                pages = measure_pages(port, plan, progress)
                times, cpu = measure_watching(server, port, plan, progress)
        except BenchError as problem:
            progress.done()
            log = server.log_path.read_text(errors="replace")[-3000:]
            print(f"bench: {problem}\nthe broker's log ends with:\n{log}", file=sys.stderr)
            return 1
    progress.done()
    machine = describe_machine()
    print(
        f"{plan.groups:,} groups, {plan.partitions:,} partitions, Anabranch {server.version},"
        f" load average {machine['load_average']}\n"
        f"The first page of all, with the console being loaded: {opened.whole_ms:.0f} ms\n"
    )
    print(show_pages(pages))
    print()
    print(show_watching(times, cpu))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("console-%Y%m%d-%H%M%S.json")
    content = {
        "machine": machine,
        "first_page_ms": opened.whole_ms,
        "pages_ms": {
            name: [[one.first_byte_ms, one.whole_ms] for one in found]
            for name, found in pages.items()
        },
        "produce_ms": times,
        "cpu": cpu,
    }
    path.write_text(json.dumps(content) + "\n")
    print(f"\nall figures: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
