"""A coordinator's records in a partition log: written as decisions, read as a state."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember, ClassicState
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.records import GroupWritten, OffsetCommitted
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard
from anabranch.engine.journal import journal
from anabranch.engine.journal.batch import build_entries
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.group_codec import DurableRecord, encode
from anabranch.engine.journal.journal import TOO_LARGE_CODES, append_records, read_records
from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import CONTROL_FLAG, Record, build_batch, iter_headers

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), max_message_bytes=2**26)


def open_log(folder: Path, config: LogConfig = CONFIG) -> PartitionLog:
    return PartitionLog.open(
        folder,
        topic="__consumer_offsets",
        partition=0,
        topic_id=bytes(range(16)),
        config=config,
        leader_epoch=0,
        clean=True,
        recovery_point=0,
        log_start_offset=0,
        now_ms=NOW_MS,
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    log = open_log(tmp_path / "log")
    yield log
    log.close(NOW_MS)


def committed(
    offset: int | None, *, group: str = "g", topic: str = "t", partition: int = 0, text: str = ""
) -> OffsetCommitted:
    value = None
    if offset is not None:
        value = CommittedOffset(offset=offset, metadata=text, commit_timestamp_ms=NOW_MS)
    return OffsetCommitted(group_id=group, topic=topic, partition=partition, value=value)


def written(generation_id: int | None, *, group: str = "g", assignment: bytes = b"") -> Any:
    if generation_id is None:
        return GroupWritten(group_id=group, group=None)
    member = ClassicMember(
        member_id="m",
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=1,
        session_timeout_ms=2,
        protocols=(("range", b"r"),),
        assignment=assignment,
    )
    return GroupWritten(
        group_id=group,
        group=ClassicGroup(
            group_id=group,
            state=ClassicState.STABLE,
            generation_id=generation_id,
            protocol_type="consumer",
            protocol_name="range",
            leader_id="m",
            state_timestamp_ms=NOW_MS,
            members={"m": member},
        ),
    )


def append(log: PartitionLog, *records: DurableRecord) -> int:
    return append_records(log, records, NOW_MS)


def append_raw(log: PartitionLog, *entries: tuple[bytes, bytes | None]) -> None:
    log.append(memoryview(build_entries(entries, timestamp_ms=NOW_MS)), now_ms=NOW_MS)


def read(log: PartitionLog) -> list[DurableRecord]:
    """What the journal says, with no type unknown."""
    skipped: Counter[int] = Counter()
    records = list(read_records(log, skipped))
    assert not skipped
    return records


def batches(log: PartitionLog) -> list[int]:
    """How many records each batch has."""
    return [header.records_count for _, header in iter_headers(log.read(0, 2**30))]


# Writing ----------------------------------------------------------------------------------------


def test_records_come_back(log: PartitionLog) -> None:
    """Offsets and groups, and that they are gone, in the order they were written."""
    records = [
        committed(1),
        written(3, assignment=b"a"),
        committed(None, group="h"),
        written(None, group="k"),
    ]
    assert append(log, *records) == log.size_bytes
    assert read(log) == records


def test_an_empty_journal(log: PartitionLog) -> None:
    """There is nothing in it."""
    assert read(log) == []


def test_a_decision_is_one_batch(log: PartitionLog) -> None:
    """What belongs together is whole or absent after a crash; its time is the decision's."""
    append(log, *(committed(1, partition=index) for index in range(5_000)))
    append(log, written(1))
    assert batches(log) == [5_000, 1]
    (_, header), *_ = iter_headers(log.read(0, 2**30))
    assert (header.max_timestamp, header.base_timestamp) == (NOW_MS, NOW_MS)


def test_very_many_records_span_batches(log: PartitionLog) -> None:
    """What does not fit in one batch is several, each with its share."""
    records = [committed(1, partition=index) for index in range(12_001)]
    append(log, *records)
    assert batches(log) == [5_000, 5_000, 2_001]
    assert read(log) == records


def test_large_records_span_batches(log: PartitionLog) -> None:
    """A batch is closed when it is large; a record that is larger has one for itself."""
    mib = 1024 * 1024
    sizes = [mib, mib, mib, mib, 6 * mib, mib, 3 * mib - 200]
    records = [written(i, group=f"g{i}", assignment=bytes(size)) for i, size in enumerate(sizes)]
    append(log, *records)
    assert batches(log) == [3, 1, 1, 2]
    assert read(log) == records


def test_a_record_too_large(log: PartitionLog) -> None:
    """It is refused with a code that says that nothing was written, wherever it stands."""
    large = written(1, assignment=bytes(2**26))
    for records in ([large], [committed(1), large], [written(2, assignment=bytes(2**23)), large]):
        with pytest.raises(KafkaError) as caught:
            append(log, *records)
        assert caught.value.code in TOO_LARGE_CODES
        assert log.log_end_offset == 0


def test_a_record_larger_than_a_segment(tmp_path: Path) -> None:
    """The same where the segments are the limit."""
    log = open_log(tmp_path / "log", LogConfig(segment_bytes=2**20, max_message_bytes=2**26))
    large = written(1, assignment=bytes(2**20))
    for records in ([large], [*(committed(1, partition=i) for i in range(5_001)), large]):
        with pytest.raises(KafkaError) as caught:
            append(log, *records)
        assert caught.value.code in TOO_LARGE_CODES
        assert log.log_end_offset == 0
    log.close(NOW_MS)


def test_what_the_format_has_no_room_for(log: PartitionLog) -> None:
    """A name longer than a string can be is refused like a record that is too large."""
    with pytest.raises(KafkaError, match="no room") as caught:
        append(log, committed(1, group="x" * 32_768))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


def test_a_log_that_refuses(log: PartitionLog) -> None:
    """Its own error is passed on."""
    log.failed = "broken"
    with pytest.raises(KafkaError, match="broken") as caught:
        append(log, committed(1))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_segments_are_closed_early(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is closed when it is past a few megabytes, so that it can be compacted."""
    mib = 1024 * 1024
    append(log, written(1, assignment=bytes(4 * mib - 1_000)))
    assert len(log.segments) == 1
    with monkeypatch.context() as full:
        full.setattr(log, "roll", _refuse)
        append(log, written(2, assignment=bytes(1_000)))
    assert len(log.segments) == 1
    append(log, written(3))
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    append(log, written(4))
    assert len(log.segments) == 2
    assert read(log) == [written(4)]


def _refuse(now_ms: int) -> None:
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no room for a new segment")


# Reading ----------------------------------------------------------------------------------------


def test_only_the_last_record_of_a_key_counts(log: PartitionLog) -> None:
    """A journal reads like the compacted log that it will be, in the order of the last writes."""
    append(log, committed(1), committed(1, partition=1))
    append(log, written(1))
    append(log, committed(2))
    append(log, written(None))
    assert read(log) == [committed(1, partition=1), committed(2), written(None)]


KEYS = st.sampled_from(["a", "b"])
RECORDS = st.lists(
    st.builds(
        lambda offset, group, partition: committed(offset, group=group, partition=partition),
        st.none() | st.integers(0, 9),
        KEYS,
        st.integers(0, 1),
    )
    | st.builds(
        lambda generation, group: written(generation, group=group),
        st.none() | st.integers(0, 9),
        KEYS,
    ),
    max_size=30,
)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(RECORDS, st.integers(1, 5))
def test_the_state_is_that_of_all_records(records: list[DurableRecord], size: int) -> None:
    """Reading the last records only comes to the same groups and offsets as replaying all."""
    living, loaded = GroupShard(GroupSettings()), GroupShard(GroupSettings())
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(Path(folder) / "log")
        for first in range(0, len(records), size):
            append(log, *records[first : first + size])
        for record in records:
            living.replay(record)
        for record in read(log):
            loaded.replay(record)
        log.close(NOW_MS)
    assert loaded.groups == living.groups
    assert [loaded.offsets(group) for group in "ab"] == [living.offsets(group) for group in "ab"]


def test_many_segments_and_many_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal is read through all its segments, a piece at a time."""
    monkeypatch.setattr(journal, "_READ_BYTES", 1_000)
    log = open_log(tmp_path / "log", LogConfig(segment_bytes=5_000, max_message_bytes=2**20))
    records = [committed(i, partition=i, text="x" * (i % 300)) for i in range(200)]
    for record in records:
        append(log, record)
    assert len(log.segments) > 3
    assert read(log) == records
    log.delete_records_before(150)
    assert read(log) == records[150:]
    log.close(NOW_MS)


def test_the_end_may_be_compacted_away(log: PartitionLog) -> None:
    """A batch without records, as compaction leaves one, is nothing; nor is a gap."""
    append(log, committed(1))
    first_bytes = log.size_bytes
    append(log, committed(2))
    segment = log.segments[0]
    hollow = build_batch([], base_offset=1, last_offset=1, base_timestamp=NOW_MS)
    segment.path().write_bytes(segment.path().read_bytes()[:first_bytes] + hollow)
    segment.size_bytes = first_bytes + len(hollow)
    assert read(log) == [committed(1)]


def test_control_batches_are_not_records(log: PartitionLog) -> None:
    """Markers of transactions in a journal that Kafka wrote are passed over."""
    marker = build_batch(
        [Record(0, NOW_MS, bytes(4), bytes(6))],
        base_offset=0,
        attributes=CONTROL_FLAG,
        producer_id=1,
        producer_epoch=0,
    )
    log.append(memoryview(bytearray(marker)), now_ms=NOW_MS, is_client=False)
    append(log, committed(1))
    assert read(log) == [committed(1)]


def test_unknown_types_are_counted(log: PartitionLog) -> None:
    """Each key of a type that is not known counts once, whatever its value."""
    append_raw(log, (b"\x00\x63a", b"1"), (b"\x00\x63a", b"2"), (b"\x00\x63b", None))
    append(log, committed(1))
    append_raw(log, (b"\x7f\xff", b""))
    skipped: Counter[int] = Counter()
    assert list(read_records(log, skipped)) == [committed(1)]
    assert skipped == {99: 2, 32_767: 1}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ((b"", b"v"), "0 bytes are too few"),
        ((b"\x00", b"v"), "1 bytes are too few"),
        ((b"\x00\x01\x00\x05g", b"v"), "cannot be read"),
        ((encode(committed(1))[0], b""), "0 bytes are too few"),
        ((encode(committed(1))[0], b"\x00\x04\x00"), "cannot be read"),
        ((encode(committed(1))[0], b"\x00\x09"), "no version 9"),
        ((encode(written(1))[0], b"\x00\x03\x00"), "cannot be read"),
        ((encode(written(1))[0] + b"x", None), "followed by 1 bytes"),
    ],
)
def test_what_cannot_be_read_is_named(
    log: PartitionLog, entry: tuple[bytes, bytes | None], why: str
) -> None:
    """A record that is not what it claims to be ends the reading, with its place."""
    append(log, committed(1, group="before"))
    append_raw(log, entry)
    with pytest.raises(JournalError, match=f"batch at offset 1: .*{why}"):
        read(log)


def test_a_record_without_a_key(log: PartitionLog) -> None:
    """Nothing of ours is without a key."""
    batch = build_batch([Record(0, NOW_MS, None, b"v")], base_offset=0)
    log.append(memoryview(bytearray(batch)), now_ms=NOW_MS, is_client=False)
    with pytest.raises(JournalError, match="batch at offset 0: the record at offset 0 has no key"):
        read(log)


def test_a_bit_that_flipped(log: PartitionLog) -> None:
    """A wrong offset would be worse than none: every batch must match its checksum."""
    append(log, committed(1))
    append(log, committed(2, partition=1))
    segment = log.segments[0]
    content = bytearray(segment.path().read_bytes())
    content[-5] ^= 0x10
    segment.path().write_bytes(content)
    with pytest.raises(JournalError, match="batch at offset 1 does not match its CRC-32C"):
        read(log)


def test_a_read_that_comes_to_nothing_ends(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes in which no batch begins are said, instead of being read for ever."""
    append(log, committed(1))
    monkeypatch.setattr(log, "read", lambda offset, size: memoryview(bytes(10)))
    with pytest.raises(JournalError, match="no batch begins at offset 0"):
        read(log)
