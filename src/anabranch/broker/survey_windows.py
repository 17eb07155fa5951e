"""How many records a group that commits record by record has yet to do, counted exactly.

Its committed offset is the stable offset, and between that and the last record that is done some
are done and some are not. Which ones is known by slots and offsets, so they are counted over the
slot index, in a thread. That is worth doing where the window is small, as it is meant to be, and
only when the progress has changed since; otherwise the distance to the end stands for it.
"""

import asyncio
from array import array
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from anabranch.branch import _kernels
from anabranch.broker.deferred import awaited
from anabranch.broker.partition import Partition
from anabranch.broker.slot_scans import SlotScans
from anabranch.coordinator.cooperative.book import GroupProgress
from anabranch.coordinator.cooperative.commands import NO_OFFSET
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.records import Place
from anabranch.model.errors import KafkaError
from anabranch.model.units import SlotRange

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

_WINDOW_MAX = 100_000
_DONE_MAX = 16
# How many partitions one look at a group counts anew; the others have their turn in the next.
_COUNTS_MAX = 32


class Window(NamedTuple):
    """The records that are open below an offset, from which on all are."""

    end_offset: int
    open_records: int


class Windows:
    """What was counted of all groups; lives on the event loop."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._executor: Executor | None = None
        self._scans: SlotScans | None = None
        # With the progress that it was counted for: another object whenever that changes.
        self._known: dict[tuple[str, Place], tuple[PartitionProgress, Window | None]] = {}

    def stop(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def forget_others(self, group_ids: Iterable[str]) -> None:
        kept = set(group_ids)
        for key in [key for key in self._known if key[0] not in kept]:
            del self._known[key]

    async def look(self, group_id: str, tracked: GroupProgress) -> Mapping[Place, Window]:
        """The windows of a group, as far as they are known."""
        found: dict[Place, Window] = {}
        counted = 0
        for place, one in list(tracked.items()):
            known = self._known.get((group_id, place))
            if (known is None or known[0] is not one.progress) and counted < _COUNTS_MAX:
                counted += 1
                known = (one.progress, await self._count(place, one.progress))
                self._known[group_id, place] = known
            if known is not None and known[0] is one.progress and known[1] is not None:
                found[place] = known[1]
        return found

    async def _count(self, place: Place, progress: PartitionProgress) -> Window | None:
        partition = self._partition(place)
        if partition is None or not _is_worth_it(progress):
            return None
        end_offset = min(progress.last_done_offset, partition.log.high_watermark)
        start = max(progress.stable_offset, partition.log.log_start_offset)
        if start >= end_offset:
            return Window(end_offset, 0)
        if self._executor is None or self._scans is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="survey")
            self._scans = SlotScans(self._executor)
        try:
            blocks = await awaited(self._scans.scan(partition, start, _Blocks(end_offset)))
        except KafkaError:
            return None  # the log cannot be read any more
        count = await asyncio.get_running_loop().run_in_executor(
            self._executor, count_open, b"".join(blocks.found), progress, end_offset
        )
        return Window(end_offset, count)

    def _partition(self, place: Place) -> Partition | None:
        topic = self._broker.topics.get_by_id(place[0])
        return topic.partitions[place[1]] if topic and topic.has_partition(place[1]) else None


class _Blocks:
    """Gathers the blocks of a part of a log."""

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self.found: list[memoryview] = []

    def add(self, blocks: Iterable[memoryview], /) -> None:
        self.found.extend(blocks)


def _is_worth_it(progress: PartitionProgress) -> bool:
    return (
        progress.stable_offset != NO_OFFSET
        and progress.last_done_offset - progress.stable_offset <= _WINDOW_MAX
        and all(len(interval.done) <= _DONE_MAX for interval in progress.intervals)
    )


def count_open(blocks: bytes, progress: PartitionProgress, end_offset: int) -> int:
    """The records of a slot index, below an offset, that are not done. May run in a thread.

    A pass of the kernel for those at or above the watermarks, and one for each range that is done
    above them: the first of all intervals, the second of all, and so on.
    """
    intervals = progress.intervals
    marks = _per_slot([(one.slots, one.watermark) for one in intervals])
    found, _, _ = _kernels.progress(blocks, marks, marks, end_offset)
    total = sum(array("Q", found))
    for ranges in zip_longest(*[list(one.done) for one in intervals]):
        pairs = list(zip(intervals, ranges, strict=True))
        floors = _per_slot([(one.slots, done.first if done else 0) for one, done in pairs])
        ends = _per_slot([(one.slots, done.last + 1 if done else 0) for one, done in pairs])
        _, _, done_counts = _kernels.progress(blocks, ends, floors, end_offset)
        total -= sum(array("Q", done_counts))
    return total


def _per_slot(offsets: list[tuple[SlotRange, int]]) -> bytes:
    # Memory order is little-endian wherever the kernels run.
    per_slot = array("q")
    for slots, offset in offsets:
        per_slot.extend(array("q", [offset]) * (slots.end - slots.first))
    return per_slot.tobytes()
