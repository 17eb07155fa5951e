"""What the parts of a consumer have in common: its state, the lock around it, and who to wake.

The state is changed by the event loop (fetches, heartbeats, commits) and by whoever processes
records, which may be other threads. `lock` is held around every use of the workload, never across
an `await`. Whoever changes something that others wait for says so by one of the `notify` methods,
from any thread.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from anabranch.client.cluster import Cluster
from anabranch.client.errors import ConsumerError
from anabranch.client.range_work import RangeState, RangeWork
from anabranch.client.records import ConsumerRecord
from anabranch.client.settings import ConsumerSettings
from anabranch.client.timing import Lease
from anabranch.client.work_queues import BatchQueue
from anabranch.client.workload import Workload

log = logging.getLogger("anabranch.client")

# An event loop cannot wait for years.
_ALARM_MAX_S = 3600.0


class Core:
    """The state of one consumer."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.clock = settings.clock
        self.cluster = Cluster(settings)
        limit_ms = settings.session_timeout_ms
        lease = Lease(limit_ms / 1000 if limit_ms is not None else float("inf"))
        self.workload = Workload(BatchQueue(), lease)
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self.stable_offsets: dict[tuple[bytes, int], int] = {}
        # Set by whoever hands out records; called with the lock not held, in the loop's thread.
        self.on_ready: Callable[[], None] = lambda: None
        # Set by the parts that do it.
        self.on_hungry: Callable[[], None] = lambda: None
        self.on_drained: Callable[[], None] = lambda: None
        self.on_ranges_full: Callable[[], None] = lambda: None
        self.on_held_full: Callable[[], None] = lambda: None
        self.on_failed: Callable[[BaseException], None] = lambda error: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._acks_since_commit = 0

    def attach(self) -> None:
        """Use the running event loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def detach(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def fail(self, error: BaseException) -> None:
        """The consumer cannot go on; whoever uses it next gets the error."""
        if self.error is None:
            self.error = error
            log.error("the consumer stops: %s", error)
            self.on_failed(error)
            self.on_ready()

    def check(self) -> None:
        """Raise what made the consumer stop."""
        if self.error is not None:
            raise self.error

    # From any thread ------------------------------------------------------------------------------

    def in_loop(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call something in the loop's thread: at once, if this is it."""
        if self._loop is None:
            return
        if threading.get_ident() == self._loop_thread:
            callback(*args)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    def take(self) -> ConsumerRecord | None:
        """The next record that may be started now."""
        with self.lock:
            record = self.workload.take(self.clock())
            is_hungry = self.workload.is_hungry
            self.workload.is_hungry = False
        if is_hungry:
            self.in_loop(self.on_hungry)
        if self.workload.has_diverted:
            self._tell_diverted()
        return record

    def take_many(self, limit: int) -> list[ConsumerRecord]:
        """The next records that may be started now."""
        records: list[ConsumerRecord] = []
        with self.lock:
            now = self.clock()
            while len(records) < limit and (record := self.workload.take(now)) is not None:
                records.append(record)
            is_hungry = self.workload.is_hungry
            self.workload.is_hungry = False
        if is_hungry:
            self.in_loop(self.on_hungry)
        if self.workload.has_diverted:
            self._tell_diverted()
        return records

    def give_up(self, record: ConsumerRecord) -> None:
        """A record was started and will not be processed here."""
        with self.lock:
            self.workload.give_up(record)
        self.note_finished(record._work)

    def done(self, record: ConsumerRecord, busy_s: float = 0.0) -> bool:
        """A record was processed."""
        with self.lock:
            before = len(self.workload.queue.empty)
            is_ours = self.workload.done(record, busy_s)
            has_empty = len(self.workload.queue.empty) > before
        if has_empty:
            self.in_loop(self.on_hungry)
        self.note_finished(record._work)
        return is_ours

    def done_and_take(self, record: ConsumerRecord, busy_s: float) -> ConsumerRecord | None:
        """A record was processed; the next one that may be started now."""
        workload = self.workload
        with self.lock:
            empty = len(workload.queue.empty)
            workload.done(record, busy_s)
            following = workload.take(self.clock())
            is_hungry = workload.is_hungry or len(workload.queue.empty) > empty
            workload.is_hungry = False
        if is_hungry:
            self.in_loop(self.on_hungry)
        if workload.has_diverted:
            self._tell_diverted()
        self.note_finished(record._work)
        return following

    def _tell_diverted(self) -> None:
        """Records went by that are not to be processed: the broker has to hear of them."""
        self.workload.has_diverted = False
        self.in_loop(self.on_ranges_full)

    def failed(
        self,
        record: ConsumerRecord,
        retry_after_s: float,
        reason: str,
        busy_s: float = 0.0,
    ) -> bool:
        """A record could not be processed."""
        with self.lock:
            is_ours = self.workload.failed(
                record,
                retry_after_s=retry_after_s,
                reason=reason,
                now=self.clock(),
                busy_s=busy_s,
            )
        if is_ours:
            self.in_loop(self._failed_in_loop)
        self.note_finished(record._work)
        return is_ours

    def note_finished(self, work: RangeWork) -> None:
        """A record of the range is not in flight any more."""
        if work.is_drained:
            self.in_loop(self.on_drained)
        if self.workload.is_transactional and (
            self.workload.is_paused or work.state is RangeState.DRAINING
        ):
            self.in_loop(self.on_held_full)
        self._acks_since_commit += 1
        if self._acks_since_commit >= self.settings.max_num_ranges_to_commit:
            self._acks_since_commit = 0
            self.in_loop(self.on_ranges_full)

    def note_committed(self) -> None:
        self._acks_since_commit = 0

    # In the loop's thread -------------------------------------------------------------------------

    def _failed_in_loop(self) -> None:
        self.on_ranges_full()  # so that the broker counts the attempt before anything else happens
        self.set_alarm()

    def set_alarm(self) -> None:
        """Wake what rests when its time has come."""
        if self._loop is None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        with self.lock:
            at = self.workload.queue.next_wake
        if at is not None:
            delay_s = min(max(at - self.clock(), 0.001), _ALARM_MAX_S)
            self._alarm = self._loop.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        with self.lock:
            has_more = self.workload.wake(self.clock())
        self.set_alarm()
        if has_more:
            self.on_ready()
            self.on_hungry()


class Tasks:
    """Parts of a consumer that run by themselves; the failure of one is the consumer's."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._running: set[asyncio.Task[None]] = set()

    def spawn(
        self, name: str, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> None:
        task = asyncio.ensure_future(self._guarded(name, function, args))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """End them, and wait until they have ended."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guarded(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, None]],
        args: tuple[Any, ...],
    ) -> None:
        try:
            await function(*args)
        except ConsumerError as error:
            self._core.fail(error)
        except Exception as error:
            log.exception("%s ended unexpectedly", name)
            self._core.fail(error)
