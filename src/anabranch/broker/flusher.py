"""Group commit: one fdatasync for everybody who waits for the same log.

A produce that must be on disk before it is answered waits here. While a sync of its log runs, the
appends that arrive meanwhile gather and share the next one, so a slow disk makes larger groups
instead of a longer queue. Syncs run in threads; the loop is told when one ended and never polls.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from anabranch.log.flush import FlushJob
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import KafkaError
from anabranch.observe import logs
from anabranch.observe.metrics import Histogram

# A waiter is told whether its bytes are safe.
Waiter = Callable[[bool], None]


class Flusher:
    """Runs the syncs of all logs."""

    def __init__(self, now_ms: Callable[[], int], threads: int = 4) -> None:
        self._now_ms = now_ms
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="flush")
        self._waiting: dict[PartitionLog, list[Waiter]] = {}
        self._running: dict[PartitionLog, list[Waiter]] = {}
        self.durations = Histogram(Histogram.FINE_BOUNDS_S)

    def sync(self, log: PartitionLog, waiter: Waiter) -> None:
        """Call `waiter` when everything appended to `log` so far is on disk."""
        self._waiting.setdefault(log, []).append(waiter)
        if log not in self._running:
            self._begin(log)

    def _begin(self, log: PartitionLog) -> None:
        waiters = self._waiting.pop(log)
        try:
            job = log.begin_flush(self._now_ms())
        except KafkaError as error:
            logs.error("log.flush.failed", log=log.folder.name, reason=error.message)
            job = None
        if job is None:
            _tell(waiters, log.failed is None and log.unflushed_messages <= 0)
            return
        self._running[log] = waiters
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, job.run)
        began_s = time.monotonic()
        future.add_done_callback(lambda done: self._end(log, job, began_s, done))

    def _end(
        self, log: PartitionLog, job: FlushJob, began_s: float, done: "asyncio.Future[None]"
    ) -> None:
        self.durations.observe(time.monotonic() - began_s)
        error = done.exception()
        log.end_flush(job, error)
        if error is not None:
            logs.error("log.flush.failed", log=log.folder.name, reason=str(error))
        _tell(self._running.pop(log), error is None)
        if log in self._waiting:
            self._begin(log)

    def close(self) -> None:
        self._executor.shutdown(wait=True)


def _tell(waiters: list[Waiter], is_safe: bool) -> None:
    """Tell everybody, even if one of them breaks."""
    for waiter in waiters:
        try:
            waiter(is_safe)
        except Exception as error:
            logs.error("log.flush.waiter.failed", error=repr(error))
