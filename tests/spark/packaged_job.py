"""A job as users write them: topic to topic through the source, `keyed_map` and the sink.

    packaged_job.py BOOTSTRAP INPUT OUTPUT CHECKPOINT

It runs wherever its session is: by `spark-submit`, on a cluster, behind Spark Connect. Each row
that it writes says which Python made it, and in which folder; at the end it reads what it wrote,
and prints how many rows there are.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from anabranch.spark import keyed_map


def work(key: bytes, rows: Any) -> Iterator[dict[str, Any]]:
    import anabranch

    for value in rows["value"].to_pylist():
        made = {
            "number": int(value),
            "python": sys.executable,
            "folder": os.getcwd(),
            "package": anabranch.__file__,
        }
        yield {"key": key, "value": json.dumps(made)}


def main(bootstrap: str, topic: str, output: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("packaged").getOrCreate()
    kafka = {"kafka.bootstrap.servers": bootstrap}
    records = (
        spark.readStream.format("anabranch")
        .options(**kafka, subscribe=topic, startingOffsets="earliest")
        .options(branches="4", minRecordsPerBranch="1", maxOffsetsPerTrigger="400")
        .option("kafka.group.id", output)
        .load()
    )
    query = (
        keyed_map(records, work, "key binary, value string")
        .writeStream.format("anabranch")
        .options(**kafka, topic=output, exactlyOnce="true")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    written = (
        spark.read.format("anabranch")
        .options(**kafka, subscribe=output)
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    print(json.dumps({"rows": written.count()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
