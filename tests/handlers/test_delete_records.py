"""DeleteRecords: the log start moves forward, never back and never beyond the end."""

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)


def delete(
    node: Node, name: str, *offsets: int, first: int = 0, version: int = 2
) -> list[tuple[int, int, int]]:
    """(partition, low watermark, error) for an offset of each partition from `first` on."""
    partitions = [
        DeleteRecordsPartition(partition_index=first + index, offset=offset)
        for index, offset in enumerate(offsets)
    ]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=partitions)])
    (topic,) = node.call(request, version).topics
    assert topic.name == name
    return [(p.partition_index, p.low_watermark, p.error_code) for p in topic.partitions]


@pytest.mark.parametrize("version", range(3))
def test_records_before_an_offset_go(node: Node, version: int) -> None:
    """The new low watermark is answered, and fetches below it are out of range."""
    log = node.create_topic("t").partitions[0].log
    for _ in range(4):
        node.append("t", b"x")
    assert delete(node, "t", 3, version=version) == [(0, 3, 0)]
    assert log.log_start_offset == 3


def test_minus_one_is_the_high_watermark(node: Node) -> None:
    """-1 deletes everything there is."""
    node.create_topic("t")
    node.append("t", b"x", b"y")
    assert delete(node, "t", -1) == [(0, 2, 0)]


def test_log_start_never_moves_back(node: Node) -> None:
    """An offset that is gone already answers where the log starts now."""
    node.create_topic("t")
    node.append("t", b"x", b"y", b"z")
    delete(node, "t", 2)
    assert delete(node, "t", 1) == [(0, 2, 0)]


def test_mistakes_are_answered_each(node: Node) -> None:
    """Offsets outside the log and unknown partitions are refused with -1; the others move."""
    node.create_topic("t", 3)
    for partition in range(3):
        node.append("t", b"x", partition=partition)
    out_of_range = ErrorCode.OFFSET_OUT_OF_RANGE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(node, "t", 2, -2, 1, 0) == [
        (0, -1, out_of_range),
        (1, -1, out_of_range),
        (2, 1, 0),
        (3, -1, unknown),
    ]
    assert delete(node, "absent", 0) == [(0, -1, unknown)]


def test_topics_whose_records_must_stay(node: Node) -> None:
    """Compacted topics refuse unless they also delete; internal topics always do."""
    node.create_topic("compacted", cleanup_policy="compact")
    node.create_topic("both", cleanup_policy="compact,delete")
    node.create_topic("__consumer_offsets")
    node.create_topic("__mine")
    assert delete(node, "compacted", 0) == [(0, -1, ErrorCode.POLICY_VIOLATION)]
    assert delete(node, "both", 0) == [(0, 0, 0)]
    assert delete(node, "__consumer_offsets", 0) == [(0, -1, ErrorCode.INVALID_TOPIC_EXCEPTION)]
    assert delete(node, "__mine", 0) == [(0, 0, 0)]


def test_disk_that_refuses(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch list that cannot be written is KAFKA_STORAGE_ERROR for that partition only."""
    topic = node.create_topic("t", 2)
    node.append("t", b"x")
    node.append("t", b"x", partition=1)

    def full(start_offset: int) -> None:
        raise OSError(28, "No space left on device")

    class Full:
        truncate_start = staticmethod(full)

    monkeypatch.setattr(topic.partitions[0].log, "leader_epochs", Full())
    assert delete(node, "t", 1, 1) == [(0, -1, ErrorCode.KAFKA_STORAGE_ERROR), (1, 1, 0)]


def test_answer_has_the_shape_of_the_request(node: Node) -> None:
    """Every asked topic and partition is answered in its place."""
    node.create_topic("a")
    asked = [
        DeleteRecordsTopic(name="b", partitions=[DeleteRecordsPartition(partition_index=4)]),
        DeleteRecordsTopic(name="a", partitions=[DeleteRecordsPartition(partition_index=0)]),
    ]
    assert node.call(DeleteRecordsRequest(topics=asked)).topics == [
        DeleteRecordsTopicResult(
            name="b",
            partitions=[
                DeleteRecordsPartitionResult(
                    partition_index=4,
                    low_watermark=-1,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )
            ],
        ),
        DeleteRecordsTopicResult(
            name="a", partitions=[DeleteRecordsPartitionResult(partition_index=0)]
        ),
    ]
