"""What metrics cost: a scrape of ten thousand series, producers beside it, and each request.

    .venv/bin/python bench/metrics_scrape.py [--groups 100] [--seconds 10] [--rounds 5]

A broker with 10 topics of 100 partitions, and groups that have committed on ten of them each. One
client produces one record after the other, a thousand a second at most, in rounds without and with
scrapes; rounds of both kinds take turns, so that whatever else the machine does falls on both. The
ratio to look at is that of the 99th percentiles. A Prometheus comes every 15 seconds or so; here
the scraper comes every 5, every second, and in the last column without a pause.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.server.request_metrics import RequestMetrics
from anabranch.wire.messages.fetch import (
    FETCH,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from anabranch.wire.messages.heartbeat import HEARTBEAT, HeartbeatResponse
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from anabranch.wire.record_batch import Record, build_batch
from server_process import HOST, anabranch, free_port, terminated_as_exit

TOPICS = 10
PARTITIONS = 100
PER_GROUP = 10
_PACE_S = 0.001


def main() -> None:
    arguments = _arguments()
    with terminated_as_exit(), tempfile.TemporaryDirectory() as folder:
        port = free_port()
        server = anabranch(
            data_dir=Path(folder) / "data", overrides=[f"metrics.listeners={HOST}:{port}"]
        )
        with server:
            _fill(server.bootstrap_servers, arguments.groups)
            _scrapes(server, port, arguments)
    _requests()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


# Scrapes ------------------------------------------------------------------------------------------


def _fill(bootstrap: str, groups: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"t{number}", PARTITIONS, 1) for number in range(TOPICS)]
    for future in admin.create_topics(topics).values():
        future.result(60)
    for number in range(groups):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"group-{number}"})
        first = number * PER_GROUP % PARTITIONS
        places = [TopicPartition(f"t{number % TOPICS}", first + one, 0) for one in range(PER_GROUP)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()


def _scrapes(server: Any, port: int, arguments: argparse.Namespace) -> None:
    kinds = {"no scrapes": None, "every 5 s": 5.0, "every second": 1.0, "without a pause": 0.0}
    latencies: dict[str, list[float]] = {kind: [] for kind in kinds}
    scrapes: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, float] = dict.fromkeys(kinds, 0.0)
    series = 0
    for _ in range(arguments.rounds):
        for kind, pause_s in kinds.items():
            began_cpu = server.cpu_seconds()
            with _Producer(server.port, arguments.seconds) as producer:
                end_s = time.monotonic() + arguments.seconds
                while pause_s is not None and time.monotonic() < end_s:
                    took_s, series = _scrape(port)
                    scrapes[kind].append(took_s)
                    time.sleep(pause_s)
                latencies[kind] += producer.latencies()
            cpu[kind] += server.cpu_seconds() - began_cpu
    total_s = arguments.rounds * arguments.seconds
    base = _quantile(latencies["no scrapes"], 0.99)
    rows = [["", *kinds]]
    for label, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        values = [_quantile(latencies[kind], share) for kind in kinds]
        rows.append([f"produce {label}, ms", *(f"{value * 1000:.2f}" for value in values)])
    p99s = [_quantile(latencies[kind], 0.99) for kind in kinds]
    rows.append(["ratio of p99", *(f"{value / base:.2f}x" for value in p99s)])
    rows.append(["produces", *(str(len(latencies[kind])) for kind in kinds)])
    rows.append(["server CPU, %", *(f"{cpu[kind] / total_s * 100:.0f}" for kind in kinds)])
    for label, pick in (("median", statistics.median), ("slowest", max)):
        taken = [f"{pick(scrapes[kind]) * 1000:.0f}" if scrapes[kind] else "-" for kind in kinds]
        rows.append([f"scrape {label}, ms", *taken])
    print(f"{series} series, {arguments.groups} groups, {TOPICS * PARTITIONS} partitions")
    _print(rows)


def _scrape(port: int) -> tuple[float, int]:
    """How long one took, and how many series it had."""
    began_s = time.monotonic()
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request("GET", "/metrics")
    body = connection.getresponse().read()
    connection.close()
    took_s = time.monotonic() - began_s
    return took_s, sum(not line.startswith(b"#") for line in body.splitlines())


class _Producer:
    """A process of its own that produces one record after the other for a while."""

    def __init__(self, port: int, seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_produce, args=(port, seconds, sender))

    def __enter__(self) -> _Producer:
        self._process.start()
        self._receiver.recv()  # it has begun
        return self

    def __exit__(self, *_: object) -> None:
        self._process.join()

    def latencies(self) -> list[float]:
        found: list[float] = self._receiver.recv()
        return found


def _produce(port: int, seconds: float, sender: Connection) -> None:
    frame = _produce_frame()
    latencies: list[float] = []
    with socket.create_connection((HOST, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(100):
            _ask(connection, frame)
        sender.send("begun")
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            _ask(connection, frame)
            took_s = time.monotonic() - began_s
            latencies.append(took_s)
            time.sleep(max(_PACE_S - took_s, 0))
    sender.send(latencies)


def _produce_frame() -> bytes:
    batch = build_batch([Record(0, int(time.time() * 1000), b"key", bytes(100))], base_offset=0)
    request = ProduceRequest(
        acks=1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name="t0",
                partition_data=[PartitionProduceData(index=0, records=memoryview(batch))],
            )
        ],
    )
    body = b"".join(PRODUCE.encode_request(8)(request))
    head = struct.pack(">hhih5s", PRODUCE.key, 8, 1, 5, b"bench")
    return struct.pack(">i", len(head) + len(body)) + head + body


def _ask(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(frame)
    (size,) = struct.unpack(">i", _read(connection, 4))
    _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise EOFError("the broker closed the connection")
        received += part
    return received


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


# Requests -----------------------------------------------------------------------------------------


def _requests() -> None:
    """What counting adds to a request, in CPU time."""
    answers = {
        HEARTBEAT: HeartbeatResponse(),
        PRODUCE: ProduceResponse(
            responses=[
                TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse()])
            ]
        ),
        FETCH: FetchResponse(
            responses=[
                FetchableTopicResponse(topic="t", partitions=[PartitionData(records=bytes(100))])
            ]
        ),
    }
    metrics = RequestMetrics()
    rows = [["one request", "bare, ns", "counted, ns", "more, ns"]]
    for api, answer in answers.items():

        def handle(broker: Any, context: Any, request: Any, answer: Any = answer) -> Any:
            return answer

        counted = metrics.counted(api, handle)
        bare_ns, counted_ns = _cost_ns(handle), _cost_ns(counted)
        costs = (bare_ns, counted_ns, counted_ns - bare_ns)
        rows.append([api.name, *(f"{cost:.0f}" for cost in costs)])
    print()
    _print(rows)


def _cost_ns(handle: Callable[..., Any], calls: int = 100_000) -> float:
    best = float("inf")
    for _ in range(7):
        began_ns = time.process_time_ns()
        for _ in range(calls):
            handle(None, None, None)
        best = min(best, (time.process_time_ns() - began_ns) / calls)
    return best


def _print(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells))


if __name__ == "__main__":
    sys.exit(main())
