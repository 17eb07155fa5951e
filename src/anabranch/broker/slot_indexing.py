"""Keeping the slot indexes of branched topics: built when asked to, written, and let go of.

Filtered reads and scans build what they need. What is left is here: topics whose records are
indexed as they arrive (`branch.index.build=append`), files for segments that are complete, and the
limit of memory, which the indexes share with the cache of sorted records.
"""

import asyncio
from collections.abc import Iterable

from anabranch.broker.branch_reader import BranchReader
from anabranch.broker.partition import Partition
from anabranch.log.partition_log import PartitionLog
from anabranch.log.slot_index import slot_indexes_of
from anabranch.log.slot_index_steps import BuildStep, LoadStep
from anabranch.model.errors import KafkaError
from anabranch.observe import logs

# Indexing so much takes about as long as handing it to a thread.
_INLINE_BYTES = 64 * 1024
# The part of `branch.cache.max.bytes` that indexes may fill before those on disk are let go of.
_SHARE = 0.5


class SlotIndexing:
    """Looks after the indexes of all logs; lives on the event loop."""

    def __init__(self, branches: BranchReader) -> None:
        self._branches = branches
        self._busy: set[PartitionLog] = set()

    def appended(self, partition: Partition) -> None:
        """Index what arrived at a partition, off the loop unless it is little."""
        log = partition.log
        if log in self._busy:
            return
        try:
            step = self._next_step(partition)
            while isinstance(step, BuildStep) and step.size_bytes <= _INLINE_BYTES:
                step.run()
                slot_indexes_of(log).add(step)
                step = self._next_step(partition)
        except KafkaError as error:
            logs.warning("branch.index.failed", log=log.folder.name, reason=error.message)
            return
        if step is not None:
            self._busy.add(log)
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._branches.executor, step.run)
            future.add_done_callback(lambda done: self._worked(partition, step, done))

    @staticmethod
    def _next_step(partition: Partition) -> BuildStep | LoadStep | None:
        """What is missing of the active segment, and of the one before it if that just ended."""
        log = partition.log
        if log.is_closed:
            return None
        first = log.segments[-2:][0].base_offset
        return slot_indexes_of(log).missing(partition.slot_rule, first, log.log_end_offset)

    def _worked(
        self, partition: Partition, step: BuildStep | LoadStep, done: "asyncio.Future[None]"
    ) -> None:
        log = partition.log
        self._busy.discard(log)
        if done.cancelled():
            return  # the broker stops
        error = done.exception()
        if error is not None:
            logs.warning("branch.index.failed", log=log.folder.name, reason=repr(error))
        elif not log.is_closed:
            slot_indexes_of(log).add(step)
            self.appended(partition)

    async def tidy(self, every_log: Iterable[PartitionLog]) -> None:
        """Write the indexes of segments that are complete, and keep the limit of memory."""
        loop = asyncio.get_running_loop()
        indexed = [log for log in every_log if log.slot_indexes is not None]
        for log in indexed:
            while not log.is_closed:
                step = slot_indexes_of(log).next_write()
                if step is None:
                    break
                await loop.run_in_executor(self._branches.executor, step.run)
                slot_indexes_of(log).add(step)
        cache = self._branches.cache
        for log in indexed:
            if self._size_bytes(indexed) <= cache.max_bytes * _SHARE:
                break
            slot_indexes_of(log).release()
        cache.set_others_bytes(self._size_bytes(indexed))

    @staticmethod
    def _size_bytes(indexed: Iterable[PartitionLog]) -> int:
        return sum(log.slot_indexes.size_bytes for log in indexed if log.slot_indexes is not None)
