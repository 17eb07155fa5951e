"""What all parts of the benchmark of Spark need: sessions, sources, records, CPU time, plans."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from branches_site import make_values
from server_process import ROOT, ServerProcess

sys.path[:0] = [str(ROOT / "compat" / "spark"), str(ROOT / "compat")]
from connector import connector_jars  # noqa: E402 - the path is set just above

PARTITIONS = 3
KEYS = 10_000
VALUE_BYTES = 100
QUERY_SECONDS = 240
_CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LIMIT_S = 60
_WATCH_INTERVAL_S = 0.5
_LOG4J = """rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = STDERR
appender.stderr.type = Console
appender.stderr.name = STDERR
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""
_topic_numbers = itertools.count(1)


class SparkBenchError(Exception):
    """A query did not end, or did not see what was sent."""


# Sources ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """One way to read a topic."""

    key: str
    label: str
    format: str
    options: tuple[tuple[str, str], ...] = ()


CONNECTOR = Source("connector", 'format("kafka")', "kafka")
OURS = Source("ours", 'format("anabranch")', "anabranch")


def with_branches(count: int) -> Source:
    """Our source with every partition cut into so many key ranges."""
    name = "branch" if count == 1 else "branches"
    return Source(
        f"ours-{count}",
        f'format("anabranch"), {count} {name}',
        "anabranch",
        (("branches", str(count)),),
    )


def read(spark: SparkSession, source: Source, server: ServerProcess, topic: str) -> DataFrame:
    """A batch frame over all of a topic."""
    reader = spark.read.format(source.format).options(**dict(source.options))
    return reader.options(**_place(server, topic)).load()


def stream(
    spark: SparkSession, source: Source, server: ServerProcess, topic: str, **options: object
) -> DataFrame:
    """A streaming frame from the beginning of a topic on."""
    named = {name: str(value) for name, value in options.items()}
    reader = spark.readStream.format(source.format).options(**dict(source.options))
    return reader.options(**_place(server, topic), startingOffsets="earliest", **named).load()


def _place(server: ServerProcess, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic}


# Sessions and queries -----------------------------------------------------------------------------


@dataclass(slots=True)
class Site:
    """One Spark session at a time, and a folder for all that it writes."""

    work: Path
    spark: SparkSession = field(init=False)
    watch: CpuWatch = field(init=False)

    @contextmanager
    def session(self, slots: int, **more: str) -> Iterator[SparkSession]:
        """A local session with so many task slots; the JVM stays the same for all of them."""
        log4j = self.work / "log4j2.properties"
        log4j.write_text(_LOG4J)
        os.environ.update(
            PYSPARK_PYTHON=sys.executable,
            PYSPARK_DRIVER_PYTHON=sys.executable,
            SPARK_LOCAL_IP="127.0.0.1",
        )
        settings = {
            "spark.jars": ",".join(map(str, connector_jars())),
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "3g",
            "spark.local.dir": str(self.work / "spark"),
            "spark.sql.warehouse.dir": str(self.work / "warehouse"),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.numRecentProgressUpdates": "10000",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        builder = SparkSession.builder.master(f"local[{slots}]").appName("bench-spark")
        self.spark = builder.config(map={**settings, **more}).getOrCreate()
        self.watch = CpuWatch(jvm_pid(self.spark))
        try:
            yield self.spark
        finally:
            self.watch.close()
            self.spark.stop()

    def close(self) -> None:
        """End the JVM, which no session does."""
        gateway, SparkContext._gateway = SparkContext._gateway, None
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            try:
                gateway.proc.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                gateway.proc.kill()
                gateway.proc.wait()

    @contextmanager
    def query(
        self, frame: DataFrame, *, output_mode: str = "append", sink: Any = None, **trigger: Any
    ) -> Iterator[StreamingQuery]:
        """A query with a new checkpoint, into nothing unless there is a `sink`; stopped at last."""
        folder = Path(tempfile.mkdtemp(dir=self.work))
        writer = frame.writeStream.outputMode(output_mode)
        writer = writer.format("noop") if sink is None else writer.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(folder))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        try:
            yield query
        finally:
            query.stop()
            shutil.rmtree(folder, ignore_errors=True)


def finish(query: StreamingQuery) -> None:
    """Wait until a query that ends by itself has done so."""
    if not query.awaitTermination(QUERY_SECONDS):
        raise SparkBenchError(f"a query takes more than {QUERY_SECONDS} s: {query.status}")


# CPU time -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """What something took: seconds, and CPU seconds of Spark and of the broker."""

    seconds: float
    jvm_s: float
    python_s: float
    broker_s: float

    @property
    def spark_s(self) -> float:
        return self.jvm_s + self.python_s


class CpuWatch:
    """CPU seconds of the JVM and of all processes below it, ended ones included.

    Spark's daemon ends workers that were idle for a minute, and ignores how: their times are in no
    parent's account. So all of them are looked at twice a second, and remembered.
    """

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._seen: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_WATCH_INTERVAL_S):
            self.read()

    def read(self) -> tuple[float, float]:
        """Of the JVM, and of the others so far."""
        with self._lock:
            jvm_s = 0.0
            for pid, started, cpu_s in self._processes():
                if pid == self._jvm:
                    jvm_s = cpu_s
                else:
                    self._seen[pid, started] = cpu_s
            return jvm_s, sum(self._seen.values())

    def _processes(self) -> Iterator[tuple[int, str, float]]:
        children: dict[int, list[int]] = {}
        stats: dict[int, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue  # it has ended meanwhile
                children.setdefault(int(stat[1]), []).append(int(entry.name))
                stats[int(entry.name)] = stat
        left = [self._jvm]
        while left:
            pid = left.pop()
            if pid in stats:
                stat = stats[pid]
                ticks = int(stat[11]) + int(stat[12])
                yield pid, stat[19], ticks / _CLOCK_TICKS_PER_SECOND
            left += children.get(pid, ())


class Meter:
    """Starts when it is made; reads what was spent since then.

    Python is all below the JVM: the daemon with its workers, and the driver's half of our source.
    This process, from which queries are started, does no work for them and is not counted.
    """

    def __init__(self, site: Site, server: ServerProcess) -> None:
        self._watch = site.watch
        self._server = server
        self._spark_s, self._broker_s = self._watch.read(), server.cpu_seconds()
        self._began = time.perf_counter()

    def read(self) -> Cost:
        seconds = time.perf_counter() - self._began
        jvm_s, python_s = self._watch.read()
        return Cost(
            seconds=seconds,
            jvm_s=jvm_s - self._spark_s[0],
            python_s=python_s - self._spark_s[1],
            broker_s=self._server.cpu_seconds() - self._broker_s,
        )


def jvm_pid(spark: SparkSession) -> int:
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


# Topics -------------------------------------------------------------------------------------------


def create_topic(server: ServerProcess, name: str) -> str:
    """A new topic of three partitions; returns its name, which begins with `name`."""
    topic = f"{name}-{next(_topic_numbers)}"
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    created = admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    created[topic].result(_LIMIT_S)
    return topic


def producer_of(server: ServerProcess, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": server.bootstrap_servers, "log_level": 0, **settings})


def fill(server: ServerProcess, topic: str, count: int) -> None:
    """Records with keys of 14 bytes and values of 100 bytes that look like JSON."""
    producer = producer_of(server, **{"linger.ms": 20})
    keys = [b"customer-%05d" % number for number in range(KEYS)]
    values = make_values(VALUE_BYTES)
    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic,
                    values[number % len(values)],
                    keys[number % KEYS],
                    number % KEYS % PARTITIONS,
                )
                break
            except BufferError:
                producer.poll(0.01)
    if left := producer.flush(_LIMIT_S):
        raise SparkBenchError(f"{left:,} records of {topic} were not delivered")


# Plans --------------------------------------------------------------------------------------------


def plan_of(frame: DataFrame) -> str:
    """The plan of a batch frame, as `explain("formatted")` prints it."""
    jvm: Any = frame.sparkSession.sparkContext._jvm
    execution = frame._jdf.queryExecution()
    return str(jvm.PythonSQLUtils.explainString(execution, "formatted"))


def plan_of_query(query: StreamingQuery) -> str:
    """The plan of the last micro-batch."""
    return str(query._jsq.explainInternal(False))
