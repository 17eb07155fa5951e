"""What finding out when a record was written leaves behind: no file that stays open."""

import os
from pathlib import Path

from log_kit import NOW_MS, append, open_log

from anabranch.log.log_config import LogConfig
from anabranch.log.record_times import timestamp_at


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_look_takes_no_descriptor(tmp_path: Path) -> None:
    """Who asks for the times of many logs does not keep their files open."""
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=300))
    for _ in range(20):
        append(log)
    log.close_idle()
    log.close_idle()
    before = descriptors()
    for offset in range(20):
        assert timestamp_at(log, offset) == NOW_MS
    assert descriptors() == before
    assert not any(segment.is_mapped for segment in log.segments)
    log.close(NOW_MS)


def test_a_look_takes_nothing_from_readers(tmp_path: Path) -> None:
    """A log that is being read stays as open as it was."""
    log = open_log(tmp_path / "t-0", LogConfig())
    append(log)
    log.read(0, 1000)
    assert log.segments[0].is_mapped
    assert timestamp_at(log, 0) == NOW_MS
    assert log.segments[0].is_mapped
    log.close(NOW_MS)
