"""keyed_map in a real session over a real broker: no shuffle, order, other numbers of branches."""

import collections
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import run_to_end
from pyspark.sql import DataFrame, SparkSession
from source_kit import create, numbered, options_of, produce

from anabranch.spark import keyed_map
from support.broker_process import BrokerProcess

PARTITIONS = 3
KEYS = 40


@pytest.fixture
def keyed_topic(spark_broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A topic of its own, with three partitions."""
    name: str = request.node.name.replace("[", "-").replace("]", "")
    create(spark_broker.bootstrap, name, PARTITIONS)
    return name


def plan_of(frame: DataFrame) -> str:
    """The physical plan, as `explain` prints it."""
    return str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


def test_keyed_map_groups_without_a_shuffle(
    spark: SparkSession, spark_broker: BrokerProcess, keyed_topic: str
) -> None:
    """3 partitions at 8 branches: more tasks than partitions, each key once, no exchange."""
    produce(spark_broker.bootstrap, keyed_topic, numbered(3000, partitions=PARTITIONS, keys=KEYS))
    options = options_of(spark_broker.bootstrap, keyed_topic, branches=8, minRecordsPerBranch=1)
    frame = spark.read.format("anabranch").options(**options).load()

    def summary(key: bytes, rows: Any) -> Iterator[tuple[bytes, int, int, bool, int]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        values = [int(value) for value in rows.column("value").to_pylist()]
        in_order = all(a < b for a, b in itertools.pairwise(values))
        yield key, len(values), sum(values), in_order, context.partitionId()

    schema = "key binary, n int, total long, in_order boolean, task int"
    result = keyed_map(frame, summary, schema)
    plan = plan_of(result)
    assert "MapInArrow" in plan and "Exchange" not in plan, plan
    rows = result.collect()
    assert len(rows) == KEYS, "a key was called more than once"
    expected = collections.defaultdict(list)
    for record in numbered(3000, partitions=PARTITIONS, keys=KEYS):
        expected[record.key].append(int(record.value or b""))
    for row in rows:
        values = expected[bytes(row["key"])]
        assert (row["n"], row["total"], row["in_order"]) == (len(values), sum(values), True)
    assert len({row["task"] for row in rows}) > PARTITIONS


def test_keyed_map_with_another_number_of_branches_after_a_restart(
    spark: SparkSession, spark_broker: BrokerProcess, keyed_topic: str, tmp_path: Path
) -> None:
    """Each record goes through the function once, in its key's order, over three restarts."""
    records = numbered(1200, partitions=PARTITIONS, keys=KEYS)
    for run, branches in enumerate([1, 8, 4]):
        part = records[run * 400 : (run + 1) * 400]
        produce(spark_broker.bootstrap, keyed_topic, part)
        options = options_of(
            spark_broker.bootstrap,
            keyed_topic,
            branches=branches,
            minRecordsPerBranch=1,
            maxOffsetsPerTrigger=150,
            startingOffsets="earliest",
        )
        frame = spark.readStream.format("anabranch").options(**options).load()

        def one(key: bytes, row: dict[str, Any]) -> dict[str, object]:
            return {"key": key, "number": int(row["value"]), "offset": row["offset"]}

        result = keyed_map(frame, one, "key binary, number int, offset long", each="record")
        writer = result.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_end(writer.trigger(availableNow=True).start)
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("key", "offset").collect()
    found = collections.defaultdict(list)
    for row in rows:
        found[bytes(row["key"])].append(row["number"])
    expected = collections.defaultdict(list)
    for record in records:
        expected[record.key].append(int(record.value or b""))
    assert found == expected


def test_state_with_another_number_of_branches_after_a_restart(
    spark: SparkSession, spark_broker: BrokerProcess, keyed_topic: str, tmp_path: Path
) -> None:
    """Spark's own state is by key and not by branch: counts go on over every change."""
    counts: dict[bytes, int] = {}

    def keep(frame: DataFrame, batch_id: int) -> None:
        counts.update({bytes(row["key"]): row["count"] for row in frame.collect()})

    records = numbered(900, partitions=PARTITIONS, keys=KEYS)
    for run, branches in enumerate([4, 1, 8]):
        produce(spark_broker.bootstrap, keyed_topic, records[run * 300 : (run + 1) * 300])
        options = options_of(
            spark_broker.bootstrap,
            keyed_topic,
            branches=branches,
            minRecordsPerBranch=1,
            startingOffsets="earliest",
        )
        frame = spark.readStream.format("anabranch").options(**options).load()
        writer = frame.groupBy("key").count().writeStream.outputMode("update").foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_end(writer.trigger(availableNow=True).start)
    assert counts == collections.Counter(record.key for record in records)


def test_a_shuffle_before_keyed_map_is_noticed(
    spark: SparkSession, spark_broker: BrokerProcess, keyed_topic: str
) -> None:
    """Rows that Spark has moved are refused with the reason, not processed out of order."""
    produce(spark_broker.bootstrap, keyed_topic, numbered(3000, partitions=1, keys=KEYS))
    options = options_of(spark_broker.bootstrap, keyed_topic)
    frame = spark.read.format("anabranch").options(**options).load().orderBy("value")
    result = keyed_map(frame, lambda key, row: {"key": key}, "key binary", each="record")
    with pytest.raises(Exception, match="are not in the order of their offsets"):
        result.collect()


def test_keyed_map_of_a_frame_without_a_key_is_refused_at_once(spark: SparkSession) -> None:
    """Before anything runs, and with the columns that the frame has."""
    with pytest.raises(ValueError, match="needs the column 'key', and the frame has id"):
        keyed_map(spark.range(3), lambda key, rows: None, "n int")
    with pytest.raises(ValueError, match="each must be"):
        keyed_map(spark.range(3), lambda key, rows: None, "n int", key="id", each="row")  # type: ignore[arg-type]
