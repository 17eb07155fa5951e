"""Small micro-batches: what one costs, and how long a record takes until its row is there."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from server_process import ServerProcess
from spark_site import (
    PARTITIONS,
    QUERY_SECONDS,
    Meter,
    Site,
    Source,
    SparkBenchError,
    create_topic,
    producer_of,
    stream,
)

PHASES = ("triggerExecution", "latestOffset", "walCommit", "addBatch", "commitOffsets")
_PROBE_INTERVAL_S = 0.025
_WARM_UP_S = 3.0
_TAIL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Micro-batches of three records, one of each partition, into a sink that does nothing."""

    broker: str
    source: str
    batches: int
    phases_ms: dict[str, float]
    """Medians of what Spark measures of each batch."""
    cpu_ms: float
    """Of Spark, for each batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Single records at a steady rate, from `produce` until `foreachBatch` has collected them."""

    broker: str
    source: str
    trigger_ms: int
    records: int
    batches: int
    p50_ms: float
    p99_ms: float


def measure_overhead(site: Site, server: ServerProcess, source: Source, batches: int) -> Overhead:
    """One batch after the other, each with three records; a few before, which do not count."""
    topic = create_topic(server, "small")
    warm_up = 5
    with site.query(stream(site.spark, source, server, topic)) as query:
        producer = producer_of(server, **{"linger.ms": 0})
        meter = None
        for number in range(warm_up + batches):
            if number == warm_up:
                meter = Meter(site, server)
            for partition in range(PARTITIONS):
                producer.produce(topic, b"x" * 100, b"key", partition)
            producer.flush(QUERY_SECONDS)
            _until(query, functools.partial(_has_seen, query, PARTITIONS * (number + 1)))
        assert meter is not None
        cost = meter.read()
        done = [one.durationMs for one in query.recentProgress if one.numInputRows][warm_up:]
        return Overhead(
            broker=server.name,
            source=source.label,
            batches=len(done),
            phases_ms={name: median(one.get(name, 0) for one in done) for name in PHASES},
            cpu_ms=cost.spark_s * 1000 / max(1, len(done)),
        )


def _has_seen(query: StreamingQuery, rows: int) -> bool:
    return sum(one.numInputRows for one in query.recentProgress) >= rows


def _until(query: StreamingQuery, is_done: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + QUERY_SECONDS
    while not is_done():
        if time.monotonic() > ends_at or not query.isActive:
            raise SparkBenchError(f"the query stands still: {query.status} {query.exception()}")
        time.sleep(0.01)


def measure_latency(
    site: Site, server: ServerProcess, source: Source, *, trigger_ms: int, seconds: float
) -> Latency:
    """Records 25 ms apart, each with the time at which it was sent."""
    topic = create_topic(server, "steady")
    seen: list[tuple[int, int]] = []
    batches = 0

    def collect(frame: DataFrame, _: int) -> None:
        nonlocal batches
        rows = frame.select("value").collect()
        now_ns = time.time_ns()
        seen.extend((int(row.value), now_ns) for row in rows)
        batches += 1

    trigger: dict[str, Any] = {"processingTime": f"{trigger_ms} milliseconds"}
    frame = stream(site.spark, source, server, topic)
    with site.query(frame, sink=collect, **trigger) as query:
        with _probes(server, topic) as sent:
            _until(query, lambda: batches > 0)
            time.sleep(_WARM_UP_S)
            first_ns, batches = time.time_ns(), 0
            time.sleep(seconds)
            last_ns, counted = time.time_ns(), batches
        # Nothing is left to do when the query is stopped: a function that is interrupted in the
        # middle of a batch makes Spark's own check of its error overflow the stack.
        _until(query, lambda: len(seen) >= len(sent))
        _until(query, lambda: not query.status["isDataAvailable"])
    taken = {at_ns: now_ns for at_ns, now_ns in seen if first_ns <= at_ns < last_ns}
    latencies_ms = [(now_ns - at_ns) / 1e6 for at_ns, now_ns in taken.items()]
    return Latency(
        broker=server.name,
        source=source.label,
        trigger_ms=trigger_ms,
        records=len(latencies_ms),
        batches=counted,
        p50_ms=median(latencies_ms),
        p99_ms=quantiles(latencies_ms, n=100)[98],
    )


@contextmanager
def _probes(server: ServerProcess, topic: str) -> Iterator[list[int]]:
    """Records at a steady rate for the time of the block; their times."""
    sent: list[int] = []
    is_over = threading.Event()
    producer = producer_of(server, **{"linger.ms": 0})

    def send() -> None:
        number = 0
        while not is_over.wait(_PROBE_INTERVAL_S):
            now_ns = time.time_ns()
            producer.produce(topic, b"%d" % now_ns, b"key-%d" % number, number % PARTITIONS)
            sent.append(now_ns)
            producer.poll(0)
            number += 1
        producer.flush(_TAIL_S)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        is_over.set()
        thread.join()
