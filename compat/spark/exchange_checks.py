"""From Spark's own connector to ours and back, on one checkpoint; and what Kafka's tools see."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from connector import HERE, Target, assert_fails, assert_rows, by_place
from pyspark.sql import DataFrame

from branch_topics import sample

_FIRST_MS = 1_790_000_000_000
_STEP = 150


def _turns(target: Target, sources: list[Callable[..., DataFrame]]) -> tuple[Path, str]:
    """Run one query with one source after the other, each on records that came before it."""
    topic, folder = target.topic("turns"), target.folder()
    records = sample(3, _STEP * len(sources), _FIRST_MS)
    for turn, source in enumerate(sources):
        target.send(topic, records[turn * _STEP : (turn + 1) * _STEP])
        target.drain(source(subscribe=topic, startingOffsets="earliest"), folder)
    assert_rows(target.files(folder), by_place(records))
    return folder, topic


def _there_and_back(target: Target) -> None:
    """A checkpoint of `kafka` is gone on with, and goes back, without a gap or a repeat."""
    kafka, ours = target.stream, target.our_stream
    folder, topic = _turns(target, [kafka, ours, kafka, ours, ours, kafka])
    for batch_id in range(6):
        log = (folder / "checkpoint" / "offsets" / str(batch_id)).read_text().splitlines()
        assert json.loads(log[-1]).keys() == {topic}, log


def _begun_by_us(target: Target) -> None:
    """A checkpoint that we began is gone on with by `kafka`, from batch 2 on."""
    kafka, ours = target.stream, target.our_stream
    _turns(target, [ours, ours, ours, kafka, ours])


def _begun_too_late(target: Target) -> None:
    """Before that it refuses: the end of batch 0 has more in it than it knows."""
    folder, topic = _turns(target, [target.our_stream])
    target.send(topic, sample(3, _STEP, _FIRST_MS))
    frame = target.stream(subscribe=topic, startingOffsets="earliest")
    assert_fails(target.to_files(frame, folder), "__from__")


def _lag_in_kafkas_tool(target: Target) -> None:
    """The lag of a query of ours, as kafka-consumer-groups shows it: some, then none."""
    topic, folder, records = target.topic("lag"), target.folder(), sample(3, 600, _FIRST_MS)
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka_group_id": "lag-of-spark"}
    target.send(topic, records[:300])
    target.drain(target.our_stream(**options), folder)
    assert _lags(target, topic) == [0, 0, 0]
    target.send(topic, records[300:])
    assert sum(_lags(target, topic)) == 300
    target.drain(target.our_stream(**options), folder)
    assert _lags(target, topic) == [0, 0, 0]
    assert_rows(target.files(folder), by_place(records))


def _lags(target: Target, topic: str) -> list[int]:
    command = ["java", "-cp", f"{_kafkas_tools()}/*"]
    command += ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
    command += ["--bootstrap-server", target.bootstrap_servers]
    command += ["--describe", "--group", "lag-of-spark", "--timeout", "60000"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    told = ended.stdout
    assert ended.returncode == 0, told + ended.stderr
    lines = [line.split() for line in told.splitlines()]
    (header,) = (line for line in lines if "LAG" in line)
    rows = [line for line in lines if len(line) >= len(header) and line[1] == topic]
    assert len(rows) == 3, told
    return [int(row[header.index("LAG")]) for row in rows]


def _kafkas_tools() -> Path:
    """The jars of Kafka's tools, which the suite `compat/java` has, too."""
    suite = HERE.parent / "java"
    lib = suite / "lib"
    if not any(lib.glob("kafka-tools-[0-9]*.jar")):
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        options = [f"-DoutputDirectory={lib}", "-f", str(suite / "pom.xml")]
        subprocess.run(["mvn", "-q", "-B", *copy, *options], cwd=suite, check=True)
    return lib


EXCHANGE_CHECKS: Mapping[str, Callable[[Target], None]] = {
    "checkpoint: from kafka to anabranch and back": _there_and_back,
    "checkpoint: begun by anabranch, gone on with by kafka": _begun_by_us,
    "checkpoint: kafka refuses one of batch 0": _begun_too_late,
    "anabranch: lag in kafka-consumer-groups": _lag_in_kafkas_tool,
}
