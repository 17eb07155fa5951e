"""Which records of a batch are wrong is said where it is known (KIP-467)."""

import struct
from collections.abc import Iterable
from pathlib import Path

import pytest
from crc32c import crc32c
from log_kit import NOW_MS, batch_of, open_log

from anabranch.log import append_checks
from anabranch.log.append_checks import RecordValidationError
from anabranch.log.log_config import LogConfig
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import (
    LOG_APPEND_TIME_FLAG,
    Record,
    build_batch,
    crc_ok,
    iter_records,
    read_header,
)

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
NARROW = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
NARROW_COMPACTED = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    message_timestamp_before_max_ms=1000,
    message_timestamp_after_max_ms=500,
)
APPEND_TIME = LogConfig(message_timestamp_type="LogAppendTime")
EARLY, LATE = NOW_MS - 1001, NOW_MS + 501


def mixed(*records: tuple[bytes | None, int], codec: int = 0) -> memoryview:
    """A batch of records with these keys and timestamps."""
    made = [Record(i, timestamp, key, b"v") for i, (key, timestamp) in enumerate(records)]
    return memoryview(bytearray(build_batch(made, base_offset=0, codec=codec)))


def sealed(batch: memoryview, layout: str, position: int, value: int) -> memoryview:
    struct.pack_into(layout, batch, position, value)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


def unreadable(codec: int = 1) -> memoryview:
    """A batch that says its payload is compressed, under a right CRC."""
    return sealed(batch_of(1, key=b"k"), ">h", 21, codec)


def refusal(folder: Path, config: LogConfig, batch: memoryview) -> KafkaError:
    log = open_log(folder / "t-0", config)
    with pytest.raises(KafkaError) as caught:
        log.append(batch, now_ms=NOW_MS)
    assert log.size_bytes == 0
    log.close(NOW_MS)
    return caught.value


def indexes(error: KafkaError) -> list[int]:
    assert isinstance(error, RecordValidationError)
    return [index for index, _ in error.record_errors]


@pytest.mark.parametrize("codec", range(5))
def test_every_keyless_record_is_named(tmp_path: Path, codec: int) -> None:
    """On a compacted topic those without a key are told apart from their neighbours."""
    batch = mixed((b"a", NOW_MS), (None, NOW_MS), (b"", NOW_MS), (None, NOW_MS), codec=codec)
    error = refusal(tmp_path, COMPACTED, batch)
    assert error.code is ErrorCode.INVALID_RECORD
    assert indexes(error) == [1, 3]
    assert error.message.startswith("record 1: the topic is compacted")


@pytest.mark.parametrize("codec", range(5))
def test_every_wrong_timestamp_is_named(tmp_path: Path, codec: int) -> None:
    """Records too old and too new are named; those in range and without a timestamp are not."""
    batch = mixed((None, EARLY), (None, NOW_MS), (None, LATE), (None, -1), codec=codec)
    error = refusal(tmp_path, NARROW, batch)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert indexes(error) == [0, 2]
    assert isinstance(error, RecordValidationError)
    assert [why.partition(";")[0] for _, why in error.record_errors] == [
        f"timestamp {EARLY} is earlier than {NOW_MS - 1000}",
        f"timestamp {LATE} is later than {NOW_MS + 500}",
    ]


def test_keys_and_timestamps_together(tmp_path: Path) -> None:
    """Each record is refused for one reason, and a timestamp decides the code, as in Kafka."""
    batch = mixed((None, NOW_MS), (b"k", LATE), (None, LATE), (b"k", NOW_MS))
    error = refusal(tmp_path, NARROW_COMPACTED, batch)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert isinstance(error, RecordValidationError)
    assert [(i, why[:9]) for i, why in error.record_errors] == [
        (0, "the topic"),
        (1, "timestamp"),
        (2, "the topic"),
    ]


def test_a_header_that_lies_about_its_timestamps(tmp_path: Path) -> None:
    """The header is believed; where no record is wrong, none is named."""
    error = refusal(tmp_path, NARROW, sealed(batch_of(2), ">q", 35, LATE))
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert indexes(error) == []


@pytest.mark.parametrize("config", [NARROW, NARROW_COMPACTED])
def test_wrong_timestamps_of_records_that_cannot_be_read(tmp_path: Path, config: LogConfig) -> None:
    """The batch is refused all the same."""
    error = refusal(tmp_path, config, sealed(unreadable(), ">q", 35, LATE))
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert indexes(error) == []


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        (COMPACTED, mixed(*((None, NOW_MS) for _ in range(4)))),
        (NARROW, mixed(*((None, LATE) for _ in range(4)))),
        (APPEND_TIME, batch_of(4, attributes=LOG_APPEND_TIME_FLAG)),
    ],
)
def test_too_many_wrong_records_are_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: LogConfig, batch: memoryview
) -> None:
    """A small compressed batch could otherwise make an answer of hundreds of megabytes."""
    monkeypatch.setattr(append_checks, "_RECORD_ERRORS_MAX", 4)
    assert len(indexes(refusal(tmp_path, config, memoryview(bytearray(batch))))) == 4
    monkeypatch.setattr(append_checks, "_RECORD_ERRORS_MAX", 3)
    assert indexes(refusal(tmp_path, config, memoryview(bytearray(batch)))) == []


def test_a_bomb_is_not_opened_to_name_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused timestamp makes the broker read neither many bytes nor many records."""
    batch = mixed(*((None, LATE) for _ in range(50)), codec=1)
    assert len(indexes(refusal(tmp_path, NARROW, batch))) == 50
    dense = batch_of(50_000, None, timestamp=LATE, codec=4)
    assert len(dense) < 50_000
    monkeypatch.setattr(append_checks, "_RECORD_ERRORS_MAX", 50_000)
    assert indexes(refusal(tmp_path, NARROW, dense)) == []
    monkeypatch.setattr(append_checks, "_REFUSED_BYTES_MAX", 100)
    assert indexes(refusal(tmp_path, NARROW, batch)) == []


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("config", [COMPACTED, LogConfig(compression_type="uncompressed")])
def test_records_that_cannot_be_read_are_invalid(
    tmp_path: Path, config: LogConfig, codec: int
) -> None:
    """Under a right CRC it is no use to send them again, so the error is not CORRUPT_MESSAGE."""
    error = refusal(tmp_path, config, unreadable(codec))
    assert error.code is ErrorCode.INVALID_RECORD
    assert "although the CRC is right" in error.message
    assert "again" not in error.message


def appended(folder: Path, config: LogConfig, batch: memoryview) -> bytes:
    log = open_log(folder / "t-0", config)
    log.append(batch, now_ms=NOW_MS)
    stored = bytes(log.read(0, 1 << 20))
    log.close(NOW_MS)
    assert crc_ok(stored, 0, len(stored))
    return stored


def test_the_brokers_time_makes_the_producers_irrelevant(tmp_path: Path) -> None:
    """With LogAppendTime no timestamp is refused, not even where the records are read."""
    config = LogConfig(
        cleanup_policy=frozenset({"compact"}),
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=1000,
    )
    assert times(appended(tmp_path, config, mixed((b"a", EARLY), (b"b", LATE)))) == [NOW_MS] * 2


def times(stored: bytes) -> Iterable[int]:
    return [record.timestamp for record in iter_records(stored)]


def test_the_timestamp_type_of_a_producer_is_taken_back(tmp_path: Path) -> None:
    """A topic with CreateTime stores CreateTime, whatever the batch says, as in Kafka."""
    batch = batch_of(2, attributes=LOG_APPEND_TIME_FLAG)
    stored = appended(tmp_path, LogConfig(), batch)
    assert not read_header(stored).is_log_append_time
    assert times(stored) == [NOW_MS, NOW_MS]


@pytest.mark.parametrize(("config", "timestamp"), [(APPEND_TIME, NOW_MS), (LogConfig(), -1)])
def test_the_timestamp_type_of_a_producer_is_refused(
    tmp_path: Path, config: LogConfig, timestamp: int
) -> None:
    """Kafka refuses it for each record where the topic has LogAppendTime or no time is given."""
    batch = batch_of(2, timestamp=timestamp, attributes=LOG_APPEND_TIME_FLAG)
    error = refusal(tmp_path, config, batch)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert indexes(error) == [0, 1]
