"""The source in a real Spark session, against a real broker."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from source_kit import Sent, admin, create, grow, numbered, options_of, produce

from anabranch.spark.source_schema import kafka_schema
from support.broker_process import BrokerProcess, wait_until

__all__ = [
    "bootstrap",
    "test_a_broker_that_is_away_for_a_while",
    "test_a_crash_in_batch_0",
    "test_a_query_of_every_kind",
    "test_a_stream_that_grows",
    "test_a_table_with_everything_in_it",
    "test_bad_options",
    "test_branches_on_spark",
    "test_columns_by_schema",
    "test_kafkas_checkpoint",
    "test_lost_data",
    "test_moving_boundaries",
]

LIMIT_S = 300


@pytest.fixture
def bootstrap(spark_broker: BrokerProcess) -> str:
    return spark_broker.bootstrap


def table(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("anabranch").options(**options_of(bootstrap, topic, **options)).load()


def stream_of(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    given = options_of(bootstrap, topic, **options)
    return spark.readStream.format("anabranch").options(**given).load()


class Sink:
    """Collects what a query's batches have, by `foreachBatch`; can fail before a batch is done."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.failures = 0
        self.on_batch: Callable[[int], None] | None = None

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.withColumn("task", F.spark_partition_id()).collect()
        if self.on_batch is not None:
            self.on_batch(batch_id)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the sink is broken")
        self.batches[batch_id] = rows

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]

    @property
    def values(self) -> list[int]:
        return sorted(int(row["value"]) for row in self.rows)


def run_all(frame: DataFrame, sink: Sink, folder: Path) -> Any:
    """Run a query until it has what there was when it began."""
    writer = frame.writeStream.foreachBatch(sink.take).trigger(availableNow=True)
    for attempt in range(4):
        query = writer.option("checkpointLocation", str(folder)).start()
        try:
            assert query.awaitTermination(LIMIT_S)
            break
        except PySparkException as error:
            # Spark gives a source's process ten seconds to start, which a busy machine may exceed.
            if attempt == 3 or "failed to connect back" not in str(error):
                raise
        finally:
            query.stop()
    return query


def run_on(frame: DataFrame, sink: Sink, folder: Path) -> Any:
    """Start a query that goes on."""
    writer = frame.writeStream.foreachBatch(sink.take)
    return writer.option("checkpointLocation", str(folder)).start()


def check_keys(rows: list[Row]) -> None:
    """Of each key: one task in a batch, and its records in order."""
    last: dict[tuple[int, bytes], tuple[int, int]] = {}
    for row in rows:
        key = (row["partition"], bytes(row["key"]))
        before = last.get(key)
        if before is not None:
            assert before[0] == row["task"]
            assert before[1] < row["offset"]
        last[key] = (row["task"], row["offset"])


# Tables -------------------------------------------------------------------------------------------


def test_a_table_with_everything_in_it(spark: SparkSession, bootstrap: str) -> None:
    """Keys, values, headers, times and nulls, of every compression, arrive as they were sent."""
    create(bootstrap, "everything", 2)
    expected = []
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        for i in range(20):
            offset = number * 20 + i
            key = None if i % 5 == 0 else b"key-%d" % i
            value = None if i % 7 == 0 else b"%d" % offset * 50
            headers = [("a", b"1"), ("a", None), ("\u00fc", b"")] if i % 2 else None
            time_ms = 1_700_000_000_000 + offset
            producer.produce(
                "everything", key=key, value=value, headers=headers, partition=1, timestamp=time_ms
            )
            expected.append((key, value, 1, offset, time_ms, headers))
        assert producer.flush(30) == 0
    frame = table(spark, bootstrap, "everything", includeHeaders="true")
    assert frame.schema == kafka_schema(include_headers=True)
    found = []
    for row in frame.orderBy("offset").collect():
        assert row["topic"] == "everything"
        assert row["timestampType"] == 0
        headers = row["headers"] and [(one["key"], _bytes(one["value"])) for one in row["headers"]]
        when = row["timestamp"].replace(tzinfo=UTC) if row["timestamp"].tzinfo is None else None
        time_ms = round((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
        key, value = _bytes(row["key"]), _bytes(row["value"])
        found.append((key, value, row["partition"], row["offset"], time_ms, headers))
    assert found == expected


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def test_branches_on_spark(spark: SparkSession, bootstrap: str) -> None:
    """More tasks than partitions, without a shuffle: every key in one task, in order."""
    create(bootstrap, "branched", 2)
    produce(bootstrap, "branched", numbered(5000, partitions=2))
    frame = table(spark, bootstrap, "branched", branches=4, minRecordsPerBranch=100)
    rows = frame.withColumn("task", F.spark_partition_id()).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(5000))
    assert len({row["task"] for row in rows}) == 8
    check_keys(rows)
    assert frame._jdf.queryExecution().toString().count("Exchange") == 0


def test_columns_by_schema(spark: SparkSession, bootstrap: str) -> None:
    """A schema of the user's chooses columns; Spark gets no others."""
    create(bootstrap, "columns", 1)
    produce(bootstrap, "columns", numbered(10))
    given = options_of(bootstrap, "columns")
    frame = (
        spark.read.format("anabranch").options(**given).schema("offset bigint, key binary").load()
    )
    assert frame.columns == ["offset", "key"]
    assert frame.orderBy("offset").first() == Row(offset=0, key=bytearray(b"key-0"))


def test_bad_options(spark: SparkSession, bootstrap: str) -> None:
    """`load()` refuses what makes no sense, and what is not there is told when it is read."""
    with pytest.raises(PySparkException, match=r"'startingoffset' is unknown.*startingOffsets"):
        table(spark, bootstrap, "x", startingOffset="earliest")
    with pytest.raises(PySparkException, match=r"kafka\.bootstrap\.servers' must be set"):
        spark.read.format("anabranch").option("subscribe", "x").load()
    with pytest.raises(PySparkException, match="'subscribe' names what does not exist: nowhere"):
        table(spark, bootstrap, "nowhere").count()


# Streams ------------------------------------------------------------------------------------------


def group_lags(bootstrap: str, group: str) -> dict[int, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    client = admin(bootstrap)
    (asked,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    committed = asked.result(30).topic_partitions
    latest = client.list_offsets(
        {TopicPartition(one.topic, one.partition): OffsetSpec.latest() for one in committed}
    )
    ends = {one.partition: found.result(30).offset for one, found in latest.items()}
    return {one.partition: ends[one.partition] - one.offset for one in committed}


def test_a_query_of_every_kind(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """AvailableNow in several batches, a restart with other branches, then one that goes on."""
    create(bootstrap, "kinds", 3)
    produce(bootstrap, "kinds", numbered(3000, partitions=3))
    options = {"startingOffsets": "earliest", "kafka.group.id": "kinds-group"}
    sink = Sink()
    small = {"minRecordsPerBranch": 50, "maxOffsetsPerTrigger": 1000}
    run_all(stream_of(spark, bootstrap, "kinds", branches=4, **small, **options), sink, tmp_path)
    assert sink.values == list(range(3000))
    assert len(sink.batches) >= 3
    assert group_lags(bootstrap, "kinds-group") == {0: 0, 1: 0, 2: 0}
    produce(bootstrap, "kinds", numbered(500, first=3000, partitions=3))
    run_all(stream_of(spark, bootstrap, "kinds", minPartitions=7, **options), sink, tmp_path)
    assert sink.values == list(range(3500))
    query = run_on(stream_of(spark, bootstrap, "kinds", **options), sink, tmp_path)
    try:
        produce(bootstrap, "kinds", numbered(100, first=3500, partitions=3))
        assert wait_until(lambda: len(sink.values) == 3600, LIMIT_S)
        # An idle query shows its last batch, too.
        assert wait_until(lambda: set(group_lags(bootstrap, "kinds-group").values()) == {0}, 30)
        progress = query.lastProgress
        assert progress is None or set(progress["sources"][0]) >= {"endOffset", "latestOffset"}
    finally:
        query.stop()
    assert query.exception() is None
    assert sink.values == list(range(3600))
    for rows in sink.batches.values():
        check_keys(rows)
    log = (tmp_path / "offsets" / "1").read_text().splitlines()
    assert log[0] == "v1"
    assert json.loads(log[-1]).keys() == {"kinds"}


def test_moving_boundaries(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Cuts that follow the load from batch to batch keep every key in order."""
    create(bootstrap, "hot-keys", 1)
    sink = Sink()
    for hot in range(3):
        records = [
            Sent(0, b"hot-%d" % hot if i % 2 else b"key-%d" % (i % 40), b"%d" % (hot * 2000 + i))
            for i in range(2000)
        ]
        produce(bootstrap, "hot-keys", records)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 2000}
    frame = stream_of(spark, bootstrap, "hot-keys", branches=4, minRecordsPerBranch=1, **options)
    run_all(frame, sink, tmp_path)
    assert sink.values == list(range(6000))
    assert len(sink.batches) == 3
    for rows in sink.batches.values():
        check_keys(rows)
        assert len({row["task"] for row in rows}) == 4
    by_key: dict[bytes, list[int]] = {}
    for row in sink.rows:
        by_key.setdefault(bytes(row["key"]), []).append(row["offset"])
    assert all(offsets == sorted(offsets) for offsets in by_key.values())


def test_a_stream_that_grows(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Partitions that are added while a query with `latest` runs are read from their beginning."""
    create(bootstrap, "wider", 1)
    sink = Sink()
    query = run_on(stream_of(spark, bootstrap, "wider"), sink, tmp_path)
    try:

        def sent_until_seen() -> bool:
            # Where `latest` is, is decided when the query begins: something must be seen of it.
            produce(bootstrap, "wider", [Sent(0, b"k", b"-1")])
            return bool(sink.rows)

        assert wait_until(sent_until_seen, LIMIT_S, 0.5)
        grow(bootstrap, "wider", 3)
        produce(bootstrap, "wider", [Sent(i % 3, b"k%d" % (i % 3), b"%d" % i) for i in range(60)])
        assert wait_until(lambda: set(sink.values) >= set(range(60)), LIMIT_S)
    finally:
        query.stop()
    assert [value for value in sink.values if value >= 0] == list(range(60))


def test_a_crash_in_batch_0(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """A query with `latest` that dies in its first batch loses nothing when it is restarted."""
    create(bootstrap, "first-batch", 2)
    produce(bootstrap, "first-batch", numbered(50, partitions=2))
    sink = Sink()
    sink.failures = 1
    frame = stream_of(spark, bootstrap, "first-batch")
    query = run_on(frame, sink, tmp_path)
    sent = 50

    def has_failed() -> bool:
        nonlocal sent
        produce(bootstrap, "first-batch", numbered(10, first=sent, partitions=2))
        sent += 10
        return query.exception() is not None

    assert wait_until(has_failed, LIMIT_S, 0.5)
    query.stop()
    first = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    produce(bootstrap, "first-batch", numbered(10, first=sent, partitions=2))
    sent += 10
    run_all(frame, sink, tmp_path)
    began = sum(first["__from__"]["first-batch"].values())
    assert began >= 50
    assert sink.values == list(range(began, sent))


def test_kafkas_checkpoint(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """A checkpoint that Spark's own `kafka` source left is gone on with."""
    create(bootstrap, "moved-over", 2)
    produce(bootstrap, "moved-over", numbered(100, partitions=2))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    (tmp_path / "metadata").write_text('{"id":"6ae02a23-6a94-4d4f-9b5c-3c0a2f7f3f10"}')
    state = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    offsets = '{"moved-over":{"1":20,"0":30}}'
    (tmp_path / "offsets" / "0").write_text(f"v1\n{state}\n{offsets}")
    (tmp_path / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    sink = Sink()
    run_all(stream_of(spark, bootstrap, "moved-over"), sink, tmp_path)
    assert len(sink.rows) == 50
    assert min(row["offset"] for row in sink.rows if row["partition"] == 1) == 20
    assert min(row["offset"] for row in sink.rows if row["partition"] == 0) == 30


def test_lost_data(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Offsets that are gone end a query, unless `failOnDataLoss` is false."""
    from confluent_kafka import TopicPartition

    create(bootstrap, "lost", 1)
    produce(bootstrap, "lost", numbered(100), batch_num_messages=10)
    sink = Sink()
    options = {"startingOffsets": "earliest"}
    run_all(stream_of(spark, bootstrap, "lost", **options), sink, tmp_path)
    produce(bootstrap, "lost", numbered(100, first=100), batch_num_messages=10)
    client = admin(bootstrap)
    (gone,) = client.delete_records([TopicPartition("lost", 0, 150)]).values()
    gone.result(30)
    with pytest.raises(PySparkException, match=r"begins at offset 150.*failOnDataLoss"):
        run_all(stream_of(spark, bootstrap, "lost", **options), sink, tmp_path)
    lenient = stream_of(spark, bootstrap, "lost", failOnDataLoss="false", **options)
    run_all(lenient, sink, tmp_path)
    assert sink.values == [*range(100), *range(150, 200)]


def test_a_broker_that_is_away_for_a_while(
    spark: SparkSession, make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """A broker that is killed in a batch and comes back delays the query, and no more."""
    broker = make_broker()
    create(broker.bootstrap, "interrupted", 1)
    produce(broker.bootstrap, "interrupted", numbered(4000), batch_num_messages=100)
    sink = Sink()
    restarts: list[threading.Timer] = []

    def kill_once(batch_id: int) -> None:
        if not restarts:
            broker.kill()
            restarts.append(threading.Timer(1.0, broker.start))
            restarts[0].start()

    sink.on_batch = kill_once
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 1000}
    try:
        run_all(stream_of(spark, broker.bootstrap, "interrupted", **options), sink, tmp_path / "c")
    finally:
        for timer in restarts:
            timer.join()
    assert sink.values == list(range(4000))
