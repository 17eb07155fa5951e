"""Compaction: what stays, at which offsets, and what a crash in the middle leaves."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import NOW_MS, append, batch_of, open_log, read_all

from anabranch.log.compaction import (
    CompactionRound,
    compact,
    plan_compaction,
    swap_cleaned,
)
from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.log.retention import apply_retention
from anabranch.wire.record_batch import Record, build_batch, crc_ok, iter_headers, iter_records

CONFIG = LogConfig(
    segment_bytes=400,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=1000,
)


def put(log: PartitionLog, *pairs: tuple[str, str | None], codec: int = 0) -> None:
    """One batch with a record for each (key, value); None is a tombstone."""
    records = [
        Record(i, NOW_MS, key.encode(), None if value is None else value.encode())
        for i, (key, value) in enumerate(pairs)
    ]
    batch = build_batch(records, base_offset=0, codec=codec)
    log.append(memoryview(bytearray(batch)), now_ms=NOW_MS)


def contents(log: PartitionLog) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of every record that is left."""
    found = []
    content = read_all(log)
    for position, header in iter_headers(content):
        batch = content[position : position + header.size_bytes]
        assert crc_ok(batch, 0, len(batch))
        for record in iter_records(batch):
            assert record.key is not None
            value = None if record.value is None else record.value.decode()
            found.append((record.offset, record.key.decode(), value))
    return found


def test_the_last_value_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    """Replaced records go, the others keep their offsets, the active segment is untouched."""
    log = open_log(tmp_path / "t-0", CONFIG)
    put(log, ("a", "1"), ("b", "1"), ("a", "2"))
    put(log, ("c", "1"), ("b", "2"))
    log.roll(NOW_MS)
    put(log, ("a", "3"), ("a", "4"))
    checkpoint = compact(log, None, NOW_MS)
    assert checkpoint == 5
    # The active segment replaces nothing yet, and keeps both of its values.
    expected = [(2, "a", "2"), (3, "c", "1"), (4, "b", "2"), (5, "a", "3"), (6, "a", "4")]
    assert contents(log) == expected
    assert (log.log_start_offset, log.log_end_offset) == (0, 7)
    for reopened in (log, None):
        if reopened is None:
            log.close(NOW_MS)
            log = open_log(log.folder, CONFIG)
        assert contents(log) == expected
        assert log.segments[0].largest_timestamp() == NOW_MS
    log.roll(NOW_MS)
    assert compact(log, checkpoint, NOW_MS) == 7
    assert contents(log) == [(3, "c", "1"), (4, "b", "2"), (6, "a", "4")]
    log.close(NOW_MS)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_keep_their_frame(tmp_path: Path, codec: int) -> None:
    """A rewritten batch keeps base offset, last offset, producer, sequence and codec."""
    log = open_log(tmp_path / "t-0", CONFIG, leader_epoch=3)
    records = [Record(i, NOW_MS + i, b"k%d" % (i % 2), b"v" * 20) for i in range(4)]
    sent = build_batch(
        records, base_offset=0, codec=codec, producer_id=9, producer_epoch=1, base_sequence=5
    )
    log.append(memoryview(bytearray(sent)), now_ms=NOW_MS)
    append(log, 1, key=b"k1")  # replaces the batch's last record, but not its last offset
    log.roll(NOW_MS)
    compact(log, None, NOW_MS)
    header = next(iter_headers(log.read(0, 10_000)))[1]
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 3, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 5)
    assert (header.codec, header.partition_leader_epoch) == (codec, 3)
    assert header.max_timestamp == NOW_MS + 2
    log.close(NOW_MS)


def test_tombstones_wait_for_delete_retention(tmp_path: Path) -> None:
    """A tombstone is kept until delete.retention.ms after the first round that saw it."""
    log = open_log(tmp_path / "t-0", CONFIG)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"))
    log.roll(NOW_MS)
    checkpoint = compact(log, None, NOW_MS)
    assert contents(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    headers = [header for _, header in iter_headers(read_all(log))]
    assert [header.has_delete_horizon for header in headers] == [False, True]
    assert headers[1].base_timestamp == NOW_MS + 1000
    last = read_all(log)[headers[0].size_bytes :]
    assert [record.timestamp for record in iter_records(last)] == [NOW_MS, NOW_MS]

    for later_ms, is_left in ((999, True), (1000, False)):
        put(log, ("z", str(later_ms)))
        log.roll(NOW_MS)
        checkpoint = compact(log, checkpoint, NOW_MS + later_ms)
        assert ((2, "a", None) in contents(log)) is is_left
    log.close(NOW_MS)


def test_a_producer_keeps_its_last_batch(tmp_path: Path) -> None:
    """A batch that lost all records stays as a header while it holds a producer's sequence."""
    log = open_log(tmp_path / "t-0", CONFIG)
    append(log, 1, key=b"k", producer=(7, 0, 0))
    append(log, 1, key=b"k", producer=(7, 0, 1))
    append(log, 1, key=b"k")
    append(log, 1, key=b"other")
    log.roll(NOW_MS)
    compact(log, None, NOW_MS)
    frames = [(h.base_offset, h.records_count) for _, h in iter_headers(read_all(log))]
    assert frames == [(1, 0), (2, 1), (3, 1)]
    for snapshot in log.folder.glob("*.snapshot"):
        snapshot.unlink()
    log.close(NOW_MS)
    log = open_log(log.folder, CONFIG, clean=False)
    assert append(log, 1, key=b"k", producer=(7, 0, 2)) == (4, 4)
    log.close(NOW_MS)


def test_when_a_round_is_due(tmp_path: Path) -> None:
    """The dirty ratio, the shortest and the longest lag decide, as their settings say."""
    log = open_log(tmp_path / "t-0", CONFIG)
    assert not plan_compaction(log, None, NOW_MS).is_due
    for n in range(4):
        put(log, ("k", "v" * 30), ("x", str(n)))
        log.roll(NOW_MS)
    assert plan_compaction(log, None, NOW_MS).dirty_ratio == 1.0
    assert plan_compaction(log, None, NOW_MS).is_due
    half = plan_compaction(log, 4, NOW_MS)
    assert (half.dirty_ratio, half.is_due) == (0.5, False)
    assert not plan_compaction(log, 8, NOW_MS).is_due
    log.config = replace(CONFIG, max_compaction_lag_ms=500)
    assert not plan_compaction(log, 4, NOW_MS + 500).is_due
    assert plan_compaction(log, 4, NOW_MS + 501).is_due
    log.config = replace(CONFIG, min_compaction_lag_ms=500)
    assert not plan_compaction(log, None, NOW_MS + 499).is_due
    assert plan_compaction(log, None, NOW_MS + 500).is_due
    # A checkpoint outside of the log is that of another life of the topic.
    assert plan_compaction(log, 999, NOW_MS).first_dirty_offset == 0
    log.close(NOW_MS)


def test_small_remains_are_joined(tmp_path: Path) -> None:
    """Segments that shrank are put together up to segment.bytes."""
    log = open_log(tmp_path / "t-0", replace(CONFIG, segment_bytes=2000))
    for n in range(12):
        put(log, ("k", "v" * 60), (f"x{n}", "v"))
        log.roll(NOW_MS)
    compact(log, None, NOW_MS)
    assert [s.base_offset for s in log.segments] == [0, 24]
    assert [offset for offset, _, _ in contents(log)] == [*range(1, 22, 2), 22, 23]
    # A read in a gap begins at the next record there is.
    assert next(iter_headers(log.read(4, 1)))[1].base_offset == 4
    assert len(list(log.folder.glob("*.log"))) == 2
    log.close(NOW_MS)


def test_a_round_larger_than_its_map_takes_several(tmp_path: Path) -> None:
    """When the keys do not fit, the round ends early and the next one goes on there."""
    log = open_log(tmp_path / "t-0", CONFIG)
    for n in range(10):
        put(log, (f"k{n}", "1"), ("same", str(n)))
    log.roll(NOW_MS)
    checkpoint, rounds = 0, 0
    while checkpoint < log.log_end_offset:
        cleaning = CompactionRound(plan_compaction(log, checkpoint, NOW_MS), keys_max=5)
        cleaning.build_map()
        while (cleaned := cleaning.clean_next()) is not None:
            removal = swap_cleaned(log, cleaned)
            assert removal is not None
            removal.run()
        assert cleaning.end_offset > checkpoint
        checkpoint, rounds = cleaning.end_offset, rounds + 1
    assert rounds > 1
    assert contents(log) == [*((2 * n, f"k{n}", "1") for n in range(10)), (19, "same", "9")]
    log.close(NOW_MS)


def test_a_round_is_void_when_its_segments_went(tmp_path: Path) -> None:
    """Retention between cleaning and swap makes the cleaned segment useless; it is dropped."""
    log = open_log(tmp_path / "t-0", CONFIG)
    for n in range(8):
        put(log, ("k", str(n) * 30), ("x", "v"))
    cleaning = CompactionRound(plan_compaction(log, None, NOW_MS))
    cleaning.build_map()
    cleaned = cleaning.clean_next()
    assert cleaned is not None
    log.delete_records_before(log.segments[-1].base_offset)
    apply_retention(log, NOW_MS)
    assert swap_cleaned(log, cleaned) is None
    assert not list(log.folder.glob("*.cleaned"))
    log.close(NOW_MS)


def test_the_thread_is_asked_to_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause hook is called once a slice of work is used up."""
    from anabranch.log import compaction

    clock = iter(range(1, 10**6))
    monkeypatch.setattr(compaction, "perf_counter", lambda: float(next(clock)))
    pauses: list[int] = []
    log = open_log(tmp_path / "t-0", CONFIG)
    put(log, ("k", "v"))
    log.roll(NOW_MS)
    cleaning = CompactionRound(plan_compaction(log, None, NOW_MS), lambda: pauses.append(1))
    cleaning.build_map()
    assert cleaning.clean_next() is not None
    assert len(pauses) >= 2
    log.close(NOW_MS)


def test_a_crash_at_any_rename_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before any rename of a swap, the log opens with the same last values."""
    log = open_log(tmp_path / "t-0", CONFIG)
    for n in range(12):
        put(log, ("a", str(n)), (f"k{n % 3}", str(n)), ("b", "v" * n))
    last_values = {key: value for _, key, value in contents(log)}
    real = os.rename
    step = 0
    is_done = False
    while not is_done:
        copy = tmp_path / f"crash-{step}"
        log.flush(NOW_MS)
        shutil.copytree(log.folder, copy)
        crashing = open_log(copy, CONFIG, clean=False)
        budget = step

        def rename(source: Path, target: Path) -> None:
            nonlocal budget
            if budget == 0:
                raise KeyboardInterrupt
            budget -= 1
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            try:
                compact(crashing, None, NOW_MS)
                is_done = True
            except KeyboardInterrupt:
                pass
        recovered = open_log(copy, CONFIG, clean=False)
        assert {key: value for _, key, value in contents(recovered)} == last_values
        assert recovered.log_end_offset == log.log_end_offset
        recovered.close(NOW_MS)
        crashing.close(NOW_MS)
        step += 1
    assert step > 10
    log.close(NOW_MS)


records = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abcdefg"), st.none() | st.text("xyz", max_size=20)),
        min_size=1,
        max_size=4,
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(batches=records, cuts=st.sets(st.integers(0, 30)), codec=st.sampled_from([0, 4]))
def test_compaction_keeps_the_table(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[str, str | None]]],
    cuts: set[int],
    codec: int,
) -> None:
    """Whatever is written, with rounds in between, each key ends with its last value."""
    log = open_log(tmp_path_factory.mktemp("compaction") / "t-0", CONFIG)
    written: list[tuple[int, str, str | None]] = []
    checkpoint = 0
    now_ms = NOW_MS
    for n, batch in enumerate(batches):
        for key, value in batch:
            written.append((len(written), key, value))
        put(log, *batch, codec=codec)
        if n in cuts:
            log.roll(NOW_MS)
            now_ms += 600
            checkpoint = compact(log, checkpoint, now_ms)
            kept = contents(log)
            assert set(kept) <= set(written)
            assert [o for o, _, _ in kept] == sorted({o for o, _, _ in kept})
            last = {key: (offset, key, value) for offset, key, value in written}
            assert {entry for entry in last.values() if entry[2] is not None} <= set(kept)
            # After a full round nothing but last values is left, tombstones among them.
            assert set(kept) <= set(last.values())
    end = log.log_end_offset
    log.close(NOW_MS)
    log = open_log(log.folder, CONFIG, clean=False)
    assert log.log_end_offset == end
    for offset, key, value in contents(log):
        batch_start = next(iter_headers(log.read(offset, 1)))[1]
        assert batch_start.base_offset <= offset <= batch_start.last_offset
        assert written[offset] == (offset, key, value)
    log.close(NOW_MS)


def test_records_without_a_key_go(tmp_path: Path) -> None:
    """Records from before the topic was compacted cannot be kept by key."""
    log = open_log(tmp_path / "t-0", replace(CONFIG, cleanup_policy=frozenset({"delete"})))
    log.append(batch_of(2), now_ms=NOW_MS)
    log.config = CONFIG
    put(log, ("a", "1"))
    log.roll(NOW_MS)
    compact(log, None, NOW_MS)
    assert contents(log) == [(2, "a", "1")]
    assert log.log_end_offset == 3
    log.close(NOW_MS)
