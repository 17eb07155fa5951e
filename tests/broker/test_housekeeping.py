"""Housekeeping: what is due when, and that one log in trouble spoils no chore for the others."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker import housekeeping as housekeeping_module
from anabranch.broker.broker import Broker
from anabranch.broker.file_removals import FileRemovals
from anabranch.broker.housekeeping import (
    Chore,
    Housekeeping,
    has_unsynced_segment,
    is_flush_due,
    wait_ms,
)
from anabranch.config.load import load_settings
from anabranch.log.checkpoints import (
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
)
from anabranch.log.partition_log import PartitionLog
from anabranch.log.retention import FileRemoval
from anabranch.observe import logs
from anabranch.wire.record_batch import Record, build_batch

NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 6 * 171
HOUR_MS = 3_600_000


class Kept:
    """A broker with its housekeeping and a clock that a test moves."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.now_ms = NOW_MS
        self.folder = folder
        settings = load_settings(environ={}, overrides=[f"log.dirs={folder}", *overrides])
        self.broker = Broker(settings, now_ms=lambda: self.now_ms)
        self.housekeeping = Housekeeping(self.broker)

    def log(self, name: str, **configs: str) -> PartitionLog:
        """The only log of a new topic with small segments."""
        given = {key.replace("_", "."): value for key, value in configs.items()}
        given.setdefault("internal.segment.bytes", str(SEGMENT_BYTES))
        return self.broker.create_topic(name, 1, given).partitions[0].log

    def fill(self, log: PartitionLog, count: int, key: bytes = b"k") -> None:
        """Append batches of 171 bytes, six to a segment."""
        for _ in range(count):
            record = Record(0, self.now_ms, key, b"x" * 100)
            batch = bytearray(build_batch([record], base_offset=0))
            log.append(memoryview(batch), now_ms=self.now_ms)

    def run(self, chore: Callable[[], Coroutine[Any, Any, object]]) -> None:
        asyncio.run(self._run(chore))

    @staticmethod
    async def _run(chore: Callable[[], Coroutine[Any, Any, object]]) -> None:
        await chore()

    def finish_background(self) -> None:
        """Wait for what the background thread was given so far."""
        self.broker.background.submit(lambda: None).result()

    def close(self) -> None:
        self.housekeeping.cleaner.close()
        self.broker.close()


@pytest.fixture
def make_kept(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make(*overrides: str) -> Kept:
        made.append(Kept(tmp_path / "data", *overrides))
        return made[-1]

    yield make
    for kept in made:
        if not kept.broker.background._shutdown:
            kept.close()


@pytest.fixture
def kept(make_kept: Callable[..., Kept]) -> Kept:
    return make_kept()


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The error lines that are logged."""
    lines: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(logs, "error", lambda name, /, **fields: lines.append((name, fields)))
    return lines


def file_names(log: PartitionLog) -> list[str]:
    return sorted(name for name in os.listdir(log.folder) if ".log" in name)


# Time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("period_ms", "since_ms", "expected"),
    [
        (500, 0, 500),
        (500, 499, 1),
        (500, 500, 0),
        (500, 9_000, 0),
        (60_000, 0, 1_000),
        ((1 << 63) - 1, 1e9, 1_000),
        (0, 0, 10),
        (0, 10, 0),
    ],
)
def test_waiting_for_a_period(period_ms: int, since_ms: float, expected: float) -> None:
    """Long waits are cut so that an altered period is seen; no period is too short to rest."""
    assert wait_ms(period_ms, since_ms) == expected


def repeat(kept: Kept, chore: Chore, monkeypatch: pytest.MonkeyPatch, until_s: float) -> None:
    """Run a chore's task on a clock that jumps instead of waiting, up to a time."""

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        clock = [0.0]

        async def jump(delay_s: float) -> None:
            clock[0] += delay_s
            if clock[0] > until_s:
                raise asyncio.CancelledError

        monkeypatch.setattr(loop, "time", lambda: clock[0])
        monkeypatch.setattr(housekeeping_module.asyncio, "sleep", jump)
        with pytest.raises(asyncio.CancelledError):
            await kept.housekeeping._repeat(chore)
        monkeypatch.undo()

    asyncio.run(main())


def test_a_chore_is_repeated_and_survives_its_failures(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, errors: list[tuple[str, dict[str, Any]]]
) -> None:
    """A chore that raises is logged and comes again after its period."""
    runs = []

    async def fail() -> None:
        runs.append(1)
        raise RuntimeError("broken")

    repeat(kept, Chore("test", lambda: 2_500, fail), monkeypatch, until_s=10.1)
    assert len(runs) == 4
    assert errors[0] == (
        "housekeeping.failed",
        {"chore": "test", "reason": "RuntimeError('broken')"},
    )


def test_an_altered_period_counts_at_once(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A period that shrinks while a chore waits is noticed within a second."""
    asked = []
    runs = []

    def period_ms() -> int:
        asked.append(1)
        return 1 << 62 if len(asked) < 4 else 1_000

    async def run() -> None:
        runs.append(1)

    repeat(kept, Chore("test", period_ms, run), monkeypatch, until_s=5.5)
    assert len(runs) == 3


def test_periods_are_the_settings(make_kept: Callable[..., Kept]) -> None:
    """Each chore goes by Kafka's setting, dynamic changes included."""
    kept = make_kept("log.retention.check.interval.ms=7", "log.flush.scheduler.interval.ms=8")
    periods = {chore.name: chore.period_ms for chore in kept.housekeeping.chores()}
    assert {name: period() for name, period in periods.items()} == {
        "retention": 7,
        "flush": 8,
        "flush sealed": 5_000,
        "checkpoint": 60_000,
        "compaction": 15_000,
        "producer expiry": 600_000,
        "offset expiry": 600_000,
        "transactional id expiry": 3_600_000,
        "idle files": 30_000,
        "file removal": 1_000,
        "slot indexes": 10_000,
    }
    kept.broker.set_broker_configs("", {"log.cleaner.backoff.ms": "3"})
    assert periods["compaction"]() == 3


def test_stopping_ends_everything(kept: Kept) -> None:
    """Chores end when the broker stops, in the middle of their waiting."""

    async def main() -> None:
        kept.housekeeping.start()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1 + len(kept.housekeeping.chores())
        await kept.housekeeping.stop()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


# Retention ------------------------------------------------------------------------------------


def test_old_segments_go(kept: Kept) -> None:
    """Expired segments leave the log at once and the disk after file.delete.delay.ms."""
    log = kept.log("t", retention_ms=str(HOUR_MS), file_delete_delay_ms="5000")
    kept.fill(log, 12)
    kept.now_ms += HOUR_MS + 1
    kept.fill(log, 1)
    kept.run(kept.housekeeping.retain)
    assert (log.log_start_offset, len(log.segments)) == (12, 1)
    assert len([name for name in file_names(log) if name.endswith(".deleted")]) == 2

    kept.now_ms += 4_999
    kept.run(kept.housekeeping.remove_files)
    kept.finish_background()
    assert len(file_names(log)) == 3
    kept.now_ms += 1
    kept.run(kept.housekeeping.remove_files)
    kept.finish_background()
    assert file_names(log) == ["00000000000000000012.log"]
    assert len(kept.housekeeping.removals) == 0


def test_a_segment_that_is_too_old_is_closed(kept: Kept) -> None:
    """A log that nobody writes to rolls by time too, so that its records can go."""
    log = kept.log("t", segment_ms="60000")
    kept.fill(log, 1)
    kept.run(kept.housekeeping.retain)
    assert len(log.segments) == 1
    kept.now_ms += 60_001
    kept.run(kept.housekeeping.retain)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_logs_that_must_be_left_alone(
    kept: Kept,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[tuple[str, dict[str, Any]]],
) -> None:
    """Retention passes over logs that are closed, failed, or being compacted."""
    names = ("busy", "failed", "closed", "free")
    of = {name: kept.log(name, retention_ms="1") for name in names}
    for log in of.values():
        kept.fill(log, 1)
    kept.now_ms += HOUR_MS
    kept.housekeeping.cleaner.busy_with = of["busy"]
    monkeypatch.setattr(of["failed"], "failed", "for the test")
    monkeypatch.setattr(of["closed"], "is_closed", True)
    kept.run(kept.housekeeping.retain)
    starts = {name: log.log_start_offset for name, log in of.items()}
    assert starts == {"busy": 0, "failed": 0, "closed": 0, "free": 1}
    assert errors == []


def test_a_log_in_trouble_spoils_no_other(
    kept: Kept,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[tuple[str, dict[str, Any]]],
) -> None:
    """A log whose files cannot be renamed is reported, and the next one has its turn."""
    bad, good = (kept.log(name, retention_ms="1") for name in ("bad", "good"))
    kept.fill(bad, 1)
    kept.fill(good, 1)
    kept.now_ms += HOUR_MS

    def broken(now_ms: int) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(bad, "maybe_roll", broken)
    kept.run(kept.housekeeping.retain)
    assert (bad.log_start_offset, good.log_start_offset) == (0, 1)
    assert errors == [
        ("log.retention.failed", {"log": "bad-0", "reason": "[Errno 5] Input/output error"})
    ]


def test_removals_in_the_order_of_their_time(tmp_path: Path, kept: Kept) -> None:
    """What is due goes, whatever the order it was added in; the rest waits."""
    removals = FileRemovals(kept.broker.background)
    files = [tmp_path / name for name in "abc"]
    for file, due_ms in zip(files, (30, 10, 20), strict=True):
        file.touch()
        removals.add(FileRemoval((file,)), due_ms)
    assert removals.run_due(9) == 0
    assert removals.run_due(20) == 2
    kept.finish_background()
    assert [file.exists() for file in files] == [True, False, False]
    assert len(removals) == 1


def test_a_folder_that_is_gone_does_not_matter(tmp_path: Path, kept: Kept) -> None:
    """A topic can be deleted while its dropped segments still wait."""
    removals = FileRemovals(kept.broker.background)
    gone = tmp_path / "gone"
    removals.add(FileRemoval((gone / "file",), gone), 0)
    assert removals.run_due(0) == 1
    kept.finish_background()


# Flushing -------------------------------------------------------------------------------------


def test_flush_after_flush_ms(kept: Kept) -> None:
    """A log is synced when its records waited for flush.ms, not before, and not without records."""
    log = kept.log("t", flush_ms="1000")
    kept.now_ms += 5_000
    assert not is_flush_due(log, kept.now_ms)
    kept.fill(log, 2)
    kept.run(kept.housekeeping.flush)
    assert (log.recovery_point, log.last_flush_ms) == (2, kept.now_ms)
    kept.fill(log, 1)
    kept.now_ms += 999
    kept.run(kept.housekeeping.flush)
    assert log.recovery_point == 2
    kept.now_ms += 1
    kept.run(kept.housekeeping.flush)
    assert log.recovery_point == 3


def test_a_closed_segment_is_synced(kept: Kept) -> None:
    """Whatever the flush settings, recovery after a crash shall read the last segment only."""
    log = kept.log("t")
    kept.fill(log, 3)
    assert not has_unsynced_segment(log)
    kept.run(kept.housekeeping.flush_sealed)
    assert log.recovery_point == 0
    kept.fill(log, 5)
    assert has_unsynced_segment(log)
    kept.run(kept.housekeeping.flush_sealed)
    assert log.recovery_point == 8
    assert not has_unsynced_segment(log)


def test_many_logs_are_synced_in_turns(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many syncs are under way at once, because each holds an open file."""
    monkeypatch.setattr(housekeeping_module, "_FLUSHES_AT_ONCE", 2)
    topic = kept.broker.create_topic("t", 5, {"flush.ms": "0"})
    of = [partition.log for partition in topic.partitions]
    for log in of:
        kept.fill(log, 1)
    waiting, most = 0, 0
    real = kept.broker.flusher.sync

    def counted(log: PartitionLog, waiter: Callable[[bool], None]) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)

        def done(is_safe: bool) -> None:
            nonlocal waiting
            waiting -= 1
            waiter(is_safe)

        real(log, done)

    monkeypatch.setattr(kept.broker.flusher, "sync", counted)
    kept.run(kept.housekeeping.flush)
    assert [log.recovery_point for log in of] == [1] * 5
    assert most == 2


def test_checkpoints_are_written(kept: Kept) -> None:
    """Recovery points and log starts are in Kafka's files of the directory."""
    log = kept.log("t")
    kept.fill(log, 4)
    log.flush(kept.now_ms)
    log.delete_records_before(3)
    kept.run(kept.housekeeping.checkpoint)
    assert read_offsets(kept.folder, RECOVERY_POINTS) == {("t", 0): 4}
    assert read_offsets(kept.folder, LOG_START_OFFSETS) == {("t", 0): 3}


# Forgetting -----------------------------------------------------------------------------------


def test_silent_producers_are_forgotten(make_kept: Callable[..., Kept]) -> None:
    """A producer is forgotten producer.id.expiration.ms after its last batch."""
    kept = make_kept("producer.id.expiration.ms=1000")
    log = kept.log("t")
    batch = build_batch(
        [Record(0, NOW_MS, None, b"v")],
        base_offset=0,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
    )
    log.append(memoryview(bytearray(batch)), now_ms=kept.now_ms)
    kept.now_ms += 999
    kept.run(kept.housekeeping.expire_producers)
    assert [producer.producer_id for producer in log.producers()] == [5]
    kept.now_ms += 1
    kept.run(kept.housekeeping.expire_producers)
    assert log.producers() == []


def test_idle_logs_give_their_files_back(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that was not read between two looks is closed, and can be read again."""
    log = kept.log("t")
    kept.fill(log, 8)
    released = []
    real = log.release_memory
    monkeypatch.setattr(log, "release_memory", lambda: released.append(real()))
    before = bytes(log.read(0, 1 << 20))
    idle = log.segments[0]
    kept.run(kept.housekeeping.release_idle)
    assert idle._map is not None
    kept.run(kept.housekeeping.release_idle)
    assert idle._map is None
    assert len(released) == 2
    assert bytes(log.read(0, 1 << 20)) == before
