"""Rows of Arrow as record batches: what other readers find in them, and where they go."""

import random
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from branch.batch_kit import read_by_aiokafka, read_by_kafka_python  # noqa: E402

with warnings.catch_warnings():  # kafka-python loads its schemas through a deprecated function
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from anabranch.branch import _kernels  # noqa: E402
from anabranch.spark.encode import (  # noqa: E402
    ColumnNames,
    Encoded,
    Encoder,
    Identity,
    RowError,
    sealed,
)
from anabranch.wire.record_batch import check_batch, read_header  # noqa: E402

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PARTITIONS = {"orders": 3, "audit": 5, "single": 1}
Row = tuple[bytes | None, bytes | None, list[dict[str, Any]] | None, str, int | None]
seeds = st.integers(0, 2**32)


def encoder(batch_bytes_max: int = 1 << 20, **names: Any) -> Encoder:
    return Encoder(ColumnNames(**names), batch_bytes_max, PARTITIONS.__getitem__)


def values_of(*values: bytes | None, **columns: Any) -> Any:
    return pa.record_batch({"value": pa.array(values, pa.binary()), **columns})


def random_rows(rng: random.Random, count: int) -> list[Row]:
    rows: list[Row] = []
    for _ in range(count):
        topic = rng.choice(list(PARTITIONS))
        key = rng.choice((None, b"", b"key-%d" % rng.randrange(20), rng.randbytes(70)))
        value = rng.choice((None, b"", rng.randbytes(rng.choice((1, 100, 300, 9000)))))
        partition = rng.choice((None, rng.randrange(PARTITIONS[topic])))
        if key is None and partition is None:
            value = b"anywhere-%d" % len(rows)
        headers = [
            {
                "key": rng.choice(("", "trace", "größe")),
                "value": rng.choice((None, b"", rng.randbytes(9))),
            }
            for _ in range(rng.choice((0, 1, 3)))
        ]
        rows.append((key, value, rng.choice((None, headers)), topic, partition))
    return rows


def as_arrow(rng: random.Random, rows: list[Row]) -> Any:
    """The rows as Spark may hand them over: sliced, text or bytes, small or large."""
    padding = rng.randrange(3)
    padded = [(b"no", b"no", None, "no", 99)] * padding + rows
    bytes_type = rng.choice((pa.binary(), pa.large_binary()))
    text_type = rng.choice((pa.string(), pa.large_string()))
    columns = {
        "key": pa.array([row[0] for row in padded], bytes_type),
        "value": pa.array([row[1] for row in padded], bytes_type),
        "headers": pa.array([row[2] for row in padded], HEADERS),
        "topic": pa.array([row[3] for row in padded], text_type),
        "partition": pa.array([row[4] for row in padded], pa.int32()),
    }
    return pa.record_batch(columns).slice(padding)


def record_of(row: Row) -> tuple[Any, ...]:
    headers = tuple((header["key"], header["value"]) for header in row[2] or ())
    return row[0], row[1], headers


@settings(max_examples=100)
@given(seeds)
def test_records_are_the_rows(seed: int) -> None:
    """Other readers find in each partition the rows that belong there, in order, whatever codec."""
    rng = random.Random(seed)
    rows = random_rows(rng, rng.choice((1, 2, 50, 200)))
    batch_bytes_max = rng.choice((100, 2000, 1 << 20))
    codec = rng.randrange(5)
    made = encoder(batch_bytes_max, has_key=True, has_headers=True, has_partition=True)
    found: dict[Any, list[Any]] = {}
    sequences: dict[Any, int] = {}
    for encoded in made.encode(as_arrow(rng, rows)):
        size = len(encoded.batch)
        assert size <= batch_bytes_max or encoded.records_count == 1
        sequence = sequences.get(encoded.place, 7)
        batch = bytes(sealed(encoded, Identity(42, 3), sequence, timestamp_ms=1234, codec=codec))
        sequences[encoded.place] = sequence + encoded.records_count
        header = check_batch(memoryview(batch))
        assert (header.producer_id, header.producer_epoch) == (42, 3)
        assert header.base_sequence == sequence
        assert header.max_timestamp == header.base_timestamp == 1234
        assert header.codec == codec and not header.is_transactional
        records = read_by_aiokafka(batch)
        assert records == read_by_kafka_python(batch)
        assert [record.timestamp for record in records] == [1234] * encoded.records_count
        assert [record.offset for record in records] == list(range(encoded.records_count))
        found.setdefault(encoded.place, []).extend(
            (record.key, record.value, record.headers) for record in records
        )
    taken = {one[1]: place for place, records in found.items() for one in records}
    expected: dict[Any, list[Any]] = {}
    for row in rows:
        partition = _partition_of(row)
        place = taken[row[1]] if partition is None else (row[3], partition)
        assert place[0] == row[3]
        expected.setdefault(place, []).append(record_of(row))
    assert found == expected


def _partition_of(row: Row) -> int | None:
    """By Kafka's rule; None for a row without a key, which may go anywhere."""
    if row[4] is not None:
        return row[4]
    if row[0] is None:
        return None
    return (kafka_python_murmur2(row[0]) & 0x7FFFFFFF) % PARTITIONS[row[3]]


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.integers(1, 50))
def test_keys_find_the_partitions_of_kafkas_producers(keys: list[bytes], partitions: int) -> None:
    """murmur2 of the key, without its sign, modulo the number of partitions."""
    made = Encoder(ColumnNames(topic="t", has_key=True), 1 << 20, lambda _: partitions)
    rows = values_of(*(b"%d" % i for i in range(len(keys))), key=pa.array(keys, pa.binary()))
    found = {}
    for encoded in made.encode(rows):
        batch = bytes(sealed(encoded, Identity(), -1, timestamp_ms=0))
        for record in read_by_kafka_python(batch):
            found[int(record.value or b"")] = encoded.place[1]
    assert found == {
        i: (kafka_python_murmur2(key) & 0x7FFFFFFF) % partitions for i, key in enumerate(keys)
    }


def test_order_within_a_partition() -> None:
    """Rows of a partition are in its batches as they came, over batches and calls."""
    made = encoder(500, topic="orders", has_key=True)
    values = [b"%05d" % i for i in range(3000)]
    seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for start in range(0, 3000, 1000):
        part = values[start : start + 1000]
        keys = pa.array([b"key-%d" % (int(v) % 50) for v in part], pa.binary())
        for encoded in made.encode(values_of(*part, key=keys)):
            batch = bytes(sealed(encoded, Identity(), -1, timestamp_ms=0, codec=3))
            seen[encoded.place[1]] += [record.value or b"" for record in read_by_aiokafka(batch)]
    assert sorted(v for found in seen.values() for v in found) == values
    for found in seen.values():
        assert found and found == sorted(found)


def test_rows_without_a_key_fill_batches() -> None:
    """They stay with one partition for about a batch, then go to the next, in all calls."""
    made = encoder(10_000, topic="orders")
    rows = values_of(*([b"x" * 95] * 1000))
    places: list[int] = []
    for _ in range(2):
        encoded = made.encode(rows)
        assert sum(one.records_count for one in encoded) == 1000
        assert max(one.records_count for one in encoded) >= 90
        places += [one.place[1] for one in encoded]
    counts = [places.count(partition) for partition in range(3)]
    assert max(counts) - min(counts) <= 3
    assert made._sticky_first > 3


def test_text_is_its_utf8() -> None:
    """A column of text has the bytes that Spark's own sink would write."""
    rows = pa.record_batch({"value": pa.array(["größe", None]), "key": pa.array(["k", "k"])})
    (encoded,) = encoder(topic="single", has_key=True).encode(rows)
    records = read_by_aiokafka(bytes(sealed(encoded, Identity(), -1, timestamp_ms=0)))
    assert [(one.key, one.value) for one in records] == [(b"k", "größe".encode()), (b"k", None)]


def test_transactional_batches_say_so() -> None:
    """A batch of a transaction has the flag, whether it is compressed or not."""
    for codec in (0, 1):
        (encoded,) = encoder(topic="single").encode(values_of(b"v"))
        batch = bytes(sealed(encoded, Identity(1, 0, "t"), 0, timestamp_ms=0, codec=codec))
        assert read_header(batch).is_transactional


def test_nothing_of_nothing() -> None:
    """No rows, no batches, and no question about topics."""
    empty = values_of(topic=pa.array([], pa.string()))
    assert encoder().encode(empty) == []


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"topic": pa.array(["orders", None])}, "column 'topic' is null"),
        ({"partition": pa.array([0, 3], pa.int32())}, "'partition' is 3 .* orders, .* 0 to 2"),
        ({"partition": pa.array([0, -1], pa.int32())}, "'partition' is -1 .* orders"),
        (
            {"headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS)},
            "'headers' has a header that is null, or whose key is null",
        ),
        ({"headers": pa.array([[None], None], HEADERS)}, "'headers' has a header that is null"),
    ],
)
def test_rows_that_cannot_be_written(columns: dict[str, Any], what: str) -> None:
    """The error names the column and what is wrong with it."""
    names = {f"has_{name}": True for name in columns if name != "topic"}
    made = encoder(topic=None if "topic" in columns else "orders", **names)
    with pytest.raises(RowError, match=what):
        made.encode(values_of(b"1", b"2", **columns))


def test_nulls_that_no_row_refers_to_do_not_matter() -> None:
    """A header that a slice leaves out may be what it likes."""
    column = pa.array([[{"key": None, "value": b""}], [{"key": "a", "value": b"b"}]], HEADERS)
    rows = values_of(b"1", b"2", headers=column).slice(1)
    (encoded,) = encoder(topic="single", has_headers=True).encode(rows)
    (record,) = read_by_aiokafka(bytes(sealed(encoded, Identity(), -1, timestamp_ms=0)))
    assert record.headers == (("a", b"b"),)


@pytest.mark.parametrize(
    "column",
    [
        (None, b"", None, 0),
        (None, bytes(4), None, 0),
        (None, bytes(8), None, 1),
        (None, bytes(8), None, -1),
        (b"", bytes(8), None, 0),
        (None, b"\0\0\0\0\x05\0\0\0", b"abcd", 0),
        (None, b"\x03\0\0\0\x02\0\0\0", b"abcd", 0),
        (None, b"\xff\xff\xff\xff\x02\0\0\0", b"abcd", 0),
    ],
)
def test_buffers_that_are_too_small_are_refused(column: Any) -> None:
    """Columns that point outside of their buffers are an error, not a crash."""
    with pytest.raises(ValueError):
        _kernels.encode_records(1, bytes(4), 1, None, column, None, None, None, 0, 100)


def test_wrong_targets_are_refused() -> None:
    """So are targets that do not exist, and counts that do not fit."""
    value = (None, bytes(8), b"", 0)
    for targets, count in ((b"", 1), (b"\x01\0\0\0", 1), (b"\xff\xff\xff\xff", 1), (bytes(4), -1)):
        with pytest.raises(ValueError):
            _kernels.encode_records(count, targets, 1, None, value, None, None, None, 0, 100)
    with pytest.raises(ValueError, match="each topic has a partition"):
        _kernels.record_targets(1, None, None, None, bytes(4), 0, 1)
    with pytest.raises(ValueError, match="not negative"):
        _kernels.record_targets(1, None, None, None, b"\x01\0\0\0", 0, 0)


def test_encoded_is_plain_data() -> None:
    """A place, a count, and the bytes with room for a header in front."""
    (encoded,) = encoder(topic="single").encode(values_of(b"v"))
    assert encoded == Encoded(("single", 0), 1, bytearray(encoded.batch))
    assert len(encoded.batch) == 61 + 8
