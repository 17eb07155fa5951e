"""Members of a group that are processes, and the history that each of them tells.

A member writes a line of JSON for everything that happens to it, with the time by the machine's
monotonic clock: what it was assigned and lost, what it processed and committed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60.0
NEVER = float("inf")
Partition = tuple[str, int]  # topic and number


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One partition in the hands of one member, in seconds of the machine's monotonic clock."""

    partition: Partition
    member: str
    began: float
    ended: float


class HistoryProcess:
    """One consumer process; what it told so far is in `events`."""

    def __init__(self, name: str, command: Sequence[str], stderr_path: Path) -> None:
        self.name = name
        self.events: list[dict[str, Any]] = []
        self.stderr_path = stderr_path
        # A process that is stopped from outside cannot use what it believes to own.
        self.frozen_at = NEVER
        self.ended_at = NEVER
        with stderr_path.open("wb") as stderr:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A line that SIGKILL cut in half tells nothing.
            if line.endswith("\n"):
                self.events.append(json.loads(line))

    # What is done to it ---------------------------------------------------------------------------

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.frozen_at = time.monotonic()

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def release(self) -> None:
        """The line that a member which holds waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: gone without a word to the broker."""
        if self._process.poll() is None:
            self._process.kill()
        self._end()

    def ask_to_close(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Leave in order; a static member stays one for the broker."""
        self.ask_to_close()
        self._end()
        assert self.of("closed"), f"{self.name} did not close in order: {self.stderr()}"

    def _end(self) -> None:
        self._process.wait(30)
        self.ended_at = min(self.ended_at, time.monotonic())
        self._reader.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    # What it told ---------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.ended_at == NEVER

    def check_alive(self) -> None:
        code = self._process.poll()
        assert code is None or not self.is_running, (
            f"{self.name} ended with code {code}: {self.events[-1:]} {self.stderr()[-400:]}"
        )

    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    def of(self, *names: str, after: float = 0.0) -> list[dict[str, Any]]:
        return [e for e in list(self.events) if e["event"] in names and e["at"] > after]

    def rebalances(self) -> int:
        """How often it was told that its partitions change."""
        return len(self.of("assigned", "revoked", "lost"))

    @property
    def owned(self) -> set[Partition]:
        return {span.partition for span in self.spans() if span.ended == NEVER}

    def spans(self) -> Iterator[Span]:
        """When it owned which partition."""
        began: dict[Partition, float] = {}
        for event in self.of("assigned", "revoked", "lost"):
            for partition in partitions_of(event):
                if event["event"] == "assigned":
                    began[partition] = event["at"]
                else:
                    yield self._span(partition, began.pop(partition), event["at"])
        for partition, start in began.items():
            yield self._span(partition, start, self.ended_at)

    def _span(self, partition: Partition, began: float, ended: float) -> Span:
        if began < self.frozen_at < ended:
            ended = self.frozen_at
        return Span(partition=partition, member=self.name, began=began, ended=ended)

    def confirmed(self, before: float = NEVER) -> dict[Partition, int]:
        """The highest offset of each partition that the broker had confirmed to it by then."""
        offsets: dict[Partition, int] = {}
        for event in self.of("committed"):
            for partition, offset in offsets_of(event).items():
                if event["at"] < before:
                    offsets[partition] = max(offsets.get(partition, 0), offset)
        return offsets


def partitions_of(event: dict[str, Any]) -> list[Partition]:
    """The partitions that it is about."""
    return [(topic, number) for topic, number in event["partitions"]]


def offsets_of(event: dict[str, Any]) -> dict[Partition, int]:
    """The offsets that it committed, or tried to."""
    return {(topic, number): offset for topic, number, offset in event["offsets"]}


def wait_for(
    condition: Callable[[], bool], what: str, members: Sequence[HistoryProcess] = ()
) -> None:
    """Wait until other processes have made it true; a member that ends meanwhile is a failure."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        for member in members:
            member.check_alive()
        if time.monotonic() > deadline:
            state = "; ".join(f"{m.name} owns {sorted(m.owned)}" for m in members)
            raise AssertionError(f"not in {PATIENCE_SECONDS:.0f} s: {what}. {state}")
        time.sleep(0.02)
