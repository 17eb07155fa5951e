"""A driver in a process of its own: queries from topic to topic, which can be held and killed.

    python crash_app.py FOLDER

Every `queries/NAME.json` of the folder is a query to keep running: one that fails is started again
from its checkpoint, as a supervisor would, with a line in `failures`. A query whose file goes is
stopped. `pids` has this process and its JVM, once the session is up.

A query can be held at a point: whoever first gets there claims `holds/NAME.POINT.arm` by renaming
it, writes its pid and batch into `holds/NAME.POINT.held`, and waits for `holds/NAME.POINT.go`.
Points are `writing` (a task, after its first rows are written), `prepared` (the driver, before the
sink's commit) and `committed` (the driver, after it, before Spark's commit log).
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

HOLD_LIMIT_S = 900
START_LIMIT_S = 30
HOLD_OPTION = "holds"


class HeldSink(DataSource):
    """The sink of `format("anabranch")`, with points to hold it at."""

    @classmethod
    def name(cls) -> str:
        return "held"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from anabranch.spark.sink import stream_writer

        options = dict(self.options)
        place = options.pop(HOLD_OPTION)
        return HeldWriter(stream_writer(options, schema, overwrite), place)


class HeldWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: DataSourceStreamArrowWriter, place: str) -> None:
        self._writer = writer
        self._place = place

    def write(self, iterator: Iterator[Any]) -> Any:
        return self._writer.write(self._held_after_first(iterator))

    def _held_after_first(self, iterator: Iterator[Any]) -> Iterator[Any]:
        task = TaskContext.get()
        assert task is not None
        batch_id = int(task.getLocalProperty("streaming.sql.batchId") or -1)
        for batch in iterator:
            yield batch
            hold(self._place, "writing", batch_id)

    def commit(self, messages: list[Any], batchId: int) -> None:
        hold(self._place, "prepared", batchId)
        self._writer.commit(messages, batchId)
        hold(self._place, "committed", batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._writer.abort(messages, batchId)


def hold(place: str, point: str, batch_id: int) -> None:
    armed = Path(f"{place}.{point}.arm")
    mine = Path(f"{place}.{point}.{os.getpid()}")
    try:
        armed.rename(mine)
    except FileNotFoundError:
        return
    mine.write_text(json.dumps({"pid": os.getpid(), "batch": batch_id}))
    mine.rename(f"{place}.{point}.held")
    end = time.monotonic() + HOLD_LIMIT_S
    while not Path(f"{place}.{point}.go").exists():
        if time.monotonic() > end:
            raise TimeoutError(f"held at {point} for {HOLD_LIMIT_S} s")
        time.sleep(0.01)


def open_session(folder: Path) -> SparkSession:
    # Tasks that are held take a core each; one that fails is tried again, as on a cluster.
    builder = SparkSession.builder.master("local[16,4]").appName("anabranch-crashes")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        "spark.python.authenticate.socketTimeout": "60s",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(HeldSink)
    return session


def start(session: SparkSession, folder: Path, name: str, given: dict[str, Any]) -> Any:
    records = session.readStream.format("anabranch").options(**given["source"]).load()
    writer = records.select("key", "value").writeStream.queryName(name).format("held")
    writer = writer.options(**given["sink"]).option(HOLD_OPTION, str(folder / "holds" / name))
    query = writer.option("checkpointLocation", str(folder / "checkpoints" / name)).start()
    # One at a time: Spark gives up on a source's process that takes ten seconds to start.
    end = time.monotonic() + START_LIMIT_S
    while query.isActive and query.status["message"].startswith("Initializing"):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return query


def note(folder: Path, name: str, why: Exception | None) -> None:
    with (folder / "failures").open("a") as failures:
        failures.write(json.dumps([name, str(why).splitlines()[0]]) + "\n")


def main(folder: Path) -> None:
    session = open_session(folder)
    jvm = session._jvm
    assert jvm is not None
    pids = folder / "pids.new"
    pids.write_text(json.dumps([os.getpid(), jvm.java.lang.ProcessHandle.current().pid()]))
    pids.rename(folder / "pids")
    running: dict[str, Any] = {}
    while not (folder / "stop").exists():
        wanted = {path.stem: path for path in (folder / "queries").glob("*.json")}
        for name in running.keys() - wanted.keys():
            running.pop(name).stop()
        for name, path in wanted.items():
            query = running.get(name)
            if query is not None and query.isActive:
                continue
            if query is not None:
                note(folder, name, running.pop(name).exception())
            try:
                running[name] = start(session, folder, name, json.loads(path.read_text()))
            except Exception as error:  # a worker that was killed may be needed for this, too
                note(folder, name, error)
        time.sleep(0.05)
    for query in running.values():
        with contextlib.suppress(Exception):
            query.stop()
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
