"""kcat as a process against the broker under test."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

from report import CommandFailure

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIMEOUT_SECONDS = 40


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker under test, and kcat's modes."""

    bootstrap_servers: str

    def kcat(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        result = subprocess.run(
            ["kcat", "-b", self.bootstrap_servers, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if result.returncode != code:
            words = " ".join(arguments)
            raise CommandFailure(
                f"kcat {words} ended with {result.returncode}: {result.stderr[-800:]}"
            )
        return result.stdout

    def topic(self, purpose: str) -> str:
        """A name that nobody has used; the first produce creates the topic."""
        return f"kcat-{purpose}-{time.time_ns() % 10**9}"

    def produce(self, topic: str, text: str, *options: str) -> None:
        self.kcat("-P", "-t", topic, "-p", "0", *options, stdin=text)

    def consume(self, topic: str, *options: str) -> list[str]:
        """Partition 0 until its end."""
        return self.kcat("-C", "-q", "-e", "-t", topic, "-p", "0", *options).splitlines()
