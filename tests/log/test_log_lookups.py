"""Offsets by time and by leader epoch."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import NOW_MS, append, open_log

from anabranch.log.log_config import LogConfig
from anabranch.wire.record_batch import Record, build_batch

timestamps = st.lists(
    st.lists(st.integers(-1, 40).map(lambda n: n if n < 0 else 1000 + n), min_size=1, max_size=4),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(
    batches=timestamps,
    start=st.integers(0, 100),
    reopened=st.booleans(),
    codec=st.sampled_from([0, 1]),
)
def test_lookups_agree_with_a_scan(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[int]],
    start: int,
    reopened: bool,
    codec: int,
) -> None:
    """By timestamp and by largest timestamp, the record found is that of a plain search."""
    folder = tmp_path_factory.mktemp("lookups") / "t-0"
    log = open_log(folder, LogConfig(segment_bytes=400, index_interval_bytes=100))
    for batch in batches:
        records = [Record(i, timestamp, None, b"v") for i, timestamp in enumerate(batch)]
        sent = bytearray(build_batch(records, base_offset=0, codec=codec))
        log.append(memoryview(sent), now_ms=NOW_MS)
    start = log.delete_records_before(min(start, log.log_end_offset))
    if reopened:
        log.close(NOW_MS)
        log = open_log(folder, log.config, log_start_offset=start)
    flat = [timestamp for batch in batches for timestamp in batch]
    known = [(timestamp, offset) for offset, timestamp in enumerate(flat) if offset >= start]
    for wanted in range(998, 1043):
        expected = next(((t, o, 0) for t, o in known if t >= wanted), None)
        assert log.offset_for_timestamp(wanted) == expected
    largest = max((t for t, _ in known), default=-1)
    expected = next(((t, o, 0) for t, o in known if t == largest and t >= 0), None)
    assert log.max_timestamp_offset() == expected
    log.close(NOW_MS)


def test_leader_epochs(tmp_path: Path) -> None:
    """An epoch ends where the next began; one that was never seen is (-1, -1)."""
    folder = tmp_path / "t-0"
    for epoch, count in ((2, 3), (3, 0), (5, 4)):
        log = open_log(folder, leader_epoch=epoch)
        for _ in range(count):
            append(log)
        log.close(NOW_MS)
    log = open_log(folder, leader_epoch=5)
    answers = {epoch: log.offset_for_leader_epoch(epoch) for epoch in (-1, 0, 2, 3, 4, 5, 6)}
    assert answers == {
        -1: (-1, -1),
        0: (0, 0),
        2: (2, 3),
        3: (2, 3),  # nothing was written under epoch 3
        4: (2, 3),
        5: (5, 7),
        6: (-1, -1),
    }
    assert (folder / "leader-epoch-checkpoint").read_text() == "0\n2\n2 0\n5 3\n"
    assert log.leader_epochs.epoch_at(1) == 2
    log.delete_records_before(5)
    assert log.offset_for_leader_epoch(2) == (2, 5)
    log.close(NOW_MS)
    log = open_log(folder, leader_epoch=5, log_start_offset=5)
    assert log.offset_for_leader_epoch(2) == (2, 5)
    log.close(NOW_MS)
