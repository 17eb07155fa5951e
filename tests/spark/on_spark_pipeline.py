"""A pipeline as `anabranch pipeline new` writes it, run in a real session: stop, commit, go on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from patience import patiently
from pyspark.sql import SparkSession
from source_kit import create, numbered, produce

from anabranch.cli.errors import CliError
from anabranch.cli.main import main
from anabranch.cli.pipeline.project import Project, load_project
from anabranch.cli.pipeline.runner import Stop, app_start, run_query
from anabranch.spark.listener import BatchProgress
from support.broker_process import BrokerProcess

PIPELINE_PARTITIONS = 3


def committed_by(bootstrap: str, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in range(PIPELINE_PARTITIONS)]
        return [place.offset for place in consumer.committed(places, timeout=30)]
    finally:
        consumer.close()


def run_until(
    spark: SparkSession, project: Project, rows: int, end: Callable[[], None] | None = None
) -> BatchProgress | None:
    """Run a pipeline until it has read so many rows; then it is stopped, or `end` sees to that."""
    seen: list[int] = []

    def report(progress: BatchProgress) -> None:
        seen.append(progress.rows)
        if sum(seen) >= rows and end is not None:
            end()

    return patiently(
        lambda: run_query(
            app_start(project),
            spark,
            project.source,
            report,
            stop=Stop(),
            grace_s=60,
            until=lambda: end is None and sum(seen) >= rows,
        )
    )


def test_a_pipeline_goes_on_where_it_was_stopped(
    spark: SparkSession, spark_broker: BrokerProcess, tmp_path: Path
) -> None:
    """After each stop, by itself or by SIGTERM, the group is at the end of what was read."""
    bootstrap, topic, folder = spark_broker.bootstrap, "pipeline-in", tmp_path / "billing-test"
    create(bootstrap, topic, PIPELINE_PARTITIONS)
    create(bootstrap, "pipeline-out", PIPELINE_PARTITIONS)
    new = ["pipeline", "new", str(folder), "--topic", topic, "--output", "pipeline-out"]
    assert main([*new, "--bootstrap-server", bootstrap]) == 0
    records = numbered(900, partitions=PIPELINE_PARTITIONS)
    ends = [sum(record.partition == number for record in records) for number in range(3)]

    produce(bootstrap, topic, records[:600])
    last = run_until(spark, load_project(folder), 600)
    assert last is not None and last.lag == 0
    assert sum(committed_by(bootstrap, "billing-test", topic)) == 600

    produce(bootstrap, topic, records[600:])
    last = run_until(spark, load_project(folder), 300, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert last is not None and last.rows <= 300, "what was done is not read again"
    assert committed_by(bootstrap, "billing-test", topic) == ends
    written = spark.read.format("anabranch").option("kafka.bootstrap.servers", bootstrap)
    keys = {
        bytes(row["key"]) for row in written.option("subscribe", "pipeline-out").load().collect()
    }
    assert keys == {record.key for record in records}


def test_a_pipeline_that_fails_says_why(
    spark: SparkSession, spark_broker: BrokerProcess, tmp_path: Path
) -> None:
    """The error is one line, and an application without a start is named."""
    bootstrap, folder = spark_broker.bootstrap, tmp_path / "failing"
    create(bootstrap, "pipeline-bad", 1)
    new = ["pipeline", "new", str(folder), "--topic", "pipeline-bad"]
    assert main([*new, "--bootstrap-server", bootstrap]) == 0
    app = folder / "app.py"
    text = app.read_text()
    app.write_text(text.replace("rows.num_rows", "rows.no_such_thing"))
    produce(bootstrap, "pipeline-bad", numbered(10))
    with pytest.raises(CliError, match="The pipeline failed") as caught:
        run_until(spark, load_project(folder), 10)
    assert "\n" not in str(caught.value)
    app.write_text(text.replace("def start(", "def begin("))
    with pytest.raises(CliError, match=r"no function start\(spark\)"):
        app_start(load_project(folder))
