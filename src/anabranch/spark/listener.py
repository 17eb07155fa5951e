"""How far a query is: rows, rate and lag of each batch, out of what Spark reports.

A Python source has no metrics of its own in Spark. But the progress of a query names where its
batch ended and where the logs did, in offsets as Kafka's, and their difference is the lag.

    spark.streams.addListener(LagListener())
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from anabranch.spark.offsets import FROM

log = logging.getLogger("anabranch.spark")


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch of a query."""

    query: str
    batch_id: int
    rows: int
    rows_per_s: float
    lag: int
    """Offsets that were there to read when the batch was planned, and are not in it."""
    duration_ms: int

    def __str__(self) -> str:
        return (
            f"{self.query}: batch {self.batch_id}, {self.rows} rows, {self.rows_per_s:.0f} rows/s,"
            f" lag {self.lag}, {self.duration_ms} ms"
        )


def lag_between(end: Any, latest: Any) -> int:
    """Offsets between the end of a batch and the ends of logs, each as JSON or its text."""
    read, there = _offset_of(end), _offset_of(latest)
    lag = 0
    for topic, partitions in there.items():
        if topic != FROM and isinstance(partitions, Mapping):
            done = read.get(topic, {})
            lag += sum(max(0, upto - done.get(number, 0)) for number, upto in partitions.items())
    return lag


def _offset_of(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def progress_of(progress: Mapping[str, Any]) -> BatchProgress:
    """What a query's `lastProgress` says, or the JSON of a listener's event."""
    sources = progress.get("sources") or []
    return BatchProgress(
        query=str(progress.get("name") or progress.get("id")),
        batch_id=int(progress["batchId"]),
        rows=sum(int(one.get("numInputRows") or 0) for one in sources),
        rows_per_s=sum(float(one.get("processedRowsPerSecond") or 0.0) for one in sources),
        lag=sum(lag_between(one.get("endOffset"), one.get("latestOffset")) for one in sources),
        duration_ms=int((progress.get("durationMs") or {}).get("triggerExecution") or 0),
    )


class LagListener(StreamingQueryListener):
    """Tells of every batch of every query, by default to the log."""

    def __init__(self, tell: Callable[[BatchProgress], None] | None = None) -> None:
        self._tell = tell or (lambda progress: log.info("%s", progress))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._tell(progress_of(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
