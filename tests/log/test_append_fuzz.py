"""Whatever bytes a client sends, the log refuses them with a KafkaError or stays sound."""

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import NOW_MS, SMALL, append, batch_of, open_log, read_all

from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import iter_headers

mutations = st.lists(st.tuples(st.integers(0, 130), st.binary(min_size=1, max_size=8)), max_size=4)


def try_append(log: PartitionLog, batch: bytearray) -> None:
    try:
        log.append(memoryview(batch), now_ms=NOW_MS)
    except KafkaError as error:
        assert error.code is not ErrorCode.KAFKA_STORAGE_ERROR


@settings(max_examples=80, deadline=None)
@given(
    batches=st.lists(
        st.tuples(mutations, st.integers(0, 4), st.booleans(), st.integers(0, 40)), max_size=8
    ),
    noise=st.binary(max_size=200),
)
def test_any_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[list[tuple[int, bytes]], int, bool, int]],
    noise: bytes,
) -> None:
    """Batches with changed bytes, with and without a right CRC, and plain noise."""
    log = open_log(tmp_path_factory.mktemp("fuzz") / "t-0", SMALL)
    append(log, producer=(1, 0, 0))
    for changes, codec, is_resealed, cut in batches:
        batch = bytearray(batch_of(2, b"some value", producer=(1, 0, 1), codec=codec))
        for position, content in changes:
            batch[position : position + len(content)] = content
        batch = batch[: len(batch) - cut] if cut < 20 else batch
        if is_resealed and len(batch) >= 61:
            struct.pack_into(">i", batch, 8, len(batch) - 12)
            struct.pack_into(">b", batch, 16, 2)
            struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
        try_append(log, batch)
    try_append(log, bytearray(noise))
    append(log)
    content = read_all(log)
    headers = [header for _, header in iter_headers(content)]
    assert sum(header.size_bytes for header in headers) == len(content)
    next_offset = 0
    for header in headers:
        assert header.base_offset == next_offset
        next_offset = header.next_offset
    assert next_offset == log.log_end_offset
    for timestamp in (0, NOW_MS):
        try:
            log.offset_for_timestamp(timestamp)
        except KafkaError as error:
            assert error.code is ErrorCode.CORRUPT_MESSAGE
    log.close(NOW_MS)
    recovered = open_log(log.folder, SMALL, clean=False)
    assert read_all(recovered) == content
    recovered.close(NOW_MS)


@pytest.mark.parametrize("codec", [0, 1, 3])
def test_a_count_that_cannot_be_is_refused(tmp_path: Path, codec: int) -> None:
    """Two billion records in a hundred bytes are refused, compressed or not."""
    log = open_log(tmp_path / "t-0")
    batch = batch_of(2, codec=codec)
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    with pytest.raises(KafkaError) as caught:
        log.append(batch, now_ms=NOW_MS)
    assert caught.value.code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert log.log_end_offset == 0
    log.close(NOW_MS)


def test_many_small_records_compressed_to_little_are_fine(tmp_path: Path) -> None:
    """An honest batch may hold far more records than bytes."""
    log = open_log(tmp_path / "t-0", LogConfig())
    batch = batch_of(50_000, None, codec=4)
    assert len(batch) < 50_000
    assert log.append(batch, now_ms=NOW_MS).last_offset == 49_999
    log.close(NOW_MS)


def test_a_closed_log_answers_with_an_error(tmp_path: Path) -> None:
    """A request that comes too late gets KAFKA_STORAGE_ERROR, not a reopened file."""
    log = open_log(tmp_path / "t-0")
    append(log)
    log.close(NOW_MS)
    for use in (lambda: log.read(0, 10), lambda: append(log)):
        with pytest.raises(KafkaError) as caught:
            use()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
