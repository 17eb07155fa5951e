"""Record batches against aiokafka and kafka-python, golden bytes, refusals and fuzzing."""

import mmap
import struct
import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Record,
    build_batch,
    check_batch,
    clear_log_append_time,
    crc_ok,
    is_one_batch,
    iter_headers,
    iter_records,
    read_header,
    recompress,
    set_log_append_time,
)

with warnings.catch_warnings():  # kafka-python loads its schemas through a deprecated function
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
KAFKA_PYTHON_CODECS = (NONE, GZIP, LZ4)  # its snappy and zstd need libraries we do not install

header_pairs = st.tuples(st.text(max_size=12), st.none() | st.binary(max_size=20))
bodies = st.lists(
    st.tuples(
        st.integers(0, 2**42),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=400),
        st.lists(header_pairs, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=12,
)
record_lists = bodies.map(
    lambda rows: [Record(offset, *row) for offset, row in enumerate(rows)]
)  # offsets from 0 up, as producers send them

# One record, key "k", value "v", header h=x, at timestamp 1000, leader epoch 7, producer 9 epoch 2
# sequence 5; put together by hand from the format's definition.
GOLDEN_RECORD = bytes.fromhex("18000000026b02760202680278")
GOLDEN = bytes.fromhex(
    "0000000000000064"  # base offset 100
    "0000003e"  # batch length 62 = 49 + 13
    "00000007"  # leader epoch
    "02"  # magic
    "00000000"  # CRC, filled in below
    "0010"  # attributes: transactional
    "00000000"  # last offset delta
    "00000000000003e8"  # base timestamp 1000
    "00000000000003e8"  # max timestamp 1000
    "0000000000000009"  # producer id
    "0002"  # producer epoch
    "00000005"  # base sequence
    "00000001"  # one record
)


def crc32c_bitwise(data: bytes) -> int:
    """CRC-32C from its definition, a bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def with_crc(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", crc32c_bitwise(batch[21:])) + batch[21:]


def patched(batch: bytes, pos: int, layout: str, value: int) -> bytes:
    """The batch with one field changed and the CRC made right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, pos, value)
    return with_crc(bytes(changed))


def plain(codec: int = NONE, count: int = 3) -> bytes:
    records = [Record(i, 1_000 + i, b"key-%d" % i, b"value " * 9) for i in range(count)]
    return build_batch(records, base_offset=0, codec=codec)


def refused(batch: bytes) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        check_batch(memoryview(batch))
    return caught.value


def as_records(foreign: Any) -> list[Record]:
    return [
        Record(
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple((key, None if value is None else bytes(value)) for key, value in record.headers),
        )
        for record in foreign
    ]


# --- golden bytes ---------------------------------------------------------------------------


def test_golden_batch_is_built() -> None:
    """A small transactional batch has exactly the bytes of the format's definition."""
    built = build_batch(
        [Record(100, 1000, b"k", b"v", (("h", b"x"),))],
        base_offset=100,
        partition_leader_epoch=7,
        producer_id=9,
        producer_epoch=2,
        base_sequence=5,
        attributes=TRANSACTIONAL_FLAG,
    )
    assert built == with_crc(GOLDEN + GOLDEN_RECORD)


def test_golden_batch_is_read() -> None:
    """The same bytes give the header's fields, the derived ones, and the record."""
    batch = with_crc(GOLDEN + GOLDEN_RECORD)
    header = read_header(b"??" + batch, 2)
    crc = struct.unpack_from(">I", batch, 17)[0]
    assert header == BatchHeader(100, 62, 7, 2, crc, 0x10, 0, 1000, 1000, 9, 2, 5, 1)
    assert header.size_bytes == len(batch) == 74
    assert (header.last_offset, header.next_offset, header.last_sequence) == (100, 101, 5)
    assert header.codec == NONE
    assert header.is_transactional
    assert not (header.is_control or header.is_log_append_time or header.has_delete_horizon)
    assert list(iter_records(batch)) == [Record(100, 1000, b"k", b"v", (("h", b"x"),))]
    unplaced = bytes(8) + batch[8:]
    assert check_batch(memoryview(unplaced)) == header._replace(base_offset=0)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        (LOG_APPEND_TIME_FLAG, "is_log_append_time"),
        (TRANSACTIONAL_FLAG, "is_transactional"),
        (CONTROL_FLAG, "is_control"),
        (DELETE_HORIZON_FLAG, "has_delete_horizon"),
    ],
)
def test_each_flag_is_its_own_bit(flag: int, name: str) -> None:
    """Each attribute flag turns exactly its property on, whatever the codec."""
    header = read_header(
        build_batch([Record(0, 5, None, b"")], base_offset=0, codec=ZSTD, attributes=flag)
    )
    names = ("is_log_append_time", "is_transactional", "is_control", "has_delete_horizon")
    assert [n for n in names if getattr(header, n)] == [name]
    assert header.codec == ZSTD


def test_last_sequence_wraps() -> None:
    """Sequence numbers go from 2^31 - 1 back to 0, and stay -1 without a producer."""
    header = read_header(plain())
    assert header.last_sequence == -1
    assert header._replace(base_sequence=2**31 - 3).last_sequence == 2**31 - 1
    assert header._replace(base_sequence=2**31 - 1).last_sequence == 1


# --- both directions against other implementations --------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists)
def test_aiokafka_reads_ours(codec: int, records: list[Record]) -> None:
    """aiokafka finds our batch valid and reads the same records."""
    batch = AiokafkaBatch(build_batch(records, base_offset=0, codec=codec))
    assert batch.validate_crc()
    assert as_records(batch) == records


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists)
def test_we_read_aiokafkas(codec: int, records: list[Record]) -> None:
    """We find aiokafka's batch valid and read the same records."""
    builder = AiokafkaBuilder(2, codec, 0, 11, 3, 17, 1 << 30)
    for record in records:
        builder.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    batch = bytes(builder.build())
    header = check_batch(memoryview(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 3, 17)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert crc_ok(batch, 0, len(batch))
    assert list(iter_records(batch)) == records


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
@given(records=record_lists)
def test_kafka_python_reads_ours(codec: int, records: list[Record]) -> None:
    """kafka-python finds our batch valid and reads the same records."""
    batch = KafkaPythonBatch(build_batch(records, base_offset=0, codec=codec))
    assert batch.validate_crc()
    assert as_records(batch) == records


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
@given(records=record_lists)
def test_we_read_kafka_pythons(codec: int, records: list[Record]) -> None:
    """We find kafka-python's batch valid and read the same records."""
    builder = KafkaPythonBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for record in records:
        builder.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    batch = bytes(builder.build())
    check_batch(memoryview(batch))
    assert list(iter_records(batch)) == records


@given(records=record_lists)
def test_plain_bytes_equal_aiokafkas(records: list[Record]) -> None:
    """Without compression our builder and aiokafka's agree to the byte (leader epoch aside)."""
    builder = AiokafkaBuilder(2, NONE, 0, -1, -1, -1, 1 << 30)
    for record in records:
        builder.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    theirs = bytes(builder.build())
    epoch = read_header(theirs).partition_leader_epoch
    assert build_batch(records, base_offset=0, partition_leader_epoch=epoch) == theirs


@given(records=record_lists, source=st.sampled_from(CODECS), target=st.sampled_from(CODECS))
def test_recompress(records: list[Record], source: int, target: int) -> None:
    """Under another codec a batch is what it would be had it been built with it."""
    batch = build_batch(records, base_offset=0, codec=source, producer_id=4, base_sequence=2)
    assert recompress(batch, target) == build_batch(
        records, base_offset=0, codec=target, producer_id=4, base_sequence=2
    )


# --- what compaction and the broker need -----------------------------------------------------


def test_gaps_and_kept_last_offset() -> None:
    """A compacted batch keeps its first and last offset around the records that are left."""
    records = [Record(103, 50, b"a", b"1"), Record(107, 40, b"b", None)]
    batch = build_batch(records, base_offset=100, last_offset=109)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.records_count) == (100, 109, 2)
    assert (header.base_timestamp, header.max_timestamp) == (50, 50)
    assert list(iter_records(batch)) == records


def test_delete_horizon_keeps_record_timestamps() -> None:
    """With a delete horizon as base timestamp the records' own timestamps still come out."""
    records = [Record(0, 500, b"a", None), Record(1, 900, b"b", None)]
    batch = build_batch(
        records, base_offset=0, base_timestamp=123_456, attributes=DELETE_HORIZON_FLAG
    )
    header = read_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (123_456, 900)
    assert list(iter_records(batch)) == records


def test_empty_batch() -> None:
    """A batch without records keeps offsets and producer state, and needs its last offset."""
    batch = build_batch([], base_offset=10, last_offset=14, producer_id=3, codec=GZIP)
    header = read_header(batch)
    assert (header.last_offset, header.records_count, header.codec) == (14, 0, NONE)
    assert list(iter_records(batch)) == []
    assert recompress(batch, ZSTD) == batch
    with pytest.raises(ValueError, match="needs its last_offset"):
        build_batch([], base_offset=10)


def test_offsets_must_rise() -> None:
    """Records whose offsets fall, repeat or leave the batch are a programming error."""
    for offsets, last_offset in (([5, 5], None), ([6, 5], None), ([4], None), ([5, 9], 8)):
        records = [Record(offset, 0, None, None) for offset in offsets]
        with pytest.raises(ValueError, match="does not rise"):
            build_batch(records, base_offset=5, last_offset=last_offset)


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_in_place(codec: int) -> None:
    """Stamping changes flag, maximum and CRC in place; readers then see only the new time."""
    stamped = bytearray(plain(codec))
    set_log_append_time(memoryview(stamped), 77_777)
    header = read_header(stamped)
    assert header.is_log_append_time
    assert (header.codec, header.max_timestamp, header.base_timestamp) == (codec, 77_777, 1000)
    assert crc_ok(stamped, 0, len(stamped))
    assert {record.timestamp for record in iter_records(stamped)} == {77_777}
    foreign = AiokafkaBatch(bytes(stamped))
    assert foreign.validate_crc()
    assert {record.timestamp for record in foreign} == {77_777}


@pytest.mark.parametrize("codec", CODECS)
def test_a_stamp_is_taken_back(codec: int) -> None:
    """Without the flag the records' own timestamps count again, under a right CRC."""
    stamped = bytearray(plain(codec))
    set_log_append_time(memoryview(stamped), 1_002)
    clear_log_append_time(memoryview(stamped))
    assert stamped == plain(codec)


@pytest.mark.parametrize(
    ("records", "is_one"),
    [
        (plain(), True),
        (plain(GZIP), True),
        (patched(plain(), 57, ">i", 0), True),
        (b"", False),
        (plain()[:-1], False),
        (plain() + b"x", False),
        (plain() + plain(), False),
        (patched(plain(), 16, ">b", 1), False),
        (patched(plain()[:60], 8, ">i", 48), False),
    ],
)
def test_one_batch_is_known_by_its_frame(records: bytes, is_one: bool) -> None:
    """Length and magic tell one whole batch of format v2 from anything else."""
    assert is_one_batch(records) is is_one


def test_header_keys_that_are_not_utf8_survive() -> None:
    """Bytes that are not UTF-8 in a header key come back unchanged after a rewrite."""
    batch = plain(count=1)
    odd = [Record(0, 1, b"k", b"v", (("caf\udce9", b"x"),))]
    rebuilt = build_batch(odd, base_offset=0)
    assert b"caf\xe9" in rebuilt
    assert list(iter_records(rebuilt)) == odd
    assert len(rebuilt) != len(batch)


def test_iter_headers_walks_and_stops_at_a_torn_tail() -> None:
    """Whole batches are listed with positions; a cut last one is not, and is no error."""
    first, second = plain(), plain(GZIP, 5)
    buf = first + second
    expected = [(0, read_header(first)), (len(first), read_header(second))]
    assert list(iter_headers(buf)) == expected
    assert list(iter_headers(buf, len(first))) == expected[1:]
    for cut in (1, len(second) - HEADER_SIZE, len(second) - 1):
        assert list(iter_headers(buf[: len(buf) - cut])) == expected[:1]
    assert list(iter_headers(b"")) == []


def test_iter_headers_refuses_impossible_lengths() -> None:
    """A length below the header's own size cannot be skipped over and is CORRUPT_MESSAGE."""
    for length in (48, 0, -1):
        bad = bytearray(plain())
        struct.pack_into(">i", bad, 8, length)
        walk = iter_headers(plain() + bytes(bad))
        next(walk)
        with pytest.raises(KafkaError, match=f"batch length of {length}"):
            next(walk)


def test_buffers_of_any_kind() -> None:
    """Batches are read from bytearrays, memoryviews and mapped files alike, leaving no export."""
    batch = plain(LZ4)
    with mmap.mmap(-1, len(batch)) as mapped:
        mapped[:] = batch
        for buf in (bytearray(batch), memoryview(batch), mapped):
            assert read_header(buf) == read_header(batch)
            assert crc_ok(buf, 0, len(batch))
            assert [header for _, header in iter_headers(buf)] == [read_header(batch)]
            assert list(iter_records(buf)) == list(iter_records(batch))
            assert recompress(buf, NONE) == plain()


@given(batch=st.sampled_from([plain(codec) for codec in CODECS]), data=st.data())
def test_crc_catches_every_flipped_bit(batch: bytes, data: st.DataObject) -> None:
    """A single changed bit anywhere after the CRC, or in it, is noticed."""
    bit = data.draw(st.integers(17 * 8, len(batch) * 8 - 1))
    flipped = bytearray(batch)
    flipped[bit // 8] ^= 1 << bit % 8
    assert crc_ok(batch, 0, len(batch))
    assert not crc_ok(flipped, 0, len(flipped))


def test_crc_of_what_is_not_there() -> None:
    """Positions and sizes outside the buffer are simply not valid."""
    batch = plain()
    assert crc_ok(b"xy" + batch + b"z", 2, len(batch))
    for pos, size in ((0, len(batch) + 1), (1, len(batch)), (0, 60), (-1000, 1000)):
        assert not crc_ok(batch, pos, size)


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize("magic", (0, 1))
def test_old_formats_are_refused_with_advice(magic: int) -> None:
    """Message formats v0 and v1 are refused with the sentence that says what to do."""
    # offset, size, CRC, magic, attributes, then v1's timestamp, null key, 1-byte value
    body = struct.pack(">Ibb", 0, magic, 0) + (bytes(8) if magic else b"") + b"\xff\xff\xff\xff"
    body += struct.pack(">i", 1) + b"v"
    error = refused(struct.pack(">qi", 0, len(body)) + body)
    assert error.code is ErrorCode.INVALID_RECORD
    assert error.message == (
        f"message format v{magic} is not supported; use a client of Kafka 0.11 or newer,"
        " which sends v2"
    )


@pytest.mark.parametrize(
    ("batch", "code", "why"),
    [
        (b"", "INVALID_RECORD", "too few"),
        (plain()[:16], "INVALID_RECORD", "too few"),
        (plain()[:17], "INVALID_RECORD", "arrived"),
        (plain()[:60], "INVALID_RECORD", "arrived"),
        (plain()[:-1], "INVALID_RECORD", "arrived"),
        (patched(plain(), 8, ">i", 2**31 - 1), "INVALID_RECORD", "arrived"),
        (patched(plain(), 8, ">i", 48), "CORRUPT_MESSAGE", "length of 48"),
        (patched(plain(), 8, ">i", 13), "CORRUPT_MESSAGE", "length of 13"),
        (patched(plain(), 8, ">i", -1), "CORRUPT_MESSAGE", "length of -1"),
        (patched(plain(), 16, ">b", 3), "CORRUPT_MESSAGE", "format 3"),
        (patched(plain(), 16, ">b", -1), "CORRUPT_MESSAGE", "format 255"),
        (patched(plain(), 16, ">b", 3)[:-1], "CORRUPT_MESSAGE", "format 3"),
        (patched(plain(), 16, ">b", 1)[:-1], "INVALID_RECORD", "arrived"),
        (patched(patched(plain(), 16, ">b", 1), 8, ">i", 13), "CORRUPT_MESSAGE", "length of 13"),
        (patched(patched(plain(), 16, ">b", 1), 8, ">i", 14), "INVALID_RECORD", "format v1"),
        (patched(plain(), 0, ">q", 500), "INVALID_RECORD", "offset 500"),
        (patched(plain(), 0, ">q", -1), "INVALID_RECORD", "offset -1"),
        (plain()[:-1] + b"\x01", "CORRUPT_MESSAGE", "CRC"),
        (plain() + plain(), "INVALID_RECORD", "exactly one batch"),
        (plain() + b"\x00", "INVALID_RECORD", "exactly one batch"),
        (patched(plain(), 57, ">i", 2), "INVALID_RECORD", "2 records"),
        (patched(plain(), 23, ">i", 5), "INVALID_RECORD", "delta of 5"),
        (patched(patched(plain(), 57, ">i", 0), 23, ">i", -1), "INVALID_RECORD", "0 records"),
        (patched(plain(), 21, ">h", CONTROL_FLAG), "INVALID_RECORD", "control"),
        (patched(plain(), 21, ">h", 5), "UNSUPPORTED_COMPRESSION_TYPE", "codec 5"),
        (patched(plain(), 21, ">h", -1), "INVALID_RECORD", "control"),
        (patched(plain(), 43, ">q", 8), "INVALID_RECORD", "producer 8"),
        (patched(patched(plain(), 43, ">q", 8), 53, ">i", 0), "INVALID_PRODUCER_EPOCH", "epoch -1"),
    ],
)
def test_check_batch_refuses(batch: bytes, code: str, why: str) -> None:
    """Each malformed batch gets Kafka's error code and a sentence naming the reason."""
    error = refused(batch)
    assert error.code is ErrorCode[code]
    assert why in error.message


@pytest.mark.parametrize("codec", CODECS)
def test_check_batch_accepts_every_codec(codec: int) -> None:
    """A sound batch passes under every codec, idempotent and transactional ones too."""
    check_batch(memoryview(plain(codec)))
    records = [Record(0, 1, None, b"v")]
    check_batch(
        memoryview(
            build_batch(
                records, base_offset=0, codec=codec, producer_id=1, producer_epoch=0,
                base_sequence=0, attributes=TRANSACTIONAL_FLAG,
            )
        )
    )  # fmt: skip


def raw_batch(payload: bytes, count: int) -> bytes:
    """A batch with these bytes as its records, whatever they are."""
    header = bytearray(GOLDEN)
    struct.pack_into(">i", header, 8, 49 + len(payload))
    struct.pack_into(">i", header, 57, count)
    return with_crc(bytes(header) + payload)


@pytest.mark.parametrize(
    ("payload", "count", "why"),
    [
        ("0c000000010100", -1, "declares -1 records"),
        ("0c000000010100", 2, "do not fit"),
        ("0c000000010100", 2**31 - 1, "do not fit"),
        ("0e000000010100", 1, "declares 7 bytes, 6 are left"),
        ("01000000010100", 1, "declares -1 bytes"),
        ("0c00000001010000", 1, "follow the last"),
        ("0e00000001010000", 1, "end elsewhere"),
        ("0c000000030100", 1, "key or value declares -2"),
        ("0c000000080100", 1, "runs past its record"),
        ("0c000000010102", 1, "1 headers in 0 bytes"),
        ("0c000000010101", 1, "-1 headers"),
        ("100000000101020100", 1, "header has no key"),
        ("0c0000ffffffffff", 1, "longer than 32"),
        ("18ffffffffffffffffffffffff", 1, "longer than 64"),
    ],
)
def test_malformed_records_are_corrupt(payload: str, count: int, why: str) -> None:
    """Wrong counts, lengths and varints inside a batch give CORRUPT_MESSAGE with the reason."""
    with pytest.raises(KafkaError, match=why) as caught:
        list(iter_records(raw_batch(bytes.fromhex(payload), count)))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_the_good_neighbour_of_the_malformed_ones() -> None:
    """The smallest record, of which the malformed ones are variations, is fine."""
    assert list(iter_records(raw_batch(bytes.fromhex("0c000000010100"), 1))) == [
        Record(100, 1000, None, None)
    ]


def test_decompression_is_bounded() -> None:
    """A batch that decompresses past the limit is refused, and the limit is a parameter."""
    batch = build_batch([Record(0, 0, None, bytes(1_000_000))], base_offset=0, codec=ZSTD)
    assert len(batch) < 1000
    assert len(list(iter_records(batch))) == 1
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        list(iter_records(batch, max_bytes=500_000))
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        recompress(batch, NONE, max_bytes=500_000)


def test_records_are_read_from_exactly_one_batch() -> None:
    """Bytes before or after the one batch are a caller's mistake, not records."""
    for batch in (plain() + plain(), plain()[:-1]):
        with pytest.raises(KafkaError, match="are given"):
            list(iter_records(batch))


@pytest.mark.parametrize("magic", (0, 1, 3))
def test_records_of_another_format_are_not_read(magic: int) -> None:
    """Reading records of another message format is refused, not misread."""
    with pytest.raises(KafkaError):
        list(iter_records(patched(plain(), 16, ">b", magic)))


# --- fuzzing ------------------------------------------------------------------------------


def read_everything(data: bytes) -> None:
    """Everything that reads a batch, each allowed to end in KafkaError and nothing else."""
    for read in (
        lambda: read_header(data),
        lambda: list(iter_headers(data)),
        lambda: check_batch(memoryview(data)),
        lambda: list(iter_records(data, max_bytes=1 << 20)),
        lambda: recompress(data, GZIP, max_bytes=1 << 20),
        lambda: crc_ok(data, 0, len(data)),
    ):
        try:
            read()
        except KafkaError:
            continue


@given(data=st.binary(max_size=300))
def test_random_bytes_give_only_kafka_errors(data: bytes) -> None:
    """Random bytes give a result or a KafkaError."""
    read_everything(data)


@given(payload=st.binary(max_size=200), count=st.integers(-3, 30), codec=st.integers(0, 7))
def test_random_records_give_only_kafka_errors(payload: bytes, count: int, codec: int) -> None:
    """A sound header around random records gives a result or a KafkaError."""
    read_everything(patched(raw_batch(payload, count), 21, ">h", codec))


@given(
    batch=st.sampled_from([plain(codec, 6) for codec in CODECS]),
    edits=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6),
    fix_length=st.booleans(),
)
def test_mutated_batches_give_only_kafka_errors(
    batch: bytes, edits: list[tuple[int, int]], fix_length: bool
) -> None:
    """A real batch with changed bytes gives a result or a KafkaError."""
    mutated = bytearray(batch)
    for index, value in edits:
        mutated[index % len(mutated)] = value
    if fix_length:
        struct.pack_into(">i", mutated, 8, len(mutated) - 12)
        mutated[16] = 2
    read_everything(bytes(mutated))


def test_recompress_takes_a_level() -> None:
    """A higher level gives a smaller batch of the same records."""
    words = [b"%d-%d" % (n % 7, n % 13) for n in range(3000)]
    records = [Record(n, 1, None, word, ()) for n, word in enumerate(words)]
    plain = build_batch(records, base_offset=0)
    quick, thorough = recompress(plain, 1, level=1), recompress(plain, 1, level=9)
    assert len(thorough) < len(quick) < len(plain)
    assert list(iter_records(thorough)) == list(iter_records(quick)) == records
