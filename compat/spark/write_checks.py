"""Writes of Spark's own connector, read back by another client."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from connector import QUERY_SECONDS, Target, assert_says, by_place

from branch_topics import sample

_FIRST_MS = 1_790_000_000_000


def consumed(target: Target, topic: str, count: int) -> list[Message]:
    """All records of a topic, by a client that is not Spark's; there must be so many."""
    settings = {"bootstrap.servers": target.bootstrap_servers, "group.id": "reader"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "log_level": 0})
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    found: list[Message] = []
    at_end: set[int] = set()
    while len(at_end) < len(partitions):
        message = consumer.poll(20)
        assert message is not None, f"no answer, {len(found)} records so far"
        if message.error() is not None:
            at_end.add(message.partition())
        else:
            found.append(message)
    consumer.close()
    assert len(found) == count, f"{len(found)} records instead of {count}"
    return found


def _batch(target: Target) -> None:
    topic = target.topic("written")
    frame = target.spark.range(1000).selectExpr(
        "CAST(id % 20 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    target.write(frame, topic=topic)
    found = consumed(target, topic, 1000)
    assert sorted(int(m.value()) for m in found) == list(range(1000))
    places: dict[bytes, set[int]] = {}
    for message in found:
        assert int(message.value()) % 20 == int(message.key())
        places.setdefault(message.key(), set()).add(message.partition())
    assert all(len(numbers) == 1 for numbers in places.values()), places


def _columns(target: Target) -> None:
    """Null keys and values, headers, and the topic and partition of each row."""
    one, two = target.topic("columns"), target.topic("columns")
    frame = target.spark.sql(
        f"""
        SELECT '{one}' AS topic, 2 AS partition, CAST('k' AS BINARY) AS key,
               CAST('v' AS BINARY) AS value,
               array(struct('h' AS key, CAST('1' AS BINARY) AS value),
                     struct('h' AS key, CAST('2' AS BINARY) AS value)) AS headers
        UNION ALL
        SELECT '{two}', 0, NULL, NULL, NULL
        """
    )
    target.write(frame, includeHeaders="true")
    (first,) = consumed(target, one, 1)
    assert (first.partition(), first.key(), first.value()) == (2, b"k", b"v")
    assert first.headers() == [("h", b"1"), ("h", b"2")], first.headers()
    (second,) = consumed(target, two, 1)
    assert (second.partition(), second.key(), second.value()) == (0, None, None)
    assert not second.headers()


def _compressed(target: Target) -> None:
    topic = target.topic("written-compressed")
    frame = target.spark.range(400).selectExpr("repeat(CAST(id AS STRING), 50) AS value")
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        target.write(frame, topic=topic, kafka_compression_type=codec, kafka_linger_ms=50)
    found = consumed(target, topic, 1600)
    assert {m.value() for m in found} == {str(number).encode() * 50 for number in range(400)}


def _acks(target: Target) -> None:
    topic = target.topic("acks")
    frame = target.spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    for acks in ("0", "1", "all"):
        target.write(frame, topic=topic, kafka_acks=acks, kafka_enable_idempotence="false")
    target.write(frame, topic=topic)
    consumed(target, topic, 400)


def _large_records(target: Target) -> None:
    topic = target.topic("large", 1)
    frame = target.spark.range(20).selectExpr("repeat(CAST(id % 10 AS STRING), 700000) AS value")
    target.write(frame, topic=topic)
    found = target.read(subscribe=topic).selectExpr("length(value) AS size").collect()
    assert [row["size"] for row in found] == [700_000] * 20


def _stream(target: Target) -> None:
    """Topic to topic in micro-batches; each key keeps its order."""
    source, goal = target.topic("from"), target.topic("to")
    records = sample(3, 600, _FIRST_MS)
    target.send(source, records)
    frame = target.stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=200)
    writer = frame.select("key", "value", "partition").writeStream.format("kafka")
    options = target.options(topic=goal, checkpointLocation=str(target.folder() / "checkpoint"))
    query = writer.options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_SECONDS)
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    assert len(batches) >= 3, f"{len(batches)} batches"
    found = {(m.partition(), m.offset()): (m.key(), m.value()) for m in consumed(target, goal, 600)}
    expected = {place: (r.key, r.value) for place, r in by_place(records).items()}
    assert found == expected


def _unknown_topic(target: Target) -> None:
    frame = target.spark.sql("SELECT 'x' AS value")
    try:
        target.write(frame, topic="not a name", kafka_max_block_ms=3000)
    except Exception as problem:
        assert_says(problem, "not a name")
    else:
        raise AssertionError("a topic with a bad name was written to")


WRITE_CHECKS: Mapping[str, Callable[[Target], None]] = {
    "write: a batch, keys to their partitions": _batch,
    "write: topic, partition, headers, nulls": _columns,
    "write: gzip, snappy, lz4, zstd": _compressed,
    "write: every kind of acks, idempotent by default": _acks,
    "write: records of 700 kB": _large_records,
    "write: a stream from topic to topic": _stream,
    "write: a name that no topic can have": _unknown_topic,
}
