"""A consumer group of wire-level members in one event loop, and how long its rebalances take.

A rebalance begins when the first bytes of a join or leave are handed to the socket, or when the
request to grow the topic is, and ends when every partition has exactly one owner, shares are even,
and every member has been answered to what it said last of its partitions. All of that is known
from the members themselves: nobody asks the broker how the group is. A partition that two members
own at the same moment ends the benchmark.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable

from rebalance_consumer_member import ConsumerMember
from rebalance_protocol import RebalanceError
from server_process import HOST

REBALANCE_LIMIT_S = 120.0


class ConsumerGroup:
    """Members come and go one event at a time."""

    def __init__(self, *, port: int, group_id: str, topic: str, partition_count: int) -> None:
        self.group_id = group_id
        self.topic = topic
        self.heartbeat_count = 0
        self.stable_at_s = 0.0
        self._port = port
        self._partition_count = partition_count
        self._members: set[ConsumerMember] = set()
        self._owners: dict[int, ConsumerMember] = {}
        self._unsettled: set[ConsumerMember] = set()
        self._stable: asyncio.Future[None] | None = None
        self._failure: RebalanceError | None = None

    def __len__(self) -> int:
        return len(self._members)

    # Events ---------------------------------------------------------------------------------------

    async def join(self, count: int = 1) -> float:
        """Newcomers on open connections join at the same moment; returns the seconds it took."""
        new = [await self._connect() for _ in range(count)]

        def begin() -> None:
            self._members.update(new)
            self._unsettled.update(new)
            for member in new:
                member.join()

        return await self._measured(begin)

    async def leave(self, choice: random.Random) -> float:
        """A member says goodbye; returns the seconds until the others have its partitions."""
        leaver = choice.choice(sorted(self._members, key=lambda member: min(member.owned)))

        def begin() -> None:
            self._members.remove(leaver)
            self._unsettled.discard(leaver)
            self.dropped(leaver, leaver.owned)
            leaver.leave()

        seconds = await self._measured(begin)
        leaver.close()
        return seconds

    async def grow(self, partition_count: int, create: Callable[[], Awaitable[None]]) -> float:
        """The topic gets more partitions; returns the seconds until all of them have owners."""
        creation: list[asyncio.Future[None]] = []

        def begin() -> None:
            self._partition_count = partition_count
            creation.append(asyncio.ensure_future(create()))

        seconds = await self._measured(begin)
        await creation[0]
        return seconds

    async def heartbeats_per_second(self, seconds: float) -> float:
        """What the members say while nothing happens."""
        before, began_s = self.heartbeat_count, time.monotonic()
        await asyncio.sleep(seconds)
        self._check()
        return (self.heartbeat_count - before) / (time.monotonic() - began_s)

    async def close(self) -> None:
        """Everybody leaves; nothing of the group goes on."""
        members, self._members = self._members, set()
        for member in members:
            member.stop()
        try:
            async with asyncio.timeout(REBALANCE_LIMIT_S):
                await asyncio.gather(*(member.leave() for member in members))
        finally:
            for member in members:
                member.close()

    async def wait_after_stable(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, self.stable_at_s + delay_s - time.monotonic()))
        self._check()

    async def _connect(self) -> ConsumerMember:
        loop = asyncio.get_running_loop()
        _, member = await loop.create_connection(lambda: ConsumerMember(self), HOST, self._port)
        return member

    async def _measured(self, begin: Callable[[], None]) -> float:
        self._check()
        self._stable = asyncio.get_running_loop().create_future()
        gc.collect()
        gc.disable()
        began_s = time.monotonic()
        begin()
        try:
            async with asyncio.timeout(REBALANCE_LIMIT_S):
                await self._stable
        except TimeoutError:
            raise RebalanceError(
                f"{self.group_id}: not stable after {REBALANCE_LIMIT_S:.0f} s, "
                f"{len(self._owners)} of {self._partition_count} partitions are owned, "
                f"{len(self._unsettled)} of {len(self._members)} members wait for an answer"
            ) from None
        finally:
            self._stable = None
            gc.enable()
        return self.stable_at_s - began_s

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # What members tell ----------------------------------------------------------------------------

    def dropped(self, member: ConsumerMember, partitions: frozenset[int]) -> None:
        if member in self._members:
            self._unsettled.add(member)
        for partition in partitions:
            del self._owners[partition]

    def took(self, member: ConsumerMember, partitions: frozenset[int]) -> None:
        self._unsettled.add(member)
        for partition in partitions:
            if partition in self._owners:
                self.failed(f"partition {partition} has two owners")
            self._owners[partition] = member

    def acknowledged(self, member: ConsumerMember) -> None:
        self._unsettled.discard(member)
        if self._is_stable() and self._stable is not None and not self._stable.done():
            self.stable_at_s = time.monotonic()
            self._stable.set_result(None)

    def failed(self, reason: str) -> None:
        self._failure = RebalanceError(f"{self.group_id}: {reason}")
        if self._stable is not None and not self._stable.done():
            self._stable.set_exception(self._failure)

    def _is_stable(self) -> bool:
        if self._unsettled or len(self._owners) != self._partition_count:
            return False
        sizes = [len(member.owned) for member in self._members]
        return max(sizes) - min(sizes) <= 1
