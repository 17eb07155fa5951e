"""What `anabranch pipeline new` writes: an application, or a project for scheduled runs.

Names in `$` are replaced; everything else is as people get it, so it is written to be read.
"""

from string import Template

_SETTINGS = """\
name = "$name"
$code

# Options of format("anabranch"): those of Spark's `kafka` source, and a few more.
[source]
"kafka.bootstrap.servers" = "$bootstrap"
subscribe = "$topic"
startingOffsets = "earliest"
# So many tasks for each partition, each with keys of its own, in order.
branches = $branches
# Progress is shown in this group; `anabranch pipeline status` looks there.
"kafka.group.id" = "$name"

[sink]
"kafka.bootstrap.servers" = "$bootstrap"
topic = "$output"
# With it, each row is written once, for readers of committed records; else at least once.
${once}exactlyOnce = "true"
"""

_SPARK_SETTINGS = """
# Settings of the session, for example "spark.executor.memory" = "4g".
[spark]
"""

_APP = '''\
"""$name: what is in $topic, summed up by key, into $output.

    anabranch pipeline run .                       # here, on all cores
    anabranch pipeline run . --master spark://...  # on a cluster
    spark-submit app.py                            # without the progress line
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from anabranch.spark import keyed_map

HERE = Path(__file__).resolve().parent
SETTINGS = tomllib.loads((HERE / "pipeline.toml").read_text())


def summary(key: bytes | None, rows: pa.Table) -> Iterator[dict[str, object]]:
    """The work: all records of a key in this batch, in order. Change this."""
    yield {"key": key, "value": f"{rows.num_rows} records, the last at {rows['offset'][-1]}"}


def transform(records: DataFrame) -> DataFrame:
    """From the source's columns to those of the sink, without a shuffle."""
    return keyed_map(records, summary, "key binary, value string")


def start(spark: SparkSession) -> StreamingQuery:
    records = spark.readStream.format("anabranch").options(**SETTINGS["source"]).load()
    writer = transform(records).writeStream.queryName(SETTINGS["name"])
    writer = writer.format("anabranch").options(**SETTINGS["sink"])
    return writer.option("checkpointLocation", str(HERE / "checkpoint")).start()


if __name__ == "__main__":
    start(SparkSession.builder.getOrCreate()).awaitTermination()
'''

_SPEC = """\
name: $name
storage: $storage
libraries:
  - glob:
      include: transformations/**
"""

_TRANSFORMATION = '''\
"""$name: what is new in $topic, into $output; runs to the end of the topic and stops.

    anabranch pipeline run .        # now; from cron or a scheduler as often as you like
"""

import tomllib
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

SETTINGS = tomllib.loads(Path("$settings").read_text())
spark = SparkSession.active()

dp.create_sink("$sink", "anabranch", {k: str(v) for k, v in SETTINGS["sink"].items()})


@dp.append_flow(target="$sink")
def $flow() -> DataFrame:
    """The work: from the source's columns to those of the sink. Change this."""
    records = spark.readStream.format("anabranch").options(**SETTINGS["source"]).load()
    return records.selectExpr("key", "upper(CAST(value AS STRING)) AS value")
'''


def always_on(values: dict[str, str]) -> dict[str, str]:
    """File name to content: a Structured Streaming application."""
    settings = _SETTINGS + _SPARK_SETTINGS
    return {
        "pipeline.toml": Template(settings).substitute(values, code='app = "app.py"'),
        "app.py": Template(_APP).substitute(values),
        ".gitignore": "checkpoint/\nspark-warehouse/\n",
    }


def scheduled(values: dict[str, str]) -> dict[str, str]:
    """File name to content: a project of Spark's Declarative Pipelines."""
    code = 'spec = "spark-pipeline.yml"'
    return {
        "pipeline.toml": Template(_SETTINGS).substitute(values, code=code),
        "spark-pipeline.yml": Template(_SPEC).substitute(values),
        "transformations/flow.py": Template(_TRANSFORMATION).substitute(values),
        ".gitignore": "storage/\nspark-warehouse/\nmetastore_db/\n",
    }
