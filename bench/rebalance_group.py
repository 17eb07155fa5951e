"""A group of simulated members in one event loop, and how long its rebalances take.

A rebalance begins when the first bytes of a join or leave are handed to the socket, and ends when
every member has its SyncGroup answer of one and the same generation and nobody has anything left
to give up. Of that time, the part before the last JoinGroup belongs to the members' heartbeat
interval; the part after it, for cooperative groups summed over both generations, is what the
broker's barrier, the network and this process take.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.find_coordinator import (
    FIND_COORDINATOR,
    KEY_TYPE_GROUP,
    FindCoordinatorRequest,
)
from anabranch.wire.messages.heartbeat import HEARTBEAT, HeartbeatRequest
from rebalance_member import HEARTBEAT_VERSION, Member, WireClient
from rebalance_protocol import Assignment, RebalanceError, assign_cooperative, assign_range
from server_process import HOST

REBALANCE_LIMIT_S = 60.0
_FIND_COORDINATOR_VERSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One rebalance, measured."""

    seconds: float
    after_last_join_seconds: float
    generations: int


class SimulatedGroup:
    """Members come and go one event at a time."""

    def __init__(
        self,
        *,
        port: int,
        group_id: str,
        is_cooperative: bool,
        partition_count: int,
        heartbeat_interval_s: float,
    ) -> None:
        self.group_id = group_id
        self.is_cooperative = is_cooperative
        self.heartbeat_interval_s = heartbeat_interval_s
        self.stable_at_s = 0.0
        self._port = port
        self._partition_count = partition_count
        self._members: list[Member] = []
        self._generation_id = -1
        self._synced_count = 0
        self._stable: asyncio.Future[None] | None = None
        self._last_join_s = 0.0
        self._is_barrier_open = False
        self._after_last_join_s = 0.0

    def __len__(self) -> int:
        return len(self._members)

    # Events ---------------------------------------------------------------------------------------

    async def join(self, count: int = 1) -> Rebalance:
        """Newcomers on open connections join at the same moment."""
        new = [await self._connect() for _ in range(count)]

        def begin() -> None:
            self._members += new
            for member in new:
                member.join()

        return await self._measured(begin)

    async def leave(self, choice: random.Random) -> Rebalance:
        """A member says goodbye; any of them, the leader too."""
        leaver = choice.choice(self._members)
        await leaver.prepare_to_leave()
        goodbyes: list[asyncio.Task[None]] = []

        def begin() -> None:
            self._members.remove(leaver)
            goodbyes.append(asyncio.ensure_future(leaver.leave()))

        rebalance = await self._measured(begin)
        await goodbyes[0]
        leaver.close()
        return rebalance

    async def close(self) -> None:
        """Everybody leaves in one request; nothing of the group goes on."""
        members, self._members = self._members, []
        try:
            if members:
                async with asyncio.timeout(REBALANCE_LIMIT_S):
                    await asyncio.gather(*(member.prepare_to_leave() for member in members))
                    await members[0].leave(members[1:])
        finally:
            for member in members:
                member.close()

    async def wait_after_stable(self, delay_s: float) -> None:
        """Let the group be for a part of its heartbeat interval."""
        await asyncio.sleep(max(0.0, self.stable_at_s + delay_s - time.monotonic()))

    async def _connect(self) -> Member:
        loop = asyncio.get_running_loop()
        _, member = await loop.create_connection(lambda: Member(self), HOST, self._port)
        return member

    async def _measured(self, begin: Callable[[], None]) -> Rebalance:
        self._stable = asyncio.get_running_loop().create_future()
        self._is_barrier_open = True
        self._after_last_join_s = 0.0
        generation_before = self._generation_id
        self._synced_count = -1  # whoever synced before does not count
        gc.collect()
        gc.disable()
        began_s = self._last_join_s = time.monotonic()
        begin()
        try:
            async with asyncio.timeout(REBALANCE_LIMIT_S):
                await self._stable
        except TimeoutError:
            raise RebalanceError(
                f"{self.group_id}: not stable after {REBALANCE_LIMIT_S:.0f} s, "
                f"{max(self._synced_count, 0)} of {len(self._members)} members in generation "
                f"{self._generation_id}"
            ) from None
        finally:
            self._stable = None
            gc.enable()
        self._check_assignment()
        return Rebalance(
            seconds=self.stable_at_s - began_s,
            after_last_join_seconds=self._after_last_join_s,
            generations=self._generation_id - max(generation_before, 0),
        )

    def _check_assignment(self) -> None:
        owners = Counter(partition for member in self._members for partition in member.owned)
        sizes = [len(member.owned) for member in self._members]
        if sorted(owners.elements()) != list(range(self._partition_count)):
            raise RebalanceError(f"{self.group_id}: not every partition has exactly one owner")
        if max(sizes) - min(sizes) > 1:
            raise RebalanceError(f"{self.group_id}: stable, but shares are {sorted(sizes)}")

    # What members tell ----------------------------------------------------------------------------

    def assign(self, owned: dict[str, tuple[int, ...]]) -> Assignment:
        assign = assign_cooperative if self.is_cooperative else assign_range
        return assign(owned, self._partition_count)

    def join_sent(self) -> None:
        now_s = time.monotonic()
        if not self._is_barrier_open:
            # The first JoinGroup after a generation began: another rebalance on top.
            self._after_last_join_s += now_s - self._last_join_s
            self._is_barrier_open = True
        self._last_join_s = now_s

    def joined(self, generation_id: int) -> None:
        if generation_id != self._generation_id:
            self._generation_id = generation_id
            self._synced_count = 0
            self._is_barrier_open = False

    def synced(self, member: Member) -> None:
        if member.synced_generation_id != self._generation_id:
            return
        self._synced_count += 1
        if self._synced_count == len(self._members) and not self._is_barrier_open:
            self.stable_at_s = time.monotonic()
            self._after_last_join_s += self.stable_at_s - self._last_join_s
            if self._stable is not None and not self._stable.done():
                self._stable.set_result(None)

    def failed(self, reason: str) -> None:
        if self._stable is not None and not self._stable.done():
            self._stable.set_exception(RebalanceError(f"{self.group_id}: {reason}"))


async def wait_for_coordinator(port: int, group_id: str, *, limit_s: float = 60.0) -> None:
    """Return once the coordinator of a group is found and answers for it."""
    loop = asyncio.get_running_loop()
    deadline_s = time.monotonic() + limit_s
    find = FindCoordinatorRequest(key_type=KEY_TYPE_GROUP, coordinator_keys=[group_id])
    heartbeat = HeartbeatRequest(group_id=group_id, generation_id=0, member_id="nobody")
    _, client = await loop.create_connection(WireClient, HOST, port)
    try:
        while time.monotonic() < deadline_s:
            found = await client.ask(FIND_COORDINATOR, _FIND_COORDINATOR_VERSION, find)
            if found.coordinators[0].error_code == ErrorCode.NONE:
                answer = await client.ask(HEARTBEAT, HEARTBEAT_VERSION, heartbeat)
                if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    return
            await asyncio.sleep(0.05)
    finally:
        client.close()
    raise RebalanceError(f"{group_id}: no coordinator after {limit_s:.0f} s")
