"""Fetched batches as columns: every record as other readers see it, damage, cut responses."""

import random
import struct
from collections.abc import Callable

import pytest
from batch_kit import (
    CODECS,
    RULES,
    control_batch,
    patched,
    random_log,
    read_by_aiokafka,
    read_by_kafka_python,
    records_in,
    records_of,
    slot_of_record,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.branch import record_columns
from anabranch.branch.record_columns import (
    Damage,
    DamagedBatch,
    parse_headers,
    read_records,
)
from anabranch.branch.slots import SlotRule
from anabranch.branch.split import filler_batch
from anabranch.wire.record_batch import (
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    Record,
    build_batch,
    iter_records,
    read_header,
)

seeds = st.integers(0, 2**32)


def batch_of(base_offset: int, count: int, codec: int = 0) -> bytes:
    records = [Record(base_offset + i, 1000, b"k%d" % i, b"v" * 50) for i in range(count)]
    return build_batch(records, base_offset=base_offset, codec=codec)


@settings(max_examples=150)
@given(seeds, st.sampled_from(RULES))
def test_columns_are_the_records(seed: int, rule: SlotRule) -> None:
    """Each record that other readers find is there once, with its slot and its batch."""
    rng = random.Random(seed)
    batches = random_log(rng, 8)
    log = b"".join(batches)
    from_offset = 0
    if batches and rng.randrange(2):
        first, end = read_header(batches[0]).base_offset, read_header(batches[-1]).next_offset
        from_offset = rng.randrange(first, end + 1)
    columns = read_records(log, rule, from_offset=from_offset)
    expected = [record for record in records_in(batches) if record.offset >= from_offset]
    assert records_of(columns) == expected
    for read in (read_by_aiokafka, read_by_kafka_python):
        foreign = [
            record
            for batch in batches
            if not read_header(batch).is_control
            for record in read(batch)
            if record.offset >= from_offset
        ]
        assert foreign == expected
    assert list(columns.slots) == [slot_of_record(record, rule) for record in expected]
    assert columns.damaged == []
    assert columns.source_bytes == len(log)
    for i, record in enumerate(expected):
        batch = columns.batch_of(i)
        assert batch == columns.batches[columns.batch_numbers[i]]
        assert batch.base_offset <= record.offset < batch.next_offset
        assert batch.first_record <= i < batch.first_record + batch.records_count
    last = max((read_header(batch).next_offset for batch in batches), default=from_offset)
    assert columns.next_offset == max(last, from_offset)


@settings(max_examples=60)
@given(seeds)
def test_batches_have_their_headers(seed: int) -> None:
    """All batches are listed with what readers of transactions need, control batches included."""
    batches = random_log(random.Random(seed), 8)
    columns = read_records(b"".join(batches))
    first_record = 0
    for batch, found in zip(batches, columns.batches, strict=True):
        header = read_header(batch)
        assert found[:5] == (
            header.base_offset,
            header.next_offset,
            header.producer_id,
            header.partition_leader_epoch,
            header.base_sequence,
        )
        assert (found.producer_epoch, found.attributes) == (
            header.producer_epoch,
            header.attributes,
        )
        assert (found.is_control, found.is_transactional) == (
            header.is_control,
            header.is_transactional,
        )
        count = 0 if header.is_control else header.records_count
        assert (found.first_record, found.records_count, found.damage) == (
            first_record,
            count,
            None,
        )
        (marker,) = iter_records(batch) if header.is_control else (None,)
        expected = -1 if marker is None else struct.unpack(">hh", marker.key or b"")[1]
        assert found.control_type == expected
        first_record += count


def test_transactions_can_be_told_apart() -> None:
    """Commit is 1, abort 0, and a filler is a marker of nobody's transaction."""
    producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 0}
    data = build_batch(
        [Record(0, 1, b"k", b"v")], base_offset=0, attributes=TRANSACTIONAL_FLAG, **producer
    )
    markers = {control_batch(random.Random(i), 1) for i in range(8)}
    assert len(markers) == 2
    types = set()
    for marker in markers:
        columns = read_records(data + marker + filler_batch(7, 0))
        assert [record.key for record in records_of(columns)] == [b"k"]
        batches = columns.batches
        assert [batch.producer_id for batch in batches] == [9, 9, -1]
        assert [batch.is_transactional for batch in batches] == [True, True, False]
        assert [batch.control_type for batch in batches][::2] == [-1, 1]
        assert columns.next_offset == 7
        types.add(batches[1].control_type)
    assert types == {0, 1}


@pytest.mark.parametrize("codec", CODECS)
def test_one_buffer_for_all(codec: int) -> None:
    """Plain batches are not copied; as soon as one is compressed, all are in one plain buffer."""
    log = batch_of(0, 10) + batch_of(10, 10, codec) + batch_of(20, 10)
    columns = read_records(log)
    assert (columns.buffer.obj is log) == (codec == 0)
    assert columns.buffer.contiguous
    records = records_of(columns)
    assert [record.offset for record in records] == list(range(30))
    assert {record.value for record in records} == {b"v" * 50}
    lone = read_records(batch_of(0, 10, codec))
    assert len(lone.buffer) == len(batch_of(0, 10)) - (61 if codec else 0)


@pytest.mark.parametrize("delta", [0, 63, 64, -64, -65, 2**40, -(2**40), 2**62, -(2**62)])
def test_timestamps(delta: int) -> None:
    """Deltas of any size; with LogAppendTime all have the broker's, whatever theirs says."""
    records = [Record(0, 5, None, None), Record(1, 5 + delta, None, None)]
    batch = build_batch(records, base_offset=0, base_timestamp=5)
    assert list(read_records(batch).timestamps) == [5, 5 + delta]
    stamped = build_batch(records, base_offset=0, attributes=LOG_APPEND_TIME_FLAG, max_timestamp=77)
    assert list(read_records(stamped).timestamps) == [77, 77]


def test_null_empty_and_headers() -> None:
    """Null is not empty; header names that are not UTF-8 keep their bytes."""
    headers = (("a", None), ("", b""), ("ordér", b"1"), ("\udcff", b"2" * 200), ("a", b"3"))
    records = [
        Record(0, 1, None, b"", headers),
        Record(1, 1, b"", None),
        Record(2, 1, b"k", b"v", headers[:1]),
    ]
    columns = read_records(build_batch(records, base_offset=0))
    assert records_of(columns) == records
    assert list(columns.key_sizes) == [-1, 0, 1]
    assert list(columns.value_sizes) == [0, -1, 1]
    assert [columns.headers(i) for i in range(3)] == [headers, (), headers[:1]]
    assert parse_headers(b"") == ()


# --- Cut off ------------------------------------------------------------------------------------


def test_cut_anywhere() -> None:
    """A broker may cut a response after any byte: what is whole is read, the rest is no damage."""
    batches = [batch_of(0, 3), control_batch(random.Random(1), 3), batch_of(4, 2, codec=3)]
    log = b"".join(batches)
    edges = [0, len(batches[0]), len(batches[0]) + len(batches[1]), len(log)]
    for size in range(len(log) + 1):
        columns = read_records(log[:size], from_offset=1)
        whole = max(k for k in range(4) if edges[k] <= size)
        assert columns.source_bytes == edges[whole]
        assert len(columns) == [0, 2, 2, 4][whole]
        assert columns.next_offset == [1, 3, 4, 6][whole]
        assert columns.damaged == []


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda b: patched(b, 16, ">b", 1), id="old format"),
        pytest.param(lambda b: patched(b, 16, ">b", 3), id="format of the future"),
        pytest.param(lambda b: patched(b, 8, ">i", 48), id="too short"),
        pytest.param(lambda b: patched(b, 8, ">i", -1), id="negative"),
        pytest.param(lambda b: struct.pack(">q", 9) + b[8:], id="the same offset again"),
        pytest.param(lambda b: struct.pack(">q", -1) + b[8:], id="negative offset"),
    ],
)
def test_framing_that_makes_no_sense(break_it: Callable[[bytes], bytes]) -> None:
    """What comes before is read; what no batch can be is named, and ends the reading."""
    bad = break_it(batch_of(20, 5))
    columns = read_records(batch_of(9, 5) + bad + batch_of(30, 5))
    assert [record.offset for record in records_of(columns)] == list(range(9, 14))
    base_offset = read_header(bad).base_offset
    assert columns.damaged == [DamagedBatch(base_offset, base_offset + 1, Damage.FRAMING)]
    assert columns.next_offset == 14


def test_framing_that_makes_no_sense_is_not_waited_for() -> None:
    """A length that no batch has is damage even if the response ends soon after it."""
    bad = patched(batch_of(20, 5), 8, ">i", 40)
    assert read_records(bad[:30]).damaged == [DamagedBatch(20, 21, Damage.FRAMING)]
    assert read_records(bad[:16]).damaged == []
    assert read_records(batch_of(20, 5)[:30]).damaged == []


def test_ends_early_before_too_many_plain_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would decompress to more than is bearable is left for another call, but never all."""
    batches = [batch_of(i * 50, 50, codec=4) for i in range(9)]
    log = memoryview(b"".join(batches) + b"no batch, for sure")
    monkeypatch.setattr(record_columns, "PLAIN_BYTES_MAX", 3 * 3500)
    position, offsets = 0, []
    for _ in range(3):
        columns = read_records(log[position:], from_offset=len(offsets))
        assert len(columns) == 150
        assert bool(columns.damaged) == (len(offsets) == 300)
        position += columns.source_bytes
        offsets += columns.offsets
        assert columns.next_offset == len(offsets)
    assert offsets == list(range(450))
    monkeypatch.setattr(record_columns, "PLAIN_BYTES_MAX", 1)
    assert len(read_records(log)) == 50
