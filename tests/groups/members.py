"""Members of a group as processes, and what their histories say together."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

MEMBER = Path(__file__).with_name("member.py")


@dataclass(frozen=True, slots=True, order=True)
class Tenure:
    """From when to when a member held a partition, by its own account; without end: it still does.

    A member that is stopped, dead or on its way out holds nothing: what it would say is late.
    """

    partition: int
    since: float
    until: float


class Member:
    """One consumer process and its history."""

    program = MEMBER

    def __init__(self, *arguments: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._ended_at = math.inf
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(self.program), *arguments],
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
        if self.is_running:
            self._ended_at = time.monotonic()
            self.send(signal.SIGKILL)
        self.join()

    def ask_to_close(self) -> None:
        """Leave in order, some time soon."""
        self.send(signal.SIGTERM)

    def close(self) -> None:
        """Leave in order."""
        self.ask_to_close()
        self.join()

    def join(self) -> None:
        """Wait until it has ended and its history is complete."""
        self._process.wait(60)
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    # What happened to it --------------------------------------------------------------------------

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [e for e in list(self.events) if e["event"] in kinds]

    @property
    def tenures(self) -> list[Tenure]:
        """What it held and when, also when partitions came and went one by one."""
        held: dict[int, float] = {}
        tenures: list[Tenure] = []
        for event in list(self.events):
            gone: Iterable[int] = ()
            if event["event"] == "assigned":
                for partition in event["partitions"]:
                    held.setdefault(partition, event["at"])
            elif event["event"] in ("revoked", "lost"):
                gone = [p for p in event["partitions"] if p in held]
            elif event["event"] in ("pausing", "dying", "closing"):
                gone = list(held)
            tenures += [Tenure(p, held.pop(p), event["at"]) for p in gone]
            if event["event"] == "closing":  # aiokafka first ends a rebalance that is under way
                break
        return tenures + [Tenure(p, since, self._ended_at) for p, since in held.items()]

    @property
    def owned(self) -> set[int]:
        """The partitions it holds now."""
        return {t.partition for t in self.tenures if t.until == math.inf}

    @property
    def records(self) -> list[tuple[int, int]]:
        return [(e["partition"], e["offset"]) for e in self.of("record")]

    @property
    def rebalances(self) -> int:
        """How often it was told that its partitions change."""
        return len(self.of("assigned", "revoked", "lost"))


def wait_for(
    condition: Callable[[], bool],
    what: str,
    timeout_s: float = 120,
    account: Callable[[], str] = lambda: "",
) -> None:
    """Wait for a fact of other processes; fail with a sentence when it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout_s} s\n{account()}"
        time.sleep(0.02)


def accounts(members: list[Member]) -> str:
    """What members say of themselves, for a reader who wants to know what went wrong."""
    return "\n".join(
        f"{number}: owns {sorted(member.owned)}, {len(member.records)} records, trouble: "
        f"{member.of('refused', 'failed', 'crashed', 'pausing', 'dying')[:5]}, "
        f"changes: {member.of('assigned', 'revoked', 'lost')[-3:]}, last: {member.events[-2:]}"
        for number, member in enumerate(members)
    )


def all_records(members: list[Member]) -> list[tuple[int, int]]:
    return [record for member in members for record in member.records]


# What histories must say --------------------------------------------------------------------------


def double_owners(members: list[Member]) -> list[tuple[Tenure, Tenure]]:
    """The pairs of tenures of one partition that overlap in time."""
    tenures = sorted(tenure for member in members for tenure in member.tenures)
    return [
        (one, next_one)
        for one, next_one in pairwise(tenures)
        if one.partition == next_one.partition and next_one.since < one.until
    ]


def records_of_others(member: Member) -> list[dict[str, Any]]:
    """The records that a member processed without holding their partition, by its own account."""
    held: set[int] = set()
    wrong = []
    for event in list(member.events):
        if event["event"] == "assigned":
            held |= set(event["partitions"])
        elif event["event"] in ("revoked", "lost"):
            held -= set(event["partitions"])
        elif event["event"] == "record" and event["partition"] not in held:
            wrong.append(event)
    return wrong


def records_after_their_commit(members: list[Member], but: list[Member]) -> list[dict[str, Any]]:
    """The records that were processed again though their commit had been confirmed before."""
    commits: dict[int, list[tuple[float, int]]] = {}
    for event in (e for member in members for e in member.of("committed")):
        commits.setdefault(event["partition"], []).append((event["at"], event["offset"]))
    return [
        event
        for member in members
        if member not in but
        for event in member.of("record")
        if any(
            at < event["at"] and offset > event["offset"]
            for at, offset in commits.get(event["partition"], ())
        )
    ]
