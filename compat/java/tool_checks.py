"""What Kafka's own tools must be able to do with the broker, one function per check.

A check raises AssertionError or CommandFailure when it fails, and LookupError (with the
reason) when it cannot run here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools import run_tool, start_program

from server_process import ServerProcess

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The broker under test; `server` and `log_dir` are known when it was started here."""

    bootstrap_servers: str
    classpath: str
    work_dir: Path
    log_dir: Path | None
    server: ServerProcess | None

    def run(self, tool: str, *arguments: str, stdin: str = "", code: int | None = 0) -> str:
        """A tool that takes --bootstrap-server."""
        server = ("--bootstrap-server", self.bootstrap_servers)
        return run_tool(self.classpath, tool, *server, *arguments, stdin=stdin, code=code)

    def new_topic(self, purpose: str, partitions: int = 1, *configs: str) -> str:
        name = f"tools-{purpose}-{time.time_ns() % 10**9}"
        options = [word for config in configs for word in ("--config", config)]
        create = ("--create", "--topic", name, "--partitions", str(partitions), *options)
        output = self.run("kafka-topics", *create)
        assert f"Created topic {name}" in output, output
        return name

    def produce(self, topic: str, text: str, *options: str) -> None:
        self.run("kafka-console-producer", "--topic", topic, *options, stdin=text)

    def consume(self, topic: str, offset: str, count: int, *options: str) -> list[str]:
        where = ("--topic", topic, "--partition", "0", "--offset", offset)
        limits = ("--max-messages", str(count), "--timeout-ms", "20000")
        output = self.run("kafka-console-consumer", *where, *limits, *options)
        return [line for line in output.splitlines() if not line.startswith("Processed a total")]

    def perf(self, topic: str, count: int, size: int, *properties: str) -> str:
        """kafka-producer-perf-test, which takes its server as a producer property."""
        amount = ("--num-records", str(count), "--record-size", str(size), "--throughput", "-1")
        server = f"bootstrap.servers={self.bootstrap_servers}"
        options = ("--topic", topic, *amount, "--producer-props", server, *properties)
        return run_tool(self.classpath, "kafka-producer-perf-test", *options)


def api_versions(target: Target) -> None:
    """kafka-broker-api-versions lists what the broker serves."""
    output = target.run("kafka-broker-api-versions")
    for api in ("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "ApiVersions(18)"):
        line = next((line for line in output.splitlines() if api in line), "")
        assert "[usable: " in line, f"{api} is not usable: {line or output}"


def topics(target: Target) -> None:
    """kafka-topics creates, lists, describes, alters and deletes."""
    topic = target.new_topic("life", 3, "retention.ms=3600000")
    assert topic in target.run("kafka-topics", "--list").split()
    described = target.run("kafka-topics", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described and "ReplicationFactor: 1" in described, described
    assert "retention.ms=3600000" in described, described
    assert len(re.findall(r"Leader: \d+\tReplicas: \d+\tIsr: \d+", described)) == 3, described
    target.run("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    described = target.run("kafka-topics", "--describe", "--topic", topic)
    assert "PartitionCount: 5" in described, described
    target.run("kafka-topics", "--delete", "--topic", topic)
    assert topic not in target.run("kafka-topics", "--list").split()


def topics_filters(target: Target) -> None:
    """kafka-topics --describe with its filters, and patterns of names."""
    plain = target.new_topic("filter-plain")
    overridden = target.new_topic("filter-override", 1, "flush.ms=1000")
    output = target.run("kafka-topics", "--describe", "--topics-with-overrides")
    # Apache Kafka counts its cluster-wide min.insync.replicas as an override of every topic.
    assert overridden in output, output
    output = target.run("kafka-topics", "--describe", "--under-replicated-partitions")
    assert plain not in output, output
    output = target.run("kafka-topics", "--describe", "--unavailable-partitions")
    assert plain not in output, output
    output = target.run("kafka-topics", "--list", "--topic", "tools-filter-.*")
    assert {plain, overridden} <= set(output.split()), output


def topics_errors(target: Target) -> None:
    """kafka-topics says what is wrong and ends with 1."""
    topic = target.new_topic("twice")
    output = target.run("kafka-topics", "--create", "--topic", topic, code=1)
    assert "already exists" in output, output
    target.run("kafka-topics", "--create", "--topic", topic, "--if-not-exists")
    output = target.run("kafka-topics", "--create", "--topic", "bad/name", code=1)
    assert "InvalidTopicException" in output, output
    output = target.run(
        "kafka-topics", "--create", "--topic", "rf3", "--replication-factor", "3", code=1
    )
    assert "InvalidReplicationFactorException" in output, output
    output = target.run("kafka-topics", "--describe", "--topic", "not-there", code=1)
    assert "does not exist" in output, output


def console(target: Target) -> None:
    """kafka-console-producer and -consumer with keys, from several offsets."""
    topic = target.new_topic("console")
    text = "".join(f"key{i}:value {i}\n" for i in range(10))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    target.produce(topic, text, *keyed)
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:")
    assert target.consume(topic, "earliest", 10, *shown) == text.splitlines()
    assert target.consume(topic, "7", 3) == ["value 7", "value 8", "value 9"]
    full = (
        "--formatter-property",
        "print.offset=true",
        "--formatter-property",
        "print.timestamp=true",
    )
    (line,) = target.consume(topic, "9", 1, *full)
    assert re.fullmatch(r"CreateTime:\d{13}\tOffset:9\tvalue 9", line), line


def console_codec(codec: str) -> Callable[[Target], None]:
    def check(target: Target) -> None:
        topic = target.new_topic(f"console-{codec}")
        lines = [f"{codec} {i} " + "x" * 200 for i in range(100)]
        target.produce(topic, "\n".join(lines) + "\n", "--compression-codec", codec)
        assert target.consume(topic, "earliest", 100) == lines
        assert target.consume(topic, "50", 50) == lines[50:]

    return check


def console_acks(target: Target) -> None:
    """kafka-console-producer with every acknowledgement level."""
    topic = target.new_topic("acks")
    for acks in ("0", "1", "-1"):
        target.produce(topic, f"acks {acks}\n", "--request-required-acks", acks)
    assert target.consume(topic, "earliest", 3) == ["acks 0", "acks 1", "acks -1"]


def producer_perf(target: Target) -> None:
    """kafka-producer-perf-test sends all its records."""
    topic = target.new_topic("perf", 4)
    for acks in ("all", "1"):
        output = target.perf(topic, 50_000, 200, f"acks={acks}")
        assert "50000 records sent" in output, output
    output = target.run("kafka-get-offsets", "--topic", topic)
    offsets = [int(line.rsplit(":", 1)[1]) for line in output.split() if line.startswith(topic)]
    assert len(offsets) == 4 and sum(offsets) == 100_000, output


def verifiable_producer(target: Target) -> None:
    """kafka-verifiable-producer gets an acknowledgement for every value."""
    topic = target.new_topic("verifiable")
    output = target.run("kafka-verifiable-producer", "--topic", topic, "--max-messages", "500")
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    acknowledged = [event for event in events if event["name"] == "producer_send_success"]
    assert [event["offset"] for event in acknowledged] == list(range(500)), output[-500:]


def configs(target: Target) -> None:
    """kafka-configs adds, describes and deletes settings of a topic."""
    topic = target.new_topic("configs")
    entity = ("--entity-type", "topics", "--entity-name", topic)
    setting = "retention.ms=7200000,cleanup.policy=[compact,delete]"
    target.run("kafka-configs", "--alter", *entity, "--add-config", setting)
    output = target.run("kafka-configs", "--describe", *entity)
    assert "retention.ms=7200000" in output and "cleanup.policy=compact,delete" in output, output
    target.run("kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")
    output = target.run("kafka-configs", "--describe", *entity)
    assert "retention.ms" not in output, output
    output = target.run("kafka-configs", "--describe", "--all", *entity)
    assert "retention.ms=604800000" in output and "segment.bytes=1073741824" in output, output
    output = target.run("kafka-configs", "--alter", *entity, "--add-config", "flush.ms=x", code=1)
    assert "InvalidConfigurationException" in output or "ConfigException" in output, output


def broker_configs(target: Target) -> None:
    """kafka-configs describes the broker's settings and changes what may change."""
    node = re.search(r"\(id: (\d+) ", target.run("kafka-broker-api-versions"))
    assert node is not None
    entity = ("--entity-type", "brokers", "--entity-name", node.group(1))
    output = target.run("kafka-configs", "--describe", "--all", *entity)
    for name in ("log.dirs", "num.partitions", "message.max.bytes", "listeners"):
        assert re.search(rf"^\s+{re.escape(name)}=", output, re.MULTILINE), f"no {name}: {output}"
    target.run("kafka-configs", "--alter", *entity, "--add-config", "log.retention.ms=7777777")
    topic = target.new_topic("broker-configs")
    described = ("--describe", "--all", "--entity-type", "topics", "--entity-name", topic)
    assert "retention.ms=7777777" in target.run("kafka-configs", *described)
    target.run("kafka-configs", "--alter", *entity, "--delete-config", "log.retention.ms")
    assert "retention.ms=604800000" in target.run("kafka-configs", *described)
    fixed = ("--alter", *entity, "--add-config", "num.partitions=3")
    output = target.run("kafka-configs", *fixed, code=1)
    assert "Cannot update these configs dynamically" in output, output


def get_offsets(target: Target) -> None:
    """kafka-get-offsets finds earliest, latest, the largest timestamp and times."""
    topic = target.new_topic("get-offsets")
    before = int(time.time() * 1000) - 1
    target.produce(topic, "a\nb\nc\n")
    for when, expected in (
        ("-1", "3"),
        ("-2", "0"),
        ("latest", "3"),
        ("earliest", "0"),
        ("earliest-local", "0"),
        (str(before), "0"),
    ):
        output = target.run("kafka-get-offsets", "--topic", topic, "--time", when)
        assert f"{topic}:0:{expected}" in output.split(), f"--time {when}: {output}"
    output = target.run("kafka-get-offsets", "--topic", topic, "--time", "max-timestamp")
    assert re.search(rf"^{topic}:0:[012]$", output, re.MULTILINE), output
    output = target.run("kafka-get-offsets", "--topic-partitions", f"{topic}:0")
    assert f"{topic}:0:3" in output, output


def delete_records(target: Target) -> None:
    """kafka-delete-records moves the beginning of a partition."""
    topic = target.new_topic("delete-records")
    target.produce(topic, "a\nb\nc\nd\n")
    request = target.work_dir / "delete-records.json"
    partition = {"topic": topic, "partition": 0, "offset": 2}
    request.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    output = target.run("kafka-delete-records", "--offset-json-file", str(request))
    assert f"{topic}-0\tlow_watermark: 2" in output, output
    assert target.consume(topic, "earliest", 2) == ["c", "d"]


def log_dirs(target: Target) -> None:
    """kafka-log-dirs shows the size of a partition."""
    topic = target.new_topic("log-dirs", 2)
    target.produce(topic, "a\nb\nc\n")
    output = target.run("kafka-log-dirs", "--describe", "--topic-list", topic)
    line = next((line for line in output.splitlines() if line.startswith("{")), "{}")
    (broker,) = json.loads(line)["brokers"]
    partitions = [each for folder in broker["logDirs"] for each in folder["partitions"]]
    assert sorted(each["partition"] for each in partitions) == [f"{topic}-0", f"{topic}-1"], line
    assert sum(each["size"] for each in partitions) > 60, line


def describe_producers(target: Target) -> None:
    """kafka-transactions describe-producers shows an idempotent producer."""
    topic = target.new_topic("producers")
    target.produce(topic, "a\nb\n")
    output = target.run(
        "kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0"
    )
    header, row = (line.split() for line in output.splitlines() if line.strip())
    assert header[:4] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence"]
    assert row[1] == "0" and row[3] == "1", output


def end_to_end_latency(target: Target) -> None:
    """kafka-e2e-latency sends records one by one and waits for each in a consumer."""
    topic = target.new_topic("latency")
    amount = ("--num-records", "300", "--producer-acks", "all", "--record-size", "100")
    output = target.run("kafka-e2e-latency", "--topic", topic, *amount)
    assert re.search(r"Avg latency: [\d.]+ ms", output), output


def restarts(how: str) -> Callable[[Target], None]:
    """An idempotent Java producer keeps going over two restarts, and nothing is lost or double."""

    def check(target: Target) -> None:
        server = target.server
        if server is None:
            raise LookupError("needs a broker started here: it is restarted")
        arguments = (target.bootstrap_servers, "12")
        with start_program(target.classpath, "anabranch.compat.RestartLoad", *arguments) as load:
            assert load.stdout is not None
            line = load.stdout.readline()
            assert line == "STARTED\n", line
            for _ in range(2):
                server.kill() if how == "SIGKILL" else server.stop()
                server.start()
                time.sleep(2)
            output = load.communicate(timeout=180)[0]
        assert output.startswith("VERIFIED "), output[-1500:]

    return check


def features(target: Target) -> None:
    """kafka-features describes the broker's features."""
    output = target.run("kafka-features", "describe")
    levels = {"group.version": 1, "transaction.version": 2, "cooperative.consumption": 1}
    for name, level in levels.items():
        (line,) = (line for line in output.splitlines() if f"Feature: {name}" in line)
        assert f"FinalizedVersionLevel: {level}" in line, output


def dump_log(target: Target) -> None:
    """kafka-dump-log reads every file of a partition, after a clean stop of the broker.

    This is the last check, because it stops the broker.
    """
    if target.log_dir is None or target.server is None:
        raise LookupError("needs a broker started here: its log folder is read after a stop")
    rolled = target.new_topic("rolled", 1, "segment.bytes=1048576", "index.interval.bytes=1024")
    target.perf(rolled, 5_000, 700, "acks=all", "batch.size=5000")
    mixed = target.new_topic("mixed")
    for codec in CODECS:
        target.produce(mixed, f"in {codec}\nagain\n", "--compression-codec", codec)
    target.server.stop()
    folder = target.log_dir / f"{rolled}-0"
    suffixes = {path.suffix for path in folder.iterdir()}
    assert {".log", ".index", ".timeindex", ".snapshot"} <= suffixes, sorted(folder.iterdir())
    check_logs(target, folder, record_count=5_000, least_segments=3)
    check_indexes(target, folder)
    check_snapshots(target, folder)
    output = dump(target, *sorted((target.log_dir / f"{mixed}-0").glob("*.log")))
    for codec in CODECS:
        assert f"compresscodec: {codec} " in output, f"no batch in {codec}: {output}"
        assert f"payload: in {codec}" in output, output


def dump(target: Target, *files: Path, options: tuple[str, ...] = ("--print-data-log",)) -> str:
    names = ",".join(str(path) for path in files)
    return run_tool(target.classpath, "kafka-dump-log", *options, "--files", names)


def check_logs(target: Target, folder: Path, *, record_count: int, least_segments: int) -> None:
    logs = sorted(folder.glob("*.log"))
    assert len(logs) >= least_segments, f"only {len(logs)} segments"
    output = dump(target, *logs, options=("--deep-iteration", "--print-data-log"))
    assert "isvalid: false" not in output and "isvalid: true" in output, output[:2000]
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", output, re.MULTILINE)]
    assert offsets == list(range(record_count)), f"{len(offsets)} records, not in order"
    assert "producerId: -1" not in output, "batches lost their producer id"
    assert int(logs[0].stem) == 0, f"the first segment is {logs[0].name}"


def check_indexes(target: Target, folder: Path) -> None:
    for pattern in ("*.index", "*.timeindex"):
        files = sorted(folder.glob(pattern))
        output = dump(target, *files, options=())
        assert len(re.findall(r"^(?:offset|timestamp): ", output, re.MULTILINE)) > 50, output
        for word in ("mismatch", "out of order", "Exception", "failed"):
            assert word not in output, output[-2000:]
        output = dump(target, *files, options=("--index-sanity-check",))
        assert output.count("passed sanity check") == len(files), output


def check_snapshots(target: Target, folder: Path) -> None:
    snapshots = sorted(folder.glob("*.snapshot"))
    output = dump(target, *snapshots, options=())
    assert re.search(r"producerId: \d+ producerEpoch: 0 ", output), output
    assert "lastSequence: 4999" in output, output


TOOL_CHECKS: dict[str, Callable[[Target], None]] = {
    "kafka-broker-api-versions": api_versions,
    "kafka-topics create, list, describe, alter, delete": topics,
    "kafka-topics filters": topics_filters,
    "kafka-topics errors": topics_errors,
    "kafka-console-producer and -consumer": console,
    **{f"kafka-console-producer --compression-codec {c}": console_codec(c) for c in CODECS},
    "kafka-console-producer acks 0, 1 and -1": console_acks,
    "kafka-producer-perf-test": producer_perf,
    "kafka-verifiable-producer": verifiable_producer,
    "kafka-configs of a topic": configs,
    "kafka-configs of the broker": broker_configs,
    "kafka-get-offsets": get_offsets,
    "kafka-delete-records": delete_records,
    "kafka-log-dirs": log_dirs,
    "kafka-transactions describe-producers": describe_producers,
    "kafka-features describe": features,
    "kafka-e2e-latency": end_to_end_latency,
    "producer over two clean restarts": restarts("SIGTERM"),
    "producer over two kill -9": restarts("SIGKILL"),
    "kafka-dump-log of .log, .index, .timeindex and .snapshot": dump_log,
}
