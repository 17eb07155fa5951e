"""Batch reads of plain topics by Spark's own connector."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from confluent_kafka import Producer, TopicPartition
from connector import Target, assert_rows, assert_says, by_place, values_of

from branch_topics import sample

_FIRST_MS = 1_790_000_000_000
_COUNT = 900


def _every_field(target: Target) -> None:
    topic, records = target.topic("fields"), sample(3, _COUNT, _FIRST_MS)
    target.send(topic, records)
    rows = target.read(subscribe=topic).collect()
    assert_rows(rows, by_place(records))
    assert {row["topic"] for row in rows} == {topic}
    assert {row["timestampType"] for row in rows} == {0}


def _schema(target: Target) -> None:
    frame = target.read(subscribe=target.topic("schema"), includeHeaders="true")
    columns = [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema]
    assert columns == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ], columns
    assert frame.count() == 0


def _headers(target: Target) -> None:
    topic = target.topic("headers", 1)
    producer = Producer({"bootstrap.servers": target.bootstrap_servers, "log_level": 0})
    sent = [
        [("a", b"1"), ("b", None), ("a", b"2")],
        [],
        [("ключ", "значение".encode())],
    ]
    for headers in sent:
        producer.produce(topic, b"value", headers=headers)
    assert producer.flush(30) == 0
    rows = target.read(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    found = [
        [
            (h["key"], None if h["value"] is None else bytes(h["value"]))
            for h in row["headers"] or []
        ]
        for row in rows
    ]
    assert found == sent, found


def _log_append_time(target: Target) -> None:
    topic = target.topic("append-time", 1, **{"message.timestamp.type": "LogAppendTime"})
    target.send(topic, sample(1, 10, _FIRST_MS))
    rows = target.read(subscribe=topic).collect()
    assert {row["timestampType"] for row in rows} == {1}
    assert all(round(row["timestamp"].timestamp() * 1000) != _FIRST_MS for row in rows)


def _offsets(target: Target) -> None:
    """startingOffsets and endingOffsets as JSON, with -2 for earliest and -1 for latest."""
    topic, records = target.topic("offsets"), sample(3, _COUNT, _FIRST_MS)
    target.send(topic, records)
    starting = json.dumps({topic: {"0": 17, "1": -2, "2": 5}})
    ending = json.dumps({topic: {"0": 60, "1": 3, "2": -1}})
    rows = target.read(subscribe=topic, startingOffsets=starting, endingOffsets=ending).collect()
    bounds = {0: (17, 60), 1: (0, 3), 2: (5, _COUNT)}
    chosen = {
        place: record
        for place, record in by_place(records).items()
        if bounds[place[0]][0] <= place[1] < bounds[place[0]][1]
    }
    assert_rows(rows, chosen)


def _timestamps(target: Target) -> None:
    topic, records = target.topic("times"), sample(3, _COUNT, _FIRST_MS)
    target.send(topic, records)
    placed = by_place(records)

    def between(first_ms: int, end_ms: int) -> dict[tuple[int, int], object]:
        return {p: r for p, r in placed.items() if first_ms <= r.timestamp_ms < end_ms}

    first_ms, end_ms = _FIRST_MS + 200, _FIRST_MS + 700
    rows = target.read(subscribe=topic, startingTimestamp=first_ms, endingTimestamp=end_ms)
    assert_rows(rows.collect(), between(first_ms, end_ms))
    by_partition = json.dumps({topic: dict.fromkeys("012", first_ms)})
    rows = target.read(subscribe=topic, startingOffsetsByTimestamp=by_partition)
    assert_rows(rows.collect(), between(first_ms, _FIRST_MS + _COUNT))
    # Later than every record: an error, unless the strategy is to start at the end.
    late = {"subscribe": topic, "startingTimestamp": _FIRST_MS + 10 * _COUNT}
    try:
        target.read(**late).collect()
    except Exception as problem:
        assert_says(problem, "No offset matched")
    else:
        raise AssertionError("a time after the last record was not refused")
    at_end = target.read(**late, startingOffsetsByTimestampStrategy="latest")
    assert at_end.count() == 0


def _choice_of_topics(target: Target) -> None:
    """assign takes some partitions, subscribePattern several topics, subscribe a list of them."""
    records = sample(3, 90, _FIRST_MS)
    one, two = target.topic("pattern"), target.topic("pattern")
    other = target.topic("another")
    for topic in (one, two, other):
        target.send(topic, records)
    rows = target.read(assign=json.dumps({one: [0, 2]})).collect()
    assert_rows(rows, {p: r for p, r in by_place(records).items() if p[0] != 1})
    rows = target.read(subscribePattern="pattern-[0-9]+").collect()
    assert {row["topic"] for row in rows} == {one, two} and len(rows) == 180, len(rows)
    rows = target.read(subscribe=f"{two},{other}").collect()
    assert {row["topic"] for row in rows} == {two, other} and len(rows) == 180, len(rows)


def _split_by_offset(target: Target) -> None:
    topic, records = target.topic("split"), sample(3, _COUNT, _FIRST_MS)
    target.send(topic, records)
    frame = target.read(subscribe=topic, minPartitions=12)
    assert frame.rdd.getNumPartitions() >= 12, frame.rdd.getNumPartitions()
    assert_rows(frame.collect(), by_place(records))


def _compressed(target: Target) -> None:
    topic, records = target.topic("compressed"), sample(3, 4 * 150, _FIRST_MS)
    for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
        part = records[number * 150 : (number + 1) * 150]
        target.send(topic, part, compression_type=codec)
    assert_rows(target.read(subscribe=topic).collect(), by_place(records))


def _transactions(target: Target) -> None:
    topic, records = target.topic("transactions"), sample(3, 120, _FIRST_MS)
    plan = [
        ("commit", records[:30]),
        ("abort", records[30:60]),
        ("commit", records[60:90]),
        ("open", records[90:]),
    ]
    producer = target.transactional(topic, plan)
    try:
        committed = target.read(subscribe=topic, kafka_isolation_level="read_committed")
        expected = sorted(record.value or b"" for record in records[:30] + records[60:90])
        found = values_of(committed.collect())
        assert found == expected, f"{len(found)} records"
        everything = target.read(subscribe=topic).count()
        assert everything == 120, f"{everything} records under read_uncommitted"
    finally:
        producer.abort_transaction(30)


def _deleted(target: Target) -> None:
    """Offsets before the log start: an error or what is left, as failOnDataLoss says."""
    topic, records = target.topic("deleted", 1), sample(1, 200, _FIRST_MS)
    target.send(topic, records)
    target.admin.delete_records([TopicPartition(topic, 0, 120)])[TopicPartition(topic, 0)].result(
        20
    )
    starting = json.dumps({topic: {"0": 10}})
    left = {place: record for place, record in by_place(records).items() if place[1] >= 120}
    frame = target.read(subscribe=topic, startingOffsets=starting, failOnDataLoss="false")
    assert_rows(frame.collect(), left)
    assert_rows(target.read(subscribe=topic).collect(), left)
    try:
        target.read(subscribe=topic, startingOffsets=starting).collect()
    except Exception as problem:
        assert_says(problem, "failOnDataLoss")
    else:
        raise AssertionError("deleted offsets were passed over")


def _missing_topic(target: Target) -> None:
    try:
        target.read(subscribe="no-such-topic", kafka_allow_auto_create_topics="false").collect()
    except Exception as problem:
        assert_says(problem, "UnknownTopicOrPartition")
    else:
        raise AssertionError("a topic that is not there was read")


def _compacted(target: Target) -> None:
    """Offsets may have gaps: what the cleaner left is read without an error."""
    topic = target.topic("compacted", 1, **{"cleanup.policy": "compact"})
    records = sample(1, 100, _FIRST_MS)
    target.send(topic, [record for record in records if record.key is not None])
    found = {bytes(row["key"]) for row in target.read(subscribe=topic).collect()}
    assert found == {record.key for record in records if record.key is not None}


READ_CHECKS: Mapping[str, Callable[[Target], None]] = {
    "batch: the schema, with headers": _schema,
    "batch: every field of every record": _every_field,
    "batch: headers, doubled, empty and null": _headers,
    "batch: LogAppendTime": _log_append_time,
    "batch: startingOffsets and endingOffsets as JSON": _offsets,
    "batch: from and to a time": _timestamps,
    "batch: assign, subscribePattern, a list of topics": _choice_of_topics,
    "batch: minPartitions": _split_by_offset,
    "batch: gzip, snappy, lz4, zstd": _compressed,
    "batch: read_committed beside aborted and open transactions": _transactions,
    "batch: deleted offsets, failOnDataLoss both ways": _deleted,
    "batch: a compacted topic": _compacted,
    "batch: a topic that is not there": _missing_topic,
}
