"""A group of real librdkafka members: child processes, one thread per consumer.

Run as a program this file is a child: it takes commands as lines on stdin (`join NUMBER ...`,
`leave NUMBER`, `count`, `stop`) and tells what its consumers' callbacks hear as JSON lines on
stdout, with times of the machine-wide monotonic clock. It ends when its stdin does.

`LibrdkafkaGroup` is the parent's side. A rebalance begins when the consumer is created, when its
`close` is called, or when the topic is asked to grow, and ends with the callback after which every
partition has exactly one owner and shares are as even as the protocol makes them. Callbacks of all
members, in the order of their times, also tell whether a partition ever belonged to two of them.
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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from rebalance_protocol import RebalanceError
from rebalance_table import CONSUMER, COOPERATIVE, EAGER

BUCKET_S = 0.02

_LIMIT_S = 90.0
# Callbacks end a poll at once; this is how long a consumer may take to notice that it has to leave.
# That time is not measured, and short polls of a hundred consumers would keep the machine busy.
_POLL_S = 0.25
_MEMBERS_PER_PROCESS = 25
_SETTINGS: dict[str, dict[str, Any]] = {
    EAGER: {"partition.assignment.strategy": "range"},
    COOPERATIVE: {"partition.assignment.strategy": "cooperative-sticky"},
    CONSUMER: {"group.protocol": "consumer"},
}
_output = threading.Lock()


# The child ----------------------------------------------------------------------------------------


class RealMember:
    """One consumer with the thread that polls it; the settings are librdkafka's defaults."""

    def __init__(self, number: int, config: dict[str, Any], topic: str) -> None:
        # Records by the moment of their arrival and by partition.
        self.counts: Counter[tuple[int, int]] = Counter()
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
            message = consumer.poll(_POLL_S)
            if message is not None and message.error() is None:
                self.counts[int(time.monotonic() / BUCKET_S), message.partition() or 0] += 1
        tell("leaving", self._number)
        consumer.close()
        tell("left", self._number)

    def _teller(self, event: str) -> Any:
        def callback(_: Any, partitions: list[Any]) -> None:
            tell(event, self._number, partitions=[partition.partition for partition in partitions])

        return callback


def tell(event: str, number: int, **more: Any) -> None:
    # Lines leave in the order of their times.
    with _output:
        line = {"event": event, "member": number, "at": time.monotonic(), **more}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def run_child(config: dict[str, Any], topic: str) -> None:
    members: dict[int, RealMember] = {}
    for line in sys.stdin:
        command, *numbers = line.split()
        for number in map(int, numbers):
            if command == "join":
                members[number] = RealMember(number, config, topic)
            elif command == "leave":
                members[number].leave()
        if command == "count":
            counts = [
                [*place, count]
                for member in members.values()
                for place, count in list(member.counts.items())
            ]
            tell("counted", -1, counts=counts)
        elif command == "stop":
            break
    for member in members.values():
        member.leave()
    for member in members.values():
        member.wait(5.0)


# The parent ---------------------------------------------------------------------------------------


class LibrdkafkaGroup:
    """The child processes and what their members own."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        group_id: str,
        topic: str,
        partition_count: int,
        protocol: str,
        largest_size: int,
    ) -> None:
        self.stable_at_s = 0.0
        self.began_s = math.inf
        self._latest_s = 0.0
        self._group_id = group_id
        self._protocol = protocol
        self._topic = topic
        self._config = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group_id,
            "log_level": 0,
            **_SETTINGS[protocol],
        }
        self._process_count = math.ceil(largest_size / _MEMBERS_PER_PROCESS)
        self._partition_count = partition_count
        self._owned: dict[int, set[int]] = {}
        self._history: list[dict[str, Any]] = []
        self._next_number = 0
        self._stable: asyncio.Future[None] | None = None
        self._counted: list[list[int]] = []
        self._counting = 0
        self._processes: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        for _ in range(self._process_count):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).resolve()),
                json.dumps(self._config),
                self._topic,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 26,
            )
            self._processes.append(process)
            self._readers.append(asyncio.ensure_future(self._read(process)))

    @property
    def owners(self) -> dict[int, int]:
        """Which member owns a partition."""
        return {partition: number for number, owned in self._owned.items() for partition in owned}

    async def join(self, count: int = 1) -> float:
        """Start consumers; returns the seconds until the group was stable."""
        numbers = [self._next_number + place for place in range(count)]
        self._next_number += count
        self._owned |= {number: set() for number in numbers}
        return await self._measured(lambda: self._send("join", numbers))

    async def leave(self, choice: random.Random) -> float:
        """Close one of the consumers; returns the seconds until the group was stable."""
        number = choice.choice(sorted(self._owned))
        del self._owned[number]
        return await self._measured(lambda: self._send("leave", [number]))

    async def grow(self, partition_count: int, create: Callable[[], Awaitable[None]]) -> float:
        """The topic gets more partitions; returns the seconds until all of them have owners."""
        creation: list[asyncio.Future[None]] = []

        def begin() -> None:
            self._partition_count = partition_count
            self.began_s = time.monotonic()
            creation.append(asyncio.ensure_future(create()))

        seconds = await self._measured(begin)
        await creation[0]
        return seconds

    async def counts(self) -> list[list[int]]:
        """The records that arrived so far: (BUCKET_S since the epoch, partition, how many)."""
        self._counted = []
        self._counting = len(self._processes)
        self._send("count", None)
        async with asyncio.timeout(_LIMIT_S):
            while self._counting:
                await asyncio.sleep(0.01)
        return self._counted

    async def wait_after_stable(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, self.stable_at_s + delay_s - time.monotonic()))

    async def close(self) -> None:
        """Close all consumers and end the processes."""
        self._owned.clear()
        try:
            with contextlib.suppress(OSError, TimeoutError):
                self._send("stop", None)
                async with asyncio.timeout(30):
                    await asyncio.gather(*(process.wait() for process in self._processes))
        finally:
            for process in self._processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            await asyncio.gather(*self._readers)

    def _send(self, command: str, numbers: list[int] | None) -> None:
        """To the processes of these members, or to all."""
        for place, process in enumerate(self._processes):
            here = [number for number in numbers or () if number % self._process_count == place]
            if here or numbers is None:
                assert process.stdin is not None
                process.stdin.write(f"{command} {' '.join(map(str, here))}\n".encode())

    async def _measured(self, begin: Callable[[], None]) -> float:
        self.began_s = math.inf
        self._latest_s = 0.0
        self._stable = asyncio.get_running_loop().create_future()
        begin()
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._stable
        except TimeoutError:
            raise RebalanceError(
                f"{self._group_id}: not stable after {_LIMIT_S:.0f} s; members own {self._owned}"
            ) from None
        finally:
            self._stable = None
        return self.stable_at_s - self.began_s

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._heard(json.loads(line))
        if self._stable is not None and not self._stable.done():
            error = RebalanceError(f"{self._group_id}: a process of members ended")
            self._stable.set_exception(error)

    def _heard(self, told: dict[str, Any]) -> None:
        event, at_s = told["event"], told["at"]
        if event == "counted":
            self._counted += told["counts"]
            self._counting -= 1
            return
        if event in ("joining", "leaving"):
            self.began_s = min(self.began_s, at_s)
            return
        if event == "left":
            return
        self._history.append(told)
        # Lines of several processes need not come in the order of their times.
        self._latest_s = max(self._latest_s, at_s)
        owned = self._owned.get(told["member"])
        if owned is None:
            return  # one that is leaving
        if event == "assigned":
            owned |= set(told["partitions"])
        elif event == "revoked":
            owned -= set(told["partitions"])
        if self._is_stable() and self._stable is not None and not self._stable.done():
            self.stable_at_s = self._latest_s
            self._stable.set_result(None)

    def _is_stable(self) -> bool:
        if not all(self._owned.values()) or self.began_s == math.inf:
            return False
        sizes = [len(owned) for owned in self._owned.values()]
        if sum(sizes) != self._partition_count or len(self.owners) != self._partition_count:
            return False
        return max(sizes) - min(sizes) <= 1 or self._protocol != CONSUMER

    def double_ownerships(self) -> list[float]:
        """For how many seconds partitions belonged to two members, once for each time."""
        owners: dict[int, int] = {}
        doubled_at_s: dict[tuple[int, int], float] = {}
        doubled: list[float] = []
        for told in sorted(self._history, key=lambda told: float(told["at"])):
            member, at_s = told["member"], told["at"]
            for partition in told["partitions"]:
                owner = owners.get(partition)
                if told["event"] == "assigned":
                    if owner is not None and owner != member:
                        doubled_at_s[partition, owner] = at_s
                    owners[partition] = member
                elif owner == member:
                    del owners[partition]
                elif (partition, member) in doubled_at_s:
                    doubled.append(at_s - doubled_at_s.pop((partition, member)))
        return doubled + [self._latest_s - at_s for at_s in doubled_at_s.values()]


if __name__ == "__main__":
    run_child(json.loads(sys.argv[1]), sys.argv[2])
