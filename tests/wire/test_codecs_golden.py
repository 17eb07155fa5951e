"""Frames recorded between real clients and Apache Kafka decode whole and encode unchanged."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from anabranch.wire.api import Api
from anabranch.wire.header import read_request_header, skip_header_tags
from anabranch.wire.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    MEMBER_TYPE_CONSUMER,
)
from anabranch.wire.messages.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from anabranch.wire.messages.fetch import FETCH
from anabranch.wire.messages.join_group import JOIN_GROUP
from anabranch.wire.messages.list_config_resources import LIST_CONFIG_RESOURCES
from anabranch.wire.messages.metadata import METADATA
from anabranch.wire.messages.offset_commit import OFFSET_COMMIT
from anabranch.wire.messages.produce import PRODUCE
from anabranch.wire.messages.sync_group import SYNC_GROUP
from anabranch.wire.messages.table import APIS

APIS_BY_NAME = {api.name: api for api in APIS.values()}


class Frame(NamedTuple):
    client: str
    api: Api
    version: int
    side: str
    data: bytes

    @property
    def body_position(self) -> int:
        """Where the header ends."""
        view = memoryview(self.data)
        if self.side == "response":
            tags = self.api.has_tagged_response_header(self.version)
            return skip_header_tags(view, 4) if tags else 4
        key, version, _, client_id, position = read_request_header(view)
        assert (key, version) == (self.api.key, self.version)
        assert client_id is not None
        return skip_header_tags(view, position) if self.api.is_flexible(version) else position


def load_frames() -> list[Frame]:
    frames = []
    for path in sorted((Path(__file__).parent / "golden").glob("*.txt")):
        for line in path.read_text().splitlines():
            if not line.startswith("#"):
                name, version, side, data = line.split()
                api = APIS_BY_NAME[name]
                frames.append(Frame(path.stem, api, int(version), side, bytes.fromhex(data)))
    return frames


FRAMES = load_frames()


@pytest.mark.parametrize(
    "frame", FRAMES, ids=lambda f: f"{f.client}-{f.api.name}-{f.version}-{f.side}"
)
def test_recorded_frames_survive(frame: Frame) -> None:
    """A recorded frame is read to its last byte and written again byte for byte."""
    api, version = frame.api, frame.version
    decode, encode = (
        (api.decode_request(version), api.encode_request(version))
        if frame.side == "request"
        else (api.decode_response(version), api.encode_response(version))
    )
    start = frame.body_position
    message, end = decode(memoryview(frame.data), start)
    assert end == len(frame.data)
    assert b"".join(encode(message)) == frame.data[start:]


def decoded(client: str, api: Api, side: str) -> list[Any]:
    """The messages of one side of one API that were recorded from a client."""
    found = []
    for frame in FRAMES:
        if (frame.client, frame.api, frame.side) == (client, api, side):
            decode = api.decode_request if side == "request" else api.decode_response
            found.append(decode(frame.version)(memoryview(frame.data), frame.body_position)[0])
    return found


def test_recorded_frames_say_what_was_done() -> None:
    """The decoded values are those that the recorded clients worked with."""
    (produce,) = decoded("java", PRODUCE, "request")
    assert produce.acks == -1
    (topic,) = produce.topic_data
    assert topic.topic_id != bytes(16)
    assert b"one" in bytes(topic.partition_data[0].records)
    for client in ("confluent-kafka", "kafka-python", "aiokafka", "kcat", "java"):
        responses = decoded(client, FETCH, "response")
        assert any(
            len(partition.records)
            for response in responses
            for topic in response.responses
            for partition in topic.partitions
        )
        for response in decoded(client, METADATA, "response"):
            (broker,) = response.brokers
            assert (broker.node_id, broker.host) == (1, "127.0.0.1")


def test_recorded_groups_say_what_was_done() -> None:
    """A leader was told its members, brought an assignment for each, and offsets were committed."""
    for client in ("confluent-kafka", "kafka-python", "aiokafka", "java"):
        (joined,) = decoded(client, JOIN_GROUP, "response")
        assert joined.leader == joined.member_id
        assert joined.member_id in {member.member_id for member in joined.members}
        (synced,) = decoded(client, SYNC_GROUP, "request")
        assigned = {assignment.member_id for assignment in synced.assignments}
        assert (
            len(assigned) == len(joined.members) and b"orders" in synced.assignments[0].assignment
        )
        for committed in decoded(client, OFFSET_COMMIT, "response"):
            assert {p.error_code for topic in committed.topics for p in topic.partitions} == {0}
    by_id, by_name = sorted(
        decoded("java", OFFSET_COMMIT, "request"), key=lambda r: r.topics[0].name
    )
    assert by_id.topics[0].topic_id != bytes(16)
    assert by_name.topics[0].name == "orders"


def test_recorded_consumer_groups_say_what_was_done() -> None:
    """Members joined, subscribed by names and by pattern, were given partitions, and left."""
    for client, pattern, instance_id in (
        ("java", "o(rders|ffers)", "inst-1"),
        ("confluent-kafka", "(^o.*)", "inst-0"),
    ):
        requests = decoded(client, CONSUMER_GROUP_HEARTBEAT, "request")
        # A dynamic member leaves with -1, a static one with -2.
        assert {r.member_epoch for r in requests} == {0, 2, 3, -1, -2}
        joins = [r for r in requests if r.member_epoch == 0]
        assert ["orders"] in [r.subscribed_topic_names for r in joins]
        assert pattern in [r.subscribed_topic_regex for r in joins]
        assert {r.instance_id for r in requests} == {None, instance_id}
        assert all(r.rebalance_timeout_ms == 300_000 for r in joins)
        assert any(r.rebalance_timeout_ms == -1 and r.topic_partitions is None for r in requests)
        responses = decoded(client, CONSUMER_GROUP_HEARTBEAT, "response")
        # A coordinator that is still loading says only that.
        assert {(r.error_code, r.member_id is None) for r in responses} <= {(0, False), (14, True)}
        assigned = [r.assignment for r in responses if r.assignment is not None]
        assert any(sum(len(t.partitions) for t in a.topic_partitions) == 3 for a in assigned)
        owned = [r.topic_partitions for r in requests if r.topic_partitions]
        assert any(part in [a.topic_partitions for a in assigned] for part in owned)


def test_recorded_descriptions_say_what_was_done() -> None:
    """A stable group and one that nobody knows were described, and resources listed."""
    known, unknown = decoded("java", CONSUMER_GROUP_DESCRIBE, "response")
    (group,) = known.groups
    assert (group.group_state, group.assignor_name, group.movements) == ("Stable", "uniform", [])
    assert group.group_epoch == group.assignment_epoch == 3
    assert {m.member_type for m in group.members} == {MEMBER_TYPE_CONSUMER}
    assert {m.subscribed_topic_regex for m in group.members} == {"", "o(rders|ffers)"}
    assert all(m.assignment == m.target_assignment for m in group.members)
    assert [g.error_code for g in unknown.groups] == [69]
    some, everything = decoded("java", LIST_CONFIG_RESOURCES, "response")
    assert {(r.resource_type, r.resource_name) for r in some.config_resources} == {
        (32, "java-group"),
        (2, "orders"),
        (2, "offers"),
    }
    assert {r.resource_type for r in everything.config_resources} == {2, 4, 8, 32}


def test_recordings_cover_the_apis_of_stock_clients() -> None:
    """Every API was recorded from some client, but for the one that a change of leader provokes."""
    missing = set(APIS_BY_NAME) - {frame.api.name for frame in FRAMES}
    assert missing == {"OffsetForLeaderEpoch"}
