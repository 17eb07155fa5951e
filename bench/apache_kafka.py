"""Apache Kafka as a peer: fetched with Maven into `build/`, one KRaft node on loopback.

    python bench/apache_kafka.py --port 19092     # runs until Ctrl-C

Nothing of Kafka is part of this repository; the jars come from the Maven repository that the
machine's Maven is set up for. The JVM options are the ones of Kafka's own start script.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from server_process import BUILD, HOST, ServerProcess, free_port, terminated_as_exit

VERSION = "4.3.1"
_LOG4J_VERSION = "2.24.3"
_JVM_OPTIONS = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]

# Kafka's poms leave the logging back end to the distribution, and `kafka.Kafka` does not start
# without one.
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>anabranch.bench</groupId>
  <artifactId>apache-kafka-peer</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{_LOG4J_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-core</artifactId>
      <version>{_LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

_LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = STDOUT
appender.stdout.type = Console
appender.stdout.name = STDOUT
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = [%d] %p %m (%c)%n
"""


def missing_tools() -> list[str]:
    """The programs that are needed and not on PATH."""
    return [tool for tool in ("java", "mvn") if shutil.which(tool) is None]


def fetch_jars() -> Path:
    """The folder with Kafka's jars; fetched on first use (about 60 MB, half a minute)."""
    home = BUILD / f"apache-kafka-{VERSION}"
    lib = home / "lib"
    stamp = home / ".complete"
    if not stamp.exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(_POM)
        (home / "log4j2.properties").write_text(_LOG4J)
        print(f"fetching Apache Kafka {VERSION} with Maven into {home} ...", file=sys.stderr)
        copy = [
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={lib}",
        ]
        subprocess.run(["mvn", "-q", "-B", *copy], cwd=home, check=True)
        stamp.touch()
    return lib


def apache_kafka(
    *, data_dir: Path, port: int | None = None, overrides: Sequence[str] = ()
) -> ServerProcess:
    """A formatted single KRaft node, not started yet; `data_dir` must be new or empty."""
    lib = fetch_jars()
    port = port or free_port()
    classpath = f"{lib}/*"
    data_dir.mkdir(parents=True, exist_ok=True)
    properties = data_dir.with_name(data_dir.name + ".properties")
    properties.write_text("\n".join([*_settings(data_dir, port), *overrides]) + "\n")
    java = ["java", f"-Dlog4j2.configurationFile={lib.parent / 'log4j2.properties'}"]
    storage_tool = [*java, "-cp", classpath, "kafka.tools.StorageTool"]
    cluster_id = subprocess.run(
        [*storage_tool, "random-uuid"], check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    subprocess.run(
        [*storage_tool, "format", "--standalone", "-t", cluster_id, "-c", str(properties)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return ServerProcess(
        "Apache Kafka",
        [*java, *_JVM_OPTIONS, "-cp", classpath, "kafka.Kafka", str(properties)],
        port=port,
        log_path=data_dir.with_name(data_dir.name + ".log"),
        version=VERSION,
    )


def _settings(data_dir: Path, port: int) -> list[str]:
    controller_port = free_port()
    listeners = f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}"
    return [
        "process.roles=broker,controller",
        "node.id=0",
        f"controller.quorum.bootstrap.servers={HOST}:{controller_port}",
        f"listeners={listeners}",
        f"advertised.listeners={listeners}",
        "controller.listener.names=CONTROLLER",
        "inter.broker.listener.name=PLAINTEXT",
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        f"log.dirs={data_dir}",
        # One node cannot hold three replicas of the internal topics.
        "offsets.topic.replication.factor=1",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "share.coordinator.state.topic.replication.factor=1",
        "share.coordinator.state.topic.min.isr=1",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run Apache Kafka on loopback until Ctrl-C.")
    parser.add_argument("--port", type=int, help="client port (default: a free one)")
    parser.add_argument(
        "--data-dir", type=Path, help="new or empty folder (default: a temporary one)"
    )
    parser.add_argument(
        "--override", action="append", default=[], metavar="K=V", help="a broker setting"
    )
    arguments = parser.parse_args()
    if missing := missing_tools():
        print(f"apache_kafka: needs {' and '.join(missing)} on PATH", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as temporary, terminated_as_exit():
        data_dir = arguments.data_dir or Path(temporary) / "data"
        server = apache_kafka(data_dir=data_dir, port=arguments.port, overrides=arguments.override)
        with server:
            print(
                f"Apache Kafka {VERSION} ready on {server.bootstrap_servers} "
                f"after {server.start_seconds:.1f} s, pid {server.pid}, log {server.log_path}",
                flush=True,
            )
            try:
                while server.is_alive():
                    time.sleep(0.5)
            except KeyboardInterrupt:
                return 128 + signal.SIGINT
    return 1


if __name__ == "__main__":
    sys.exit(main())
