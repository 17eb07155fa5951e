"""A JavaScript client as a process: one call of `client.mjs`, or a member that stays."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import CommandFailure
from server_process import ServerProcess

LIBRARIES = ("kafkajs", "platformatic")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_SECONDS = 90
ENVIRONMENT = {**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The broker under test, how Node runs the clients, and where logs go."""

    bootstrap_servers: str
    node: str
    program: Path
    work_dir: Path
    # None when the broker was running before; then it cannot be restarted.
    server: ServerProcess | None
    has_zstd: bool

    def command(self, library: str, command: str, **options: Any) -> list[str]:
        text = json.dumps({"servers": self.bootstrap_servers, **options})
        return [self.node, str(self.program), library, command, text]


def run(
    target: Target, library: str, command: str, *, stdin: str = "", **options: Any
) -> list[Any]:
    """What it printed, a document for each line."""
    result = subprocess.run(
        target.command(library, command, **options),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env=ENVIRONMENT,
    )
    if result.returncode:
        raise CommandFailure(f"{library} {command}: {result.stderr[-600:]}")
    return [json.loads(line) for line in result.stdout.split("\n") if line]


def require_codec(target: Target, codec: str) -> None:
    """LookupError, which skips the check, when neither Node nor the client has the codec."""
    if codec == "zstd" and not target.has_zstd:
        raise LookupError("this Node has no zstd (22.15 and later have)")


def walk(target: Target, library: str, topic: str, count: int, **options: Any) -> list[Any]:
    """That many records of a topic, in the order in which the client gave them."""
    return run(target, library, "walk", topic=topic, count=count, **options)


def produce(
    target: Target, library: str, topic: str, records: Sequence[dict[str, Any]], **options: Any
) -> None:
    run(target, library, "produce", stdin=json.dumps(list(records)), topic=topic, **options)
