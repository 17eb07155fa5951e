"""ListOffsets: places in the log by name and by time."""

from collections.abc import Callable
from typing import Any

import pytest
from handler_calls import NOW_MS, Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from anabranch.wire.record_batch import Record, build_batch

# (error, timestamp, offset, leader epoch)
Answer = tuple[int, int, int, int]


def look_up(
    node: Node, timestamp: int, *, topic: str = "t", partition: int = 0, version: int = 11,
    isolation_level: int = 0, **more: Any,
) -> Answer:  # fmt: skip
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **more)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
    )
    (answered,) = node.call(request, version).topics
    assert answered.name == topic
    (found,) = answered.partitions
    assert found.partition_index == partition
    return found.error_code, found.timestamp, found.offset, found.leader_epoch


@pytest.fixture
def filled(node: Node) -> Node:
    """Offsets 0-4 with timestamps 100, 200, 400, 300, 400 after NOW_MS; 0 is deleted."""
    log = node.create_topic("t").partitions[0].log
    for batch in ((100,), (200, 400), (300,), (400,)):
        log.append(memoryview(bytearray(make_timed(batch))), now_ms=node.now_ms)
    log.delete_records_before(1)
    return node


def make_timed(timestamps: tuple[int, ...]) -> bytes:
    records = [
        Record(offset=offset, timestamp=NOW_MS + timestamp, key=None, value=b"v")
        for offset, timestamp in enumerate(timestamps)
    ]
    return build_batch(records, base_offset=0)


@pytest.mark.parametrize("version", range(1, 12))
def test_both_ends(filled: Node, version: int) -> None:
    """Latest is the high watermark, earliest the log start; neither has a timestamp."""
    epoch = 0 if version >= 4 else -1
    assert look_up(filled, LATEST, version=version) == (0, -1, 5, epoch)
    assert look_up(filled, EARLIEST, version=version) == (0, -1, 1, epoch)


@pytest.mark.parametrize(
    ("after_ms", "expected"),
    [
        (0, (200, 1)),
        (200, (200, 1)),
        (201, (400, 2)),
        (300, (400, 2)),
        (400, (400, 2)),
        (401, None),
    ],
)
def test_by_time(filled: Node, after_ms: int, expected: tuple[int, int] | None) -> None:
    """The first record at or after a time, by offset; -1 when there is none."""
    if expected is None:
        assert look_up(filled, NOW_MS + after_ms) == (0, -1, -1, -1)
    else:
        timestamp, offset = expected
        assert look_up(filled, NOW_MS + after_ms) == (0, NOW_MS + timestamp, offset, 0)


def test_largest_timestamp(filled: Node) -> None:
    """The first record that has the largest timestamp."""
    assert look_up(filled, MAX_TIMESTAMP) == (0, NOW_MS + 400, 2, 0)


def test_empty_log(node: Node) -> None:
    """An empty log has ends and no times."""
    node.create_topic("t")
    assert look_up(node, LATEST) == (0, -1, 0, 0)
    assert look_up(node, EARLIEST) == (0, -1, 0, 0)
    assert look_up(node, MAX_TIMESTAMP) == (0, -1, -1, -1)
    assert look_up(node, NOW_MS) == (0, -1, -1, -1)


def test_tiers(filled: Node) -> None:
    """Everything is local: -4 is the log start, and nothing is tiered or waits to be."""
    assert look_up(filled, EARLIEST_LOCAL) == (0, -1, 1, 0)
    assert look_up(filled, LATEST_TIERED) == (0, -1, -1, -1)
    assert look_up(filled, EARLIEST_PENDING_UPLOAD) == (0, -1, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "first_version"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)],
)
def test_special_places_need_their_version(
    filled: Node, timestamp: int, first_version: int
) -> None:
    """A place that an older version does not know is UNSUPPORTED_VERSION, not a time search."""
    code = ErrorCode.UNSUPPORTED_VERSION
    assert look_up(filled, timestamp, version=first_version - 1) == (code, -1, -1, -1)
    assert look_up(filled, timestamp, version=first_version)[0] == 0


@pytest.mark.parametrize("timestamp", [-7, -8, -(1 << 63)])
def test_negative_times_that_are_no_place(filled: Node, timestamp: int) -> None:
    """They may become places one day, so they are refused even before the partition is sought."""
    refused = (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)
    assert look_up(filled, timestamp) == refused
    assert look_up(filled, timestamp, partition=9) == refused


@pytest.mark.parametrize("isolation_level", [2, 7, -1])
def test_isolation_levels_that_are_none(filled: Node, isolation_level: int) -> None:
    """Nobody can know what such a reader may see."""
    refused = (ErrorCode.INVALID_REQUEST, -1, -1, -1)
    assert look_up(filled, LATEST, isolation_level=isolation_level) == refused


def test_readers_of_committed_records(filled: Node) -> None:
    """The last stable offset is the end for them; nothing is pending, so it is the same."""
    assert look_up(filled, LATEST, isolation_level=1) == (0, -1, 5, 0)


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ({"topic": "absent"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"current_leader_epoch": 3}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_what_cannot_be_found(filled: Node, where: dict[str, Any], code: ErrorCode) -> None:
    """Errors are answered for each partition with -1 in every field."""
    assert look_up(filled, LATEST, **where) == (code, -1, -1, -1)


def test_answer_has_the_shape_of_the_request(node: Node) -> None:
    """Topics and partitions are answered in their place, good and bad together."""
    node.create_topic("a", 2)
    node.append("a", b"v", partition=1)
    latest = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (1, 0, 5)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="a", partitions=latest)])
    assert node.call(request) == ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name="a",
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=1, offset=1, leader_epoch=0),
                    ListOffsetsPartitionResponse(partition_index=0, offset=0, leader_epoch=0),
                    ListOffsetsPartitionResponse(
                        partition_index=5, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    ),
                ],
            )
        ]
    )


def restarted(make_node: Callable[..., Node]) -> Node:
    """A node whose topic has a record of leader epoch 0 and one of epoch 1."""
    first = make_node()
    first.create_topic("t")
    first.append("t", b"v")
    first.close()
    node = make_node()
    node.append("t", b"v")
    return node


def test_leader_epochs_after_a_restart(make_node: Callable[..., Node]) -> None:
    """A found record carries the epoch it was written under, and an older epoch is fenced."""
    node = restarted(make_node)
    assert look_up(node, NOW_MS) == (0, NOW_MS, 0, 0)
    assert look_up(node, LATEST) == (0, -1, 2, 1)
    assert look_up(node, LATEST, current_leader_epoch=0)[0] == ErrorCode.FENCED_LEADER_EPOCH


def test_epoch_of_the_log_start(make_node: Callable[..., Node]) -> None:
    """The earliest offset has the epoch that wrote it, as in Kafka."""
    assert look_up(restarted(make_node), EARLIEST) == (0, -1, 0, 0)


def test_a_partition_that_is_there_twice(node: Node) -> None:
    """Kafka refuses a partition that is asked for twice with INVALID_REQUEST."""
    node.create_topic("t")
    twice = [ListOffsetsPartition(timestamp=LATEST), ListOffsetsPartition(timestamp=EARLIEST)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=twice)])
    (topic,) = node.call(request).topics
    assert {p.error_code for p in topic.partitions} == {ErrorCode.INVALID_REQUEST}
