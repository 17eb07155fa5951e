"""Consumer groups (KIP-848): join and leave, growth, rest, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace

from rebalance_consumer_group import ConsumerGroup
from rebalance_librdkafka import BUCKET_S, LibrdkafkaGroup
from rebalance_load import steady_load
from rebalance_plan import (
    GROWTH,
    GROWTH_PARTITIONS,
    KEPT,
    PARTITIONS_PER_MEMBER,
    STOCK_HEARTBEAT_MS,
    Step,
)
from rebalance_protocol import RebalanceError
from rebalance_site import REST_S, GroupSettings, Site, delays
from rebalance_table import (
    CONSUMER,
    HEARTBEATS,
    SERVER_CPU,
    STEADY_CPU,
    Row,
)
from rebalance_table import KEPT as KEPT_PART
from rebalance_topics import Growth, delete_topic, ensure_topic

Group = ConsumerGroup | LibrdkafkaGroup

_KEPT_RECORDS_PER_SECOND = 4000
_KEPT_TOLERANCE = 0.03
_KEPT_PATIENCE_S = 60.0
_KEPT_BEFORE_S = 2.0
_KEPT_AT_LEAST_S = 1.0


async def run_consumer(site: Site, step: Step, seed: int) -> None:
    if step.part == KEPT:
        for protocol in step.protocols:
            await _kept(site, step, protocol, random.Random(seed))
        return
    for settings in site.settings if step.has_tuned else site.settings[:1]:
        if step.part == GROWTH:
            await _growth(site, step, settings)
        else:
            await _join_and_leave(site, step, settings, random.Random(seed))


async def _close(site: Site, group: Group) -> None:
    if isinstance(group, LibrdkafkaGroup):
        site.double_ownerships += group.double_ownerships()
    await group.close()


async def _new_group(
    site: Site, step: Step, settings: GroupSettings, topic: str, partition_count: int
) -> Group:
    group_id = await site.new_group(settings.configs)
    if not step.is_stock:
        return ConsumerGroup(
            port=site.server.port,
            group_id=group_id,
            topic=topic,
            partition_count=partition_count,
        )
    group = LibrdkafkaGroup(
        bootstrap_servers=site.server.bootstrap_servers,
        group_id=group_id,
        topic=topic,
        partition_count=partition_count,
        protocol=CONSUMER,
        largest_size=step.size.members + 1,
    )
    await group.start()
    return group


async def _join_and_leave(
    site: Site, step: Step, settings: GroupSettings, choice: random.Random
) -> None:
    members, repetitions = step.size.members, step.size.repetitions
    partition_count = members * PARTITIONS_PER_MEMBER
    topic = await site.topic(partition_count)
    group = await _new_group(site, step, settings, topic, partition_count)
    row = Row(
        is_real=step.is_stock,
        members=members,
        protocol=CONSUMER,
        settings=settings.name,
        event="form",
    )
    try:
        site.samples[row].append(await group.join(members) * 1000)
        joins = delays(repetitions, choice, settings.silence_s)
        leaves = delays(repetitions, choice, settings.silence_s)
        with site.cpu_of(replace(row, event="join or leave", part=SERVER_CPU), 2 * repetitions):
            for join_delay, leave_delay in zip(joins, leaves, strict=True):
                await group.wait_after_stable(REST_S + join_delay)
                site.samples[replace(row, event="join")].append(await group.join() * 1000)
                await group.wait_after_stable(REST_S + leave_delay)
                site.samples[replace(row, event="leave")].append(await group.leave(choice) * 1000)
        if isinstance(group, ConsumerGroup) and step.steady_seconds:
            await group.wait_after_stable(settings.silence_s)
            steady = replace(row, event="steady")
            with site.cpu_of(replace(steady, part=STEADY_CPU), step.steady_seconds):
                rate = await group.heartbeats_per_second(step.steady_seconds)
            site.samples[replace(steady, part=HEARTBEATS)].append(rate)
    finally:
        await _close(site, group)


async def warm_up_consumer(site: Site, seconds: float) -> None:
    """A group comes, goes and rebalances uncounted, as fast as its broker can be told to."""
    topic = await site.topic(50 * PARTITIONS_PER_MEMBER)
    group = ConsumerGroup(
        port=site.server.port,
        group_id=await site.new_group(site.settings[-1].configs),
        topic=topic,
        partition_count=50 * PARTITIONS_PER_MEMBER,
    )
    choice = random.Random(0)
    try:
        await group.join(50)
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            await group.join()
            await group.leave(choice)
    finally:
        await _close(site, group)


# Growth -------------------------------------------------------------------------------------------


async def _growth(site: Site, step: Step, settings: GroupSettings) -> None:
    few, many = GROWTH_PARTITIONS
    servers = site.server.bootstrap_servers
    row = Row(
        is_real=step.is_stock,
        members=step.size.members,
        protocol=CONSUMER,
        settings=settings.name,
        event="grow",
    )
    for _ in range(step.size.repetitions):
        topic = f"growth-{time.monotonic_ns()}"
        await asyncio.to_thread(ensure_topic, servers, topic, few)
        group = await _new_group(site, step, settings, topic, few)
        try:
            await group.join(step.size.members)
            growth = await asyncio.to_thread(Growth, servers, topic, many)
            await group.wait_after_stable(REST_S + settings.silence_s / 2)
            with site.cpu_of(replace(row, part=SERVER_CPU), 1):
                seconds = await group.grow(many, growth.create)
            site.samples[row].append(seconds * 1000)
        finally:
            await _close(site, group)
            await asyncio.to_thread(delete_topic, servers, topic)


# Records of partitions that do not move -----------------------------------------------------------


async def _kept(site: Site, step: Step, protocol: str, choice: random.Random) -> None:
    members = step.size.members
    partition_count = members * PARTITIONS_PER_MEMBER
    topic = await site.topic(partition_count)
    servers = site.server.bootstrap_servers
    group = LibrdkafkaGroup(
        bootstrap_servers=servers,
        group_id=await site.new_group(),
        topic=topic,
        partition_count=partition_count,
        protocol=protocol,
        largest_size=members + 1,
    )
    row = Row(
        is_real=True,
        members=members,
        heartbeat_ms=0 if protocol == CONSUMER else STOCK_HEARTBEAT_MS,
        protocol=protocol,
        event="join",
    )
    await group.start()
    try:
        await group.join(members)
        async with steady_load(servers, topic, partition_count, _KEPT_RECORDS_PER_SECOND):
            for _ in range(step.size.repetitions):
                for event in ("join", "leave"):
                    await group.wait_after_stable(3 * REST_S)
                    await _wait_for_even_flow(group, partition_count)
                    before = group.owners
                    await (group.join() if event == "join" else group.leave(choice))
                    owners = group.owners
                    unmoved = {part for part, owner in before.items() if owners[part] == owner}
                    ended_s = max(group.stable_at_s, group.began_s + _KEPT_AT_LEAST_S)
                    await asyncio.sleep(max(0.0, ended_s - time.monotonic()) + 10 * BUCKET_S)
                    percent = _percent_kept(await group.counts(), unmoved, group.began_s, ended_s)
                    site.samples[replace(row, event=event, part=KEPT_PART)].append(percent)
    finally:
        await _close(site, group)


async def _wait_for_even_flow(group: LibrdkafkaGroup, partition_count: int) -> None:
    """Return once records have come as fast as they are produced for as long as is compared."""
    everything = set(range(partition_count))
    deadline_s = time.monotonic() + _KEPT_PATIENCE_S
    while time.monotonic() < deadline_s:
        await asyncio.sleep(_KEPT_BEFORE_S + 2 * BUCKET_S)
        ended_s = time.monotonic() - 2 * BUCKET_S
        rate = _rate(await group.counts(), everything, ended_s - _KEPT_BEFORE_S, ended_s)
        if abs(rate / _KEPT_RECORDS_PER_SECOND - 1) < _KEPT_TOLERANCE:
            return
    raise RebalanceError(f"records did not flow evenly within {_KEPT_PATIENCE_S:.0f} s")


def _percent_kept(
    counts: Sequence[Sequence[int]], partitions: set[int], began_s: float, ended_s: float
) -> float:
    """Records per second of these partitions during the rebalance, in percent of those before."""
    before = _rate(counts, partitions, began_s - _KEPT_BEFORE_S, began_s)
    if not before:
        raise RebalanceError("no records came before the rebalance")
    return 100 * _rate(counts, partitions, began_s, ended_s) / before


def _rate(
    counts: Sequence[Sequence[int]], partitions: set[int], first_s: float, last_s: float
) -> float:
    """Records per second of these partitions."""
    buckets = range(round(first_s / BUCKET_S), round(last_s / BUCKET_S))
    arrived = sum(
        count
        for bucket, partition, count in counts
        if partition in partitions and bucket in buckets
    )
    return arrived / (len(buckets) * BUCKET_S)
