"""Records of consumer groups: bytes that Kafka wrote, bytes worked out by hand, and damage."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from anabranch.wire.journal.consumer_groups import (
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    CONSUMER_GROUP_MEMBER_METADATA,
    CONSUMER_GROUP_METADATA,
    CONSUMER_GROUP_PARTITION_METADATA,
    CONSUMER_GROUP_REGULAR_EXPRESSION,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    GroupKey,
    MemberKey,
    PartitionMetadata,
    RegularExpressionKey,
    TargetTopicPartitions,
    TopicMetadata,
)
from anabranch.wire.journal.record_type import RecordType, read_prefix
from anabranch.wire.primitives import DecodeError, EncodeError

TYPES = {
    record_type.number: record_type
    for record_type in (
        CONSUMER_GROUP_METADATA,
        CONSUMER_GROUP_PARTITION_METADATA,
        CONSUMER_GROUP_MEMBER_METADATA,
        CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
        CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
        CONSUMER_GROUP_REGULAR_EXPRESSION,
    )
}
NAMES = {
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    16: "ConsumerGroupRegularExpression",
}

TOPIC_A = bytes(range(16))
TOPIC_B = bytes(range(0xF0, 0x100))
TIME_MS = 1795000000123
GROUP = GroupKey(group_id="gruppe-ä")
G = GroupKey(group_id="g")
M = MemberKey(group_id="g", member_id="m-1")
REGEX = RegularExpressionKey(group_id="g", regular_expression="o.*")
MEMBER = ConsumerGroupMemberMetadataValue(
    instance_id="inst-0",
    rack_id="r1",
    client_id="c",
    client_host="/127.0.0.1",
    subscribed_topic_names=["orders", "payments"],
    subscribed_topic_regex="o.*",
    rebalance_timeout_ms=300000,
    server_assignor="uniform",
    classic=None,
)

# What WriteRecords.java filled in, by label. A string that it left alone is empty in Kafka even
# where it may be null.
WRITTEN: dict[str, tuple[Any, Any]] = {
    "group": (GROUP, ConsumerGroupMetadataValue(epoch=7, metadata_hash=-81985529216486896)),
    "group-without-hash": (GROUP, ConsumerGroupMetadataValue(epoch=7)),
    "group-of-defaults": (GROUP, ConsumerGroupMetadataValue()),
    "partitions": (
        GROUP,
        ConsumerGroupPartitionMetadataValue(
            topics=[
                TopicMetadata(
                    topic_id=TOPIC_A,
                    topic_name="orders",
                    num_partitions=2,
                    partition_metadata=[PartitionMetadata(partition=1, racks=["r1", "r2"])],
                ),
                TopicMetadata(topic_id=TOPIC_B, topic_name="payments", num_partitions=1),
            ]
        ),
    ),
    "partitions-of-defaults": (GROUP, ConsumerGroupPartitionMetadataValue()),
    "member": (M, MEMBER),
    "member-with-nulls": (
        M,
        ConsumerGroupMemberMetadataValue(
            client_id="c", client_host="/127.0.0.1", rebalance_timeout_ms=300000, classic=None
        ),
    ),
    "member-of-defaults": (
        M,
        ConsumerGroupMemberMetadataValue(
            instance_id="", rack_id="", subscribed_topic_regex="", server_assignor=""
        ),
    ),
    "member-classic": (
        M,
        dataclasses.replace(
            MEMBER,
            classic=ClassicMemberMetadata(
                session_timeout_ms=45000,
                supported_protocols=[
                    ClassicProtocol(name="range", metadata=b"\x00\x03\xff"),
                    ClassicProtocol(name="cooperative-sticky", metadata=b"x" * 200),
                ],
            ),
        ),
    ),
    "member-classic-of-defaults": (
        M,
        dataclasses.replace(MEMBER, classic=ClassicMemberMetadata()),
    ),
    "target": (
        G,
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=8, assignment_timestamp_ms=TIME_MS
        ),
    ),
    "target-without-time": (G, ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=8)),
    "target-member": (
        M,
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                TargetTopicPartitions(topic_id=TOPIC_A, partitions=[0, 258]),
                TargetTopicPartitions(topic_id=TOPIC_B, partitions=list(range(130))),
            ]
        ),
    ),
    "target-member-of-defaults": (M, ConsumerGroupTargetAssignmentMemberValue()),
    "current": (
        M,
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=9,
            previous_member_epoch=8,
            state=1,
            assigned_partitions=[
                CurrentTopicPartitions(
                    topic_id=TOPIC_A, partitions=[0, 1], assignment_epochs=[5, 9]
                ),
                CurrentTopicPartitions(
                    topic_id=TOPIC_B,
                    partitions=list(range(40)),
                    assignment_epochs=list(range(40)),
                ),
            ],
            partitions_pending_revocation=[
                CurrentTopicPartitions(topic_id=TOPIC_B, partitions=[41], assignment_epochs=[6])
            ],
        ),
    ),
    "current-without-epochs": (
        M,
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=9,
            previous_member_epoch=8,
            state=2,
            assigned_partitions=[CurrentTopicPartitions(topic_id=TOPIC_A, partitions=[0, 1])],
            partitions_pending_revocation=[
                CurrentTopicPartitions(topic_id=TOPIC_B, partitions=[41])
            ],
        ),
    ),
    "current-with-null-epochs": (
        M,
        ConsumerGroupCurrentMemberAssignmentValue(
            state=127,
            assigned_partitions=[CurrentTopicPartitions(topic_id=TOPIC_A, assignment_epochs=None)],
        ),
    ),
    "current-of-leaver": (
        M,
        ConsumerGroupCurrentMemberAssignmentValue(member_epoch=-2, previous_member_epoch=-1),
    ),
    "expression": (
        REGEX,
        ConsumerGroupRegularExpressionValue(
            topics=["offers", "orders"], version=4096, timestamp_ms=TIME_MS
        ),
    ),
    "expression-of-defaults": (REGEX, ConsumerGroupRegularExpressionValue()),
}


def load_golden() -> dict[str, tuple[bytes, bytes]]:
    path = Path(__file__).parent / "golden" / "records" / "consumer_groups.txt"
    fields = [line.split() for line in path.read_text().splitlines()]
    return {label: (bytes.fromhex(key), bytes.fromhex(value)) for label, key, value in fields}


GOLDEN = load_golden()


def type_of(key: bytes) -> RecordType:
    return TYPES[read_prefix(key)]


# By Apache Kafka ----------------------------------------------------------------------------------


def test_every_sample_is_known() -> None:
    """What Kafka wrote and what is expected are the same list, and every type is among it."""
    assert set(GOLDEN) == set(WRITTEN)
    assert {read_prefix(key) for key, _ in GOLDEN.values()} == set(NAMES)
    assert {number: record_type.name for number, record_type in TYPES.items()} == NAMES


@pytest.mark.parametrize("label", WRITTEN)
def test_samples_of_kafka_agree(label: str) -> None:
    """A record that Kafka encoded is read as what went in, and is written byte for byte."""
    key_bytes, value_bytes = GOLDEN[label]
    key, value = WRITTEN[label]
    record_type = type_of(key_bytes)
    assert read_prefix(value_bytes) == 0
    assert record_type.key_decoder()(key_bytes) == key
    assert record_type.key_encoder()(key) == key_bytes
    assert record_type.value_decoder(0)(value_bytes) == value
    assert record_type.value_encoder(0)(value) == value_bytes


def test_records_of_a_living_group_survive() -> None:
    """What a running Kafka wrote to its topic for a group is read and written byte for byte."""
    path = Path(__file__).parents[1] / "engine" / "golden" / "consumer_offsets.txt"
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    read: dict[int, list[Any]] = {}
    for _, key_hex, value_hex in lines:
        key = bytes.fromhex(key_hex)
        if read_prefix(key) not in TYPES:
            continue
        record_type = type_of(key)
        assert record_type.key_encoder()(record_type.key_decoder()(key)) == key
        assert record_type.key_decoder()(key).group_id == "kip848-group"
        if value_hex != "-":
            value = record_type.value_decoder(0)(bytes.fromhex(value_hex))
            assert record_type.value_encoder(0)(value) == bytes.fromhex(value_hex)
            read.setdefault(record_type.number, []).append(value)
    assert set(read) == {3, 5, 6, 7, 8}
    (group,), (member,), (current,) = read[3], read[5], read[8]
    assert group.epoch == current.member_epoch == 2
    assert member.client_id == "java848" and member.subscribed_topic_names == ["orders"]
    assert member.classic is None
    (owned,) = current.assigned_partitions
    assert owned.topic_id == read[7][0].topic_partitions[0].topic_id


# By hand ------------------------------------------------------------------------------------------


def unhex(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


@pytest.mark.parametrize(
    ("record_type", "data", "value"),
    [
        (CONSUMER_GROUP_METADATA, "0000 00000001 00", ConsumerGroupMetadataValue(epoch=1)),
        (
            CONSUMER_GROUP_METADATA,
            "0000 00000001 01 00 08 0000000000000002",
            ConsumerGroupMetadataValue(epoch=1, metadata_hash=2),
        ),
        (
            CONSUMER_GROUP_MEMBER_METADATA,
            "0000 00 00 02 63 02 68 01 00 ffffffff 00 00",
            ConsumerGroupMemberMetadataValue(
                client_id="c", client_host="h", classic=ClassicMemberMetadata()
            ),
        ),
        (
            # A tagged struct that may be null: present (1), then the struct with its own tags.
            CONSUMER_GROUP_MEMBER_METADATA,
            "0000 00 00 02 63 02 68 01 00 ffffffff 00 01 00 07 01 00000010 01 00",
            ConsumerGroupMemberMetadataValue(
                client_id="c",
                client_host="h",
                classic=ClassicMemberMetadata(session_timeout_ms=16),
            ),
        ),
        (
            CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
            "0000 00000003 00",
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=3),
        ),
        (
            CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
            f"0000 00000004 00000003 00 02 {TOPIC_A.hex()} 02 00000005 01 00 05 02 00000004 01 00",
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=4,
                previous_member_epoch=3,
                assigned_partitions=[
                    CurrentTopicPartitions(topic_id=TOPIC_A, partitions=[5], assignment_epochs=[4])
                ],
            ),
        ),
    ],
)
def test_bytes_by_hand_agree(record_type: RecordType, data: str, value: Any) -> None:
    """A tag at its default is left out, a tag that is left out reads as its default."""
    assert record_type.value_encoder(0)(value) == unhex(data)
    assert record_type.value_decoder(0)(unhex(data)) == value


def test_null_structs_in_tags_are_written() -> None:
    """Null is not the default of the tag; a varint of 0 stands for it, not an int8 of -1."""
    member = ConsumerGroupMemberMetadataValue(client_id="c", client_host="h", classic=None)
    data = unhex("0000 00 00 02 63 02 68 01 00 ffffffff 00", "01 00 01 00")
    assert CONSUMER_GROUP_MEMBER_METADATA.value_encoder(0)(member) == data
    assert CONSUMER_GROUP_MEMBER_METADATA.value_decoder(0)(data) == member


def test_null_epochs_are_written() -> None:
    """Null is not the default of the tag, an empty list is."""
    owned = CurrentTopicPartitions(topic_id=TOPIC_A, assignment_epochs=None)
    current = ConsumerGroupCurrentMemberAssignmentValue(assigned_partitions=[owned])
    data = unhex("0000 00000000 00000000 00 02", TOPIC_A.hex(), "01", "01 00 01 00", "01 00")
    assert CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.value_encoder(0)(current) == data
    assert CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.value_decoder(0)(data) == current


def test_keys_are_not_flexible() -> None:
    """A key is its type and plain strings, for good."""
    assert CONSUMER_GROUP_MEMBER_METADATA.key_encoder()(M) == unhex("0005 0001 67 0003 6d2d31")
    assert CONSUMER_GROUP_REGULAR_EXPRESSION.key_encoder()(REGEX) == unhex(
        "0010 0001 67 0003 6f2e2a"
    )


# Damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", WRITTEN)
def test_cut_and_lengthened_records_are_refused(label: str) -> None:
    """A key or a value that ends early or late is a DecodeError, never a shorter record."""
    key, value = GOLDEN[label]
    record_type = type_of(key)
    for decode, data in (
        (record_type.key_decoder(), key),
        (record_type.value_decoder(0), value),
    ):
        for size in range(2, len(data)):
            with pytest.raises(DecodeError):
                decode(data[:size])
        with pytest.raises(DecodeError):
            decode(data + b"\x00")


@pytest.mark.parametrize("record_type", TYPES.values(), ids=lambda t: t.name)
def test_values_have_one_version(record_type: RecordType) -> None:
    """A version that nobody has made is neither read nor written."""
    with pytest.raises(DecodeError, match="no version 1"):
        record_type.value_decoder(1)
    with pytest.raises(EncodeError, match="no version 1"):
        record_type.value_encoder(1)


def test_tags_to_come_are_passed_over() -> None:
    """What a newer Kafka adds as a tag changes nothing that is read (KIP-915)."""
    decode = CONSUMER_GROUP_METADATA.value_decoder(0)
    known = unhex("00 08 0000000000000002")
    newer = unhex("01 08 000001a1e144764d")
    assert decode(unhex("0000 00000001 02") + known + newer) == ConsumerGroupMetadataValue(
        epoch=1, metadata_hash=2
    )
