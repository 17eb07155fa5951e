"""Compacts one log after the other, the dirtiest first.

The log package knows how a round works (`anabranch.log.compaction`); this is who runs it: plans
and swaps on the event loop, reading and writing in a thread of its own, so that neither the loop
nor the removal of files waits for it. A log that cannot be compacted, because its files are
damaged, is left alone until the next start instead of being tried every few seconds.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from anabranch.broker.broker import Broker
from anabranch.broker.file_removals import FileRemovals
from anabranch.log.compaction import (
    CompactionPlan,
    CompactionRound,
    plan_compaction,
    swap_cleaned,
)
from anabranch.log.partition_log import PartitionLog
from anabranch.observe import logs

T = TypeVar("T")

# The thread rests this long after every two milliseconds of work, which is when the event loop
# gets the interpreter. A sleep of zero would hand it back to the thread most of the time.
_REST_S = 0.001
# Planning lets others have the loop after so many logs.
_PLANS_PER_STEP = 20


class _StoppedError(Exception):
    """The broker stops, so the round ends where it is; its files go at the next start."""


def dirtiest_first(plans: Iterable[tuple[PartitionLog, CompactionPlan]]) -> list[PartitionLog]:
    """The logs whose compaction is due, those with the largest share of dirty bytes first."""
    due = [(plan.dirty_ratio, log) for log, plan in plans if plan.is_due]
    return [log for _, log in sorted(due, key=lambda pair: -pair[0])]


class LogCleaner:
    """The compaction of one broker's logs."""

    def __init__(self, broker: Broker, removals: FileRemovals) -> None:
        self._broker = broker
        self._removals = removals
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-cleaner")
        self._is_stopping = False
        self._uncleanable: set[PartitionLog] = set()
        # The log that is being compacted; its segments must stay until the round is over.
        self.busy_with: PartitionLog | None = None

    def close(self) -> None:
        """Give a running round up and wait for its thread, which is a matter of milliseconds."""
        self._is_stopping = True
        self._thread.shutdown(wait=True)

    async def clean(self) -> int:
        """Compact logs until none is due; returns how many rounds were run."""
        rounds = 0
        void: set[PartitionLog] = set()
        while not self._is_stopping:
            due = dirtiest_first(await self._plans(void))
            if not due:
                break
            for log in due:
                if not await self._clean_log(log):
                    # Its segments changed under the round; next time is early enough.
                    void.add(log)
                rounds += 1
        return rounds

    async def _plans(self, without: set[PartitionLog]) -> list[tuple[PartitionLog, CompactionPlan]]:
        every = list(self._broker.engine.logs.values())
        self._uncleanable.intersection_update(every)
        plans = []
        for number, log in enumerate(every):
            if number % _PLANS_PER_STEP == _PLANS_PER_STEP - 1:
                await asyncio.sleep(0)
            if log.config.is_compacted and log not in without and log not in self._uncleanable:
                plan = self._plan(log)
                if plan is not None:
                    plans.append((log, plan))
        return plans

    def _plan(self, log: PartitionLog) -> CompactionPlan | None:
        if log.is_closed or log.failed is not None:
            return None
        try:
            checkpoint = self._broker.cleaner_offsets.get(log)
            return plan_compaction(log, checkpoint, self._broker.now_ms())
        except Exception as error:  # one damaged log must not keep the others from it
            self._give_up(log, error)
            return None

    async def _clean_log(self, log: PartitionLog) -> bool:
        """Run a round on one log; False when it came to nothing."""
        plan = self._plan(log)
        if plan is None or self._is_stopping:
            return False
        self.busy_with = log
        began_s = time.monotonic()
        try:
            cleaned_bytes = await self._run_round(log, plan)
        except _StoppedError:
            return False
        except Exception as error:
            # A topic that is deleted takes the files away under the round: nobody's fault.
            if not log.is_closed:
                self._give_up(log, error)
            return False
        finally:
            self.busy_with = None
        if cleaned_bytes is None:
            return False
        logs.info(
            "log.compacted",
            log=log.folder.name,
            before_bytes=plan.clean_bytes + plan.dirty_bytes,
            after_bytes=cleaned_bytes,
            duration_ms=round((time.monotonic() - began_s) * 1000),
        )
        return True

    async def _run_round(self, log: PartitionLog, plan: CompactionPlan) -> int | None:
        """The bytes that are left of what was compacted, or None when the round is void."""
        cleaning = CompactionRound(plan, pause=self._pause)
        await self._in_thread(cleaning.build_map)
        cleaned_bytes = 0
        while (cleaned := await self._in_thread(cleaning.clean_next)) is not None:
            removal = swap_cleaned(log, cleaned)
            if removal is None:
                return None
            self._removals.add(removal, self._broker.now_ms() + log.config.file_delete_delay_ms)
            cleaned_bytes += cleaned.segment.size_bytes
        if log.is_closed:
            return None
        self._broker.cleaner_offsets.set(log, cleaning.end_offset)
        return cleaned_bytes

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _pause(self) -> None:
        """Called by the thread every two milliseconds."""
        if self._is_stopping:
            raise _StoppedError
        time.sleep(_REST_S)

    def _give_up(self, log: PartitionLog, error: Exception) -> None:
        self._uncleanable.add(log)
        logs.error("log.compaction.failed", log=log.folder.name, reason=str(error) or repr(error))
