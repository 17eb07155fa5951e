"""A pipeline that is slow because of what it does: 1 ms for every record, in Python.

The function is the same for all sources, `keyed_map(..., each="record")` with `time.sleep(0.001)`
in it; the session has more slots than there are tasks, so that what counts is how many of them
there are. All records are one micro-batch, and its time is Spark's own count of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.spark import keyed_map
from server_process import ServerProcess
from spark_site import (
    CONNECTOR,
    Cost,
    Meter,
    Site,
    Source,
    SparkBenchError,
    finish,
    plan_of_query,
    read,
    stream,
    with_branches,
)

SLOTS = 24
# More tasks of the connector: cut by offset, so that a key is worked on by several at once.
_CUT_BY_OFFSET = Source(
    "connector-24",
    f'format("kafka"), minPartitions={SLOTS}: keys out of order',
    "kafka",
    (("minPartitions", str(SLOTS)),),
)
# Measured from the last to the first: Spark ends workers that were idle for a minute, and a run
# after one with fewer tasks would begin with starting them again.
WORK_SOURCES = (
    *(CONNECTOR, with_branches(1), with_branches(4)),
    *(_CUT_BY_OFFSET, with_branches(8)),
)
WORK_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """One run of the pipeline."""

    broker: str
    source: str
    branches: int
    """Of each partition; 0 for Spark's connector, which has none."""
    tasks: int
    busiest: float
    """The rows of the largest task, as a share of what it would have if all had the same."""
    rows: int
    batch_s: float
    cost: Cost
    plan: str


def _worked(frame: DataFrame) -> DataFrame:
    pause_s = WORK_S

    def work(key: bytes, row: dict[str, Any]) -> tuple[bytes, int]:
        time.sleep(pause_s)
        return key, row["offset"]

    return keyed_map(frame, work, "key binary, offset bigint", each="record")


def measure_work(
    site: Site, server: ServerProcess, topic: str, source: Source, rows: int
) -> Worked:
    """All records of a topic through the pipeline."""
    frame = _worked(stream(site.spark, source, server, topic))
    meter = Meter(site, server)
    with site.query(frame, availableNow=True) as query:
        finish(query)
        cost = meter.read()
        batches = [one for one in query.recentProgress if one.numInputRows]
        if sum(one.numInputRows for one in batches) != rows:
            raise SparkBenchError(f"{source.label}: {batches} are not the {rows:,} rows sent")
        counts = _rows_of_tasks(site, server, topic, source)
        options = dict(source.options)
        return Worked(
            broker=server.name,
            source=source.label,
            branches=int(options.get("branches", 0)),
            tasks=len(counts),
            busiest=max(counts) * len(counts) / rows,
            rows=rows,
            batch_s=sum(one.durationMs["triggerExecution"] for one in batches) / 1000,
            cost=cost,
            plan=plan_of_query(query),
        )


def _rows_of_tasks(site: Site, server: ServerProcess, topic: str, source: Source) -> list[int]:
    """How the same offsets are shared among the tasks of a batch query."""
    frame = read(site.spark, source, server, topic)
    counted = frame.groupBy(F.spark_partition_id().alias("task")).count().collect()
    return [row["count"] for row in counted]
