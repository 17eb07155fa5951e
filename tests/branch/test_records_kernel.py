"""Fetched batches as columns: every record as other readers see it, damage, cut responses."""

import random
import struct
from collections.abc import Callable

import pytest
from batch_kit import (
    CODECS,
    RULES,
    UNREADABLE,
    control_batch,
    mutated,
    patched,
    payloads_of,
    random_log,
    read_by_aiokafka,
    read_by_kafka_python,
    read_index,
    slot_of_record,
    with_crc,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.branch import _kernels, record_columns
from anabranch.branch.record_columns import (
    Damage,
    DamagedBatch,
    RecordColumns,
    parse_headers,
    read_records,
)
from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.branch.split import filler_batch
from anabranch.model.errors import KafkaError
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


def records_of(columns: RecordColumns) -> list[Record]:
    """All records, asked for in every way there is."""
    records = [columns.record(i) for i in range(len(columns))]
    assert records == list(map(Record._make, columns.rows()))
    assert [record.key for record in records] == columns.keys()
    assert [record.value for record in records] == columns.values()
    return records


def records_in(batches: list[bytes]) -> list[Record]:
    return [
        record
        for batch in batches
        if not read_header(batch).is_control
        for record in iter_records(batch)
    ]


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


# --- Damage -------------------------------------------------------------------------------------

FIRST_RECORD = 61  # one byte each of length, attributes, timestamp delta, offset delta, key length
DAMAGES = [
    pytest.param(lambda b: b[:17] + bytes(4) + b[21:], Damage.CRC, id="crc"),
    pytest.param(lambda b: b[:-1] + b"?", Damage.CRC, id="bit rot"),
    pytest.param(lambda b: patched(b, 57, ">i", 41), Damage.RECORDS, id="count too high"),
    pytest.param(lambda b: patched(b, 57, ">i", 39), Damage.RECORDS, id="count too low"),
    pytest.param(lambda b: patched(b, 57, ">i", -1), Damage.RECORDS, id="count negative"),
    pytest.param(lambda b: patched(b, 57, ">i", 2**31 - 1), Damage.RECORDS, id="count absurd"),
    pytest.param(lambda b: patched(b, 23, ">i", 38), Damage.RECORDS, id="last delta too low"),
    pytest.param(lambda b: patched(b, 61, ">B", 1), Damage.RECORDS, id="length negative"),
    pytest.param(lambda b: patched(b, 61, ">B", 10), Damage.RECORDS, id="record too short"),
    pytest.param(lambda b: patched(b, 61, ">H", 0xFFFF), Damage.RECORDS, id="length of no end"),
    pytest.param(lambda b: patched(b, 63, ">Q", 2**64 - 1), Damage.RECORDS, id="varlong"),
    pytest.param(lambda b: patched(b, 64, ">B", 2), Damage.RECORDS, id="delta repeats"),
    pytest.param(lambda b: patched(b, 64, ">B", 1), Damage.RECORDS, id="delta negative"),
    pytest.param(lambda b: patched(b, 65, ">B", 3), Damage.RECORDS, id="key length below -1"),
    pytest.param(lambda b: patched(b, 65, ">B", 120), Damage.RECORDS, id="key too long"),
    pytest.param(lambda b: patched(b, 68, ">B", 3), Damage.RECORDS, id="value length below -1"),
    pytest.param(lambda b: patched(b, 68, ">B", 110), Damage.RECORDS, id="value too long"),
    pytest.param(lambda b: patched(b, 68, ">B", 98), Damage.RECORDS, id="value too short"),
    pytest.param(lambda b: patched(b, 119, ">B", 1), Damage.RECORDS, id="headers negative"),
    pytest.param(lambda b: patched(b, 119, ">B", 2), Damage.RECORDS, id="headers missing"),
    pytest.param(lambda b: patched(b, 21, ">h", 3), Damage.COMPRESSION, id="no such payload"),
    pytest.param(lambda b: patched(b, 21, ">h", 7), Damage.COMPRESSION, id="no such codec"),
]


@pytest.mark.parametrize(("break_it", "damage"), DAMAGES)
def test_damage_is_named(break_it: Callable[[bytes], bytes], damage: Damage) -> None:
    """A batch that cannot be read has no records; its neighbours have all of theirs."""
    intact = batch_of(40, 40)
    assert intact[61:69] == bytes([116, 0, 0, 0, 4]) + b"k0" + bytes([100])
    assert intact[119] == 0
    middle = break_it(intact)
    columns = read_records(batch_of(0, 40) + middle + batch_of(80, 40))
    assert [r.offset for r in records_of(columns)] == [*range(40), *range(80, 120)]
    (found,) = columns.damaged
    assert (found.base_offset, found.damage) == (40, damage)
    assert found.base_offset < found.next_offset <= 80
    assert [batch.damage for batch in columns.batches] == [None, damage, None]
    assert [batch.first_record for batch in columns.batches] == [0, 40, 40]
    assert columns.batches[1].records_count == 0
    assert read_records(middle, from_offset=80).damaged == []  # nobody asked for it


@pytest.mark.parametrize(("break_it", "damage"), DAMAGES)
def test_split_and_reader_agree(break_it: Callable[[bytes], bytes], damage: Damage) -> None:
    """What a reader cannot read is one unreadable record to who sorts, and the other way round."""
    batch = break_it(batch_of(40, 40))
    assert damage in Damage
    index = _kernels.split(batch, payloads_of([batch]), 0, False, None)[4]
    assert read_index(index)[0].flags == UNREADABLE


def headers_batch(block: bytes, count: int) -> bytes:
    """A batch of one record with these bytes for headers."""
    body = bytes([0, 0, 0, 1, 1]) + bytes([2 * count]) + block
    batch = build_batch([Record(0, 1, None, None)], base_offset=0)[:61] + bytes([2 * len(body)])
    return patched(batch + body, 8, ">i", len(batch) + len(body) - 12)


@pytest.mark.parametrize(
    ("block", "count", "expected"),
    [
        (b"", 0, ()),
        (b"\x02a\x02b", 1, (("a", b"b"),)),
        (b"\x02a\x01\x00\x00", 2, (("a", None), ("", b""))),
        (b"\x02a\x02b", 2, None),
        (b"\x02a\x02b", 0, None),
        (b"\x01\x02b", 1, None),
        (b"\x02a\x03", 1, None),
        (b"\x02a\x08b", 1, None),
        (b"\x08a", 1, None),
        (b"\x02a", 1, None),
    ],
)
def test_headers_must_fill_the_record(
    block: bytes, count: int, expected: tuple[tuple[str, bytes | None], ...] | None
) -> None:
    """Headers are checked when the batch is read, so that asking for them later cannot fail."""
    columns = read_records(headers_batch(block, count))
    if expected is None:
        assert [found.damage for found in columns.damaged] == [Damage.RECORDS]
    else:
        assert columns.headers(0) == expected


@pytest.mark.parametrize(
    "break_it",
    [
        lambda marker: marker[:17] + bytes(4) + marker[21:],
        lambda marker: patched(marker, 65, ">B", 6),
        lambda marker: patched(marker, 57, ">i", 9),
    ],
)
def test_damaged_marker(break_it: Callable[[bytes], bytes]) -> None:
    """A control batch whose type cannot be read is named; one without a record has no type."""
    marker = control_batch(random.Random(1), 5)
    assert marker[65] == 8
    (found,) = read_records(break_it(marker)).damaged
    assert (found.base_offset, found.next_offset) == (5, 6)
    columns = read_records(patched(marker, 57, ">i", 0))
    assert (columns.damaged, columns.batches[0].control_type) == ([], -1)


@settings(max_examples=300)
@given(seeds, st.sampled_from(RULES))
def test_damage_stays_in_its_batch(seed: int, rule: SlotRule) -> None:
    """Wrong bytes under a right CRC: neighbours are whole, and all kernels see the same."""
    rng = random.Random(seed)
    batches = random_log(rng, 6)
    if not batches:
        return
    victim = rng.randrange(len(batches))
    damaged = [*batches]
    damaged[victim] = mutated(rng, batches[victim])
    columns = read_records(b"".join(damaged), rule)
    others = records_in(batches[:victim] + batches[victim + 1 :])
    found = columns.batches[victim]
    end = found.first_record + found.records_count
    records = records_of(columns)
    assert records[: found.first_record] + records[end:] == others
    assert [d.base_offset for d in columns.damaged] == [found.base_offset] * bool(found.damage)
    if found.is_control or read_header(damaged[victim]).records_count == 0:
        assert found.records_count == 0
        return
    flags, slots = split_sees(damaged, victim, rule)
    assert bool(found.damage) == bool(flags & UNREADABLE)
    if found.damage is None:
        assert tuple(columns.slots[found.first_record : end]) == slots
        assert records[found.first_record : end] == list(iter_records(damaged[victim]))
    else:
        assert found.records_count == 0


def split_sees(batches: list[bytes], k: int, rule: SlotRule) -> tuple[int, tuple[int, ...]]:
    """Flags and slots of a batch in the slot index."""
    index = _kernels.split(
        b"".join(batches),
        payloads_of(batches),
        0,
        rule.is_null_key_ordered,
        rule.ordering_header,
    )[4]
    block = read_index(index)[k]
    return block.flags, block.slots


@settings(max_examples=300)
@given(seeds)
def test_any_bytes(seed: int) -> None:
    """Whatever the bytes are, all that is reported lies inside of the buffer."""
    rng = random.Random(seed)
    log = bytearray(b"".join(random_log(rng, 5)))
    for _ in range(rng.randrange(6)):
        if log:
            log[rng.randrange(len(log))] = rng.randrange(256)
    if rng.randrange(2):
        del log[rng.randrange(len(log) + 1) :]
    columns = read_records(log)
    for record in records_of(columns):
        assert record.offset < columns.next_offset
    offsets = list(columns.offsets)
    assert offsets == sorted(set(offsets))
    assert columns.source_bytes <= len(log)


@settings(max_examples=200)
@given(seeds)
def test_what_the_slow_reader_refuses(seed: int) -> None:
    """A batch that the record reader in Python refuses is never in the columns."""
    rng = random.Random(seed)
    batches = [b for b in random_log(rng, 3) if not read_header(b).is_control]
    if not batches:
        return
    batch = with_crc(mutated(rng, batches[0]))
    if read_header(batch).is_control or read_header(batch).records_count == 0:
        return  # a batch that says it is empty is empty
    try:
        list(iter_records(batch))
    except KafkaError:
        assert len(read_records(batch)) == 0
        assert len(read_records(batch, DEFAULT_RULE).damaged) == 1
