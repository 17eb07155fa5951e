"""Counting over the slot indexes of logs, without holding up the loop.

A scan goes through a log segment by segment: what is not indexed yet is indexed by a thread, step
by step; then the segment is counted, in the thread too unless that takes less time than to hand it
over. Scans of one log take turns, so that what the first one had built serves the others.

An index is two bytes for each record. What a long scan gathered is written beside the segments and
let go of before it gets out of hand.
"""

import asyncio
import functools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from anabranch.broker.deferred import Deferred
from anabranch.broker.partition import Partition
from anabranch.log.partition_log import PartitionLog
from anabranch.log.slot_index import SlotIndexes, slot_indexes_of
from anabranch.log.slot_index_steps import BuildStep

# So much of an index is counted, and so much of a log is indexed, in about 0.1 ms.
_INLINE_BYTES = 128 * 1024
_INLINE_STEP_BYTES = 16 * 1024
_KEPT_BYTES = 32 * 1024 * 1024
_base_offset = attrgetter("base_offset")

# What a thread is to do, and what is done with that on the loop.
_Job = tuple[Callable[[], object], Callable[[], object]]


class Tally(Protocol):
    """Whoever counts: takes the blocks of what follows in the log, below its end."""

    @property
    def end_offset(self) -> int: ...

    def add(self, blocks: Iterable[memoryview], /) -> None: ...


SomeTally = TypeVar("SomeTally", bound=Tally)


class _Scan:
    """One way through a log."""

    __slots__ = ("done", "is_between_segments", "partition", "position", "tally")

    def __init__(self, partition: Partition, from_offset: int, tally: Tally) -> None:
        self.partition = partition
        self.position = from_offset
        self.tally = tally
        self.is_between_segments = False
        self.done: Deferred[Any] = Deferred()


class SlotScans:
    """The scans of all logs; lives on the event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        # Whose turn it is on each log that is scanned now, and who waits.
        self._queues: dict[PartitionLog, deque[_Scan]] = {}

    def scan(self, partition: Partition, from_offset: int, tally: SomeTally) -> Deferred[SomeTally]:
        """Count the records of a source's partition from an offset on, up to the tally's end.

        It fails with a KafkaError when the log cannot be read any more.
        """
        scan = _Scan(partition, from_offset, tally)
        queue = self._queues.get(partition.log)
        if queue is not None:
            queue.append(scan)
        else:
            self._queues[partition.log] = deque([scan])
            self._go_on(partition.log)
        return scan.done

    def _go_on(self, log: PartitionLog) -> None:
        """Take the scans of a log as far as they come without a thread."""
        queue = self._queues[log]
        while queue:
            scan = queue[0]
            try:
                # Nobody may be waiting any more: the connection is closed.
                job = None if scan.done.is_done else _next_job(scan)
                if job is not None:
                    self._hand_over(log, job)
                    return
            except Exception as error:
                queue.popleft()
                scan.done.fail(error)
            else:
                queue.popleft()
                scan.done.complete(scan.tally)
        del self._queues[log]

    def _hand_over(self, log: PartitionLog, job: _Job) -> None:
        work, then = job
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        future.add_done_callback(functools.partial(self._worked, log, then))

    def _worked(
        self, log: PartitionLog, then: Callable[[], object], future: "asyncio.Future[object]"
    ) -> None:
        if future.cancelled():
            del self._queues[log]  # the broker stops
            return
        try:
            future.result()
            then()
        except Exception as error:
            self._queues[log].popleft().done.fail(error)
        self._go_on(log)


def _next_job(scan: _Scan) -> _Job | None:
    """Go on with a scan; what it needs a thread for, or None when it is done."""
    log, tally = scan.partition.log, scan.tally
    indexes = slot_indexes_of(log)
    rule = scan.partition.slot_rule
    while True:
        if scan.is_between_segments:
            relief = _relief(indexes)
            if relief is not None:
                return relief
            scan.is_between_segments = False
        if scan.position >= tally.end_offset:
            return None
        edge = _edge_after(log, scan.position, tally.end_offset)
        step = indexes.missing(rule, scan.position, edge)
        if step is None:
            blocks = indexes.blocks(rule, scan.position, edge)
            scan.position = edge
            scan.is_between_segments = True
            if sum(map(len, blocks)) > _INLINE_BYTES:
                return functools.partial(tally.add, blocks), _nothing
            tally.add(blocks)
        elif isinstance(step, BuildStep) and step.size_bytes <= _INLINE_STEP_BYTES:
            step.run()
            indexes.add(step)
        else:
            return step.run, functools.partial(indexes.add, step)


def _nothing() -> None:
    pass


def _edge_after(log: PartitionLog, offset: int, end_offset: int) -> int:
    """Where the next segment begins, or the end."""
    segments = log.segments
    following = bisect_right(segments, offset, key=_base_offset)
    if following == len(segments):
        return end_offset
    return min(segments[following].base_offset, end_offset)


def _relief(indexes: SlotIndexes) -> _Job | None:
    """Something to write, so that memory can be let go of; None when there is no need any more."""
    if indexes.size_bytes <= _KEPT_BYTES:
        return None
    step = indexes.next_write(with_unfinished=True)
    if step is not None:
        return step.run, functools.partial(indexes.add, step)
    indexes.release()
    return None
