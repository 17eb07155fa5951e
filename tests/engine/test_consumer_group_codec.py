"""Records of consumer groups (KIP-848) as the coordinator knows them, against Kafka's bytes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_records import (
    ConsumerGroupRecord,
    CurrentWritten,
    GroupEpochWritten,
    MemberWritten,
    RegexWritten,
    TargetEpochWritten,
    TargetWritten,
)
from anabranch.coordinator.group.consumer_state import (
    ClassicMembership,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
)
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.group_codec import decode, encode
from anabranch.model.units import SlotRange, Unit

TOPIC_A = bytes(range(16))
TOPIC_B = bytes(range(0xF0, 0x100))
TIME_MS = 1795000000123
NAME = "gruppe-ä"

MEMBER = ConsumerMember(
    member_id="m-1",
    instance_id="inst-0",
    rack_id="r1",
    client_id="c",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=300_000,
    subscribed_topic_names=("orders", "payments"),
    subscribed_topic_regex="o.*",
    server_assignor="uniform",
)
CLASSIC = ClassicMembership(
    session_timeout_ms=45_000,
    protocols=(("range", b"\x00\x03\xff"), ("cooperative-sticky", b"x" * 200)),
)


def units(topic_id: bytes, partitions: range, *epochs: int) -> dict[Unit, int]:
    given = epochs * len(partitions) if len(epochs) == 1 else epochs
    return {Unit(topic_id, p): epoch for p, epoch in zip(partitions, given, strict=True)}


def group_epoch(epoch: int | None, metadata_hash: int = 0) -> GroupEpochWritten:
    return GroupEpochWritten(group_id=NAME, epoch=epoch, metadata_hash=metadata_hash)


def member(described: ConsumerMember | None) -> MemberWritten:
    return MemberWritten(group_id="g", member_id="m-1", member=described)


def target_epoch(epoch: int | None, timestamp_ms: int = 0) -> TargetEpochWritten:
    return TargetEpochWritten(group_id="g", epoch=epoch, timestamp_ms=timestamp_ms)


def target(owned: frozenset[Unit] | None) -> TargetWritten:
    return TargetWritten(group_id="g", member_id="m-1", target=owned)


def current(**values: Any) -> CurrentWritten:
    at = ConsumerMember(member_id="m-1", **values)
    return CurrentWritten(group_id="g", member_id="m-1", member=at)


def expression(resolved: ResolvedRegex | None) -> RegexWritten:
    return RegexWritten(group_id="g", regex="o.*", resolved=resolved)


# What Kafka wrote, by the label of the sample.
READ: dict[str, ConsumerGroupRecord | None] = {
    "group": group_epoch(7, -81985529216486896),
    "group-without-hash": group_epoch(7),
    "group-of-defaults": group_epoch(0),
    "partitions": None,
    "partitions-of-defaults": None,
    "member": member(MEMBER),
    "member-with-nulls": member(
        ConsumerMember(
            member_id="m-1", client_id="c", client_host="/127.0.0.1", rebalance_timeout_ms=300_000
        )
    ),
    "member-of-defaults": member(
        ConsumerMember(
            member_id="m-1",
            instance_id="",
            rack_id="",
            subscribed_topic_regex="",
            server_assignor="",
        )
    ),
    "member-classic": member(dataclasses.replace(MEMBER, classic=CLASSIC)),
    "member-classic-of-defaults": member(MEMBER),
    "target": target_epoch(8, TIME_MS),
    "target-without-time": target_epoch(8),
    "target-member": target(
        frozenset({Unit(TOPIC_A, 0), Unit(TOPIC_A, 258), *(Unit(TOPIC_B, p) for p in range(130))})
    ),
    "target-member-of-defaults": target(frozenset()),
    "current": current(
        member_epoch=9,
        previous_member_epoch=8,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned=units(TOPIC_A, range(2), 5, 9) | units(TOPIC_B, range(40), *range(40)),
        pending_revocation=units(TOPIC_B, range(41, 42), 6),
    ),
    # Records from before 4.3: the member's epoch stands for each partition's (KIP-1251).
    "current-without-epochs": current(
        member_epoch=9,
        previous_member_epoch=8,
        state=MemberState.UNRELEASED_PARTITIONS,
        assigned=units(TOPIC_A, range(2), 9),
        pending_revocation=units(TOPIC_B, range(41, 42), 9),
    ),
    "current-with-null-epochs": current(state=MemberState.UNKNOWN),
    "current-of-leaver": current(member_epoch=-2, previous_member_epoch=-1),
    "expression": expression(
        ResolvedRegex(topics=frozenset({"offers", "orders"}), version=4096, timestamp_ms=TIME_MS)
    ),
    "expression-of-defaults": expression(
        ResolvedRegex(topics=frozenset(), version=0, timestamp_ms=0)
    ),
}
# What says the same in other bytes than ours: a left out tag, epochs that were not yet written,
# a topic without partitions.
OTHERWISE = {
    "member-of-defaults",
    "member-classic-of-defaults",
    "current-without-epochs",
    "current-with-null-epochs",
}


def load_golden() -> dict[str, tuple[bytes, bytes]]:
    path = Path(__file__).parents[1] / "wire" / "golden" / "records" / "consumer_groups.txt"
    fields = [line.split() for line in path.read_text().splitlines()]
    return {label: (bytes.fromhex(key), bytes.fromhex(value)) for label, key, value in fields}


GOLDEN = load_golden()


def test_every_sample_is_expected() -> None:
    """No sample that Kafka wrote is left out here."""
    assert set(GOLDEN) == set(READ)


@pytest.mark.parametrize("label", READ)
def test_samples_of_kafka_are_read(label: str) -> None:
    """A record that Kafka wrote is what the coordinator takes it for; type 4 is passed over."""
    key, value = GOLDEN[label]
    assert decode(key, value) == READ[label]


@pytest.mark.parametrize("label", [label for label, read in READ.items() if read is not None])
def test_samples_of_kafka_are_written(label: str) -> None:
    """Ours are Kafka's bytes, or bytes that say the same where Kafka left something out."""
    record = READ[label]
    assert record is not None
    key, value = encode(record)
    assert key == GOLDEN[label][0]
    assert (value == GOLDEN[label][1]) == (label not in OTHERWISE)
    assert decode(key, value) == record


@pytest.mark.parametrize(
    "tombstone",
    [
        group_epoch(None),
        member(None),
        target_epoch(None),
        target(None),
        CurrentWritten(group_id="g", member_id="m-1", member=None),
        expression(None),
    ],
)
def test_tombstones_have_no_value(tombstone: ConsumerGroupRecord) -> None:
    """What is forgotten is a key without a value, both ways."""
    key, value = encode(tombstone)
    assert value is None
    assert decode(key, None) == tombstone


def test_descriptions_and_epochs_are_apart() -> None:
    """Type 5 has nothing of what a member owns, type 8 nothing of what it says of itself."""
    full = MEMBER.with_(
        member_epoch=4, previous_member_epoch=3, assigned=units(TOPIC_A, range(2), 4)
    )
    described = decode(*encode(member(full)))
    owning = decode(*encode(CurrentWritten(group_id="g", member_id="m-1", member=full)))
    assert isinstance(described, MemberWritten) and isinstance(owning, CurrentWritten)
    assert described.member == MEMBER
    assert owning.member is not None
    assert MEMBER.owning_as(owning.member) == full


@pytest.mark.parametrize("state", [3, 4, 126])
def test_a_state_from_the_future(state: int) -> None:
    """A member in a state that is not known here is read as UNKNOWN, and has to rejoin."""
    key, value = GOLDEN["current-of-leaver"]
    changed = bytearray(value)
    changed[10] = state
    read = decode(key, bytes(changed))
    assert isinstance(read, CurrentWritten) and read.member is not None
    assert read.member.state is MemberState.UNKNOWN


def test_epochs_that_do_not_match_their_partitions() -> None:
    """As many epochs as partitions, or none: anything else is damage."""
    value = bytes.fromhex(
        "000000000009000000080002" + TOPIC_A.hex() + "03000000000000000101000502000000050100"
    )
    with pytest.raises(JournalError):
        decode(GOLDEN["current"][0], value)


def test_the_cause_is_not_written() -> None:
    """Why an epoch grew is for those who watch; the journal has no place for it."""
    said = dataclasses.replace(group_epoch(3, 5), cause=Cause.LEAVE)
    read = decode(*encode(said))
    assert isinstance(read, GroupEpochWritten)
    assert read == said and read.cause is None


def test_key_ranges_are_in_tags_of_our_own() -> None:
    """A partition is there once for each of its ranges; Kafka's own fields stay what they are."""
    low, high = Unit(TOPIC_A, 0, SlotRange(0, 100)), Unit(TOPIC_A, 0, SlotRange(100, 65_536))
    whole = Unit(TOPIC_A, 1)
    for record in (
        target(frozenset({low, whole})),
        current(assigned={low: 1, whole: 2}, pending_revocation={high: 1}),
    ):
        assert decode(*encode(record)) == record
    _key, value = encode(target(frozenset({low})))
    # Version, one topic, its id, one partition (0); one tag, 10000, of 9 bytes: the two slots.
    tag = "01" + "904e" + "09" + "03" + "00000000" + "00000064"
    wanted = "0000" + "02" + TOPIC_A.hex() + "02" + "00000000" + tag + "00"
    assert value == bytes.fromhex(wanted)


@pytest.mark.parametrize("label", [label for label, read in READ.items() if read is not None])
def test_cut_and_lengthened_bytes_are_refused(label: str) -> None:
    """A key or a value that ends early or late is a JournalError, never a shorter record."""
    key, value = GOLDEN[label]
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
    with pytest.raises(JournalError, match="version 1"):
        decode(key, b"\0\1" + value[2:])


# Both ways ----------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just("ä" * 80)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
UNITS = st.tuples(st.sampled_from([TOPIC_A, TOPIC_B, bytes(16)]), st.integers(0, 300)).map(
    lambda place: Unit(*place)
)
OWNED = st.dictionaries(UNITS, INT32, max_size=8)
DESCRIBED = st.builds(
    ConsumerMember,
    member_id=st.just("m"),
    instance_id=st.none() | TEXT,
    rack_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=INT32,
    subscribed_topic_names=st.lists(TEXT, max_size=4).map(tuple),
    subscribed_topic_regex=st.none() | TEXT,
    server_assignor=st.none() | TEXT,
    classic=st.none()
    | st.builds(
        ClassicMembership,
        session_timeout_ms=INT32,
        protocols=st.lists(st.tuples(TEXT, st.binary(max_size=200)), min_size=1, max_size=3).map(
            tuple
        ),
    ),
)
OWNING = st.builds(
    ConsumerMember,
    member_id=st.just("m"),
    member_epoch=INT32,
    previous_member_epoch=INT32,
    state=st.sampled_from(MemberState),
    assigned=OWNED,
    pending_revocation=OWNED,
)
RESOLVED = st.builds(
    ResolvedRegex, topics=st.frozensets(TEXT, max_size=4), version=INT64, timestamp_ms=INT64
)
RECORDS: st.SearchStrategy[ConsumerGroupRecord] = st.one_of(
    st.builds(GroupEpochWritten, group_id=TEXT, epoch=INT32, metadata_hash=INT64),
    st.builds(TargetEpochWritten, group_id=TEXT, epoch=INT32, timestamp_ms=INT64),
    st.builds(MemberWritten, group_id=TEXT, member_id=st.just("m"), member=DESCRIBED),
    st.builds(CurrentWritten, group_id=TEXT, member_id=st.just("m"), member=OWNING),
    st.builds(
        TargetWritten,
        group_id=TEXT,
        member_id=TEXT,
        target=st.none() | st.frozensets(UNITS, max_size=9),
    ),
    st.builds(RegexWritten, group_id=TEXT, regex=TEXT, resolved=st.none() | RESOLVED),
)


@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(RECORDS)
def test_records_come_back(record: ConsumerGroupRecord) -> None:
    """A record that was written is read as it was."""
    assert decode(*encode(record)) == record
