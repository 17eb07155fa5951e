"""Entries of a journal as record batches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.journal.batch import (
    _HEADER,
    Entry,
    _plain_entries,
    build_entries,
    iter_entries,
)
from anabranch.engine.journal.errors import JournalError
from anabranch.model.errors import KafkaError
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    Record,
    build_batch,
    check_batch,
    crc_ok,
    iter_records,
    read_header,
)

ENTRIES = st.lists(
    st.tuples(st.binary(max_size=80), st.none() | st.binary(max_size=80)), min_size=1, max_size=5
)


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(ENTRIES)
def test_entries_come_back(entries: list[Entry]) -> None:
    """What was put into a batch is read from it in order, from a batch that a log accepts."""
    batch = build_entries(entries, timestamp_ms=5)
    assert list(iter_entries(batch)) == entries
    assert check_batch(memoryview(batch)).records_count == len(entries)


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(ENTRIES, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**20))
def test_batches_are_those_of_the_wire(
    entries: list[Entry], timestamp_ms: int, base_offset: int, leader_epoch: int
) -> None:
    """What is put together here for speed is, byte for byte, what the wire package builds."""
    records = [Record(base_offset + i, timestamp_ms, *entry) for i, entry in enumerate(entries)]
    assert build_entries(
        entries, timestamp_ms=timestamp_ms, base_offset=base_offset, leader_epoch=leader_epoch
    ) == build_batch(records, base_offset=base_offset, partition_leader_epoch=leader_epoch)


def test_large_entries_are_those_of_the_wire() -> None:
    """Lengths and counts that take several bytes are written as such."""
    entries: list[Entry] = [(b"k" * 70, b"v" * 9000), (b"k" * 1023, None), (b"k" * 1024, b"")]
    entries += [(b"%d" % i, b"v") for i in range(1500)]
    records = [Record(i, 7, *entry) for i, entry in enumerate(entries)]
    assert build_entries(entries, timestamp_ms=7) == build_batch(records, base_offset=0)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(ENTRIES, st.data())
def test_quick_reading_is_careful_reading(entries: list[Entry], data: st.DataObject) -> None:
    """Whatever the bytes are, the quick way finds what the careful one does, or leaves it to it."""
    records = bytearray(build_entries(entries, timestamp_ms=1)[HEADER_SIZE:])
    for _ in range(data.draw(st.integers(0, 3))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    count = len(entries) + data.draw(st.integers(-6, 2))
    quick = _plain_entries(bytes(records), count)
    header = read_header(build_entries(entries, timestamp_ms=1))
    batch = _HEADER.pack(*header._replace(batch_length=49 + len(records), records_count=count))
    try:
        careful = [(record.key, record.value) for record in iter_records(batch + records)]
    except KafkaError:
        assert quick is None
    else:
        assert quick is None or quick == careful


def test_plain_batches_are_read_quickly() -> None:
    """What is written here takes the quick way."""
    entries: list[Entry] = [(b"k" * 70, b"v" * 9000), (b"", None), (b"k", b"")]
    entries += [(b"%d" % i, b"v") for i in range(1500)]
    records = bytes(build_entries(entries, timestamp_ms=7)[HEADER_SIZE:])
    assert _plain_entries(records, len(entries)) == entries


def test_unusual_records_are_read_carefully() -> None:
    """Times of their own, headers and compression are Kafka's to use."""
    records = [
        Record(0, 5, b"a", b"1"),
        Record(1, 9, b"b", None),
        Record(2, 9, b"c", b"3", (("h", b"x"),)),
    ]
    for codec in (0, 1, 4):
        batch = build_batch(records, base_offset=0, codec=codec)
        assert list(iter_entries(batch)) == [(b"a", b"1"), (b"b", None), (b"c", b"3")]


def test_batch_has_its_place_and_time() -> None:
    """Offsets rise from the base, and every record has the time of the decision."""
    batch = build_entries(
        [(b"a", b"1"), (b"b", None)], timestamp_ms=77, base_offset=10, leader_epoch=3
    )
    header = read_header(batch)
    assert crc_ok(batch, 0, len(batch))
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (10, 11, 3)
    assert header.max_timestamp == 77
    assert [(r.offset, r.timestamp) for r in iter_records(batch)] == [(10, 77), (11, 77)]


def test_control_batches_have_no_entries() -> None:
    """The marker of a transaction is not a record of any group."""
    marker = [Record(0, 1, bytes(4), bytes(6))]
    assert list(iter_entries(build_batch(marker, base_offset=0, attributes=CONTROL_FLAG))) == []


def test_record_without_key_is_refused() -> None:
    """A journal is kept by key: a record without one is not the coordinator's."""
    batch = build_batch([Record(4, 1, b"k", b"v"), Record(5, 1, None, b"v")], base_offset=4)
    entries = iter_entries(batch)
    assert next(entries) == (b"k", b"v")
    with pytest.raises(JournalError, match="offset 5"):
        next(entries)


def test_damage_is_a_journal_error() -> None:
    """Whatever happened to a batch, reading it ends in entries or a JournalError."""
    batch = build_entries([(b"key", b"value"), (b"other", None)], timestamp_ms=1)
    for size in range(len(batch)):
        with pytest.raises(JournalError):
            list(iter_entries(batch[:size]))
    for position in range(HEADER_SIZE, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0xFF
        assert not crc_ok(damaged, 0, len(damaged))
        try:
            list(iter_entries(damaged))
        except JournalError as error:
            assert str(error)
