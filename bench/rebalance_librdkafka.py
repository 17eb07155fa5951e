"""A group of real librdkafka members: one child process, one thread per consumer.

Run as a program this file is the child: it takes commands as lines on stdin (`join NUMBER ...`,
`leave NUMBER`, `stop`) and tells what its consumers' callbacks hear as JSON lines on stdout, with
times of the machine-wide monotonic clock. It ends when its stdin does.

`LibrdkafkaGroup` is the parent's side. A rebalance begins when the consumer is created, or when
its `close` is called, and ends with the callback after which every partition has exactly one owner
and every member owns something.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from rebalance_protocol import RebalanceError

_LIMIT_S = 60.0
# Callbacks end a poll at once; this is how long a consumer may take to notice that it has to leave.
_POLL_S = 0.05
_output = threading.Lock()


# The child ----------------------------------------------------------------------------------------


class RealMember:
    """One consumer with the thread that polls it; the settings are librdkafka's defaults."""

    def __init__(self, number: int, config: dict[str, Any], topic: str) -> None:
        self._number = number
        self._config = config
        self._topic = topic
        self._must_leave = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._must_leave.set()

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        tell("joining", self._number)
        consumer = Consumer(self._config)
        consumer.subscribe(
            [self._topic],
            on_assign=self._teller("assigned"),
            on_revoke=self._teller("revoked"),
            on_lost=self._teller("revoked"),
        )
        while not self._must_leave.is_set():
            consumer.poll(_POLL_S)
        tell("leaving", self._number)
        consumer.close()
        tell("left", self._number)

    def _teller(self, event: str) -> Any:
        def callback(_: Any, partitions: list[Any]) -> None:
            tell(event, self._number, [partition.partition for partition in partitions])

        return callback


def tell(event: str, number: int, partitions: list[int] | None = None) -> None:
    # Lines leave in the order of their times.
    with _output:
        at_s = time.monotonic()
        line = {"event": event, "member": number, "at": at_s, "partitions": partitions or []}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def run_child(bootstrap_servers: str, group_id: str, topic: str, strategy: str) -> None:
    config = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": group_id,
        "partition.assignment.strategy": strategy,
        "log_level": 0,
    }
    members: dict[int, RealMember] = {}
    for line in sys.stdin:
        command, *numbers = line.split()
        for number in map(int, numbers):
            if command == "join":
                members[number] = RealMember(number, config, topic)
            elif command == "leave":
                members[number].leave()
        if command == "stop":
            break
    for member in members.values():
        member.leave()
    for member in members.values():
        member.wait(5.0)


# The parent ---------------------------------------------------------------------------------------


class LibrdkafkaGroup:
    """The child process and what its members own."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        group_id: str,
        topic: str,
        partition_count: int,
        is_cooperative: bool,
    ) -> None:
        strategy = "cooperative-sticky" if is_cooperative else "range"
        self.stable_at_s = 0.0
        self._group_id = group_id
        self._arguments = [bootstrap_servers, group_id, topic, strategy]
        self._partition_count = partition_count
        self._owned: dict[int, set[int]] = {}
        self._next_number = 0
        self._began_s = math.inf
        self._stable: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).resolve()),
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.ensure_future(self._read())

    async def join(self, count: int = 1) -> float:
        """Start consumers; returns the seconds until the group was stable."""
        numbers = [self._next_number + place for place in range(count)]
        self._next_number += count
        self._owned |= {number: set() for number in numbers}
        return await self._measured(f"join {' '.join(map(str, numbers))}")

    async def leave(self, choice: random.Random) -> float:
        """Close one of the consumers; returns the seconds until the group was stable."""
        number = choice.choice(sorted(self._owned))
        del self._owned[number]
        return await self._measured(f"leave {number}")

    async def wait_after_stable(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, self.stable_at_s + delay_s - time.monotonic()))

    async def close(self) -> None:
        """Close all consumers and end the process."""
        self._owned.clear()
        try:
            with contextlib.suppress(OSError, TimeoutError):
                self._send("stop")
                async with asyncio.timeout(15):
                    await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            await self._reader

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def _measured(self, command: str) -> float:
        self._began_s = math.inf
        self._stable = asyncio.get_running_loop().create_future()
        self._send(command)
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._stable
        except TimeoutError:
            raise RebalanceError(
                f"{self._group_id}: not stable {_LIMIT_S:.0f} s after `{command}`; "
                f"members own {self._owned}"
            ) from None
        finally:
            self._stable = None
        return self.stable_at_s - self._began_s

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._heard(json.loads(line))
        if self._stable is not None and not self._stable.done():
            error = RebalanceError(f"{self._group_id}: the members' process ended")
            self._stable.set_exception(error)

    def _heard(self, told: dict[str, Any]) -> None:
        event, at_s = told["event"], told["at"]
        if event in ("joining", "leaving"):
            self._began_s = min(self._began_s, at_s)
            return
        owned = self._owned.get(told["member"])
        if owned is None:
            return  # one that is leaving
        if event == "assigned":
            owned |= set(told["partitions"])
        elif event == "revoked":
            owned -= set(told["partitions"])
        if self._is_stable() and self._stable is not None and not self._stable.done():
            self.stable_at_s = at_s
            self._stable.set_result(None)

    def _is_stable(self) -> bool:
        if not all(self._owned.values()) or self._began_s == math.inf:
            return False
        owners = Counter(partition for owned in self._owned.values() for partition in owned)
        return sorted(owners.elements()) == list(range(self._partition_count))


if __name__ == "__main__":
    run_child(*sys.argv[1:])
