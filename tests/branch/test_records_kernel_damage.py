"""Batches that cannot be read: named, without their records, and without harm to the others."""

import random
from collections.abc import Callable

import pytest
from batch_kit import (
    RULES,
    UNREADABLE,
    control_batch,
    mutated,
    patched,
    payloads_of,
    random_log,
    read_index,
    records_in,
    records_of,
    with_crc,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.branch import _kernels
from anabranch.branch.record_columns import (
    Damage,
    DamagedBatch,
    read_records,
)
from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.model.errors import KafkaError
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    Record,
    build_batch,
    iter_records,
    read_header,
)

seeds = st.integers(0, 2**32)


def batch_of(base_offset: int, count: int, codec: int = 0) -> bytes:
    records = [Record(base_offset + i, 1000, b"k%d" % i, b"v" * 50) for i in range(count)]
    return build_batch(records, base_offset=base_offset, codec=codec)


# From 61 on: length, attributes, timestamp delta, offset delta, key length (a byte each), the key,
# 68 the length of the value, 119 the count of headers.
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
    short = build_batch(
        [Record(5, 1, b"\0\0\0", b"\1\1\1")], base_offset=5, attributes=CONTROL_FLAG
    )
    assert read_records(short).damaged == [DamagedBatch(5, 6, Damage.RECORDS)]


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
    assert columns._with_headers_count == sum(bool(record.headers) for record in records)
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
