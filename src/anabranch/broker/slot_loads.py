"""Counting records by slot: those that arrive at a partition, and those that a group has yet to do.

A kernel counts over the slot index, off the loop, and of very many records a sample. What the index
lacks is read and indexed first; of partitions that are read by range, readers have done that.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from anabranch.branch.record_columns import read_records
from anabranch.branch.slot_counts import SlotCounts
from anabranch.branch.slots import SlotRule
from anabranch.broker.deferred import awaited
from anabranch.broker.partition import Partition
from anabranch.broker.slot_scans import SlotScans
from anabranch.coordinator.cooperative.commands import NO_OFFSET
from anabranch.coordinator.cooperative.cuts import Partition as Place
from anabranch.coordinator.cooperative.load import ArrivalRates
from anabranch.model.errors import KafkaError
from anabranch.model.units import ALL_SLOTS, SlotRange
from anabranch.observe import logs

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.group_coordinator import GroupCoordinator

T = TypeVar("T")

# How many records a look counts at most, of those that arrived and of those that wait.
SAMPLE_RECORDS = 200_000
_HOT_KEY_RECORDS = 5_000
_HOT_KEY_BYTES = 1024 * 1024


@dataclasses.dataclass(slots=True)
class _Arrivals:
    """What arrives at one partition, and up to where that was counted."""

    rates: ArrivalRates
    offset: int


class Backlog(NamedTuple):
    """What was found of the records that wait, and how many times as many there are."""

    found: SlotCounts
    watermarks: list[tuple[SlotRange, int]]
    scale: float


class SlotLoads:
    """What is counted of partitions; lives on the event loop."""

    def __init__(
        self,
        broker: "Broker",
        groups: "GroupCoordinator",
        executor: Executor,
        steady_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._groups = groups
        self._executor = executor
        self._steady_ms = steady_ms
        self._scans = SlotScans(executor)
        self._arrivals: dict[Place, _Arrivals] = {}
        self.half_life_ms = 0

    def measure_anew(self, half_life_ms: int) -> None:
        """Forget everything; from now on what is as old as this counts half."""
        self.half_life_ms = half_life_ms
        self._arrivals.clear()

    def keep(self, places: Collection[Place]) -> None:
        """Forget all other partitions."""
        for gone in self._arrivals.keys() - set(places):
            del self._arrivals[gone]

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _partition(self, place: Place) -> Partition | None:
        topic_id, number = place
        topic = self._broker.topics.get_by_id(topic_id)
        if topic is None or not topic.has_partition(number):
            return None
        return topic.partitions[number]

    async def _scanned(
        self, partition: Partition, from_offset: int, upto: int
    ) -> SlotCounts | None:
        """The blocks of a part of a log; None when there are none, or when it cannot be read."""
        if from_offset >= upto:
            return None
        try:
            return await awaited(self._scans.scan(partition, from_offset, SlotCounts(upto)))
        except KafkaError as error:
            log = partition.log.folder.name
            logs.warning("group.load.failed", log=log, reason=error.message)
            return None

    async def arrivals(self, place: Place) -> Mapping[int, float]:
        """Records per second of each slot of a partition, with those since the last look."""
        partition = self._partition(place)
        if partition is None:
            return {}
        log = partition.log
        end_offset = log.high_watermark
        known = self._arrivals.get(place)
        if known is None or known.offset > end_offset:
            rates = ArrivalRates(self._steady_ms(), self.half_life_ms)
            self._arrivals[place] = _Arrivals(rates, end_offset)
            return {}
        first_offset = known.offset
        known.offset = end_offset
        from_offset = max(first_offset, log.log_start_offset, end_offset - SAMPLE_RECORDS)
        found = await self._scanned(partition, from_offset, end_offset)
        now_ms, rates = self._steady_ms(), known.rates

        def count() -> Mapping[int, float]:
            counts: Mapping[int, float] = {}
            if found is not None:
                scale = (end_offset - first_offset) / (end_offset - from_offset)
                per_slot = found.counts([(ALL_SLOTS, from_offset)])
                counts = {slot: count * scale for slot, count in per_slot.items()}
            rates.update(counts, now_ms)
            return rates.per_second

        return await self.in_thread(count)

    async def backlog(self, group_id: str, place: Place) -> Backlog | None:
        """The records of a partition that a group has yet to do, or a sample of them."""
        partition = self._partition(place)
        if partition is None:
            return None
        log = partition.log
        end_offset = log.high_watermark
        watermarks = self._watermarks(group_id, place, end_offset)
        first_offset = max(log.log_start_offset, min(offset for _, offset in watermarks))
        upto = min(end_offset, first_offset + SAMPLE_RECORDS)
        found = await self._scanned(partition, first_offset, upto)
        if found is None:
            return None
        scale = (end_offset - first_offset) / (upto - first_offset)
        return Backlog(found, watermarks, scale)

    def _watermarks(
        self, group_id: str, place: Place, end_offset: int
    ) -> list[tuple[SlotRange, int]]:
        """From where on each slot has to be done; where nothing is known there is nothing to do."""
        topic = self._broker.topics.get_by_id(place[0])
        committed = self._groups.offsets(group_id).get((topic.name if topic else "", place[1]))
        start = committed.offset if committed is not None and committed.offset >= 0 else end_offset
        tracked = self._groups.progress(group_id).get(place)
        if tracked is None:
            return [(ALL_SLOTS, start)]
        return [
            (one.slots, one.watermark if one.watermark != NO_OFFSET else start)
            for one in tracked.progress.intervals
        ]

    async def hot_key(self, place: Place, slot: int) -> bytes | None:
        """The key that most of the newest records of a slot have."""
        partition = self._partition(place)
        if partition is None or partition.slot_rule.ordering_header is not None:
            return None
        log = partition.log
        end_offset = log.high_watermark
        from_offset = max(log.log_start_offset, end_offset - _HOT_KEY_RECORDS)
        if from_offset >= end_offset:
            return None
        batches = log.read(from_offset, _HOT_KEY_BYTES, min_one_batch=True, upto=end_offset)
        rule = partition.slot_rule
        return await self.in_thread(lambda: most_common_key(batches, rule, slot))


def most_common_key(batches: memoryview | bytes, rule: SlotRule, slot: int) -> bytes | None:
    """The key that at least half of the records of a slot have; None when there is none."""
    columns = read_records(batches, rule)
    keys = Counter(columns.key(at) for at, found in enumerate(columns.slots) if found == slot)
    for key, count in keys.most_common(1):
        return key if 2 * count >= keys.total() else None
    return None


def with_backlog(
    arriving: Mapping[int, float], backlog: Backlog | None, horizon_s: float
) -> Mapping[int, float]:
    """Records per second: what arrives, and what waits spread over a while."""
    if backlog is None:
        return arriving
    rates = dict(arriving)
    for slot, count in backlog.found.counts(backlog.watermarks).items():
        rates[slot] = rates.get(slot, 0.0) + count * backlog.scale / horizon_s
    return rates
