"""Requests in good frames that nobody can serve: Kafka's error code, or a closed connection."""

import struct

import pytest
from victim import Victim, api_versions, fetch, frame, header, request

from anabranch.handlers.registry import ROUTES
from anabranch.handlers.route import Route
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from anabranch.wire.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
)
from anabranch.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from anabranch.wire.messages.metadata import METADATA, MetadataRequest
from anabranch.wire.messages.produce import PRODUCE
from anabranch.wire.primitives import encode_uvarint
from support.raw_client import batch_of, produce_request

OTHERS = [route for route in ROUTES.values() if route.api is not API_VERSIONS]


def _name(value: object) -> str:
    return value.api.name if isinstance(value, Route) else str(value)


# Keys and versions


@pytest.mark.parametrize("key", [-1, -32768, 4, 7, 17, 999, 32767])
def test_unknown_api(victim: Victim, key: int) -> None:
    """An API that is not served ends the connection."""
    attacker = victim.connect()
    attacker.send(frame(header(key, 0)))
    assert attacker.is_closed_by_broker()
    victim.expect_closed(f"api key {key} is not served by this broker")


@pytest.mark.parametrize("route", OTHERS, ids=_name)
@pytest.mark.parametrize("side", ["below", "above", "lowest", "highest"])
def test_version_out_of_range(victim: Victim, route: Route, side: str) -> None:
    """A version outside an API's range ends the connection; there is no schema to answer in."""
    versions = {
        "below": route.versions.first - 1,
        "above": route.versions.last + 1,
        "lowest": -32768,
        "highest": 32767,
    }
    attacker = victim.connect()
    attacker.send(frame(header(route.api.key, versions[side]) + bytes(50)))
    assert attacker.is_closed_by_broker()
    victim.expect_closed(f"{route.api.name} version {versions[side]} is not served; versions")


@pytest.mark.parametrize("version", [-1, -32768, 6, 100, 32767])
@pytest.mark.parametrize("body", [b"", bytes(20), b"\xff" * 100], ids=["empty", "zeros", "ones"])
def test_newer_api_versions(victim: Victim, version: int, body: bytes) -> None:
    """ApiVersions of an unknown version is answered in version 0 with the range that exists."""
    attacker = victim.connect()
    attacker.send(frame(header(18, version, 5) + body))
    answer = attacker.receive()
    assert answer == struct.pack(">ihihhh", 5, 35, 1, 18, 0, 5)
    attacker.send(api_versions(6))
    assert attacker.receive_id() == 6


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce(victim: Victim, version: int) -> None:
    """Produce 0 to 2 is refused in its own schema with UNSUPPORTED_FOR_MESSAGE_FORMAT."""
    with victim.client() as client:
        answer = client.send(PRODUCE, version, produce_request("normal", 0, batch_of([b"x"])))
    (partition,) = answer.responses[0].partition_responses
    assert partition.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert partition.base_offset == -1


# Headers


def test_unknown_tags(victim: Victim) -> None:
    """Tagged fields that nobody knows, in header and body, are passed over."""
    tags = b"\x02" + b"\x63\x03abc" + b"\x90\x4e\x00"  # tag 99 with 3 bytes, tag 10000 with none
    body = b"\x01" + b"\x01\x00\x00"  # an empty list of topics, three booleans
    attacker = victim.connect()
    attacker.send(frame(header(3, 12, 4) + tags + body[:1] + b"\x00\x00" + tags))
    assert attacker.receive_id() == 4


@pytest.mark.parametrize(
    "tags",
    [
        b"\x01\x63\xff\xff\xff\xff\x0f",  # a field of four gigabytes
        b"\xff\xff\xff\xff\x0f",  # four billion fields
        b"\x80\x80\x80\x80\x80\x80",  # a count that never ends
        b"\x01\x63",  # a field without a size
    ],
)
@pytest.mark.parametrize("place", ["header", "body"])
def test_impossible_tags(victim: Victim, tags: bytes, place: str) -> None:
    """Tag sections that cannot be right end the connection."""
    before = b"" if place == "header" else b"\x00\x01\x00\x00"
    attacker = victim.connect()
    attacker.send(frame(header(3, 12) + before + tags))
    assert attacker.is_closed_by_broker()
    victim.expect_closed("the request cannot be read")


@pytest.mark.parametrize(
    "client_id",
    [b"", b"\xff\xfe\x00", b"x" * 32767, b"two\nlines\r\x1b[31m", "ä☃\u2028".encode()],
    ids=["empty", "not UTF-8", "32 KB", "control characters", "unicode"],
)
def test_client_id(victim: Victim, client_id: bytes) -> None:
    """Any client id is served, and cannot make more than one line of the log."""
    start = struct.pack(">hhih", 18, 0, 9, len(client_id)) + client_id
    attacker = victim.connect()
    attacker.send(frame(start))
    assert attacker.receive_id() == 9
    attacker.send(frame(struct.pack(">hhih", 999, 0, 9, len(client_id)) + client_id))
    assert attacker.is_closed_by_broker()
    victim.expect_closed("api key 999 is not served")
    assert len(victim.broker.log_text.splitlines()[-1]) < 2000


@pytest.mark.parametrize("length", [-1, -2, -32768])
def test_null_client_id(victim: Victim, length: int) -> None:
    """A client id may be null, for which Kafka takes any negative length."""
    attacker = victim.connect()
    attacker.send(frame(struct.pack(">hhih", 18, 0, 9, length)))
    assert attacker.receive_id() == 9


def test_client_id_past_the_end(victim: Victim) -> None:
    """A client id longer than its request ends the connection."""
    attacker = victim.connect()
    attacker.send(frame(struct.pack(">hhih", 18, 0, 9, 100) + b"short"))
    assert attacker.is_closed_by_broker()
    victim.expect_closed("the client id runs past the end of the request")


# Bodies


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 1, struct.pack(">i", -2)),
        (3, 1, struct.pack(">i", 2**31 - 1)),
        (3, 1, struct.pack(">ih", 1, -7)),
        (3, 1, struct.pack(">ih", 1, 30000) + b"short"),
        (3, 12, b"\x00\xff\xff\xff\xff\x0f"),
        (0, 8, struct.pack(">hhii", -1, 1, 1000, -5)),
        (0, 8, struct.pack(">hhiih3sii", -1, 1, 1000, 1, 3, b"abc", 1, 0) + struct.pack(">i", -9)),
        (0, 8, struct.pack(">hhiih3siii", -1, 1, 1000, 1, 3, b"abc", 1, 0, 2**31 - 1)),
        (1, 11, struct.pack(">iiiibiii", -1, 0, 0, 0, 0, 0, 0, -100)),
        (2, 5, struct.pack(">ibi", -1, 0, -3)),
        (3, 1, struct.pack(">ih", 1, 2) + b"\xc3\x28"),
    ],
)
def test_impossible_lengths(victim: Victim, key: int, version: int, body: bytes) -> None:
    """Lengths that are negative, absurd or past the end, and text not in UTF-8 are refused."""
    attacker = victim.connect()
    attacker.send(frame(header(key, version) + body))
    assert attacker.is_closed_by_broker()
    victim.expect_closed("the request cannot be read")


@pytest.mark.parametrize(
    ("key", "version", "before", "element"),
    [
        (10, 4, b"\0\0", b"\x01"),  # FindCoordinator: empty keys
        (20, 3, None, b"\0\0"),  # DeleteTopics: empty names
        (19, 7, b"\0\x02\x02x\0\0\0\x01\0\x01\x01", b"\x01\x01\0"),  # one topic's settings
    ],
    ids=["FindCoordinator", "DeleteTopics", "CreateTopics"],
)
def test_a_million_elements(
    victim: Victim, key: int, version: int, before: bytes | None, element: bytes
) -> None:
    """A megabyte of tiny elements is refused before it becomes a hundred times as much."""
    count = 1024 * 1024 // len(element)
    length = struct.pack(">i", count) if before is None else encode_uvarint(count + 1)
    memory = victim.rss_bytes()
    attacker = victim.connect()
    attacker.send(frame(header(key, version) + (before or b"") + length + element * count))
    assert attacker.is_closed_by_broker()
    victim.expect_closed("its lists have more elements than any client needs")
    assert victim.rss_bytes() - memory < 50 * 1024 * 1024


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "with space", "slash/../../etc", "ü", "a\0b"]
)
def test_illegal_topic_name(victim: Victim, name: str) -> None:
    """An illegal name is INVALID_TOPIC_EXCEPTION, asked for or created, and makes no folder."""
    folders = sorted(victim.broker.data_dir.iterdir())
    with victim.client() as client:
        metadata = client.metadata(name, auto_create=True)
        assert metadata.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        created = client.send(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[wanted]))
        assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        produced = client.produce(name, 0, batch_of([b"x"]))
        assert produced.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert sorted(victim.broker.data_dir.iterdir()) == folders


@pytest.mark.parametrize("count", [0, -5, -(2**31)])
def test_partition_counts(victim: Victim, count: int) -> None:
    """A topic needs at least one partition; INVALID_PARTITIONS says so."""
    with victim.client() as client:
        wanted = CreatableTopic(name="counted", num_partitions=count, replication_factor=1)
        created = client.send(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[wanted]))
        assert created.topics[0].error_code == ErrorCode.INVALID_PARTITIONS
        found = client.metadata("counted")
    assert found.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_wrong_crc(victim: Victim) -> None:
    """A batch that does not match its CRC is CORRUPT_MESSAGE, and nothing of it is written."""
    with victim.client() as client:
        client.metadata("crc", auto_create=True)
        good = client.produce("crc", 0, batch_of([b"good"]))
        batch = bytearray(batch_of([b"bad"]))
        batch[-1] ^= 1
        assert client.produce("crc", 0, bytes(batch)).error_code == ErrorCode.CORRUPT_MESSAGE
        again = client.produce("crc", 0, batch_of([b"good"]))
    assert again.base_offset == good.base_offset + 1


def test_failed_produce_without_acks(victim: Victim) -> None:
    """A producer that wants no answer learns of a failure by losing its connection."""
    attacker = victim.connect()
    attacker.send(
        request(PRODUCE, 9, produce_request("no-such-topic", 0, batch_of([b"x"]), acks=0))
    )
    assert attacker.is_closed_by_broker()
    victim.expect_closed("a produce with acks=0 failed: .*no-such-topic-0")


@pytest.mark.parametrize("offset", [-1, -(2**63), 10**9, 2**63 - 1])
def test_offset_out_of_range(victim: Victim, offset: int) -> None:
    """An offset outside the log is OFFSET_OUT_OF_RANGE at once, without waiting."""
    victim.check_serves()
    with victim.client() as client:
        assert fetch(client, "normal", offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_partition_out_of_range(victim: Victim) -> None:
    """A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION."""
    victim.check_serves()
    with victim.client() as client:
        for index in (-1, 1, 2**31 - 1, -(2**31)):
            answer = client.produce("normal", index, batch_of([b"x"]))
            assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            asked = ListOffsetsPartition(partition_index=index, timestamp=-1)
            message = ListOffsetsRequest(
                topics=[ListOffsetsTopic(name="normal", partitions=[asked])]
            )
            found = client.send(LIST_OFFSETS, 5, message).topics[0].partitions[0]
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_trailing_bytes(victim: Victim) -> None:
    """Bytes behind a request's last field are passed over, as Kafka does."""
    whole = request(METADATA, 8, MetadataRequest(topics=[]), 3)
    attacker = victim.connect()
    attacker.send(frame(whole[4:] + b"more"))
    assert attacker.receive_id() == 3
    attacker.send(request(API_VERSIONS, 2, ApiVersionsRequest(), 4))
    assert attacker.receive_id() == 4
