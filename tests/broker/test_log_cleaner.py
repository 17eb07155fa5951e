"""The log cleaner: which log is compacted, when, and what a round survives."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.housekeeping import Housekeeping
from anabranch.broker.log_cleaner import dirtiest_first
from anabranch.config.load import load_settings
from anabranch.log.checkpoints import CLEANER_OFFSETS, read_offsets
from anabranch.log.compaction import CompactionPlan, CompactionRound
from anabranch.log.partition_log import PartitionLog
from anabranch.observe import logs
from anabranch.wire.record_batch import Record, build_batch, iter_headers, iter_records

NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 6 * 171


class Kept:
    """A broker whose housekeeping is called by hand."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder = folder
        self.now_ms = NOW_MS
        settings = load_settings(environ={}, overrides=[f"log.dirs={folder}", *overrides])
        self.broker = Broker(settings, now_ms=lambda: self.now_ms)
        self.housekeeping = Housekeeping(self.broker)
        self.is_open = True

    def log(self, name: str, policy: str = "compact", ratio: str = "0.01") -> PartitionLog:
        configs = {
            "internal.segment.bytes": str(SEGMENT_BYTES),
            "cleanup.policy": policy,
            "min.cleanable.dirty.ratio": ratio,
        }
        return self.broker.create_topic(name, 1, configs).partitions[0].log

    def compact(self) -> None:
        asyncio.run(self._compact())

    async def _compact(self) -> None:
        await self.housekeeping.compact()

    def finish_background(self) -> None:
        self.broker.background.submit(lambda: None).result()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
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
        kept.close()


@pytest.fixture
def kept(make_kept: Callable[..., Kept]) -> Kept:
    return make_kept()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The events that are logged, with the log they are about."""
    found: list[tuple[str, Any]] = []
    for level in ("info", "error"):
        monkeypatch.setattr(
            logs, level, lambda name, /, **fields: found.append((name, fields.get("log")))
        )
    return found


def write(log: PartitionLog, *keys: str) -> None:
    """A batch of 171 bytes for each key, six to a segment."""
    for key in keys:
        record = Record(0, NOW_MS, key.encode(), b"x" * 100)
        batch = bytearray(build_batch([record], base_offset=0))
        log.append(memoryview(batch), now_ms=NOW_MS)


def read(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """(offset, key) of every record that is left."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        chunk = log.read(offset, 1 << 20)
        for position, header in iter_headers(chunk):
            batch = chunk[position : position + header.size_bytes]
            found += [(record.offset, record.key) for record in iter_records(batch)]
            offset = header.next_offset
    return found


def test_only_the_last_record_of_a_key_is_kept(kept: Kept) -> None:
    """All but the active segment is compacted, and the place is written down."""
    log = kept.log("t")
    write(log, *"ababab", *"ababab", "a")
    active = log.segments[-1].base_offset
    kept.compact()
    assert read(log) == [(10, b"a"), (11, b"b"), (12, b"a")]
    assert kept.broker.cleaner_offsets.get(log) == active == 12
    kept.finish_background()
    assert read_offsets(kept.folder, CLEANER_OFFSETS) == {("t", 0): 12}


def test_files_go_after_their_delay(kept: Kept) -> None:
    """The segments that were replaced stay on disk for file.delete.delay.ms."""
    log = kept.log("t")
    write(log, *"aaaaaaaaaaaaa")
    kept.compact()
    assert len(list(log.folder.glob("*.log.deleted"))) == 2
    kept.now_ms += 60_000
    kept.housekeeping.removals.run_due(kept.now_ms)
    kept.finish_background()
    assert list(log.folder.glob("*.deleted")) == []


def test_compaction_goes_on_where_it_ended(make_kept: Callable[..., Kept]) -> None:
    """After a restart only what was written since is dirty."""
    first = make_kept()
    write(first.log("t"), *"abcabcabcabca")
    first.compact()
    first.close()
    kept = make_kept()
    log = kept.broker.topics.partition("t", 0).log
    assert kept.broker.cleaner_offsets.get(log) == 12
    write(log, *"aaaaaa")
    kept.compact()
    assert kept.broker.cleaner_offsets.get(log) == 18
    assert [key for _, key in read(log)] == [b"b", b"c", b"a", b"a"]


def test_what_is_not_compacted(make_kept: Callable[..., Kept]) -> None:
    """Topics that only delete, and logs that are clean enough, are left as they are."""
    kept = make_kept()
    deleting = kept.log("deleting", policy="delete")
    clean = kept.log("clean", ratio="1.0")
    write(deleting, *"a" * 13)
    write(clean, *"a" * 13)
    kept.compact()
    assert (len(read(deleting)), len(read(clean))) == (13, 13)


def test_compaction_can_be_switched_off(make_kept: Callable[..., Kept]) -> None:
    """log.cleaner.enable=false leaves every log as it was written."""
    kept = make_kept("log.cleaner.enable=false")
    log = kept.log("t")
    write(log, *"a" * 13)
    kept.compact()
    assert len(read(log)) == 13


def test_the_dirtiest_log_comes_first(kept: Kept, lines: list[tuple[str, Any]]) -> None:
    """Logs are compacted by their share of dirty bytes, not by their size or name."""
    half, all_dirty = kept.log("half"), kept.log("dirty")
    write(half, *"abcdefabcdefa")
    kept.compact()
    write(half, *"abcdef")
    write(all_dirty, *"a" * 13)
    lines.clear()
    kept.compact()
    assert lines == [("log.compacted", "dirty-0"), ("log.compacted", "half-0")]


@dataclass
class Candidate:
    """As much of a plan as the choice looks at."""

    dirty_ratio: float
    is_due: bool


def test_the_choice() -> None:
    """Those that are due, by falling ratio; none when none is."""
    of = {
        "dirtier": Candidate(0.9, False),
        "less": Candidate(0.4, True),
        "dirty": Candidate(0.6, True),
    }
    pairs = cast(list[tuple[PartitionLog, CompactionPlan]], list(of.items()))
    assert cast(Any, dirtiest_first(pairs)) == ["dirty", "less"]
    assert dirtiest_first(pairs[:1]) == []
    assert dirtiest_first([]) == []


def test_a_damaged_log_is_given_up(kept: Kept, lines: list[tuple[str, Any]]) -> None:
    """It is reported once and tried no more; the others are compacted."""
    bad, good = kept.log("bad"), kept.log("good")
    write(bad, *"a" * 13)
    write(good, *"a" * 13)
    path = bad.segments[0].path()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    kept.compact()
    kept.compact()
    assert sorted(lines) == [("log.compacted", "good-0"), ("log.compaction.failed", "bad-0")]
    assert len(read(good)) == 2
    assert len(bad.segments) == 3


@pytest.mark.parametrize("step", ["build_map", "clean_next"])
def test_a_topic_deleted_meanwhile(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, lines: list[tuple[str, Any]], step: str
) -> None:
    """A round whose topic goes away ends quietly, and the name is free for a new topic."""
    log = kept.log("t")
    write(log, *"a" * 13)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        real = getattr(CompactionRound, step)

        def delete() -> None:
            topic = kept.broker.topics.get("t")
            if topic is not None:
                kept.broker.delete_topic(topic)

        def slow(cleaning: CompactionRound) -> Any:
            asyncio.run_coroutine_threadsafe(soon(delete), loop).result()
            return real(cleaning)

        async def soon(act: Callable[[], None]) -> None:
            act()

        monkeypatch.setattr(CompactionRound, step, slow)
        await kept.housekeeping.compact()

    asyncio.run(main())
    assert lines == []
    again = kept.log("t")
    assert kept.broker.cleaner_offsets.get(again) is None
    assert again.log_end_offset == 0


def test_a_void_round_is_not_repeated_at_once(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, lines: list[tuple[str, Any]]
) -> None:
    """A log whose segments changed under a round waits for the next time, and then works."""
    log = kept.log("t")
    write(log, *"a" * 13)
    with monkeypatch.context() as patched:
        patched.setattr("anabranch.broker.log_cleaner.swap_cleaned", lambda *args: None)
        assert asyncio.run(kept.housekeeping.cleaner.clean()) == 1
    assert (lines, kept.broker.cleaner_offsets.get(log)) == ([], None)
    assert asyncio.run(kept.housekeeping.cleaner.clean()) == 1
    assert lines == [("log.compacted", "t-0")]


def test_retention_waits_for_the_round(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, lines: list[tuple[str, Any]]
) -> None:
    """Segments are not dropped under a round that reads them."""
    log = kept.log("t", policy="compact,delete")
    write(log, "b", *"a" * 12)
    kept.now_ms += 30 * 24 * 3_600_000
    seen: list[bool] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        real = CompactionRound.build_map

        def slow(cleaning: CompactionRound) -> None:
            seen.append(kept.housekeeping.cleaner.busy_with is log)
            asyncio.run_coroutine_threadsafe(kept.housekeeping.retain(), loop).result()
            real(cleaning)

        monkeypatch.setattr(CompactionRound, "build_map", slow)
        await kept.housekeeping.compact()
        assert log.log_start_offset == 0
        await kept.housekeeping.retain()

    asyncio.run(main())
    assert seen == [True]
    assert log.log_start_offset == 13
    assert [name for name, _ in lines] == ["log.compacted", "log.retention.dropped"]


def test_deleting_a_topic_forgets_its_place(kept: Kept) -> None:
    """A new topic of the same name starts dirty, also after a restart."""
    write(kept.log("t"), *"a" * 13)
    write(kept.log("other"), *"a" * 13)
    kept.compact()
    topic = kept.broker.topics.get("t")
    assert topic is not None
    kept.broker.delete_topic(topic)
    kept.finish_background()
    assert read_offsets(kept.folder, CLEANER_OFFSETS) == {("other", 0): 12}


def test_stopping_gives_a_round_up(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that stops does not wait for a long round, and loses nothing by it."""
    log = kept.log("t")
    write(log, *"a" * 13)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        real = CompactionRound.build_map

        def endless(cleaning: CompactionRound) -> None:
            loop.call_soon_threadsafe(begun.set)
            while True:
                cleaning.pause()

        monkeypatch.setattr(CompactionRound, "build_map", endless)
        task = asyncio.create_task(kept.housekeeping.compact())
        await begun.wait()
        await kept.housekeeping.stop()
        await task
        monkeypatch.setattr(CompactionRound, "build_map", real)

    asyncio.run(main())
    assert len(read(log)) == 13
    assert kept.broker.cleaner_offsets.get(log) is None
