"""The C load driver: compiled on demand, one process per measurement."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_process import BUILD, ServerProcess

SOURCE = Path(__file__).resolve().parent / "driver.c"
TIMEOUT_SECONDS = 150


class DriverError(Exception):
    """The driver could not be built, or a measurement failed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one driver process reported, and the server's CPU time meanwhile."""

    figures: dict[str, Any]
    server_cpu_seconds: float


def librdkafka_path() -> Path:
    """The shared library inside the confluent-kafka wheel."""
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise DriverError("confluent-kafka is not installed; run with .venv/bin/python")
    libs = Path(spec.origin).parent.parent / "confluent_kafka.libs"
    found = sorted(libs.glob("librdkafka*.so*"))
    if not found:
        raise DriverError(f"no librdkafka in {libs}; this confluent-kafka is not a Linux wheel")
    return found[0]


def compile_driver() -> Path:
    """The driver's program file; built when the source is newer."""
    program = BUILD / "bench" / "driver"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(SOURCE), "-ldl"]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            raise DriverError("gcc is needed to build the load driver") from None
        except subprocess.CalledProcessError as problem:
            raise DriverError(f"the load driver does not compile: {problem}") from None
    return program


class Driver:
    """The sub-commands of the driver against one server at a time."""

    def __init__(self) -> None:
        self._program = compile_driver()
        self._library = librdkafka_path()

    def produce(
        self,
        server: ServerProcess,
        topic: str,
        *,
        partitions: int,
        count: int,
        size: int,
        acks: str,
    ) -> Measurement:
        arguments = [topic, partitions, count, size, "-X", f"acks={acks}"]
        return self._with_library(server, "produce", *arguments)

    def consume(
        self, server: ServerProcess, topic: str, *, partitions: int, count: int
    ) -> Measurement:
        return self._with_library(server, "consume", topic, partitions, count)

    def latency(self, server: ServerProcess, topic: str, *, count: int, size: int) -> Measurement:
        return self._with_library(server, "latency", topic, count, size, "-X", "acks=all")

    def rps(
        self, server: ServerProcess, request: str, topic: str, *, pipeline: int, seconds: float
    ) -> Measurement:
        return self._run(server, "rps", server.port, 50, pipeline, seconds, request, topic)

    def _with_library(self, server: ServerProcess, command: str, *rest: object) -> Measurement:
        return self._run(server, command, self._library, server.bootstrap_servers, *rest)

    def _run(self, server: ServerProcess, *arguments: object) -> Measurement:
        command = [str(self._program), *map(str, arguments)]
        cpu_before = server.cpu_seconds()
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise DriverError(f"{server.name}: {arguments[0]} ran into the time limit") from None
        if result.returncode != 0:
            raise DriverError(f"{server.name}: {arguments[0]}: {result.stderr.strip()}")
        return Measurement(
            figures=json.loads(result.stdout),
            server_cpu_seconds=server.cpu_seconds() - cpu_before,
        )
