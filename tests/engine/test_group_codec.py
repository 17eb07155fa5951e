"""Records of `__consumer_offsets`: bytes worked out by hand, bytes that Kafka wrote, and damage."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember, ClassicState
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.records import GroupWritten, OffsetCommitted
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.group_codec import DurableRecord, decode, encode
from anabranch.engine.journal.partitions import partition_for
from anabranch.wire.journal.consumer_offsets import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from anabranch.wire.journal.record_type import read_prefix
from anabranch.wire.primitives import EncodeError

TOPIC_ID = bytes(range(16))
COMMIT_TIME_MS = 0x0102030405
EXPIRE_TIME_MS = 0x0A0B0C0D0E


def unhex(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


# By hand ------------------------------------------------------------------------------------------

OFFSET_KEY = unhex("0001", "0001 67", "0002 c3a4", "00000007")  # "g", "ä", 7
OFFSET_VALUES = {
    0: unhex("0000", "0000000000000102", "0001 6d", "0000000102030405"),
    1: unhex("0001", "0000000000000102", "0001 6d", "0000000102030405", "0000000a0b0c0d0e"),
    2: unhex("0002", "0000000000000102", "0001 6d", "0000000102030405"),
    3: unhex("0003", "0000000000000102", "00000009", "0001 6d", "0000000102030405"),
    4: unhex(
        *("0004", "0000000000000102", "00000009", "02 6d", "0000000102030405"),
        *("01", "00", "10", TOPIC_ID.hex()),  # one tag: number 0, 16 bytes
    ),
}
# What each version has no place for reads as its default.
OFFSETS = {
    0: CommittedOffset(offset=258, metadata="m", commit_timestamp_ms=COMMIT_TIME_MS),
    1: CommittedOffset(
        offset=258,
        metadata="m",
        commit_timestamp_ms=COMMIT_TIME_MS,
        expire_timestamp_ms=EXPIRE_TIME_MS,
    ),
    2: CommittedOffset(offset=258, metadata="m", commit_timestamp_ms=COMMIT_TIME_MS),
    3: CommittedOffset(
        offset=258, leader_epoch=9, metadata="m", commit_timestamp_ms=COMMIT_TIME_MS
    ),
    4: CommittedOffset(
        offset=258,
        leader_epoch=9,
        metadata="m",
        commit_timestamp_ms=COMMIT_TIME_MS,
        topic_id=TOPIC_ID,
    ),
}

GROUP_KEY = unhex("0002", "0001 67")
_GROUP_HEAD = "0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6c"  # consumer, 5, range, "l"
_MEMBER_HEAD = "0001 69"
_CLIENT = "0001 63 0001 68"
_BYTES = "00000002 aabb 00000001 cc"
GROUP_VALUES = {
    0: unhex("0000", _GROUP_HEAD, "00000001", _MEMBER_HEAD, _CLIENT, "00000020", _BYTES),
    1: unhex("0001", _GROUP_HEAD, "00000001", _MEMBER_HEAD, _CLIENT, "0000001000000020", _BYTES),
    2: unhex(
        *("0002", _GROUP_HEAD, "0000000102030405", "00000001"),
        *(_MEMBER_HEAD, _CLIENT, "0000001000000020", _BYTES),
    ),
    3: unhex(
        *("0003", _GROUP_HEAD, "0000000102030405", "00000001"),
        *(_MEMBER_HEAD, "0001 73", _CLIENT, "0000001000000020", _BYTES),
    ),
    4: unhex(
        *("0004", "09 636f6e73756d6572 00000005 06 72616e6765 02 6c", "0000000102030405", "02"),
        *("02 69", "02 73", "02 63 02 68", "0000001000000020", "03 aabb 02 cc", "00", "00"),
    ),
}


def member(rebalance_timeout_ms: int, group_instance_id: str | None) -> ClassicMember:
    return ClassicMember(
        member_id="i",
        group_instance_id=group_instance_id,
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=0x20,
        protocols=(("range", b"\xaa\xbb"),),
        assignment=b"\xcc",
    )


def stable_group(state_timestamp_ms: int, only_member: ClassicMember) -> ClassicGroup:
    return ClassicGroup(
        group_id="g",
        state=ClassicState.STABLE,
        generation_id=5,
        protocol_type="consumer",
        protocol_name="range",
        leader_id="l",
        state_timestamp_ms=state_timestamp_ms,
        members={"i": only_member},
    )


# A group of version 0 waits for its members as long as their sessions last.
GROUPS = {
    0: stable_group(-1, member(0x20, None)),
    1: stable_group(-1, member(0x10, None)),
    2: stable_group(COMMIT_TIME_MS, member(0x10, None)),
    3: stable_group(COMMIT_TIME_MS, member(0x10, "s")),
    4: stable_group(COMMIT_TIME_MS, member(0x10, "s")),
}


@pytest.mark.parametrize("version", range(5))
def test_offset_of_every_version_is_read(version: int) -> None:
    """An offset written by hand in any version is read with what that version can say."""
    expected = OffsetCommitted(group_id="g", topic="ä", partition=7, value=OFFSETS[version])
    assert decode(OFFSET_KEY, OFFSET_VALUES[version]) == expected


@pytest.mark.parametrize("version", range(5))
def test_group_of_every_version_is_read(version: int) -> None:
    """A group written by hand in any version is read with what that version can say."""
    expected = GroupWritten(group_id="g", group=GROUPS[version])
    assert decode(GROUP_KEY, GROUP_VALUES[version]) == expected


@pytest.mark.parametrize("version", range(5))
def test_every_version_is_written_as_by_hand(version: int) -> None:
    """The tables write each version, whatever of the message it has no place for."""
    full = OffsetCommitValue(
        offset=258,
        leader_epoch=9,
        metadata="m",
        commit_timestamp_ms=COMMIT_TIME_MS,
        expire_timestamp_ms=EXPIRE_TIME_MS,
        topic_id=TOPIC_ID,
    )
    assert OFFSET_COMMIT.value_encoder(version)(full) == OFFSET_VALUES[version]
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation_id=5,
        protocol_name="range",
        leader_id="l",
        state_timestamp_ms=COMMIT_TIME_MS,
        members=[
            MemberMetadata(
                member_id="i",
                group_instance_id="s",
                client_id="c",
                client_host="h",
                rebalance_timeout_ms=0x10,
                session_timeout_ms=0x20,
                subscription=b"\xaa\xbb",
                assignment=b"\xcc",
            )
        ],
    )
    assert GROUP_METADATA.value_encoder(version)(group) == GROUP_VALUES[version]


def test_versions_written_are_those_of_kafka() -> None:
    """Offsets are written as version 4, or 1 when they have an expiry; groups as version 3."""
    record = OffsetCommitted(group_id="g", topic="ä", partition=7, value=OFFSETS[4])
    assert encode(record) == (OFFSET_KEY, OFFSET_VALUES[4])
    with_all = CommittedOffset(
        offset=258,
        leader_epoch=9,
        metadata="m",
        commit_timestamp_ms=COMMIT_TIME_MS,
        expire_timestamp_ms=EXPIRE_TIME_MS,
        topic_id=TOPIC_ID,
    )
    expiring = OffsetCommitted(group_id="g", topic="ä", partition=7, value=with_all)
    assert encode(expiring) == (OFFSET_KEY, OFFSET_VALUES[1])
    group = GroupWritten(group_id="g", group=GROUPS[3])
    assert encode(group) == (GROUP_KEY, GROUP_VALUES[3])


def test_topic_id_of_zeros_is_left_out() -> None:
    """A version 4 offset without a topic id ends in an empty tag section."""
    record = OffsetCommitted(group_id="g", topic="ä", partition=7, value=OFFSETS[3])
    value = unhex("0004", "0000000000000102", "00000009", "02 6d", "0000000102030405", "00")
    assert encode(record) == (OFFSET_KEY, value)
    assert decode(OFFSET_KEY, value) == record


def test_tombstones_have_no_value() -> None:
    """A forgotten offset and a forgotten group are keys without values, both ways."""
    offset = OffsetCommitted(group_id="g", topic="ä", partition=7, value=None)
    assert encode(offset) == (OFFSET_KEY, None)
    assert decode(OFFSET_KEY, None) == offset
    group = GroupWritten(group_id="g", group=None)
    assert encode(group) == (GROUP_KEY, None)
    assert decode(GROUP_KEY, None) == group


def test_empty_group_has_nulls() -> None:
    """A group that nobody has joined has no protocol and no leader; its type is an empty string."""
    empty = ClassicGroup(group_id="g", generation_id=6, state_timestamp_ms=COMMIT_TIME_MS)
    value = unhex("0003", "0000", "00000006", "ffff", "ffff", "0000000102030405", "00000000")
    record = GroupWritten(group_id="g", group=empty)
    assert encode(record) == (GROUP_KEY, value)
    assert decode(GROUP_KEY, value) == record


def test_offsets_from_before_coordinators_are_read() -> None:
    """Type 0 is read as type 1 is; what is written is type 1."""
    key = unhex("0000", OFFSET_KEY[2:].hex())
    record = OffsetCommitted(group_id="g", topic="ä", partition=7, value=OFFSETS[0])
    assert decode(key, OFFSET_VALUES[0]) == record
    assert decode(key, None) == OffsetCommitted(group_id="g", topic="ä", partition=7, value=None)
    assert encode(record)[0] == OFFSET_KEY
    assert LEGACY_OFFSET_COMMIT.key_encoder()(record) == key


# By Apache Kafka ----------------------------------------------------------------------------------


def recorded() -> list[tuple[int, bytes, bytes | None]]:
    lines = (Path(__file__).parent / "golden" / "consumer_offsets.txt").read_text().splitlines()
    fields = [line.split() for line in lines if not line.startswith("#")]
    return [
        (int(partition), bytes.fromhex(key), None if value == "-" else bytes.fromhex(value))
        for partition, key, value in fields
    ]


def test_records_of_kafka_survive() -> None:
    """What Kafka wrote is read, lies in the right partition, and is written byte for byte."""
    kinds = set()
    for partition, key, value in recorded():
        record = decode(key, value)
        assert record is not None
        kinds.add(read_prefix(key))
        assert partition_for(record.group_id, 4) == partition
        assert encode(record) == (key, value)
    assert kinds == {1, 2, 3, 5, 6, 7, 8}


def test_records_of_kafka_say_what_was_done() -> None:
    """The decoded values are those of the groups that were recorded."""
    read = [record for _, key, value in recorded() if (record := decode(key, value))]
    groups = [r.group for r in read if isinstance(r, GroupWritten) and r.group is not None]
    (static,) = (g for g in groups if g.group_id == "confluent-static" and g.members)
    assert static.state is ClassicState.STABLE
    assert {m.group_instance_id for m in static.members.values()} == {"inst-0", "inst-1"}
    assert all(b"orders" in m.metadata("range") for m in static.members.values())
    assert static.leader_id in static.members
    offsets = [r for r in read if isinstance(r, OffsetCommitted)]
    expiring = [r.value for r in offsets if r.group_id == "expiring-group"]
    assert {v.expire_timestamp_ms - v.commit_timestamp_ms for v in expiring if v} == {86_400_000}
    # confluent-kafka sends the terminator of its C string with the metadata.
    assert any(r.value and r.value.metadata == "métadonnée 0\0" for r in offsets)
    by_id = [r.value for r in offsets if r.group_id == "kip848-group"]
    assert all(v and v.topic_id != bytes(16) for v in by_id)


def test_records_of_other_groups_are_passed_over() -> None:
    """Share and streams groups are not known here, nor what Kafka 4.0 kept in type 4."""
    for number in (4, 9, 11, 15, 17, 23, 99):
        key = number.to_bytes(2, "big") + b"\x00\x01g"
        assert decode(key, None) is None
        assert decode(key, b"\0\0whatever") is None


# Both ways ----------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just("ä" * 80)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

PLAIN_OFFSETS = st.builds(
    CommittedOffset,
    offset=INT64,
    leader_epoch=INT32,
    metadata=TEXT,
    commit_timestamp_ms=INT64,
    topic_id=st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
)
EXPIRING_OFFSETS = st.builds(
    CommittedOffset,
    offset=INT64,
    metadata=TEXT,
    commit_timestamp_ms=INT64,
    expire_timestamp_ms=INT64,
)


@st.composite
def groups(draw: st.DrawFn) -> ClassicGroup:
    """Groups as a restart leaves them: without what only the living process knows."""
    protocol_name = draw(st.none() | TEXT)
    members = draw(
        st.lists(
            st.builds(
                ClassicMember,
                member_id=TEXT,
                group_instance_id=st.none() | TEXT,
                client_id=TEXT,
                client_host=TEXT,
                rebalance_timeout_ms=st.integers(0, 1 << 30),
                session_timeout_ms=INT32,
                protocols=st.binary(max_size=9).map(lambda m: ((protocol_name or "", m),)),
                assignment=st.binary(max_size=200),
            ),
            max_size=3,
            unique_by=lambda m: m.member_id,
        )
    )
    return ClassicGroup(
        group_id=draw(TEXT),
        state=ClassicState.STABLE if members else ClassicState.EMPTY,
        generation_id=draw(INT32),
        protocol_type=draw(st.none() | TEXT.filter(bool)),
        protocol_name=protocol_name,
        leader_id=draw(st.none() | TEXT),
        state_timestamp_ms=draw(INT64),
        members={m.member_id: m for m in members},
    )


RECORDS: st.SearchStrategy[DurableRecord] = st.one_of(
    st.builds(
        OffsetCommitted,
        group_id=TEXT,
        topic=TEXT,
        partition=INT32,
        value=st.none() | PLAIN_OFFSETS | EXPIRING_OFFSETS,
    ),
    st.builds(GroupWritten, group_id=TEXT, group=st.none()),
    groups().map(lambda group: GroupWritten(group_id=group.group_id, group=group)),
)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(RECORDS)
def test_records_come_back(record: DurableRecord) -> None:
    """A record that was written is read as it was."""
    assert decode(*encode(record)) == record


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(PLAIN_OFFSETS)
def test_commits_are_those_of_the_wire(offset: CommittedOffset) -> None:
    """What is written by hand for speed is what the generated codec of the record writes."""
    for metadata in ("", offset.metadata):
        value = dataclasses.replace(offset, metadata=metadata)
        record = OffsetCommitted(group_id="g", topic="t", partition=1, value=value)
        assert encode(record)[1] == OFFSET_COMMIT.value_encoder(4)(value)


# Damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [(OFFSET_KEY, value) for value in OFFSET_VALUES.values()]
    + [(GROUP_KEY, value) for value in GROUP_VALUES.values()],
)
def test_cut_and_lengthened_bytes_are_refused(key: bytes, value: bytes) -> None:
    """A key or a value that ends early or late is a JournalError, never a shorter record."""
    for size in range(len(value)):
        with pytest.raises(JournalError):
            decode(key, value[:size])
    for size in range(len(key)):
        with pytest.raises(JournalError):
            decode(key[:size], value)
    with pytest.raises(JournalError):
        decode(key + b"\0", value)
    with pytest.raises(JournalError):
        decode(key, value + b"\0")


@pytest.mark.parametrize(
    ("key", "version"), [(OFFSET_KEY, -1), (OFFSET_KEY, 5), (GROUP_KEY, 5), (b"\0\0" + bytes(8), 1)]
)
def test_unknown_value_versions_are_refused(key: bytes, version: int) -> None:
    """A version that is not known cannot be passed over: what it says would be lost."""
    with pytest.raises(JournalError, match=f"version {version}"):
        decode(key, version.to_bytes(2, "big", signed=True) + bytes(40))


def test_text_that_is_not_utf_8_is_refused() -> None:
    """Group ids, topics and metadata are text."""
    with pytest.raises(JournalError):
        decode(OFFSET_KEY.replace(b"g", b"\xff"), OFFSET_VALUES[4])
    with pytest.raises(JournalError):
        decode(OFFSET_KEY, OFFSET_VALUES[4].replace(b"m", b"\xff"))


def test_unknown_tags_are_passed_over() -> None:
    """A tag that a newer Kafka adds to version 4 changes nothing that is read (KIP-915)."""
    tagged = OFFSET_VALUES[4].replace(b"\x01\x00\x10" + TOPIC_ID, b"\x02\x00\x10" + TOPIC_ID)
    record = decode(OFFSET_KEY, tagged + b"\x07\x03new")
    assert record == decode(OFFSET_KEY, OFFSET_VALUES[4])


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from([b""] + [b"\0" + bytes([number]) for number in (*range(9), 16)]),
    st.binary(max_size=40),
    st.integers(-1, 5),
    st.binary(max_size=40),
)
def test_any_bytes_are_met(prefix: bytes, key: bytes, version: int, value: bytes) -> None:
    """Bytes of any kind end in a record, nothing, or a JournalError."""
    try:
        decode(prefix + key, version.to_bytes(2, "big", signed=True) + value)
    except JournalError as error:
        assert str(error)


def test_what_a_record_cannot_carry_is_refused() -> None:
    """A name longer than a length can say, or a version nobody knows, is not written."""
    with pytest.raises(EncodeError):
        encode(OffsetCommitted(group_id="g" * 32768, topic="t", partition=0, value=None))
    with pytest.raises(EncodeError, match="version 5"):
        OFFSET_COMMIT.value_encoder(5)
    with pytest.raises(EncodeError):
        OFFSET_COMMIT.key_encoder()(OffsetCommitKey(partition=1 << 31))
