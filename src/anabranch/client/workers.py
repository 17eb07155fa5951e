"""Workers: many records at once in one process, each key in order.

A worker takes a record, calls the handler, says what became of it, and takes the next one. Async
handlers have workers that are tasks of the event loop; ordinary functions have threads. Both ask
the same workload, which hands out at most one record of a key at a time; a worker that is done
with a record of a key takes up the next one of it without anybody being woken.

A handler that raises is called again with the same record after a rest, and the records of its key
wait meanwhile. `RejectRecord` asks the broker for no more attempts, `RetryRecord` for a certain
rest.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from anabranch.client.core import Core, log
from anabranch.client.range_work import RangeWork
from anabranch.client.records import ConsumerRecord
from anabranch.client.timing import Backoff

AsyncHandler = Callable[[ConsumerRecord], Awaitable[Any]]
Handler = Callable[[ConsumerRecord], Any]

DEFAULT_RETRY = Backoff(first_s=1.0, max_s=60.0)
# After so many records a worker whose handler never waits lets others have their turn.
_TURN_RECORDS = 8
_REASON_CHARACTERS = 256


class RejectRecord(Exception):
    """Raised by a handler: the record cannot be processed, ever; do not try it again."""


class RetryRecord(Exception):
    """Raised by a handler: try the record again after `delay_s`."""

    def __init__(self, delay_s: float, reason: str = "") -> None:
        super().__init__(reason or f"again in {delay_s:g} s")
        self.delay_s = delay_s


class Crew(Protocol):
    """The workers of one `run`."""

    async def work(self) -> None:
        """Process records until stopped; what runs then is awaited."""

    def stop(self) -> None:
        """Start nothing more."""

    def abandon(self, works: Collection[RangeWork]) -> None:
        """Do not wait any longer for what runs of these ranges."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure comes to."""

    retry_after_s: float
    reason: str


def judge(error: BaseException, attempt: int, retry: Backoff) -> Verdict:
    """What to do with a record whose handler raised, at its `attempt`-th attempt."""
    reason = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]
    if isinstance(error, RejectRecord):
        return Verdict(-retry.max_s, reason)
    if isinstance(error, RetryRecord):
        return Verdict(max(error.delay_s, 0.0), reason)
    return Verdict(retry.delay_s(attempt), reason)


def _note(record: ConsumerRecord, error: Exception, verdict: Verdict) -> None:
    again = "not again" if verdict.retry_after_s < 0 else f"again in {verdict.retry_after_s:g} s"
    is_meant = isinstance(error, RejectRecord | RetryRecord)
    log.warning(
        "%r failed (attempt %d), %s: %s",
        record,
        record.attempt,
        again,
        verdict.reason,
        exc_info=None if is_meant else error,
    )


class _Worker:
    """A task, and the record that it works on."""

    __slots__ = ("is_abandoned", "record", "task")

    def __init__(self) -> None:
        self.record: ConsumerRecord | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_abandoned = False


class AsyncCrew:
    """Tasks of the event loop."""

    def __init__(self, core: Core, handler: AsyncHandler, concurrency: int, retry: Backoff) -> None:
        self._core = core
        self._handler = handler
        self._retry = retry
        self._workers = [_Worker() for _ in range(concurrency)]
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_stopping = False
        core.on_ready = self._wake

    async def work(self) -> None:
        tasks = [asyncio.ensure_future(self._run(worker)) for worker in self._workers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        self._is_stopping = True
        while self._idle:
            self._wake_one()

    def abandon(self, works: Collection[RangeWork]) -> None:
        for worker in self._workers:
            record = worker.record
            if record is not None and worker.task is not None and record._work in works:
                worker.is_abandoned = True
                worker.task.cancel()

    def _wake(self) -> None:
        if self._core.error is not None:
            self.stop()
            return
        for _ in range(min(len(self._core.workload.queue), len(self._idle))):
            self._wake_one()

    def _wake_one(self) -> None:
        waiter = self._idle.popleft()
        if not waiter.done():
            waiter.set_result(None)

    async def _run(self, worker: _Worker) -> None:
        worker.task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        turns = 0
        record: ConsumerRecord | None = None
        while True:
            if record is None:
                record = None if self._is_stopping else self._core.take()
            if record is None:
                if self._is_stopping:
                    return
                waiter: asyncio.Future[None] = loop.create_future()
                self._idle.append(waiter)
                await waiter
                continue
            worker.record = record
            record = await self._process(record, worker)
            worker.record = None
            turns += 1
            if turns % _TURN_RECORDS == 0:
                await asyncio.sleep(0)

    async def _process(self, record: ConsumerRecord, worker: _Worker) -> ConsumerRecord | None:
        """Call the handler; returns the next record, if one was taken at once."""
        core = self._core
        started_at = perf_counter()
        following: ConsumerRecord | None = None
        try:
            await self._handler(record)
        except asyncio.CancelledError:
            core.give_up(record)
            if not worker.is_abandoned:
                raise
        except Exception as error:
            verdict = judge(error, record.attempt, self._retry)
            _note(record, error, verdict)
            busy_s = perf_counter() - started_at
            core.failed(record, verdict.retry_after_s, verdict.reason, busy_s)
        else:
            busy_s = perf_counter() - started_at
            if self._is_stopping:
                core.done(record, busy_s)
            else:
                following = core.done_and_take(record, busy_s)
        if worker.is_abandoned and worker.task is not None:
            worker.is_abandoned = False
            worker.task.uncancel()
        return following


class ThreadCrew:
    """Threads, for handlers that block."""

    def __init__(self, core: Core, handler: Handler, concurrency: int, retry: Backoff) -> None:
        self._core = core
        self._handler = handler
        self._concurrency = concurrency
        self._retry = retry
        self._changed = threading.Condition(core.lock)
        self._idle = 0
        self._is_stopping = False
        core.on_ready = self._wake

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        left = self._concurrency

        def one_ended() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                ended.set()

        def worker() -> None:
            try:
                self._worker()
            finally:
                loop.call_soon_threadsafe(one_ended)

        for number in range(self._concurrency):
            threading.Thread(target=worker, name=f"anabranch-worker-{number}", daemon=True).start()
        try:
            await ended.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def abandon(self, works: Collection[RangeWork]) -> None:
        """Threads cannot be stopped. What they bring when their range is gone does not count, and
        until then their keys stay taken."""

    def _wake(self) -> None:
        if self._core.error is not None:
            self.stop()
            return
        with self._changed:
            if self._idle:
                self._changed.notify(len(self._core.workload.queue))

    def _worker(self) -> None:
        core = self._core
        record = self._next()
        while record is not None:
            following: ConsumerRecord | None = None
            started_at = perf_counter()
            try:
                self._handler(record)
            except Exception as error:
                verdict = judge(error, record.attempt, self._retry)
                _note(record, error, verdict)
                busy_s = perf_counter() - started_at
                core.failed(record, verdict.retry_after_s, verdict.reason, busy_s)
            else:
                busy_s = perf_counter() - started_at
                if self._is_stopping:
                    core.done(record, busy_s)
                else:
                    following = core.done_and_take(record, busy_s)
            record = following or self._next()

    def _next(self) -> ConsumerRecord | None:
        """The next record, which is waited for; None when there is to be no other."""
        core = self._core
        while not self._is_stopping:
            record = core.take()
            if record is not None:
                return record
            with self._changed:
                workload = core.workload
                may_start = not workload.is_paused and workload.lease.may_start(core.clock())
                if len(workload.queue) and may_start:
                    continue
                if not self._is_stopping:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
        return None
