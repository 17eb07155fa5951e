"""Reading as fast as it goes: a scan in one batch query, a scan as a stream, and sums by key.

A stream is read in several micro-batches until nothing is left (`availableNow`). What is counted
begins when the first of them is done: starting a query takes a second or more, which says nothing
about one that runs for weeks. The time from `start()` to there is a figure of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from anabranch.spark import keyed_map
from server_process import ServerProcess
from spark_site import (
    CONNECTOR,
    OURS,
    QUERY_SECONDS,
    Cost,
    Meter,
    Site,
    Source,
    SparkBenchError,
    plan_of,
    plan_of_query,
    read,
    stream,
    with_branches,
)

SCAN_SOURCES = (CONNECTOR, OURS, with_branches(2), with_branches(8))
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One query: what it read while it was watched, and what that cost."""

    broker: str
    case: str
    source: str
    rows: int
    cost: Cost
    start_s: float | None
    plan: str
    round: int = 0


def _by_group(frame: DataFrame) -> DataFrame:
    size = F.octet_length("value")
    return frame.groupBy("key").agg(F.count("*").alias("rows"), F.sum(size).alias("bytes"))


def _in_tasks(frame: DataFrame) -> DataFrame:
    """The same sums of each micro-batch, by a function in the tasks: there is nothing to move."""

    def sums(key: bytes, rows: Any) -> tuple[bytes, int, int]:
        return key, rows.num_rows, rows.column("value").nbytes

    return keyed_map(frame, sums, "key binary, rows bigint, bytes bigint")


Change = Callable[[DataFrame], DataFrame]
AGGREGATIONS: dict[str, tuple[Change, str]] = {
    "groupBy": (_by_group, "update"),
    "keyed_map": (_in_tasks, "append"),
}


class Scans:
    """The queries of one session over a topic that was filled before."""

    def __init__(self, site: Site, server: ServerProcess, topic: str, rows: int) -> None:
        self._site = site
        self._server = server
        self._topic = topic
        self._rows = rows

    @property
    def _spark(self) -> SparkSession:
        return self._site.spark

    def batch(self, source: Source) -> Sample:
        """All of the topic in one batch query."""
        frame = read(self._spark, source, self._server, self._topic)
        meter = Meter(self._site, self._server)
        frame.write.format("noop").mode("overwrite").save()
        return self._sample("scan, batch", source, self._rows, meter.read(), None, plan_of(frame))

    def stream(self, source: Source, batches: int) -> Sample:
        return self._streamed("scan, stream", source, batches, lambda frame: frame, "append")

    def aggregation(self, source: Source, how: str, batches: int) -> Sample:
        change, mode = AGGREGATIONS[how]
        return self._streamed(f"sums by key, {how}", source, batches, change, mode)

    def _streamed(
        self, case: str, source: Source, batches: int, change: Change, mode: str
    ) -> Sample:
        limit = -(-self._rows // batches)
        frame = stream(self._spark, source, self._server, self._topic, maxOffsetsPerTrigger=limit)
        began = time.perf_counter()
        with self._site.query(change(frame), output_mode=mode, availableNow=True) as query:
            while (progress := query.lastProgress) is None:
                if time.perf_counter() - began > QUERY_SECONDS or not query.isActive:
                    raise SparkBenchError(f"{case}: no batch was done; {query.exception()}")
                time.sleep(_POLL_S)
            meter = Meter(self._site, self._server)
            start_s = time.perf_counter() - began
            first = progress.batchId
            if not query.awaitTermination(QUERY_SECONDS):
                raise SparkBenchError(f"{case}: not done in {QUERY_SECONDS} s: {query.status}")
            cost = meter.read()
            counts = {one.batchId: one.numInputRows for one in query.recentProgress}
            if sum(counts.values()) != self._rows:
                raise SparkBenchError(f"{case}, {source.label}: read {counts} of {self._rows:,}")
            rows = sum(count for batch, count in counts.items() if batch > first)
            return self._sample(case, source, rows, cost, start_s, plan_of_query(query))

    def _sample(
        self, case: str, source: Source, rows: int, cost: Cost, start_s: float | None, plan: str
    ) -> Sample:
        return Sample(
            broker=self._server.name,
            case=case,
            source=source.label,
            rows=rows,
            cost=cost,
            start_s=start_s,
            plan=plan,
        )
