"""Bytes from a stranger: every decoder answers with a message or a DecodeError, cheaply."""

import random
import tracemalloc
from typing import Any

import pytest
from codec_strategies import CASES, SIDED_CASES, case_id, full_message, sided
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.wire.api import Api
from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
)
from anabranch.wire.messages.create_topics import CREATE_TOPICS, CreateTopicsRequest
from anabranch.wire.messages.fetch import FETCH, FetchRequest
from anabranch.wire.messages.join_group import JOIN_GROUP, JoinGroupRequest
from anabranch.wire.messages.leave_group import LEAVE_GROUP, LeaveGroupRequest, MemberIdentity
from anabranch.wire.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
)
from anabranch.wire.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from anabranch.wire.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from anabranch.wire.messages.offset_commit import OFFSET_COMMIT, OffsetCommitRequest
from anabranch.wire.messages.offset_fetch import OFFSET_FETCH, OffsetFetchRequest
from anabranch.wire.messages.produce import PRODUCE, ProduceRequest
from anabranch.wire.primitives import DecodeError, EncodeError

HUGE = [
    b"\x7f\xff\xff\xff",  # the largest int32
    b"\x80\x00\x00\x00",  # the smallest
    b"\xff\xff\xff\xfe",  # -2
    b"\xff\xff\xff\xff\x0f",  # the largest varint
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # a varint without end
]


def encoded(api: Api, version: int, kind: str) -> bytes:
    cls, encode, _ = sided(api, version, kind)
    flexible = api.is_flexible(version)
    return b"".join(encode(full_message(cls, version, flexible=flexible, private=True)))


def decode_or_refuse(decode: Any, data: bytes) -> None:
    """Anything but a message or a DecodeError is a failure."""
    try:
        _, pos = decode(memoryview(data), 0)
    except DecodeError as error:
        assert str(error)
    else:
        assert 0 <= pos <= len(data)


@pytest.mark.parametrize(("api", "version", "kind"), SIDED_CASES, ids=case_id)
def test_every_truncation_is_refused(api: Api, version: int, kind: str) -> None:
    """A message cut off after any byte is a DecodeError."""
    data = encoded(api, version, kind)
    decode = sided(api, version, kind)[2]
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decode(memoryview(data)[:size], 0)


@pytest.mark.parametrize(("api", "version"), CASES, ids=case_id)
def test_huge_numbers_anywhere_cost_nothing(api: Api, version: int) -> None:
    """An absurd length at any place of a request is met without allocating for it."""
    data = encoded(api, version, "request")
    decode = api.decode_request(version)
    tracemalloc.start()
    try:
        for position in range(len(data)):
            for number in HUGE:
                decode_or_refuse(decode, data[:position] + number + data[position + len(number) :])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200_000


@pytest.mark.parametrize(("api", "version"), CASES, ids=case_id)
def test_flipped_bytes_are_met(api: Api, version: int) -> None:
    """Random damage to a request ends in a message or a DecodeError."""
    rng = random.Random(f"{api.name} {version}")
    data = encoded(api, version, "request")
    decode = api.decode_request(version)
    for _ in range(100):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 127, 128, 255])
        if rng.random() < 0.3:
            cut = rng.randint(0, len(damaged))
            damaged[cut:cut] = rng.randbytes(rng.randint(1, 8))
        decode_or_refuse(decode, bytes(damaged))


@settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.sampled_from(CASES), st.binary(max_size=60))
def test_random_bytes_are_met(case: tuple[Api, int], data: bytes) -> None:
    """Bytes of any kind end in a message or a DecodeError."""
    api, version = case
    decode_or_refuse(api.decode_request(version), data)


@pytest.mark.slow
@settings(
    max_examples=1000,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.sampled_from(SIDED_CASES),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=5),
    st.integers(0, 400),
    st.binary(max_size=12),
)
def test_mutations_are_met(
    case: tuple[Api, int, str], flips: list[tuple[int, int]], cut: int, inserted: bytes
) -> None:
    """Flipped, inserted and missing bytes end in a message or a DecodeError."""
    damaged = bytearray(encoded(*case))
    for position, value in flips:
        if position < len(damaged):
            damaged[position] = value
    damaged[cut:cut] = inserted
    decode_or_refuse(sided(*case)[2], bytes(damaged))


@pytest.mark.parametrize(
    ("api", "version", "message", "field"),
    [
        (PRODUCE, 2, ProduceRequest(transactional_id="t"), None),
        (METADATA, 3, MetadataRequest(allow_auto_topic_creation=False), "allow_auto"),
        (METADATA, 7, MetadataRequest(include_topic_authorized_operations=True), "include_topic"),
        (CREATE_TOPICS, 0, CreateTopicsRequest(validate_only=True), "validate_only"),
        (FETCH, 15, FetchRequest(replica_id=1), "replica_id"),
        (FETCH, 10, FetchRequest(rack_id="r"), None),
        (JOIN_GROUP, 4, JoinGroupRequest(group_instance_id="i"), "group_instance_id"),
        (JOIN_GROUP, 0, JoinGroupRequest(rebalance_timeout_ms=1, reason="r"), None),
        (LEAVE_GROUP, 2, LeaveGroupRequest(members=[MemberIdentity()]), "members"),
        (LEAVE_GROUP, 3, LeaveGroupRequest(member_id="m"), "member_id"),
        (OFFSET_COMMIT, 6, OffsetCommitRequest(group_instance_id="i"), "group_instance_id"),
        (OFFSET_COMMIT, 5, OffsetCommitRequest(retention_time_ms=1), None),
        (OFFSET_FETCH, 6, OffsetFetchRequest(require_stable=True), "require_stable"),
        (OFFSET_FETCH, 8, OffsetFetchRequest(group_id="g"), "group_id"),
        (LIST_GROUPS, 4, ListGroupsRequest(types_filter=["classic"]), "types_filter"),
        (
            CONSUMER_GROUP_HEARTBEAT,
            0,
            ConsumerGroupHeartbeatRequest(subscribed_topic_regex="o.*"),
            "subscribed_topic_regex",
        ),
        (
            LIST_CONFIG_RESOURCES,
            0,
            ListConfigResourcesRequest(resource_types=[32]),
            "resource_types",
        ),
    ],
)
def test_requests_do_not_lose_what_matters(
    api: Api, version: int, message: Any, field: str | None
) -> None:
    """A value its version has no place for is refused by name, unless the table lets it go."""
    if field is None:
        api.encode_request(version)(message)
        return
    with pytest.raises(EncodeError, match=field):
        api.encode_request(version)(message)


def test_nulls_need_a_version_that_has_them() -> None:
    """Null topics need Metadata v1, null names v10; null topics of a group OffsetFetch v2."""
    with pytest.raises(EncodeError):
        METADATA.encode_request(0)(MetadataRequest(topics=None))
    METADATA.encode_request(1)(MetadataRequest(topics=None))
    nameless = MetadataRequest(topics=[MetadataRequestTopic(name=None)])
    with pytest.raises(EncodeError):
        METADATA.encode_request(9)(nameless)
    METADATA.encode_request(10)(nameless)
    everything = OffsetFetchRequest(group_id="g", topics=None)
    with pytest.raises(EncodeError):
        OFFSET_FETCH.encode_request(1)(everything)
    OFFSET_FETCH.encode_request(2)(everything)
