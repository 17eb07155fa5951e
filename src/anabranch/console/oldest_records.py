"""The first record of a shared partition that nobody has finished, and how old it is.

Records have to be read for it, so it is looked for in a thread, in a bounded part of the log, and
remembered for as long as the group's progress is the same.
"""

import asyncio
import functools
from typing import NamedTuple

from anabranch.branch.record_columns import read_records
from anabranch.branch.slots import SlotRule
from anabranch.broker.broker import Broker
from anabranch.broker.open_records import find_open
from anabranch.console.sharing import SharedPartition
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.records import Place
from anabranch.log.transactions import aborted_in_records
from anabranch.model.errors import KafkaError

_SEARCH_BYTES = 256 * 1024
_KNOWN_MAX = 1_024


class OldestRecord(NamedTuple):
    """A record that is not done."""

    offset: int
    slot: int
    key: bytes | None
    timestamp_ms: int


class OldestRecords:
    """Finds such records; what it has found it does not look for again."""

    def __init__(self) -> None:
        # With the progress and the end of the log that it was found with.
        self._known: dict[
            tuple[str, Place], tuple[PartitionProgress, int, OldestRecord | None]
        ] = {}

    async def find(
        self, broker: Broker, group_id: str, partition: SharedPartition
    ) -> OldestRecord | None:
        """The oldest record that is open; None when there is none, or none was found near by."""
        stable_offset = partition.stable_offset
        if stable_offset is None or stable_offset >= partition.high_watermark:
            return None
        key = (group_id, partition.place)
        known = self._known.get(key)
        if known is not None:
            progress, end_offset, oldest = known
            is_as_far = oldest is not None or end_offset == partition.high_watermark
            if progress is partition.progress and is_as_far:
                return oldest
        found = await self._search(broker, group_id, partition)
        self._known.pop(key, None)
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = (partition.progress, partition.high_watermark, found)
        return found

    async def _search(
        self, broker: Broker, group_id: str, partition: SharedPartition
    ) -> OldestRecord | None:
        topic = broker.topics.get_by_id(partition.place[0])
        if topic is None or not topic.has_partition(partition.partition):
            return None
        held = topic.partitions[partition.partition]
        log = held.log
        position = max(partition.stable_offset or 0, log.log_start_offset)
        is_committed = not broker.deliveries.reads_uncommitted(group_id, *partition.place)
        end_offset = log.last_stable_offset if is_committed else log.high_watermark
        if position >= end_offset:
            return None
        try:
            batches = log.read(position, _SEARCH_BYTES, min_one_batch=True, upto=end_offset)
        except KafkaError:
            return None  # retention was faster, or the disk fails: the page shows the rest
        if not batches:
            return None
        aborted: list[tuple[int, int]] = []
        if is_committed:
            found = aborted_in_records(log.transactions, position, batches)
            aborted = [(one.producer_id, one.first_offset) for one in found]
        work = functools.partial(
            _find, batches, held.slot_rule, position, partition.progress, aborted
        )
        return await asyncio.get_running_loop().run_in_executor(None, work)


def _find(
    batches: memoryview,
    rule: SlotRule,
    position: int,
    progress: PartitionProgress,
    aborted: list[tuple[int, int]],
) -> OldestRecord | None:
    record, _ = find_open(batches, rule, position, progress, aborted)
    if record is None:
        return None
    columns = read_records(batches, rule, from_offset=record.offset)
    if not len(columns) or columns.offsets[0] != record.offset:
        return None
    return OldestRecord(record.offset, record.slot, columns.key(0), columns.timestamps[0])
