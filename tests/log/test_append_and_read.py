"""Appending and reading: offsets, refusals, edges of reads, rolling, and full disks."""

import errno
import os
import struct
from pathlib import Path

import pytest
from log_kit import NOW_MS, SMALL, append, batch_of, open_log, read_all

from anabranch.log import partition_log
from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import remove_folder
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import crc_ok, iter_headers, iter_records, read_header


def refusal(log: partition_log.PartitionLog, batch: memoryview, **changes: object) -> ErrorCode:
    end, size = log.log_end_offset, log.size_bytes
    with pytest.raises(KafkaError) as caught:
        log.append(batch, now_ms=NOW_MS, **changes)
    assert (log.log_end_offset, log.size_bytes) == (end, size)
    assert read_all(log) is not None
    return caught.value.code


def test_offsets_follow_each_other_and_bytes_come_back_as_sent(tmp_path: Path) -> None:
    """A batch keeps its bytes except for base offset and leader epoch."""
    log = open_log(tmp_path / "t-0", leader_epoch=7)
    first, second = batch_of(3), batch_of(2, b"other")
    sent = bytes(second)
    assert log.append(first, now_ms=NOW_MS) == (0, 2, -1, False)
    assert log.append(second, now_ms=NOW_MS) == (3, 4, -1, False)
    stored = bytes(log.read(3, 1000))
    assert stored[16:] == sent[16:]
    header = read_header(stored)
    assert (header.base_offset, header.partition_leader_epoch) == (3, 7)
    assert crc_ok(stored, 0, len(stored))
    assert (log.high_watermark, log.last_stable_offset) == (5, 5)
    log.close(NOW_MS)


def test_bad_batches_are_refused_without_a_trace(tmp_path: Path) -> None:
    """Each kind of bad batch gets Kafka's error and leaves the log as it was."""
    log = open_log(tmp_path / "t-0", LogConfig(max_message_bytes=400, segment_bytes=300))
    append(log)

    def damaged(position: int, layout: str, value: int) -> memoryview:
        batch = batch_of(2)
        struct.pack_into(layout, batch, position, value)
        return batch

    assert refusal(log, memoryview(bytearray())) is ErrorCode.INVALID_RECORD
    assert refusal(log, memoryview(bytearray(60))) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(log, batch_of()[:-1]) is ErrorCode.INVALID_RECORD
    assert refusal(log, damaged(17, ">I", 1)) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(log, damaged(8, ">i", -1)) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(log, damaged(8, ">i", 2**31 - 1)) is ErrorCode.INVALID_RECORD
    assert refusal(log, damaged(16, ">b", 1)) is ErrorCode.INVALID_RECORD
    assert refusal(log, damaged(0, ">q", 7)) is ErrorCode.INVALID_RECORD
    assert refusal(log, damaged(0, ">q", -1)) is ErrorCode.INVALID_RECORD
    two = memoryview(bytearray(bytes(batch_of()) * 2))
    assert refusal(log, two) is ErrorCode.INVALID_RECORD
    assert refusal(log, batch_of(1, bytes(500))) is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(log, batch_of(1, bytes(260))) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert refusal(log, batch_of(attributes=0x20)) is ErrorCode.INVALID_RECORD
    transactional = batch_of(attributes=0x10)
    assert refusal(log, transactional) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert refusal(log, batch_of(attributes=0x40)) is ErrorCode.INVALID_RECORD
    assert refusal(log, batch_of(producer=(5, 0, -1))) is ErrorCode.INVALID_RECORD
    assert refusal(log, batch_of(producer=(5, -1, 0))) is ErrorCode.INVALID_PRODUCER_EPOCH
    zstd = batch_of(codec=4)
    assert refusal(log, zstd, zstd_allowed=False) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    append(log)
    assert len(list(iter_headers(read_all(log)))) == 2
    log.close(NOW_MS)


def test_count_must_match_the_offsets(tmp_path: Path) -> None:
    """A batch whose count and last offset delta disagree is INVALID_RECORD, CRC right or not."""
    from crc32c import crc32c

    log = open_log(tmp_path / "t-0")
    for position, value in ((57, 3), (57, -1), (23, 9)):
        batch = batch_of(2)
        struct.pack_into(">i", batch, position, value)
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
        assert refusal(log, batch) is ErrorCode.INVALID_RECORD
    log.close(NOW_MS)


def test_timestamps_too_far_from_now_are_refused(tmp_path: Path) -> None:
    """before.max.ms and after.max.ms bound what a producer's clock may say; -1 is no timestamp."""
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    log = open_log(tmp_path / "t-0", config)
    assert refusal(log, batch_of(timestamp=NOW_MS + 501)) is ErrorCode.INVALID_TIMESTAMP
    assert refusal(log, batch_of(timestamp=NOW_MS - 1001)) is ErrorCode.INVALID_TIMESTAMP
    for timestamp in (NOW_MS + 500, NOW_MS - 1000, -1):
        append(log, timestamp=timestamp)
    log.close(NOW_MS)


def test_log_append_time_stamps_the_batch(tmp_path: Path) -> None:
    """With LogAppendTime all records carry the broker's time and the answer says so."""
    log = open_log(tmp_path / "t-0", LogConfig(message_timestamp_type="LogAppendTime"))
    info = log.append(batch_of(2, timestamp=5), now_ms=NOW_MS)
    assert info.log_append_time_ms == NOW_MS
    stored = bytes(log.read(0, 1000))
    assert crc_ok(stored, 0, len(stored))
    assert [record.timestamp for record in iter_records(stored)] == [NOW_MS, NOW_MS]
    log.close(NOW_MS)


def test_topic_codec_replaces_the_producers(tmp_path: Path) -> None:
    """compression.type other than `producer` stores every batch under that codec."""
    log = open_log(tmp_path / "t-0", LogConfig(compression_type="gzip"))
    append(log, 2, b"x" * 50)
    append(log, 2, b"x" * 50, codec=3)
    log.config = LogConfig(compression_type="uncompressed")
    append(log, 2, b"x" * 50, codec=1)
    batches = [header for _, header in iter_headers(log.read(0, 10_000))]
    assert [header.codec for header in batches] == [1, 1, 0]
    assert [header.base_offset for header in batches] == [0, 2, 4]
    log.close(NOW_MS)


def test_compacted_topics_need_keys(tmp_path: Path) -> None:
    """A record without a key is INVALID_RECORD on a compacted topic."""
    log = open_log(tmp_path / "t-0", LogConfig(cleanup_policy=frozenset({"compact"})))
    assert refusal(log, batch_of(2)) is ErrorCode.INVALID_RECORD
    assert refusal(log, batch_of(2, codec=2)) is ErrorCode.INVALID_RECORD
    append(log, 2, key=b"k")
    log.close(NOW_MS)


def test_reads_outside_of_the_log_are_out_of_range(tmp_path: Path) -> None:
    """Below the start and above the end is an error; at the end there is nothing yet."""
    log = open_log(tmp_path / "t-0")
    assert len(log.read(0, 100)) == 0
    append(log, 4)
    log.delete_records_before(2)
    for offset in (-1, 0, 1, 5):
        with pytest.raises(KafkaError) as caught:
            log.read(offset, 100)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(log.read(4, 100)) == 0
    assert read_header(log.read(2, 100)).base_offset == 0  # the whole batch that contains it
    log.close(NOW_MS)


def test_slices_outlive_the_segment(tmp_path: Path) -> None:
    """Bytes handed out stay readable after the log is closed, deleted and gone from disk."""
    log = open_log(tmp_path / "t-0")
    append(log, 1, b"kept")
    view = log.read(0, 1000)
    log.close_idle()
    log.close_idle()
    again = log.read(0, 1000)
    log.release_memory()
    remove_folder(log.delete())
    assert list(tmp_path.iterdir()) == []
    assert bytes(view) == bytes(again)
    assert b"kept" in bytes(view)


def test_a_map_follows_the_growing_file(tmp_path: Path) -> None:
    """What is appended after the first read is visible to later ones, past any page edge."""
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=10**6))
    append(log, 1, b"first")
    assert b"first" in bytes(log.read(0, 10))
    size_on_disk = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    assert size_on_disk == log.size_bytes
    for n in range(100):
        append(log, 1, b"%04d" % n * 50)
        assert b"%04d" % n in bytes(log.read(n + 1, 10))
    log.close(NOW_MS)


@pytest.mark.parametrize("failing", ["ftruncate", "mmap"])
def test_reads_work_where_maps_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Without growing maps, or without any, reads return the same bytes."""
    from anabranch.log import segment

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "not on this file system")

    log = open_log(tmp_path / "t-0")
    if failing == "mmap":
        monkeypatch.setattr(segment.mmap, "mmap", refuse)
    else:
        monkeypatch.setattr(segment, "_map_growing", lambda *_: None)
    expected = b""
    for n in range(30):
        batch = batch_of(1, b"%03d" % n * 20)
        log.append(batch, now_ms=NOW_MS)
        expected += bytes(batch)
        assert bytes(log.read(n, 10)) == bytes(batch)
    assert read_all(log) == expected
    log.close_idle()
    log.close_idle()
    assert read_all(log) == expected
    log.close(NOW_MS)


def test_rolls_by_size_time_and_index(tmp_path: Path) -> None:
    """A segment ends when the next batch does not fit, is too late, or the index is full."""
    log = open_log(tmp_path / "size-0", LogConfig(segment_bytes=200))
    for _ in range(4):
        append(log, 1, bytes(30))
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.close(NOW_MS)

    log = open_log(tmp_path / "time-0", LogConfig(segment_ms=1000))
    for age_ms in (0, 1000, 1001, 2002):
        append(log, timestamp=NOW_MS + age_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]
    assert not log.maybe_roll(NOW_MS + 1000)
    assert log.maybe_roll(NOW_MS + 9000)
    assert not log.maybe_roll(NOW_MS + 9000)
    log.close(NOW_MS)

    log = open_log(tmp_path / "index-0", LogConfig(index_interval_bytes=1, segment_index_bytes=16))
    for _ in range(6):
        append(log)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    log.close(NOW_MS)


def test_a_full_disk_refuses_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC in the middle of a batch leaves no trace, and appends work when space is back."""
    log = open_log(tmp_path / "t-0")
    append(log)
    size = log.size_bytes
    pwrite = os.pwrite
    calls = []

    def fills_up(fd: int, data: memoryview, position: int) -> int:
        calls.append(position)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data[:20], position)

    monkeypatch.setattr(partition_log, "_pwrite", fills_up)
    assert refusal(log, batch_of(2)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(calls) == 2
    assert log.segments[-1].path().stat().st_size == size
    assert log.failed is None
    monkeypatch.setattr(partition_log, "_pwrite", pwrite)
    assert append(log, 2) == (1, 2)
    assert log.close(NOW_MS)
    assert open_log(log.folder).log_end_offset == 3


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes only some bytes is carried on to the end."""
    log = open_log(tmp_path / "t-0")
    pwrite = os.pwrite
    monkeypatch.setattr(
        partition_log, "_pwrite", lambda fd, data, position: pwrite(fd, data[:7], position)
    )
    batch = batch_of(3)
    log.append(batch, now_ms=NOW_MS)
    assert bytes(log.read(0, 1000)) == bytes(batch)
    log.close(NOW_MS)


def test_a_log_that_cannot_cut_back_is_failed_until_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the torn bytes cannot be removed, every append is refused and reopening recovers."""
    log = open_log(tmp_path / "t-0")
    append(log)

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken_disk:
        broken_disk.setattr(partition_log, "_pwrite", broken)
        broken_disk.setattr(os, "ftruncate", broken)
        assert refusal(log, batch_of()) is ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(log, batch_of()) is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.close(NOW_MS)
    log = open_log(log.folder, clean=False)
    assert append(log) == (1, 1)
    log.close(NOW_MS)


def test_a_failed_roll_keeps_the_old_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a new segment cannot be made, the append is refused and works when it can."""
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=200))
    append(log, 1, bytes(80))
    real = os.open

    def full(path: Path, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *rest, **named)

    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "open", full)
        assert refusal(log, batch_of(1, bytes(80))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert append(log, 1, bytes(80)) == (1, 1)
    assert len(log.segments) == 2
    assert len(list(iter_headers(read_all(log)))) == 2
    log.close(NOW_MS)


def test_flush_moves_the_recovery_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush covers what was appended before it began; a failed one fails the log."""
    log = open_log(tmp_path / "t-0", SMALL)
    assert log.begin_flush(NOW_MS) is None
    for _ in range(20):
        append(log, 1, bytes(60))
    job = log.begin_flush(NOW_MS + 5)
    assert job is not None
    append(log)
    job.run()
    log.end_flush(job, None)
    assert (log.recovery_point, log.unflushed_messages, log.last_flush_ms) == (20, 1, NOW_MS + 5)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(KafkaError) as caught:
        log.flush(NOW_MS + 9)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 20
    assert refusal(log, batch_of()) is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.close(NOW_MS)


def test_the_brokers_own_batches_may_be_control_batches(tmp_path: Path) -> None:
    """is_client=False admits control and transactional batches."""
    log = open_log(tmp_path / "t-0")
    marker = batch_of(1, attributes=0x30, key=bytes(4), producer=(9, 3, -1))
    info = log.append(marker, now_ms=NOW_MS, is_client=False)
    assert info.first_offset == 0
    assert log.producers()[0].producer_epoch == 3
    log.close(NOW_MS)
