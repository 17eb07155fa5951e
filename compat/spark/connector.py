"""Spark's own connector for Kafka: its jars, a session with it, and reading and writing with it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from branch_topics import Sent, send
from report import CommandFailure
from server_process import BUILD, ServerProcess

HERE = Path(__file__).resolve().parent
QUERY_SECONDS = 120
_STARTS = 20
# Quiet: errors that a check waits for are logged with all their causes.
_LOG4J = """rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = STDERR
appender.stderr.type = Console
appender.stderr.name = STDERR
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def connector_jars() -> list[Path]:
    """Spark's connector and what it needs beside Spark itself, fetched with Maven once."""
    home = BUILD / "spark-kafka"
    pom, stamp = HERE / "pom.xml", home / ".complete"
    lib = home / "lib"
    if not stamp.exists() or stamp.stat().st_mtime < pom.stat().st_mtime:
        print(f"fetching Spark's connector with Maven into {home} ...", file=sys.stderr)
        for jar in lib.glob("*.jar"):
            jar.unlink()
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        options = [f"-DoutputDirectory={lib}", "-f", str(pom)]
        subprocess.run(["mvn", "-q", "-B", *copy, *options], cwd=HERE, check=True)
        stamp.touch()
    return sorted(lib.glob("*.jar"))


def session(work_dir: Path, cores: int = 2) -> SparkSession:
    """A local session that knows `format("kafka")`; what it writes to disk goes to the folder."""
    # Our own source runs in the Python that it is installed in.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(variable, sys.executable)
    log4j = work_dir / "log4j2.properties"
    log4j.write_text(_LOG4J)
    settings = {
        "spark.jars": ",".join(str(jar) for jar in connector_jars()),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.local.dir": str(work_dir / "spark"),
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("compat-spark")
    return builder.config(map=settings).getOrCreate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The broker, the session, and what names and folders of a check are made of."""

    server: ServerProcess
    admin: AdminClient
    spark: SparkSession
    work_dir: Path
    taken: list[str] = field(default_factory=list)

    @property
    def bootstrap_servers(self) -> str:
        return self.server.bootstrap_servers

    def topic(self, name: str, partitions: int = 3, **config: str) -> str:
        """A new topic; its name has a number, because all checks share a broker.

        Its records may be of any time: without retention none of them is too old to be kept.
        """
        self.taken.append(name)
        full_name = f"{name}-{len(self.taken)}"
        topic = NewTopic(full_name, partitions, config={"retention.ms": "-1", **config})
        self.admin.create_topics([topic])[full_name].result(20)
        return full_name

    def folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.work_dir))

    def options(self, **own: object) -> dict[str, str]:
        """Options of the connector; `kafka_isolation_level` is `kafka.isolation.level`."""
        options = {"kafka.bootstrap.servers": self.bootstrap_servers}
        for name, value in own.items():
            key = name.replace("_", ".") if name.startswith("kafka_") else name
            options[key] = str(value)
        return options

    def read(self, **own: object) -> DataFrame:
        return self.spark.read.format("kafka").options(**self.options(**own)).load()

    def stream(self, **own: object) -> DataFrame:
        return self.spark.readStream.format("kafka").options(**self.options(**own)).load()

    def our_stream(self, **own: object) -> DataFrame:
        """The same with our own source, `format("anabranch")`."""
        return self.spark.readStream.format("anabranch").options(**self.options(**own)).load()

    def write(self, frame: DataFrame, **own: object) -> None:
        frame.write.format("kafka").options(**self.options(**own)).save()

    def to_files(
        self, frame: DataFrame, folder: Path, *, available_now: bool = True
    ) -> StreamingQuery:
        """Start a query into parquet files under the folder, with its checkpoint beside them."""
        writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def drain(self, frame: DataFrame, folder: Path) -> StreamingQuery:
        """Run an AvailableNow query to its end; one that could not start goes on by checkpoint."""
        for attempt in range(_STARTS):
            query = self.to_files(frame, folder)
            try:
                ended = query.awaitTermination(QUERY_SECONDS)
            except PySparkException as problem:
                # Spark gives the process of a Python source ten seconds to start, busy or not.
                if attempt == _STARTS - 1 or "failed to connect back" not in str(problem):
                    raise
                continue
            assert ended, f"still at work: {query.status}"
            break
        return query

    def files(self, folder: Path) -> list[Row]:
        return self.spark.read.parquet(str(folder / "out")).collect()

    def send(self, topic: str, records: Iterable[Sent], **settings: str) -> None:
        send(self.bootstrap_servers, topic, records, **settings)

    def transactional(self, topic: str, plan: Iterable[tuple[str, list[Sent]]]) -> Producer:
        """Transactions of one producer: ("commit" | "abort" | "open", its records) each."""
        settings = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        producer = Producer({**settings, "transactional.id": f"{topic}-writer"})
        producer.init_transactions(30)
        for how, records in plan:
            producer.begin_transaction()
            for record in records:
                producer.produce(topic, record.value, record.key, record.partition)
            assert producer.flush(30) == 0
            if how == "commit":
                producer.commit_transaction(30)
            elif how == "abort":
                producer.abort_transaction(30)
        return producer


Check = Callable[[Target], None]


def failing(checks: Mapping[str, Check]) -> dict[str, Check]:
    """The checks with Spark's and the client's errors as their failures."""

    def run(check: Check, target: Target) -> None:
        try:
            check(target)
        except (PySparkException, Py4JError, KafkaException) as problem:
            raise CommandFailure(str(problem)[:500]) from problem
        finally:
            for query in target.spark.streams.active:
                query.stop()

    return {name: functools.partial(run, check) for name, check in checks.items()}


# What rows are compared with ----------------------------------------------------------------------

Place = tuple[int, int]


def by_place(records: Iterable[Sent]) -> dict[Place, Sent]:
    """The records of a topic that nothing else was written to, by partition and offset."""
    ends: dict[int, int] = {}
    placed: dict[Place, Sent] = {}
    for record in records:
        offset = ends.get(record.partition, 0)
        placed[record.partition, offset] = record
        ends[record.partition] = offset + 1
    return placed


def content(row: Row) -> tuple[bytes | None, bytes | None, int]:
    """Key, value and milliseconds of a row."""
    key, value = row["key"], row["value"]
    return (
        None if key is None else bytes(key),
        None if value is None else bytes(value),
        round(row["timestamp"].timestamp() * 1000),
    )


def assert_rows(rows: Iterable[Row], expected: dict[Place, Sent]) -> None:
    """Exactly the expected records, each once, at their place and with what was sent."""
    found: dict[Place, Row] = {}
    for row in rows:
        place = (row["partition"], row["offset"])
        assert place not in found, f"{place} is there twice"
        found[place] = row
    missing, added = expected.keys() - found.keys(), found.keys() - expected.keys()
    assert not missing and not added, (
        f"{len(missing)} missing {sorted(missing)[:3]}, {len(added)} too many {sorted(added)[:3]}"
    )
    for place, record in expected.items():
        sent = (record.key, record.value, record.timestamp_ms)
        assert content(found[place]) == sent, f"{place}: {content(found[place])} instead of {sent}"


def values_of(rows: Iterable[Row]) -> list[bytes]:
    """Their values in the order of bytes; an empty one stands for null."""
    return sorted(bytes(row["value"] or b"") for row in rows)


def assert_fails(query: StreamingQuery, *words: str) -> str:
    """The query ends with an error that has all of these words; returns the error."""
    try:
        ended = query.awaitTermination(QUERY_SECONDS)
    except Exception as problem:
        return assert_says(problem, *words)
    query.stop()
    raise AssertionError(f"no error; ended: {ended}")


def assert_says(problem: Exception, *words: str) -> str:
    text = str(problem)
    for word in words:
        assert word in text, f"{word!r} is not in: {text[:400]}"
    return text
