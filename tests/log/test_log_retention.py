"""Retention: which segments go, and what stays readable."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from log_kit import NOW_MS, append, open_log, read_all

from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.log.retention import apply_retention, deletable_segments, remove_segments
from anabranch.wire.record_batch import read_header

HOUR_MS = 3600 * 1000
CONFIG = LogConfig(segment_bytes=250, retention_ms=10 * HOUR_MS)


def hourly_log(folder: Path, config: LogConfig = CONFIG) -> PartitionLog:
    """Ten batches of one record, an hour apart, the last one now; two in each segment."""
    log = open_log(folder, config)
    for hours in range(9, -1, -1):
        append(log, 1, bytes(40), timestamp=NOW_MS - hours * HOUR_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    return log


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_by_time(tmp_path: Path) -> None:
    """A segment goes when its newest record is too old, not when its oldest is."""
    log = hourly_log(tmp_path / "t-0")
    now_ms = NOW_MS + 2 * HOUR_MS + 1  # the second record (8 hours old) is too old now
    log.config = replace(CONFIG, retention_ms=10 * HOUR_MS)
    apply_retention(log, now_ms)
    assert bases(log) == [2, 4, 6, 8]
    assert (log.log_start_offset, log.log_end_offset) == (2, 10)
    assert read_header(log.read(2, 10)).base_offset == 2
    assert not [path for path in log.folder.iterdir() if path.name.startswith(f"{0:020d}")]
    log.close(NOW_MS)
    log = open_log(log.folder)
    assert log.log_start_offset == 2
    log.close(NOW_MS)


def test_an_expired_active_segment_is_rolled_first(tmp_path: Path) -> None:
    """When everything is too old the log becomes empty and goes on at the same offset."""
    log = hourly_log(tmp_path / "t-0")
    apply_retention(log, NOW_MS + 11 * HOUR_MS)
    assert bases(log) == [10]
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert deletable_segments(log, NOW_MS + 99 * HOUR_MS) == []
    assert append(log) == (10, 10)
    log.close(NOW_MS)


def test_by_size(tmp_path: Path) -> None:
    """The oldest segments go while what is left still reaches retention.bytes."""
    log = hourly_log(tmp_path / "t-0", replace(CONFIG, retention_ms=-1))
    size = log.segments[0].size_bytes
    for limit, expected in ((5 * size, 0), (4 * size + 1, 0), (4 * size, 1), (size, 4)):
        log.config = replace(CONFIG, retention_ms=-1, retention_bytes=limit)
        assert len(deletable_segments(log, NOW_MS)) == expected
    apply_retention(log, NOW_MS)
    assert bases(log) == [8]
    log.config = replace(CONFIG, retention_ms=-1, retention_bytes=0)
    for _ in range(2):  # an empty log has nothing to give, not even its empty segment
        apply_retention(log, NOW_MS)
        assert (bases(log), log.log_start_offset) == ([10], 10)
    log.close(NOW_MS)


def test_by_start_offset(tmp_path: Path) -> None:
    """DeleteRecords frees the segments below it whatever the policy, never the active one."""
    config = replace(CONFIG, cleanup_policy=frozenset({"compact"}), retention_ms=1)
    log = open_log(tmp_path / "t-0", config)
    for _ in range(6):
        append(log, 1, bytes(40), key=b"k", timestamp=5)
    assert deletable_segments(log, NOW_MS) == []
    assert log.delete_records_before(3) == 3
    apply_retention(log, NOW_MS)
    assert (bases(log), log.log_start_offset) == ([2, 4], 3)
    assert log.delete_records_before(-1) == 6
    apply_retention(log, NOW_MS)
    assert (bases(log), log.log_start_offset) == ([4], 6)
    log.close(NOW_MS)


def test_records_from_the_future_stay(tmp_path: Path) -> None:
    """A segment whose newest timestamp lies ahead is not too old, nor are those after it."""
    log = open_log(
        tmp_path / "t-0", replace(CONFIG, message_timestamp_after_max_ms=10**15, segment_ms=10**15)
    )
    for timestamp in (5, NOW_MS + 10**9, 5, 5, 5):
        append(log, 1, bytes(40), timestamp=timestamp)
    assert deletable_segments(log, NOW_MS) == []
    log.close(NOW_MS)


def test_files_wait_for_their_removal(tmp_path: Path) -> None:
    """On the loop files are only renamed; slices handed out survive the unlinking."""
    log = hourly_log(tmp_path / "t-0")
    view = log.read(0, 1000)
    before = bytes(view)
    removal = remove_segments(log, list(log.segments[:2]), NOW_MS)
    assert all(path.exists() and path.suffix == ".deleted" for path in removal.paths)
    removal.run()
    removal.run()
    assert not any(path.exists() for path in removal.paths)
    assert bytes(view) == before
    assert len(read_all(log)) == 3 * len(before)
    log.close(NOW_MS)


def test_an_unlink_that_fails_is_left_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be removed now is removed when the log is opened."""
    log = hourly_log(tmp_path / "t-0")
    removal = remove_segments(log, list(log.segments[:1]), NOW_MS)

    def broken(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken_disk:
        broken_disk.setattr(os, "unlink", broken)
        removal.run()
    assert list(log.folder.glob("*.deleted"))
    log.close(NOW_MS)
    open_log(log.folder).close(NOW_MS)
    assert not list(log.folder.glob("*.deleted"))
