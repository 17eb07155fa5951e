"""What the broker does by the clock: flush, checkpoint, retention, compaction, giving memory back.

Each chore is a task of its own: it waits for its period, which is read afresh so that altered
settings count, then goes over all logs in small steps and hands what is slow to a thread. A log
that fails, or is deleted meanwhile, does not keep a chore from the others; a chore that fails is
logged and tried again at its next time.

Flushing: records reach the disk when the operating system writes them, unless `flush.ms` and
`log.flush.scheduler.interval.ms` say otherwise. A segment that was closed is synced soon in any
case, as Kafka does, so that recovery after a crash reads the last segment only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from anabranch.broker.broker import Broker
from anabranch.broker.file_removals import FileRemovals
from anabranch.broker.log_cleaner import LogCleaner
from anabranch.log.partition_log import PartitionLog
from anabranch.log.retention import deletable_segments, remove_segments
from anabranch.observe import logs

# Kafka's default of producer.id.expiration.check.interval.ms.
_PRODUCER_EXPIRY_PERIOD_MS = 600_000
_IDLE_PERIOD_MS = 30_000
_SLOT_INDEX_PERIOD_MS = 10_000
_SEALED_FLUSH_PERIOD_MS = 5_000
_FILE_REMOVAL_PERIOD_MS = 1_000

# A wait is cut into pieces of this length, after each of which the period is read again.
_LOOK_AGAIN_MS = 1_000
# Some periods may be set to 0, which shall not mean a loop that never rests.
_SHORTEST_PERIOD_MS = 10
# A chore lets others have the loop after so many logs.
_LOGS_PER_STEP = 50
# Each sync in flight holds an open file.
_FLUSHES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Chore:
    """Something done again and again."""

    name: str
    period_ms: Callable[[], int]
    run: Callable[[], Awaitable[object]]


def wait_ms(period_ms: int, since_last_ms: float) -> float:
    """How long to wait now before looking at the period again; 0 when the chore is due."""
    left_ms = max(period_ms, _SHORTEST_PERIOD_MS) - since_last_ms
    return min(max(left_ms, 0), _LOOK_AGAIN_MS)


def is_flush_due(log: PartitionLog, now_ms: int) -> bool:
    """Whether records wait for the disk longer than the topic's `flush.ms`."""
    return log.unflushed_messages > 0 and now_ms - log.last_flush_ms >= log.config.flush_ms


def has_unsynced_segment(log: PartitionLog) -> bool:
    """Whether a segment was closed that is not known to be on disk."""
    return log.recovery_point < log.segments[-1].base_offset


class Housekeeping:
    """The chores of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []
        self.removals = FileRemovals(broker.background)
        self.cleaner = LogCleaner(broker, self.removals)

    # Time -----------------------------------------------------------------------------------

    def chores(self) -> list[Chore]:
        return [
            Chore("retention", self._setting("log.retention.check.interval.ms"), self.retain),
            Chore("flush", self._setting("log.flush.scheduler.interval.ms"), self.flush),
            Chore("flush sealed", lambda: _SEALED_FLUSH_PERIOD_MS, self.flush_sealed),
            Chore(
                "checkpoint",
                self._setting("log.flush.offset.checkpoint.interval.ms"),
                self.checkpoint,
            ),
            Chore("compaction", self._setting("log.cleaner.backoff.ms"), self.compact),
            Chore("producer expiry", lambda: _PRODUCER_EXPIRY_PERIOD_MS, self.expire_producers),
            Chore(
                "offset expiry",
                self._setting("offsets.retention.check.interval.ms"),
                self._broker.groups.expire_offsets,
            ),
            Chore(
                "transactional id expiry",
                self._setting("transaction.remove.expired.transaction.cleanup.interval.ms"),
                self._broker.transactions.expire_ids,
            ),
            Chore("slot indexes", lambda: _SLOT_INDEX_PERIOD_MS, self.tidy_slot_indexes),
            Chore("idle files", lambda: _IDLE_PERIOD_MS, self.release_idle),
            Chore("file removal", lambda: _FILE_REMOVAL_PERIOD_MS, self.remove_files),
        ]

    def _setting(self, name: str) -> Callable[[], int]:
        return lambda: self._broker.get_int(name)

    def start(self) -> None:
        for chore in self.chores():
            self._tasks.append(asyncio.create_task(self._repeat(chore)))

    async def stop(self) -> None:
        """End all chores; a compaction under way is given up and leaves nothing behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cleaner.close()

    async def _repeat(self, chore: Chore) -> None:
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            rest_ms = wait_ms(chore.period_ms(), (loop.time() - last_s) * 1000)
            if rest_ms > 0:
                await asyncio.sleep(rest_ms / 1000)
                continue
            try:
                await chore.run()
            except Exception as error:
                logs.error("housekeeping.failed", chore=chore.name, reason=repr(error))
            last_s = loop.time()

    async def _each_log(self, chore: str, act: Callable[[PartitionLog], None]) -> None:
        """Act on every log that is open when its turn comes."""
        for number, log in enumerate(list(self._broker.engine.logs.values())):
            if number % _LOGS_PER_STEP == _LOGS_PER_STEP - 1:
                await asyncio.sleep(0)
            if log.is_closed:
                continue
            try:
                act(log)
            except Exception as error:  # a damaged log must not keep the others from their turn
                logs.error(f"{chore}.failed", log=log.folder.name, reason=str(error) or repr(error))

    # Removing -------------------------------------------------------------------------------

    async def retain(self) -> None:
        """Close segments that are too old to grow, and drop those that retention lets go."""
        await self._each_log("log.retention", self._retain_log)

    def _retain_log(self, log: PartitionLog) -> None:
        if log is self.cleaner.busy_with or log.failed is not None:
            return
        now_ms = self._broker.now_ms()
        log.maybe_roll(now_ms)
        segments = deletable_segments(log, now_ms)
        if not segments:
            return
        size_bytes = sum(segment.size_bytes for segment in segments)
        removal = remove_segments(log, segments, now_ms)
        self.removals.add(removal, now_ms + log.config.file_delete_delay_ms)
        logs.info(
            "log.retention.dropped",
            log=log.folder.name,
            segments=len(segments),
            size_bytes=size_bytes,
            log_start_offset=log.log_start_offset,
        )

    async def remove_files(self) -> None:
        """Unlink what retention and compaction dropped `file.delete.delay.ms` ago."""
        self.removals.run_due(self._broker.now_ms())

    async def compact(self) -> None:
        """Compact what is dirty enough, unless compaction is switched off."""
        if self._broker.get_bool("log.cleaner.enable"):
            await self.cleaner.clean()

    # Flushing -------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Sync the logs whose `flush.ms` has passed."""
        now_ms = self._broker.now_ms()
        await self._flush_all(lambda log: is_flush_due(log, now_ms))

    async def flush_sealed(self) -> None:
        """Sync the logs that closed a segment since they were last synced."""
        await self._flush_all(has_unsynced_segment)

    async def _flush_all(self, is_due: Callable[[PartitionLog], bool]) -> None:
        due: list[PartitionLog] = []

        def note(log: PartitionLog) -> None:
            if log.failed is None and is_due(log):
                due.append(log)

        await self._each_log("log.flush", note)
        for first in range(0, len(due), _FLUSHES_AT_ONCE):
            await self._flush_together(due[first : first + _FLUSHES_AT_ONCE])

    async def _flush_together(self, due: Iterable[PartitionLog]) -> None:
        loop = asyncio.get_running_loop()
        synced: list[asyncio.Future[bool]] = []
        for log in due:
            future: asyncio.Future[bool] = loop.create_future()
            self._broker.flusher.sync(log, future.set_result)
            synced.append(future)
        await asyncio.gather(*synced)

    async def checkpoint(self) -> None:
        """Note how far each log is on disk and where it starts; the files are the thread's."""
        loop = asyncio.get_running_loop()
        engine = self._broker.engine
        for directory in engine.directories:
            mine = {
                key: log
                for key, log in engine.logs.items()
                if engine.directory_of(log) is directory
            }
            await loop.run_in_executor(
                self._broker.background,
                directory.write_checkpoints,
                {key: log.recovery_point for key, log in mine.items()},
                {key: log.log_start_offset for key, log in mine.items()},
            )

    # Forgetting -----------------------------------------------------------------------------

    async def expire_producers(self) -> None:
        """Forget idempotent producers that were silent for `producer.id.expiration.ms`."""
        now_ms = self._broker.now_ms()

        def expire(log: PartitionLog) -> None:
            log.expire_producers(now_ms)

        await self._each_log("log.producers.expire", expire)

    async def tidy_slot_indexes(self) -> None:
        """Write slot indexes of complete segments and keep them within their memory."""
        await self._broker.slot_indexing.tidy(list(self._broker.engine.logs.values()))

    async def release_idle(self) -> None:
        """Close files that nobody reads and give mapped memory back."""

        def release(log: PartitionLog) -> None:
            log.close_idle()
            log.release_memory()

        await self._each_log("log.release", release)
