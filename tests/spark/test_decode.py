"""Fetched batches as Arrow rows: exactly the records of the interval and of the slots."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from anabranch.branch.slots import DEFAULT_RULE, SlotRule, slots_of_branch  # noqa: E402
from anabranch.model.errors import ErrorCode, KafkaError  # noqa: E402
from anabranch.model.units import SlotRange  # noqa: E402
from anabranch.spark import decode as decode_module  # noqa: E402
from anabranch.spark.decode import ROWS_MAX, Wanted, arrow_schema, decode  # noqa: E402
from anabranch.wire.record_batch import (  # noqa: E402
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    Record,
    build_batch,
    iter_records,
    read_header,
)
from branch.batch_kit import (  # noqa: E402
    RULES,
    control_batch,
    mutated,
    patched,
    random_log,
    read_by_aiokafka,
    read_by_kafka_python,
    slot_of_record,
    with_crc,
)

COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
END = 2**62
seeds = st.integers(0, 2**32)


def wanted(
    start: int = 0,
    end: int = END,
    slots: SlotRange | None = None,
    aborted: tuple[tuple[int, int], ...] = (),
    columns: tuple[str, ...] = COLUMNS,
    rule: SlotRule = DEFAULT_RULE,
) -> Wanted:
    return Wanted("orders", 3, start, end, slots, aborted, columns, rule)


def rows_of(batches: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows as Python values, timestamps as numbers; the batches must be sound."""
    rows = []
    for batch in batches:
        batch.validate(full=True)
        assert 0 < batch.num_rows <= ROWS_MAX
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in batch.columns
        ]
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return rows


def row_of(record: Record, timestamp_type: int) -> tuple[Any, ...]:
    """What Spark's own source makes of a record."""
    headers = [
        {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
        for name, value in record.headers
    ]
    return (
        record.key,
        record.value,
        "orders",
        3,
        record.offset,
        record.timestamp * 1000,
        timestamp_type,
        headers or None,
    )


def batch_of(base_offset: int, count: int, codec: int = 0, **fields: Any) -> bytes:
    records = [Record(base_offset + i, 1000, b"k%d" % i, b"v" * 50) for i in range(count)]
    return build_batch(records, base_offset=base_offset, codec=codec, **fields)


def offsets_of(batches: Sequence[Any]) -> list[int]:
    return [row[0] for row in rows_of(batches)]


@settings(max_examples=150)
@given(seeds, st.sampled_from(RULES))
def test_rows_are_the_records(seed: int, rule: SlotRule) -> None:
    """Every record of the interval and the slots that other readers find is a row, and no other."""
    rng = random.Random(seed)
    batches = random_log(rng, 8)
    bounds = [0, END]
    if batches:
        first, last = read_header(batches[0]).base_offset, read_header(batches[-1]).next_offset
        bounds += [rng.randrange(first, last + 1) for _ in range(2)]
    start, end = sorted(rng.sample(bounds, 2))
    ranges = rng.choice((1, 2, 7))
    slots = slots_of_branch(rng.randrange(ranges), ranges)
    columns = tuple(rng.sample(COLUMNS, rng.randrange(1, 9)))
    expected = []
    for batch in batches:
        header = read_header(batch)
        if header.is_control:
            continue
        records = read_by_aiokafka(batch)
        assert records == read_by_kafka_python(batch)
        expected += [
            row_of(record, int(header.is_log_append_time))
            for record in records
            if start <= record.offset < end
            and slots.first <= slot_of_record(record, rule) < slots.end
        ]
    found, next_offset = decode(
        b"".join(batches),
        wanted(start, end, None if ranges == 1 else slots, columns=columns, rule=rule),
    )
    order = [COLUMNS.index(name) for name in columns]
    assert rows_of(found) == [tuple(row[i] for i in order) for row in expected]
    for batch in found:
        assert batch.schema.equals(arrow_schema(columns))
    last = max((read_header(batch).next_offset for batch in batches), default=start)
    assert next_offset == min(max(last, start), end)


def test_schema_is_sparks() -> None:
    """Spark compares the schema of the first batch, nullability included, with its own."""
    types = pytest.importorskip("pyspark.sql.types")
    to_arrow_schema = pytest.importorskip("pyspark.sql.pandas.types").to_arrow_schema
    header = types.StructType().add("key", "string").add("value", "binary")
    schema = (
        types.StructType()
        .add("key", "binary")
        .add("value", "binary")
        .add("topic", "string")
        .add("partition", "integer")
        .add("offset", "long")
        .add("timestamp", "timestamp")
        .add("timestampType", "integer")
        .add("headers", types.ArrayType(header))
    )
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(COLUMNS))


@pytest.mark.parametrize("codec", range(5))
def test_every_key_range_has_its_records(codec: int) -> None:
    """Ranges that tile the slots have every record once, whatever the codec."""
    rng = random.Random(codec)
    records = [
        Record(i, 1000 + i, rng.choice((None, b"key-%d" % rng.randrange(40))), b"v")
        for i in range(1000)
    ]
    log = build_batch(records, base_offset=0, codec=codec)
    seen: list[int] = []
    for branch in range(5):
        batches, _ = decode(log, wanted(slots=slots_of_branch(branch, 5), columns=("offset",)))
        offsets = offsets_of(batches)
        assert offsets and offsets == sorted(offsets)
        seen += offsets
    assert sorted(seen) == list(range(1000))


def test_batches_are_cut_by_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than Spark likes to have at once, or more bytes, are several batches."""
    records = [Record(i, 0, b"k", b"%05d" % i) for i in range(25_000)]
    log = build_batch(records, base_offset=0)
    batches, _ = decode(log, wanted())
    assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5000]
    assert [row[1] for row in rows_of(batches)] == [record.value for record in records]
    monkeypatch.setattr(decode_module, "BATCH_BYTES_MAX", 700)
    batches, _ = decode(log, wanted(0, 250))
    assert [batch.num_rows for batch in batches] == [100, 100, 50]
    assert len(rows_of(batches)) == 250
    monkeypatch.setattr(decode_module, "BATCH_BYTES_MAX", 1)
    assert [batch.num_rows for batch in decode(log, wanted(0, 3))[0]] == [1, 1, 1]


# --- Transactions ---------------------------------------------------------------------------------


def marker(offset: int, producer_id: int, is_commit: bool) -> bytes:
    batch = bytearray(control_batch(random.Random(0), offset))
    end = build_batch(
        [Record(offset, 0, struct.pack(">hh", 0, int(is_commit)), bytes(6))],
        base_offset=offset,
        attributes=read_header(bytes(batch)).attributes,
        producer_id=producer_id,
        producer_epoch=0,
    )
    return bytes(end)


def of_producer(offset: int, producer_id: int, *, is_transactional: bool = True) -> bytes:
    return batch_of(
        offset,
        2,
        attributes=TRANSACTIONAL_FLAG if is_transactional else 0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


def test_aborted_records_are_no_rows() -> None:
    """Only transactional records of the producer, from the first offset up to its marker."""
    log = b"".join(
        (
            of_producer(0, 7, is_transactional=False),
            of_producer(2, 7),  # aborted
            of_producer(4, 8),  # committed
            of_producer(6, 7),  # aborted
            marker(8, 8, True),
            marker(9, 7, False),
            of_producer(10, 7),  # the next transaction
            of_producer(12, 9),  # aborted
            marker(14, 7, True),
            marker(15, 9, False),
        )
    )
    asked = wanted(columns=("offset",), aborted=((9, 12), (7, 2)))
    found, next_offset = decode(log, asked)
    assert offsets_of(found) == [0, 1, 4, 5, 10, 11]
    assert next_offset == 16
    everything, _ = decode(log, wanted(columns=("offset",)))
    assert offsets_of(everything) == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13]


def test_marker_of_a_transaction_that_began_before() -> None:
    """A fetch in the middle of an aborted transaction does not take the next one for it."""
    log = marker(9, 7, False) + of_producer(10, 7) + marker(12, 7, True)
    found, _ = decode(log, wanted(9, columns=("offset",), aborted=((7, 2),)))
    assert offsets_of(found) == [10, 11]


# --- Where to go on -------------------------------------------------------------------------------


def test_a_batch_beyond_the_end_ends_the_interval() -> None:
    """Offsets may be missing before the end; a batch beyond it proves that nothing comes."""
    log = batch_of(0, 10) + batch_of(50, 10)
    found, next_offset = decode(log, wanted(0, 30, columns=("offset",)))
    assert offsets_of(found) == list(range(10))
    assert next_offset == 30
    assert decode(log, wanted(10, 30)) == ([], 30)
    assert decode(batch_of(0, 10), wanted(0, 30))[1] == 10
    assert decode(batch_of(50, 10), wanted(10, 30)) == ([], 30)


def test_what_is_cut_off_is_asked_for_again() -> None:
    """The beginning of a batch is nothing; the next offset says where it is."""
    first, second = batch_of(0, 10), batch_of(10, 10)
    for cut in (1, 16, 17, 60, len(second) - 1):
        found, next_offset = decode(first + second[:cut], wanted(columns=("offset",)))
        assert offsets_of(found) == list(range(10))
        assert next_offset == 10
        assert decode(second[:cut], wanted(10)) == ([], 10)
    assert decode(b"", wanted(10)) == ([], 10)
    assert decode(b"", wanted(10, 10)) == ([], 10)


def test_reading_ends_where_too_much_decompresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of an answer is asked for again, and no damage behind it is an error yet."""
    monkeypatch.setattr(decode_module, "PLAIN_BYTES_MAX", 100)
    log = batch_of(0, 10, codec=1) + batch_of(10, 10, codec=1) + bytes(80)
    found, next_offset = decode(log, wanted(columns=("offset",)))
    assert offsets_of(found) == list(range(10))
    assert next_offset == 10


# --- Odd and hostile bytes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("millis", "micros"),
    [(-1, -1000), (0, 0), (2**63 // 1000, 2**63 // 1000 * 1000), (2**62, 2**63 - 1)],
)
def test_timestamps(millis: int, micros: int) -> None:
    """Milliseconds become microseconds; what does not fit becomes the last that does."""
    for flag in (0, LOG_APPEND_TIME_FLAG):
        batch = build_batch([Record(0, millis, b"", b"")], base_offset=0, attributes=flag)
        found, _ = decode(batch, wanted(columns=("timestamp", "timestampType")))
        assert rows_of(found) == [(micros, int(flag != 0))]


@pytest.mark.parametrize("millis", [-(2**62), -(2**63)])
def test_timestamps_long_ago(millis: int) -> None:
    """The same at the other end."""
    batch = patched(build_batch([Record(0, 0, b"", b"")], base_offset=0), 27, ">q", millis)
    assert rows_of(decode(batch, wanted(columns=("timestamp",)))[0]) == [(-(2**63),)]


@settings(max_examples=200)
@given(st.binary(max_size=12))
def test_names_of_headers_are_text(name: bytes) -> None:
    """A name that is no UTF-8 gets replacement characters where Python would put them."""
    text = name.decode("utf-8", "surrogateescape")
    batch = build_batch([Record(0, 0, None, None, ((text, b"v"), ("n", None)))], base_offset=0)
    found, _ = decode(batch, wanted(columns=("headers",)))
    assert rows_of(found) == [
        (
            [
                {"key": name.decode("utf-8", "replace"), "value": b"v"},
                {"key": "n", "value": None},
            ],
        )
    ]


DAMAGES: list[Any] = [
    pytest.param(lambda b: b[:-1] + b"?", "CRC-32C does not match", id="bit rot"),
    pytest.param(lambda b: patched(b, 57, ">i", 41), "malformed", id="count too high"),
    pytest.param(lambda b: patched(b, 57, ">i", 2**31 - 1), "malformed", id="count absurd"),
    pytest.param(lambda b: patched(b, 23, ">i", 3), "malformed", id="last delta too low"),
    pytest.param(lambda b: patched(b, 65, ">B", 120), "malformed", id="key too long"),
    pytest.param(lambda b: patched(b, 21, ">h", 3), "decompressed", id="no such payload"),
    pytest.param(lambda b: patched(b, 16, ">b", 1), "format v2", id="an older format"),
    pytest.param(lambda b: patched(b, 8, ">i", 3), "format v2", id="length"),
    pytest.param(lambda b: patched(b, 0, ">q", 0), "format v2", id="offset that does not rise"),
]


@pytest.mark.parametrize(("break_it", "what"), DAMAGES)
def test_damage_is_an_error(break_it: Callable[[bytes], bytes], what: str) -> None:
    """A batch that cannot be read is named, unless it lies outside of the interval."""
    damaged = break_it(batch_of(40, 40))
    offset = read_header(damaged).base_offset
    log = batch_of(0, 40) + damaged + batch_of(80, 10)
    with pytest.raises(KafkaError, match=what) as raised:
        decode(log, wanted())
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE
    assert f"orders-3: the batch at offset {offset} " in str(raised.value)
    found, next_offset = decode(log, wanted(0, 40, columns=("offset",)))
    assert offsets_of(found) == list(range(40))
    assert next_offset == 40


def test_damaged_marker_is_an_error() -> None:
    """Who does not know which transaction ended cannot know what was committed."""
    log = of_producer(0, 7) + patched(marker(2, 7, False), 57, ">i", 9)
    with pytest.raises(KafkaError, match="the batch at offset 2 "):
        decode(log, wanted(aborted=((7, 0),)))


@settings(max_examples=300)
@given(seeds)
def test_wrong_bytes(seed: int) -> None:
    """Mutated records are an error, or what they say; nothing else ever happens."""
    rng = random.Random(seed)
    batches = [batch for batch in random_log(rng, 4) if not read_header(batch).is_control]
    batches = [mutated(rng, batch) if rng.randrange(2) else batch for batch in batches]
    if rng.randrange(4) == 0 and batches:
        noise = bytearray(batches[-1])
        for _ in range(3):
            noise[rng.randrange(len(noise))] = rng.randrange(256)
        batches[-1] = bytes(noise) if rng.randrange(2) else with_crc(noise)
    log = b"".join(batches)
    try:
        found, _ = decode(log, wanted())
    except KafkaError as error:
        assert error.code == ErrorCode.CORRUPT_MESSAGE
        return
    rows = rows_of(found)
    readable = [batch for batch in batches if not read_header(batch).is_control]
    try:
        expected = [
            row_of(record, int(read_header(batch).is_log_append_time))
            for batch in readable
            for record in iter_records(batch)
        ]
    except (KafkaError, OverflowError):
        return
    assert [row[4] for row in rows] == [row[4] for row in expected]
    assert [row[:4] for row in rows] == [row[:4] for row in expected]


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_noise(noise: bytes) -> None:
    """Any bytes are an error, or nothing."""
    try:
        found, next_offset = decode(noise, wanted(5))
    except KafkaError:
        return
    assert found == [] or rows_of(found)
    assert next_offset >= 5


def test_wrong_slots_are_refused() -> None:
    """A range that has no slots is a mistake of the caller."""
    for slots in (SlotRange(5, 5), SlotRange(-1, 5), SlotRange(0, 65_537)):
        with pytest.raises(KafkaError, match="no slots"):
            decode(batch_of(0, 1), wanted(slots=slots))
