"""What ConsumerGroupHeartbeat and ConsumerGroupDescribe say beyond their tables."""

import dataclasses

import pytest
from codec_oracles import decode_by_kio, encode_by_kio, kio_class, to_kio
from codec_strategies import full_message

from anabranch.wire.codegen_encode import make_encoder
from anabranch.wire.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Movement,
)
from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from anabranch.wire.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ConfigResource,
    ListConfigResourcesResponse,
)
from anabranch.wire.primitives import encode_uvarint

TOPIC_ID = bytes(range(16))
MOVEMENT = Movement(
    topic_id=TOPIC_ID,
    topic_name="orders",
    partition=3,
    first_hash=0,
    last_hash=0x7FFF,
    from_member_id="a",
    to_member_id="",
    state="revoking",
    since_ms=0x0102030405,
)
# One element, then each field in its order, then the empty tag section of the struct.
MOVEMENT_BYTES = (
    b"\x02"
    + TOPIC_ID
    + b"\x07orders\x00\x00\x00\x03"
    + b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff"
    + b"\x02a\x01\x09revoking\x00\x00\x00\x01\x02\x03\x04\x05\x00"
)
VERSIONS = pytest.mark.parametrize("version", [0, 1])


def encode_description(message: ConsumerGroupDescribeResponse, version: int) -> bytes:
    return b"".join(CONSUMER_GROUP_DESCRIBE.encode_response(version)(message))


def decode_description(data: bytes, version: int) -> ConsumerGroupDescribeResponse:
    message, end = CONSUMER_GROUP_DESCRIBE.decode_response(version)(memoryview(data), 0)
    assert end == len(data)
    assert isinstance(message, ConsumerGroupDescribeResponse)
    return message


@VERSIONS
def test_without_movements_the_description_is_kafkas(version: int) -> None:
    """A group in which nothing moves is described in the bytes of Apache Kafka, tag left out."""
    message = full_message(ConsumerGroupDescribeResponse, version, flexible=True)
    assert [group.movements for group in message.groups] == [[], []]
    expected = encode_by_kio(CONSUMER_GROUP_DESCRIBE.key, version, "response", message)
    assert encode_description(message, version) == expected


@VERSIONS
def test_movements_are_a_tag_of_the_group(version: int) -> None:
    """Movements are the one tag of their group, number 10000, and are read back."""
    still = ConsumerGroupDescribeResponse(groups=[DescribedGroup(group_id="g")])
    moving = ConsumerGroupDescribeResponse(
        groups=[DescribedGroup(group_id="g", movements=[MOVEMENT])]
    )
    tag = b"\x01\x90\x4e" + encode_uvarint(len(MOVEMENT_BYTES)) + MOVEMENT_BYTES
    # What follows are the tags of the response itself.
    assert encode_description(moving, version) == (
        encode_description(still, version)[:-2] + tag + b"\x00"
    )
    assert decode_description(encode_description(moving, version), version) == moving


@VERSIONS
def test_movements_change_nothing_else(version: int) -> None:
    """A description with movements, their tags cut out, is what kio reads and writes.

    kio itself refuses tags that it does not know, which the protocol asks every reader to pass
    over.
    """
    message = full_message(ConsumerGroupDescribeResponse, version, flexible=True, private=True)
    data = encode_description(message, version)
    encode_group = make_encoder(DescribedGroup, version, flexible=True)
    for group in message.groups:
        assert group.movements
        moving = b"".join(encode_group(group))
        still = b"".join(encode_group(dataclasses.replace(group, movements=[])))
        assert moving.startswith(still[:-1] + b"\x01\x90\x4e")
        assert data.count(moving) == 1
        data = data.replace(moving, still)
    entity, size = decode_by_kio(CONSUMER_GROUP_DESCRIBE.key, version, "response", data)
    assert size == len(data)
    assert entity == to_kio(message, kio_class(CONSUMER_GROUP_DESCRIBE.key, version, "response"))


@VERSIONS
def test_unknown_tags_beside_movements_are_passed_over(version: int) -> None:
    """A tag below and one above ours change nothing that is read."""
    message = ConsumerGroupDescribeResponse(
        groups=[DescribedGroup(group_id="g", movements=[MOVEMENT])]
    )
    ours = b"\x90\x4e" + encode_uvarint(len(MOVEMENT_BYTES)) + MOVEMENT_BYTES
    plain = encode_description(message, version)
    assert plain.count(b"\x01" + ours) == 1
    crowded = plain.replace(b"\x01" + ours, b"\x03" + b"\x05\x02zz" + ours + b"\x91\x4e\x03new")
    assert decode_description(crowded, version) == message


@VERSIONS
def test_empty_and_unchanged_are_told_apart(version: int) -> None:
    """Null says "as before", which is not the same as nothing at all, on both sides."""
    encode = CONSUMER_GROUP_HEARTBEAT.encode_response(version)
    decode = CONSUMER_GROUP_HEARTBEAT.decode_response(version)
    for assignment, ending in ((None, b"\xff\x00"), (Assignment(), b"\x01\x01\x00\x00")):
        answer = ConsumerGroupHeartbeatResponse(assignment=assignment)
        data = b"".join(encode(answer))
        assert data.endswith(ending)
        assert decode(memoryview(data), 0)[0].assignment == assignment
    encode = CONSUMER_GROUP_HEARTBEAT.encode_request(version)
    decode = CONSUMER_GROUP_HEARTBEAT.decode_request(version)
    for request in (
        ConsumerGroupHeartbeatRequest(),
        ConsumerGroupHeartbeatRequest(topic_partitions=[], subscribed_topic_names=[]),
    ):
        read, _ = decode(memoryview(b"".join(encode(request))), 0)
        assert read.topic_partitions == request.topic_partitions
        assert read.subscribed_topic_names == request.subscribed_topic_names


def test_heartbeat_with_nothing_to_say_is_short() -> None:
    """A steady heartbeat is its ids and epoch, five nulls, no timeout and no tags."""
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=7)
    data = b"".join(CONSUMER_GROUP_HEARTBEAT.encode_request(1)(request))
    assert data.hex(" ") == "02 67 02 6d 00 00 00 07 00 00 ff ff ff ff 00 00 00 00 00"


def test_resources_of_version_0_are_client_metrics() -> None:
    """Version 0 knows no other type, so there the type is implied."""
    message = ListConfigResourcesResponse(config_resources=[ConfigResource(resource_name="r")])
    data = b"".join(LIST_CONFIG_RESOURCES.encode_response(0)(message))
    read, _ = LIST_CONFIG_RESOURCES.decode_response(0)(memoryview(data), 0)
    assert read.config_resources[0].resource_type == 16
    assert b"r\x10" in b"".join(LIST_CONFIG_RESOURCES.encode_response(1)(message))
