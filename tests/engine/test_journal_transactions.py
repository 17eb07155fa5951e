"""Transactional batches in a journal: markers decide, and the log's order says what is later."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.records import OffsetCommitted, OffsetPending
from anabranch.engine.journal.batch import build_entries
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.group_codec import encode
from anabranch.engine.journal.journal import append_pending, append_records, read_records
from anabranch.log.compaction import compact
from anabranch.log.log_config import LogConfig
from anabranch.log.markers import append_marker
from anabranch.log.partition_log import PartitionLog
from anabranch.wire.control_records import ABORT, COMMIT, build_marker
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    Record,
    build_batch,
    iter_headers,
)

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), max_message_bytes=2**26)


def open_log(folder: Path) -> PartitionLog:
    return PartitionLog.open(
        folder,
        topic="__consumer_offsets",
        partition=0,
        topic_id=bytes(range(16)),
        config=CONFIG,
        leader_epoch=0,
        clean=False,
        recovery_point=0,
        log_start_offset=0,
        now_ms=NOW_MS,
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    log = open_log(tmp_path / "log")
    yield log
    log.close(NOW_MS)


def committed(offset: int | None, partition: int = 0) -> OffsetCommitted:
    value = None
    if offset is not None:
        value = CommittedOffset(offset=offset, commit_timestamp_ms=NOW_MS)
    return OffsetCommitted(group_id="g", topic="t", partition=partition, value=value)


def pending(offset: int, partition: int = 0, *, producer: int = 7, epoch: int = 0) -> OffsetPending:
    return OffsetPending(
        producer_id=producer, producer_epoch=epoch, offset=committed(offset, partition)
    )


def commit(log: PartitionLog, *records: OffsetCommitted) -> None:
    append_records(log, records, NOW_MS)


def prepare(log: PartitionLog, *records: OffsetPending) -> int:
    return append_pending(log, records, NOW_MS)


def end(log: PartitionLog, control_type: int, producer: int = 7, epoch: int = 0) -> None:
    append_marker(
        log,
        control_type,
        producer_id=producer,
        producer_epoch=epoch,
        coordinator_epoch=3,
        now_ms=NOW_MS,
    )


def read(log: PartitionLog) -> list[Any]:
    skipped: Counter[int] = Counter()
    records = list(read_records(log, skipped))
    assert not skipped
    return records


def raw(log: PartitionLog, batch: bytes | bytearray) -> None:
    log.append(memoryview(bytearray(batch)), now_ms=NOW_MS, is_client=False)


# Bytes ------------------------------------------------------------------------------------------


def test_a_transactional_batch_is_as_kafka_writes_it(log: PartitionLog) -> None:
    """Flag, producer id and epoch, and no sequence, as any broker's own records."""
    records = [pending(5, epoch=2), pending(6, 1, epoch=2)]
    entries = [encode(record.offset) for record in records]
    expected = build_batch(
        [
            Record(offset=number, timestamp=NOW_MS, key=key, value=value)
            for number, (key, value) in enumerate(entries)
        ],
        base_offset=0,
        producer_id=7,
        producer_epoch=2,
        base_sequence=-1,
        attributes=TRANSACTIONAL_FLAG,
    )
    assert build_entries(entries, timestamp_ms=NOW_MS, producer=(7, 2)) == expected

    assert prepare(log, *records) == len(expected)
    [(_, header)] = iter_headers(log.read(0, 2**20))
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, -1)
    assert log.last_stable_offset == 0
    end(log, COMMIT, epoch=2)
    assert log.last_stable_offset == log.log_end_offset == 3


def test_many_offsets_are_batches_of_one_transaction(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they do not fit in one; the marker ends all of them."""
    monkeypatch.setattr("anabranch.engine.journal.journal._BATCH_RECORDS_MAX", 2)
    many = [pending(9, partition) for partition in range(5)]
    prepare(log, *many)

    assert [h.is_transactional for _, h in iter_headers(log.read(0, 2**20))] == [True] * 3
    assert read(log) == many
    end(log, ABORT)
    assert read(log) == []


# Reading ----------------------------------------------------------------------------------------


def test_a_commit_marker_makes_them_count(log: PartitionLog) -> None:
    """From then on they are the last record of their key."""
    commit(log, committed(1), committed(1, 1))
    prepare(log, pending(5))
    assert read(log) == [committed(1), committed(1, 1), pending(5)]
    end(log, COMMIT)
    assert read(log) == [committed(1, 1), committed(5)]


def test_an_abort_marker_makes_them_nothing(log: PartitionLog) -> None:
    """What was committed before stays; later transactions of the producer are others."""
    commit(log, committed(1))
    prepare(log, pending(5), pending(5, 1))
    end(log, ABORT)
    assert read(log) == [committed(1)]
    prepare(log, pending(6))
    end(log, COMMIT)
    assert read(log) == [committed(6)]


def test_what_is_open_comes_last_in_the_order_it_was_written(log: PartitionLog) -> None:
    """With its producer and epoch; the last one of a producer and key."""
    prepare(log, pending(5), pending(5, 1))
    prepare(log, pending(8, producer=8, epoch=4))
    prepare(log, pending(6))
    commit(log, committed(2, 3))

    assert read(log) == [
        committed(2, 3),
        pending(5, 1),
        pending(8, producer=8, epoch=4),
        pending(6),
    ]


@pytest.mark.parametrize("plain", [committed(2), committed(None)])
def test_a_plain_record_after_a_pending_one_is_later(
    log: PartitionLog, plain: OffsetCommitted
) -> None:
    """Also a tombstone, and whatever the marker says."""
    prepare(log, pending(5))
    commit(log, plain)
    assert read(log) == [plain]
    end(log, COMMIT)
    assert read(log) == [plain]


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
def test_of_two_transactions_the_later_record_counts(
    log: PartitionLog, order: tuple[int, int]
) -> None:
    """In whichever order their markers come."""
    prepare(log, pending(5))
    prepare(log, pending(9, producer=8))
    end(log, COMMIT, order[0])
    assert read(log) == (
        [committed(9)] if order[0] == 8 else [committed(5), pending(9, producer=8)]
    )
    end(log, COMMIT, order[1])
    assert read(log) == [committed(9)]


def test_control_batches_that_are_no_markers_end_nothing(log: PartitionLog) -> None:
    """Kafka writes others too; and a marker of somebody else ends nothing of this one."""
    prepare(log, pending(5))
    other = Record(offset=0, timestamp=NOW_MS, key=b"\x00\x00\x00\x02", value=b"\x00\x00")
    raw(log, build_batch([other], base_offset=0, attributes=CONTROL_FLAG, producer_id=7))
    end(log, COMMIT, producer=8)
    assert read(log) == [pending(5)]


def test_a_tombstone_in_a_transaction_is_passed_over(log: PartitionLog) -> None:
    """Nobody writes one; while it is pending it says nothing."""
    entries = [encode(committed(None))]
    raw(log, build_entries(entries, timestamp_ms=NOW_MS, producer=(7, 0)))
    skipped: Counter[int] = Counter()
    assert (list(read_records(log, skipped)), skipped) == ([], {1: 1})


def test_a_compacted_journal_says_the_same(log: PartitionLog) -> None:
    """Aborted records go, committed ones stay as long as they are the last, and so do markers."""
    commit(log, committed(1), committed(1, 1))
    prepare(log, pending(5), pending(5, 2))
    end(log, ABORT)
    prepare(log, pending(6), pending(6, 3))
    commit(log, committed(7, 3))
    end(log, COMMIT)
    log.roll(NOW_MS)
    prepare(log, pending(8, 4))
    before = read(log)
    assert before == [committed(1, 1), committed(7, 3), committed(6), pending(8, 4)]

    compact(log, None, NOW_MS)

    assert sorted(read(log), key=repr) == sorted(before, key=repr)


def test_what_kafka_compressed_is_read(log: PartitionLog) -> None:
    """`offsets.topic.compression.codec` of a broker whose folder was taken over."""
    for number, control_type in enumerate((ABORT, COMMIT)):
        key, value = encode(committed(5 + number, number))
        batch = build_batch(
            [Record(offset=0, timestamp=NOW_MS, key=key, value=value)],
            base_offset=0,
            producer_id=3000,
            producer_epoch=0,
            attributes=TRANSACTIONAL_FLAG,
            codec=1,
        )
        raw(log, batch)
        marker = build_marker(
            control_type,
            producer_id=3000,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOW_MS,
        )
        raw(log, marker)
    assert read(log) == [committed(6, 1)]


def test_a_journal_of_kafka_says_what_kafka_said(tmp_path: Path) -> None:
    """With aborted, overtaken and open transactions (recorded, see the file)."""
    lines = (Path(__file__).parent / "golden" / "transactional_offsets.txt").read_text()
    batches = [bytes.fromhex(line) for line in lines.splitlines() if not line.startswith("#")]
    folder = tmp_path / "__consumer_offsets-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(b"".join(batches))
    taken_over = open_log(folder)

    records = read(taken_over)

    said = {
        (type(one).__name__, offset.partition): offset.value.offset
        for one in records
        for offset in [one.offset if isinstance(one, OffsetPending) else one]
        if isinstance(offset, OffsetCommitted) and offset.value is not None
    }
    assert said == {
        ("OffsetCommitted", 0): 3,
        ("OffsetCommitted", 1): 6,
        ("OffsetCommitted", 3): 9,
        ("OffsetPending", 2): 11,
    }
    (left,) = [one for one in records if isinstance(one, OffsetPending)]
    assert list(taken_over.transactions.open) == [left.producer_id]
    taken_over.close(NOW_MS)


def test_a_damaged_marker_is_told_with_its_offset(log: PartitionLog) -> None:
    """A transaction must not end by a guess."""
    prepare(log, pending(5))
    marker = bytearray(
        build_marker(COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=3, timestamp=NOW_MS)
    )
    raw(log, marker)
    segment = log.segments[-1]
    data = bytearray(segment.path(".log").read_bytes())
    data[-3] ^= 0xFF
    segment.path(".log").write_bytes(data)
    with pytest.raises(JournalError, match="offset 1"):
        read(log)
