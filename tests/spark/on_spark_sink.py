"""The sink in a real Spark session, against a real broker."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from source_kit import create, numbered, options_of, produce

from support.broker_process import BrokerProcess
from support.confluent_client import ConfluentKafka
from support.stock_clients import EARLIEST, Received, ToSend

__all__ = [
    "sink_bootstrap",
    "test_sink_commits_a_batch_once",
    "test_sink_of_a_table",
    "test_sink_of_a_table_as_one",
    "test_sink_refuses_by_name",
    "test_sink_survives_workers_that_die",
    "test_sink_writes_a_stream",
]

LIMIT_S = 240


@pytest.fixture
def sink_bootstrap(spark_broker: BrokerProcess) -> str:
    return spark_broker.bootstrap


def committed(bootstrap: str, topic: str, partitions: int) -> list[Received]:
    """What a reader of committed records finds, up to records that are written now."""
    with ConfluentKafka().producer(bootstrap) as producer:
        producer.send(topic, [ToSend(b"end", partition=p) for p in range(partitions)])
    starts = dict.fromkeys(range(partitions), EARLIEST)
    found: list[Received] = []
    missing = set(range(partitions))
    with ConfluentKafka().consumer(bootstrap, topic, starts) as consumer:
        while missing:
            (record,) = consumer.take(1, LIMIT_S)
            if record.value == b"end":
                missing.discard(record.partition)
            else:
                found.append(record)
    return found


def check_once(found: list[Received], count: int) -> None:
    """Each number once; those of a key in one partition, in order."""
    assert sorted(int(one.value or b"") for one in found) == list(range(count))
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    places: dict[bytes | None, set[int]] = defaultdict(set)
    for one in found:
        by_key[one.key].append(int(one.value or b""))
        places[one.key].add(one.partition)
    assert all(len(partitions) == 1 for partitions in places.values())
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def save(frame: DataFrame, bootstrap: str, mode: str = "append", **options: str) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, **options}
    frame.write.format("anabranch").options(**given).mode(mode).save()


def run_stream(frame: DataFrame, bootstrap: str, folder: Path, **options: str) -> None:
    """Run a query with the sink until it has what there was when it began."""
    given = {"kafka.bootstrap.servers": bootstrap, **options}
    writer = frame.writeStream.format("anabranch").options(**given)
    query = (
        writer.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(LIMIT_S)
    finally:
        query.stop()


def copied(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    given = {"startingOffsets": "earliest", **options}
    frame = spark.readStream.format("anabranch").options(**options_of(bootstrap, topic, **given))
    return frame.load().select("key", "value")


# At least once ------------------------------------------------------------------------------------


def test_sink_of_a_table(spark: SparkSession, sink_bootstrap: str) -> None:
    """Text, nulls, headers, topics and partitions of the rows are those of the records."""
    create(sink_bootstrap, "sink-a", 3)
    create(sink_bootstrap, "sink-b", 1)
    rows = [
        ("sink-a", 2, "k0", "0", [("h", b"x"), ("h", None)]),
        ("sink-b", None, None, "1", None),
        ("sink-a", None, "k2", None, []),
        ("sink-a", 0, "k3", "größe", [("", b"")]),
    ]
    schema = (
        "topic string, partition int, key string, value string,"
        " headers array<struct<key: string, value: binary>>"
    )
    save(spark.createDataFrame(rows, schema), sink_bootstrap)
    found = {one.key: one for one in committed(sink_bootstrap, "sink-a", 3)}
    assert {key: one.value for key, one in found.items()} == {
        b"k0": b"0",
        b"k2": None,
        b"k3": "größe".encode(),
    }
    assert (found[b"k0"].partition, found[b"k3"].partition) == (2, 0)
    assert [found[key].headers for key in (b"k0", b"k2", b"k3")] == [
        (("h", b"x"), ("h", None)),
        (),
        (("", b""),),
    ]
    (record,) = committed(sink_bootstrap, "sink-b", 1)
    assert (record.key, record.value, record.headers) == (None, b"1", ())


def test_sink_writes_a_stream(spark: SparkSession, sink_bootstrap: str, tmp_path: Path) -> None:
    """Topic to topic, compressed, by more tasks than partitions, the key's order kept."""
    create(sink_bootstrap, "sink-in", 2)
    create(sink_bootstrap, "sink-out", 5)
    produce(sink_bootstrap, "sink-in", numbered(3000, partitions=2))
    frame = copied(spark, sink_bootstrap, "sink-in", branches=4, minRecordsPerBranch=1)
    options = {"topic": "sink-out", "kafka.compression.type": "lz4", "kafka.batch.size": "4000"}
    run_stream(frame, sink_bootstrap, tmp_path, **options)
    check_once(committed(sink_bootstrap, "sink-out", 5), 3000)


def test_sink_refuses_by_name(spark: SparkSession, sink_bootstrap: str) -> None:
    """Options, columns and rows that cannot be are errors with their names."""
    create(sink_bootstrap, "sink-bad", 1)
    good = spark.createDataFrame([("v",)], "value string")
    for frame, options, what in (
        (good, {}, "neither option 'topic' nor column 'topic'"),
        (good, {"topic": "sink-bad", "topik": "x"}, "'topik' of the sink is unknown"),
        (good, {"topic": "sink-bad", "kafka.acks": "0"}, "'kafka.acks' is 0"),
        (good.withColumn("amount", F.lit(1)), {"topic": "sink-bad"}, "column 'amount' is none"),
        (good.select(F.lit(1).alias("value")), {"topic": "sink-bad"}, "column 'value' is string"),
        (good.withColumn("topic", F.lit(None).cast("string")), {}, "column 'topic' is null"),
        (
            good.withColumn("partition", F.lit(1)),
            {"topic": "sink-bad"},
            "'partition' is 1 in a row",
        ),
    ):
        with pytest.raises(PySparkException, match=what):
            save(frame, sink_bootstrap, **options)
    with pytest.raises(PySparkException, match="mode 'overwrite' is not possible"):
        save(good, sink_bootstrap, "overwrite", topic="sink-bad")
    assert committed(sink_bootstrap, "sink-bad", 1) == []


# Exactly once -------------------------------------------------------------------------------------


def test_sink_of_a_table_as_one(spark: SparkSession, sink_bootstrap: str) -> None:
    """A batch query makes all rows visible at once; by its number it is written only once."""
    create(sink_bootstrap, "sink-table", 2)
    frame = spark.range(0, 500, 1, 3).select(
        F.lit("k").alias("key"), F.col("id").cast("string").alias("value")
    )
    numbered_batch = {"exactlyOnce": "true", "sinkId": "sink-table", "batchId": "0"}
    for _ in range(2):
        save(frame, sink_bootstrap, topic="sink-table", **numbered_batch)
    found = committed(sink_bootstrap, "sink-table", 2)
    assert sorted(int(one.value or b"") for one in found) == list(range(500))

    broken = F.when(F.col("value") == "499", F.raise_error(F.lit("a row that cannot be made")))
    bad = frame.withColumn("value", F.coalesce(broken.cast("string"), F.col("value")))
    with pytest.raises(PySparkException, match="a row that cannot be made"):
        save(bad, sink_bootstrap, topic="sink-table", exactlyOnce="true")
    assert len(committed(sink_bootstrap, "sink-table", 2)) == 500


@pytest.mark.timeout(600)
def test_sink_commits_a_batch_once(
    spark: SparkSession, sink_bootstrap: str, tmp_path: Path
) -> None:
    """Spark died between the sink's commit and its own: what other tasks do again is dropped."""
    create(sink_bootstrap, "sink-once-in", 2)
    create(sink_bootstrap, "sink-once", 3)
    options = {"topic": "sink-once", "exactlyOnce": "true", "sinkId": "sink-once"}
    for turn, branches in enumerate((1, 3)):
        first = turn * 400
        produce(sink_bootstrap, "sink-once-in", numbered(400, first=first, partitions=2))
        for attempt in range(2):
            more = {"branches": branches + 2 * attempt, "minRecordsPerBranch": 1}
            frame = copied(spark, sink_bootstrap, "sink-once-in", **more)
            run_stream(frame, sink_bootstrap, tmp_path, **options)
            if attempt == 0:
                forget_last_commit(tmp_path / "checkpoint")
    check_once(committed(sink_bootstrap, "sink-once", 3), 800)


def forget_last_commit(checkpoint: Path) -> None:
    """Leave the checkpoint as it is when the driver dies after the sink's commit."""
    commits = checkpoint / "commits"
    last = max((one for one in commits.iterdir() if one.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    commits.joinpath(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.timeout(600)
def test_sink_survives_workers_that_die(
    spark: SparkSession, sink_bootstrap: str, tmp_path: Path
) -> None:
    """A worker is killed in the middle of its rows: the query fails, and goes on without a gap."""
    create(sink_bootstrap, "sink-kill-in", 2)
    create(sink_bootstrap, "sink-kill", 2)
    produce(sink_bootstrap, "sink-kill-in", numbered(2000, partitions=2))
    flag = tmp_path / "die"

    def die_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if flag.exists():
                flag.unlink()
                os.kill(os.getpid(), 9)
            yield batch.slice(half)

    options = {"topic": "sink-kill", "exactlyOnce": "true", "kafka.linger.ms": "0"}
    flag.touch()
    for is_killed in (True, False):
        frame = copied(spark, sink_bootstrap, "sink-kill-in", branches=4, minRecordsPerBranch=1)
        worked = frame.mapInArrow(die_once, "key binary, value binary")
        if is_killed:
            with pytest.raises(PySparkException):
                run_stream(worked, sink_bootstrap, tmp_path, **options)
        else:
            run_stream(worked, sink_bootstrap, tmp_path, **options)
    assert not flag.exists()
    check_once(committed(sink_bootstrap, "sink-kill", 2), 2000)
