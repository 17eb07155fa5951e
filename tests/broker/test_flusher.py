"""Group commit: who waits for the same log shares a sync, and all hear when it fails."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.flusher import Flusher
from anabranch.log.flush import FlushJob
from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import Record, build_batch

NOW_MS = 1_700_000_000_000


class Disk:
    """Syncs that wait until the test lets them go on, and fail if it says so."""

    def __init__(self) -> None:
        self.syncs = 0
        self.error: OSError | None = None
        self._may_go_on = threading.Semaphore(0)
        self._run = FlushJob.run

    def let_go(self, syncs: int = 1) -> None:
        for _ in range(syncs):
            self._may_go_on.release()

    def run(self, job: FlushJob) -> None:
        assert self._may_go_on.acquire(timeout=60)
        self.syncs += 1
        if self.error is not None:
            os.close(job.fd)
            raise self.error
        self._run(job)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()

    def run(job: FlushJob) -> None:
        disk.run(job)

    monkeypatch.setattr(FlushJob, "run", run)
    return disk


@pytest.fixture
def make_log(tmp_path: Path) -> Iterator[Callable[[str], PartitionLog]]:
    made: list[PartitionLog] = []

    def make(name: str) -> PartitionLog:
        log = PartitionLog.open(
            tmp_path / f"{name}-0",
            topic=name,
            partition=0,
            topic_id=bytes(15) + b"\x07",
            config=LogConfig(),
            leader_epoch=0,
            clean=True,
            recovery_point=0,
            log_start_offset=0,
            now_ms=NOW_MS,
        )
        made.append(log)
        return log

    yield make
    for log in made:
        log._close_files()


def _append(log: PartitionLog) -> None:
    batch = bytearray(build_batch([Record(0, NOW_MS, None, b"value")], base_offset=0))
    log.append(memoryview(batch), now_ms=NOW_MS)


class Waiters:
    """Producers that wait; each is told whether its bytes are safe."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self.told: list[bool] = []
        self._changed = asyncio.Event()

    def wait_for(self, log: PartitionLog) -> None:
        self._flusher.sync(log, self._tell)

    def _tell(self, is_safe: bool) -> None:
        self.told.append(is_safe)
        self._changed.set()

    async def until(self, count: int) -> None:
        while len(self.told) < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 10)


def _run(work: Callable[[Flusher], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        flusher = Flusher(lambda: NOW_MS)
        try:
            await work(flusher)
        finally:
            flusher.close()

    asyncio.run(main())


def test_waiters_share_a_sync(disk: Disk, make_log: Callable[[str], PartitionLog]) -> None:
    """Everybody who comes while a sync runs shares the next one: 101 appends, two syncs."""
    log = make_log("shared")

    async def work(flusher: Flusher) -> None:
        waiters = Waiters(flusher)
        _append(log)
        waiters.wait_for(log)
        for _ in range(100):
            _append(log)
            waiters.wait_for(log)
        assert waiters.told == []
        disk.let_go()
        await waiters.until(1)
        assert waiters.told == [True]
        assert log.recovery_point == 1
        disk.let_go()
        await waiters.until(101)
        assert all(waiters.told)
        assert log.recovery_point == 101
        assert disk.syncs == 2

    _run(work)


def test_logs_do_not_wait_for_each_other(
    disk: Disk, make_log: Callable[[str], PartitionLog]
) -> None:
    """A slow sync of one log does not hold up another one's."""
    slow, quick = make_log("slow"), make_log("quick")

    async def work(flusher: Flusher) -> None:
        both = Waiters(flusher)
        for log in (slow, quick):
            _append(log)
            both.wait_for(log)
        disk.let_go(2)
        await both.until(2)
        assert disk.syncs == 2

    _run(work)


def test_nothing_to_sync(disk: Disk, make_log: Callable[[str], PartitionLog]) -> None:
    """What is on disk already is safe, without a sync."""
    log = make_log("synced")

    async def work(flusher: Flusher) -> None:
        waiters = Waiters(flusher)
        waiters.wait_for(log)
        assert waiters.told == [True]
        assert disk.syncs == 0

    _run(work)


def test_failed_sync(disk: Disk, make_log: Callable[[str], PartitionLog]) -> None:
    """A failed sync is told to all who waited, and the log takes nothing more."""
    log = make_log("failing")
    disk.error = OSError(errno.EIO, "Input/output error")

    async def work(flusher: Flusher) -> None:
        waiters = Waiters(flusher)
        for _ in range(3):
            _append(log)
            waiters.wait_for(log)
        disk.let_go()
        await waiters.until(3)
        assert waiters.told == [False, False, False]
        assert disk.syncs == 1
        assert log.failed is not None
        assert log.recovery_point == 0
        with pytest.raises(KafkaError) as refused:
            _append(log)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        waiters.wait_for(log)
        assert waiters.told[3:] == [False]

    _run(work)


def test_sync_that_cannot_begin(
    disk: Disk, make_log: Callable[[str], PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file descriptor for the sync, nobody is told that bytes are safe."""
    log = make_log("no-files")

    def refuse(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def work(flusher: Flusher) -> None:
        waiters = Waiters(flusher)
        _append(log)
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", refuse)
            waiters.wait_for(log)
        assert waiters.told == [False]
        disk.let_go()
        waiters.wait_for(log)
        await waiters.until(2)
        assert waiters.told == [False, True]

    _run(work)


def test_waiter_that_raises(disk: Disk, make_log: Callable[[str], PartitionLog]) -> None:
    """A waiter that breaks does not keep the others from their answer, nor the next sync."""
    log = make_log("raising")

    def fail(is_safe: bool) -> None:
        raise ValueError("a bug")

    async def work(flusher: Flusher) -> None:
        waiters = Waiters(flusher)
        _append(log)
        flusher.sync(log, fail)
        waiters.wait_for(log)
        disk.let_go(3)
        await waiters.until(1)
        _append(log)
        waiters.wait_for(log)
        await waiters.until(2)
        assert waiters.told == [True, True]

    _run(work)
