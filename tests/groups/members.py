"""Members of a group as processes, and what their histories say together."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMBER = Path(__file__).with_name("member.py")


class Member:
    """One consumer process and its history."""

    def __init__(self, *arguments: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(MEMBER), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Die without a word, as a crash would."""
        if self._process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
        self._join()

    def close(self) -> None:
        """Leave in order."""
        self.send(signal.SIGTERM)
        self._join()

    def _join(self) -> None:
        self._process.wait(30)
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    # What happened to it --------------------------------------------------------------------------

    def of(self, event: str) -> list[dict[str, Any]]:
        return [e for e in list(self.events) if e["event"] == event]

    @property
    def owned(self) -> set[int]:
        """The partitions it holds now, by its own account (also incremental ones)."""
        owned: set[int] = set()
        for event in list(self.events):
            if event["event"] == "assigned":
                owned |= set(event["partitions"])
            elif event["event"] in ("revoked", "lost"):
                owned -= set(event["partitions"])
        return owned

    @property
    def records(self) -> list[tuple[int, int]]:
        return [(e["partition"], e["offset"]) for e in self.of("record")]


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 40) -> None:
    """Wait for a fact of other processes; fail with a sentence when it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout_s} s"
        time.sleep(0.02)


def is_settled(members: list[Member], partitions: int) -> bool:
    """Every partition has exactly one owner among the members."""
    owned = sorted(p for member in members for p in member.owned)
    return owned == list(range(partitions))


def all_records(members: list[Member]) -> list[tuple[int, int]]:
    return [record for member in members for record in member.records]
