"""Fetches that wait until enough bytes arrived or their time is up.

A fetch with too little to read is parked on its partitions. An append adds its size to the
partition and marks it; after the producer has its answer, `wake` tells the parked fetches of the
marked partitions. A fetch is completed by the append that brings its `min_bytes` together, by its
timer, or when one of its partitions is deleted; it then reads again from the start, so what it
returns is what is there at that moment. Nothing polls.

Fetches that wait on branches are counted what arrived for their key range: an append to the
source marks it, and `look_at_branches` finds out which of its branches got how much.

Readers of committed records may not read what they are counted before its transaction has ended:
they stay where they are until a last stable offset has moved, most often by a marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from anabranch.broker.partition import Partition


class ParkedFetch:
    """One fetch in waiting: `complete` answers it, `fail` is told when that raised.

    `complete` learns whether the fetch got what it waited for; if not, nothing more will come.
    """

    __slots__ = ("_complete", "_fail", "_missing_bytes", "_partitions", "_seen_offsets", "_timer")

    def __init__(
        self,
        partitions: list[Partition],
        missing_bytes: int,
        complete: Callable[[bool], None],
        fail: Callable[[Exception], None],
        seen_offsets: Mapping[Partition, int] | None = None,
    ) -> None:
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._complete = complete
        self._fail = fail
        # Of branches: how far the fetch has looked, unless that is the log's end.
        self._seen_offsets = seen_offsets or {}
        self._timer: asyncio.TimerHandle | None = None

    def park(self, max_wait_ms: int) -> None:
        for partition in self._partitions:
            is_first = not partition.parked_fetches
            partition.parked_fetches[self] = None
            # Appends that nobody was told of yet were read by this fetch already.
            self._missing_bytes += partition.appended_bytes
            if partition.branch is not None:
                seen_offset = self._seen_offsets.get(partition, partition.log.log_end_offset)
                partition.branch.note_parked(seen_offset, is_first=is_first)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max_wait_ms / 1000, self.finish)

    def leave(self) -> None:
        """Stop waiting without an answer, because nobody is there to receive it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._partitions:
            if partition.parked_fetches.pop(self, self) is None and partition.branch is not None:
                partition.branch.tail.parked_count -= 1

    def finish(self, *, is_satisfied: bool = False) -> None:
        """Answer now, with whatever there is."""
        self.leave()
        try:
            self._complete(is_satisfied)
        except Exception as error:
            # Whoever appended, or the timer, must not suffer for it, nor the other fetches.
            self._fail(error)

    def count(self, partition: Partition, appended_bytes: int) -> None:
        """Something arrived in one of the partitions."""
        self._missing_bytes -= appended_bytes
        if self._missing_bytes <= 0:
            self.finish(is_satisfied=True)


class ParkedCommittedFetch(ParkedFetch):
    """A fetch of committed records in waiting.

    Enough can only be there when enough was appended, and when some of it became readable. Who
    completes it reads again, and parks it again if that was too little.
    """

    __slots__ = ("_stable_offsets",)

    def park(self, max_wait_ms: int) -> None:
        super().park(max_wait_ms)
        # Below them the fetch has read what there is.
        stable_offsets = {one: one.log.last_stable_offset for one in self._partitions}
        for partition, stable_offset in stable_offsets.items():
            if stable_offset < partition.log.log_end_offset:
                # What is there already may be enough when it is decided, by a marker alone.
                self._missing_bytes = 0
        if self._seen_offsets:
            stable_offsets |= self._seen_offsets
        self._stable_offsets = stable_offsets

    def count(self, partition: Partition, appended_bytes: int) -> None:
        self._missing_bytes -= appended_bytes
        if self._missing_bytes > 0:
            return
        if partition.log.last_stable_offset > self._stable_offsets[partition]:
            self.finish(is_satisfied=True)


class Purgatory:
    """The partitions that were appended to since their parked fetches were last told."""

    def __init__(self, look_at_branches: Callable[[Partition], None] | None = None) -> None:
        self._marked: list[Partition] = []
        self._branched: dict[Partition, None] = {}
        self._look_at_branches = look_at_branches or (lambda source: None)

    def mark(self, partition: Partition, appended_bytes: int) -> None:
        """Note an append; only partitions that somebody waits on are worth more than a count."""
        partition.bytes_in += appended_bytes
        if partition.parked_fetches:
            if not partition.appended_bytes:
                self._marked.append(partition)
            partition.appended_bytes += appended_bytes
        if partition.branch_tails:
            self._branched[partition] = None

    def wake(self) -> None:
        """Tell the parked fetches of all marked partitions."""
        while self._marked or self._branched:
            marked, self._marked = self._marked, []
            branched, self._branched = self._branched, {}
            for source in branched:
                self._look_at_branches(source)
            for partition in marked:
                appended_bytes, partition.appended_bytes = partition.appended_bytes, 0
                for fetch in list(partition.parked_fetches):
                    if fetch in partition.parked_fetches:
                        fetch.count(partition, appended_bytes)

    @staticmethod
    def finish_all(partitions: Iterable[Partition]) -> None:
        """Answer everybody who waits on these partitions, because they go away."""
        for partition in partitions:
            for fetch in list(partition.parked_fetches):
                fetch.finish()
