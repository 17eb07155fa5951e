"""Classic groups, eager and cooperative: form, join, leave."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

from rebalance_group import SimulatedGroup
from rebalance_librdkafka import LibrdkafkaGroup
from rebalance_plan import PARTITIONS_PER_MEMBER, STOCK_HEARTBEAT_MS, Size, Step
from rebalance_site import Site, delays
from rebalance_table import (
    AFTER_LAST_JOIN,
    COOPERATIVE,
    EAGER,
    GENERATIONS,
    SERVER_CPU,
    UNTIL_STABLE,
    Row,
)


async def run_classic(site: Site, step: Step, seed: int) -> None:
    if not step.is_stock:
        await _simulated(site, step, random.Random(seed))
        return
    topic = await site.topic(step.size.members * PARTITIONS_PER_MEMBER)
    # Both protocols at once: nearly all of their time is librdkafka's heartbeat interval.
    both = (_real(site, step.size, topic, name, seed) for name in (EAGER, COOPERATIVE))
    await asyncio.gather(*both)


async def _simulated(site: Site, step: Step, choice: random.Random) -> None:
    members, interval_s = step.size.members, step.heartbeat_ms / 1000
    group = await _new_group(site, members, step.is_cooperative, interval_s)
    row = Row(
        is_real=False,
        members=members,
        heartbeat_ms=step.heartbeat_ms,
        protocol=COOPERATIVE if step.is_cooperative else EAGER,
        event="form",
    )
    events = 2 * step.size.repetitions
    try:
        formed = await group.join(members)
        site.samples[row].append(formed.seconds * 1000)
        with site.cpu_of(replace(row, event="join or leave", part=SERVER_CPU), events):
            for delay in delays(events, choice, interval_s):
                await group.wait_after_stable(delay)
                if len(group) == members:
                    event, rebalance = "join", await group.join()
                else:
                    event, rebalance = "leave", await group.leave(choice)
                for part, value in (
                    (UNTIL_STABLE, rebalance.seconds * 1000),
                    (AFTER_LAST_JOIN, rebalance.after_last_join_seconds * 1000),
                    (GENERATIONS, rebalance.generations),
                ):
                    site.samples[replace(row, event=event, part=part)].append(value)
    finally:
        await group.close()


async def _new_group(
    site: Site, members: int, is_cooperative: bool, interval_s: float
) -> SimulatedGroup:
    return SimulatedGroup(
        port=site.server.port,
        group_id=await site.new_group(),
        is_cooperative=is_cooperative,
        partition_count=members * PARTITIONS_PER_MEMBER,
        heartbeat_interval_s=interval_s,
    )


async def warm_up_classic(site: Site, seconds: float) -> None:
    """A group comes, goes and rebalances uncounted."""
    group = await _new_group(site, 50, is_cooperative=False, interval_s=0.02)
    choice = random.Random(0)
    try:
        # One member alone sits through the initial delay once, not twice.
        await group.join(1)
        await group.join(49)
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            await group.join()
            await group.leave(choice)
    finally:
        await group.close()


async def _real(site: Site, size: Size, topic: str, protocol: str, seed: int) -> None:
    group = LibrdkafkaGroup(
        bootstrap_servers=site.server.bootstrap_servers,
        group_id=await site.new_group(),
        topic=topic,
        partition_count=size.members * PARTITIONS_PER_MEMBER,
        protocol=protocol,
        largest_size=size.members + 1,
    )
    row = Row(
        is_real=True,
        members=size.members,
        heartbeat_ms=STOCK_HEARTBEAT_MS,
        protocol=protocol,
        event="form",
    )
    choice = random.Random(seed)
    await group.start()
    try:
        site.samples[row].append(await group.join(size.members) * 1000)
        joins = delays(size.repetitions, choice, STOCK_HEARTBEAT_MS / 1000)
        leaves = delays(size.repetitions, choice, STOCK_HEARTBEAT_MS / 1000)
        for join_delay, leave_delay in zip(joins, leaves, strict=True):
            await group.wait_after_stable(join_delay)
            site.samples[replace(row, event="join")].append(await group.join() * 1000)
            await group.wait_after_stable(leave_delay)
            site.samples[replace(row, event="leave")].append(await group.leave(choice) * 1000)
    finally:
        site.double_ownerships += group.double_ownerships()
        await group.close()
