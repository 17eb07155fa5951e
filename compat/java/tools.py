"""Starting Kafka's own command-line tools as processes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from report import CommandFailure

# The tools live for a second: the cheap compiler and the cheap collector start fastest.
JAVA_OPTIONS = [
    "-Xmx256m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    f"-Dlog4j2.configurationFile={Path(__file__).resolve().parent / 'log4j2.properties'}",
]
TIMEOUT_SECONDS = 60

CLASSES = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}


def run_tool(
    classpath: str, tool: str, *arguments: str, stdin: str = "", code: int | None = 0
) -> str:
    """What the tool printed, stderr after stdout; `code=None` accepts every exit code."""
    result = subprocess.run(
        ["java", *JAVA_OPTIONS, "-cp", classpath, CLASSES[tool], *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    output = result.stdout + result.stderr
    if code is not None and result.returncode != code:
        raise CommandFailure(
            f"{tool} {' '.join(arguments)} ended with {result.returncode}: {output[-1500:]}"
        )
    return output


@contextlib.contextmanager
def start_program(
    classpath: str, main_class: str, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """A Java program that runs beside us; it is ended with the block."""
    process = subprocess.Popen(
        ["java", *JAVA_OPTIONS, "-cp", classpath, main_class, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
