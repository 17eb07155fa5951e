"""Streaming reads of plain topics by Spark's own connector."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Callable, Mapping

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from connector import QUERY_SECONDS, Target, assert_fails, assert_rows, by_place

from branch_topics import sample

_FIRST_MS = 1_790_000_000_000


def _available_now(target: Target) -> None:
    topic, records, folder = target.topic("now"), sample(3, 900, _FIRST_MS), target.folder()
    target.send(topic, records)
    frame = target.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=250)
    query = target.drain(frame, folder)
    assert_rows(target.files(folder), by_place(records))
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert len(sizes) == 4 and max(sizes) <= 250, sizes
    ends = json.loads(query.lastProgress.sources[0].endOffset)
    assert sum(ends[topic].values()) == 900, ends


def _restart(target: Target) -> None:
    """From its checkpoint, on records that came while nothing ran, without a gap or a repeat."""
    topic, records, folder = target.topic("restart"), sample(3, 900, _FIRST_MS), target.folder()
    for part in (records[:300], records[300:500], [], records[500:]):
        target.send(topic, part)
        target.drain(target.stream(subscribe=topic, startingOffsets="earliest"), folder)
    assert_rows(target.files(folder), by_place(records))


def _latest(target: Target) -> None:
    topic, folder = target.topic("latest"), target.folder()
    old, new = sample(3, 60, _FIRST_MS), sample(3, 300, _FIRST_MS)
    target.send(topic, old)
    query = target.to_files(target.stream(subscribe=topic), folder, available_now=False)
    try:
        # A first batch without rows is there once the position at the end has been taken.
        _wait((folder / "checkpoint" / "sources" / "0" / "0").exists, "the start")
        target.send(topic, new)
        query.processAllAvailable()
    finally:
        query.stop()
    ends = collections.Counter(record.partition for record in old)
    placed = by_place(old + new).items()
    assert_rows(target.files(folder), {p: r for p, r in placed if p[1] >= ends[p[0]]})


def _growing(target: Target) -> None:
    """Partitions that are added while it runs are read from their beginning."""
    topic, folder = target.topic("growing", 1), target.folder()
    before, after = sample(1, 50, _FIRST_MS), sample(3, 300, _FIRST_MS)
    target.send(topic, before)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    frame = target.stream(**options, kafka_metadata_max_age_ms=500)
    query = target.to_files(frame, folder, available_now=False)
    try:
        query.processAllAvailable()
        target.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
        target.send(topic, after)
        _wait(lambda: len(target.files(folder)) >= 350, "the records of new partitions")
    finally:
        query.stop()
    assert_rows(target.files(folder), by_place(before + after))


def _split_by_offset(target: Target) -> None:
    topic, records = target.topic("min"), sample(3, 900, _FIRST_MS)
    target.send(topic, records)
    for option in ({"minPartitions": 9}, {"maxRecordsPerPartition": 50}):
        folder = target.folder()
        frame = target.stream(subscribe=topic, startingOffsets="earliest", **option)
        target.drain(frame, folder)
        assert_rows(target.files(folder), by_place(records))


def _data_loss(target: Target) -> None:
    """Records deleted between two runs: the query fails, or goes on with what is left."""
    topic, records, folder = target.topic("loss", 1), sample(1, 300, _FIRST_MS), target.folder()
    target.send(topic, records[:100])
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    target.drain(target.stream(**options), folder)
    target.send(topic, records[100:])
    partition = TopicPartition(topic, 0, 150)
    target.admin.delete_records([partition])[partition].result(20)
    assert_fails(target.to_files(target.stream(**options), folder), "failOnDataLoss")
    target.drain(target.stream(**options, failOnDataLoss="false"), folder)
    lost = range(100, 150)
    assert_rows(
        target.files(folder), {p: r for p, r in by_place(records).items() if p[1] not in lost}
    )


def _restart_of_broker(target: Target) -> None:
    topic, records, folder = target.topic("broker"), sample(3, 600, _FIRST_MS), target.folder()
    target.send(topic, records[:300])
    frame = target.stream(subscribe=topic, startingOffsets="earliest")
    query = target.to_files(frame, folder, available_now=False)
    try:
        query.processAllAvailable()
        target.server.kill()
        time.sleep(1)
        target.server.start()
        target.send(topic, records[300:])
        query.processAllAvailable()
    finally:
        query.stop()
    assert_rows(target.files(folder), by_place(records))


def _open_transaction(target: Target) -> None:
    """Under read_committed a batch ends where an open transaction begins."""
    topic, records, folder = target.topic("open"), sample(1, 90, _FIRST_MS), target.folder()
    plan = [("commit", records[:30]), ("abort", records[30:60]), ("open", records[60:])]
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    options["kafka_isolation_level"] = "read_committed"
    producer = target.transactional(topic, plan)
    target.drain(target.stream(**options), folder)
    assert len(target.files(folder)) == 30
    producer.commit_transaction(30)
    target.drain(target.stream(**options), folder)
    rows = sorted(target.files(folder), key=lambda row: row["offset"])
    found = [None if row["value"] is None else bytes(row["value"]) for row in rows]
    assert found == [record.value for record in records[:30] + records[60:]], len(found)


def _several(target: Target) -> None:
    """Two topics and a number of records that a batch waits for."""
    records, folder = sample(3, 300, _FIRST_MS), target.folder()
    topics = [target.topic("several"), target.topic("several")]
    for topic in topics:
        target.send(topic, records)
    frame = target.stream(
        subscribe=",".join(topics),
        startingOffsets="earliest",
        minOffsetsPerTrigger=100,
        kafka_group_id="by-spark",
    )
    target.drain(frame, folder)
    rows = target.files(folder)
    for topic in topics:
        assert_rows([row for row in rows if row["topic"] == topic], by_place(records))


def _aggregation(target: Target) -> None:
    topic, records = target.topic("counted"), sample(3, 900, _FIRST_MS)
    target.send(topic, records)
    frame = target.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=300)
    counts = frame.where("key IS NOT NULL").groupBy("key").count()
    writer = counts.writeStream.format("memory").queryName("counted").outputMode("complete")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_SECONDS)
    found = {bytes(r["key"]): r["count"] for r in target.spark.table("counted").collect()}
    expected: dict[bytes, int] = {}
    for record in records:
        if record.key is not None:
            expected[record.key] = expected.get(record.key, 0) + 1
    assert found == expected


def _wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + QUERY_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.2)


STREAM_CHECKS: Mapping[str, Callable[[Target], None]] = {
    "stream: AvailableNow in batches of maxOffsetsPerTrigger": _available_now,
    "stream: restarted from its checkpoint": _restart,
    "stream: from latest": _latest,
    "stream: partitions added": _growing,
    "stream: minPartitions and maxRecordsPerPartition": _split_by_offset,
    "stream: deleted records, failOnDataLoss both ways": _data_loss,
    "stream: the broker is killed and comes back": _restart_of_broker,
    "stream: read_committed and an open transaction": _open_transaction,
    "stream: two topics, minOffsetsPerTrigger, a group id": _several,
    "stream: counts by key": _aggregation,
}
