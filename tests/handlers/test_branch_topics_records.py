"""Through a branch topic: the records and offsets of its source to read, and nothing to write."""

from collections.abc import Callable

import pytest
from branch_topic_calls import BRANCHED, SOURCE, asking, create, found, grow
from handler_calls import NOW_MS, Node, make_batch

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from anabranch.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from anabranch.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from anabranch.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
)
from anabranch.wire.messages.describe_topic_partitions import (
    TopicRequest as DescribedTopic,
)
from anabranch.wire.messages.list_offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from anabranch.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

SENTENCE = "orders.by-key shows branches of orders; produce to orders."
PRODUCER_ID = 7


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A broker with a topic of two partitions, one of them with records, and branches of it."""
    node = make_node()
    node.create_topic(SOURCE, 2)
    node.append(SOURCE, b"a", b"b", b"c", partition=1)
    create(node, asking(partitions=4))
    return node


# Records ------------------------------------------------------------------------------------------


def batches(node: Node, *names: str, records: bytes) -> list[TopicProduceData]:
    return [
        TopicProduceData(
            name=name,
            topic_id=found(node, name).topic_id,
            partition_data=[PartitionProduceData(index=1, records=records)],
        )
        for name in names
    ]


@pytest.mark.parametrize("version", [3, 7, 8, 12, 13])
def test_nobody_produces_to_a_branch_topic(node: Node, version: int) -> None:
    """INVALID_TOPIC_EXCEPTION, by name and by id; the rest of the request goes through."""
    log = found(node, SOURCE).partitions[1].log
    plain = make_batch(b"v")
    idempotent = make_batch(b"v", producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=0)
    for batch, next_offset in ((plain, 4), (idempotent, 5)):
        data = batches(node, BRANCHED, SOURCE, records=batch)
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data)
        refused, appended = (
            topic.partition_responses[0] for topic in node.call(request, version).responses
        )
        assert (refused.error_code, refused.base_offset) == (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            -1,
        )
        assert refused.error_message == (SENTENCE if version >= 8 else None)
        assert (appended.error_code, appended.base_offset) == (0, next_offset - 1)
        assert log.log_end_offset == next_offset


def test_who_wants_no_answer_loses_the_connection(node: Node) -> None:
    """As with any other produce with acks=0 that fails."""
    data = batches(node, BRANCHED, records=make_batch(b"v"))
    assert node.call(ProduceRequest(acks=0, timeout_ms=1000, topic_data=data), 12) is None
    (reason,) = node.closed_because
    assert SENTENCE in reason


def test_records_are_deleted_on_the_source(node: Node) -> None:
    """POLICY_VIOLATION for a branch, whose records lie between those of others."""

    def delete_records(name: str, *indexes: int) -> list[tuple[int, int, int]]:
        asked = DeleteRecordsTopic(
            name=name,
            partitions=[DeleteRecordsPartition(partition_index=i, offset=2) for i in indexes],
        )
        (topic,) = node.call(DeleteRecordsRequest(topics=[asked], timeout_ms=1000)).topics
        return [(p.partition_index, p.error_code, p.low_watermark) for p in topic.partitions]

    assert delete_records(BRANCHED, 1, 3, 4) == [
        (1, ErrorCode.POLICY_VIOLATION, -1),
        (3, ErrorCode.POLICY_VIOLATION, -1),
        (4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]
    assert found(node, SOURCE).partitions[1].log.log_start_offset == 0
    assert delete_records(SOURCE, 1) == [(1, 0, 2)]
    assert list_offset(node, 3, EARLIEST) == (0, 2, 0)


# Offsets ------------------------------------------------------------------------------------------


def list_offset(
    node: Node, index: int, timestamp: int, name: str = BRANCHED, epoch: int = -1
) -> tuple[int, int, int]:
    """(error, offset, leader epoch)."""
    asked = ListOffsetsPartition(
        partition_index=index, timestamp=timestamp, current_leader_epoch=epoch
    )
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=[asked])])
    (answer,) = node.call(request).topics[0].partitions
    return answer.error_code, answer.offset, answer.leader_epoch


@pytest.mark.parametrize("timestamp", [EARLIEST, LATEST, MAX_TIMESTAMP, NOW_MS, NOW_MS + 1])
def test_offsets_are_the_sources(node: Node, timestamp: int) -> None:
    """Branch 1 and 3 are ranges of partition 1, so every place in them is a place there."""
    expected = list_offset(node, 1, timestamp, SOURCE)
    assert list_offset(node, 1, timestamp) == list_offset(node, 3, timestamp) == expected
    assert list_offset(node, 2, LATEST)[1] == 0
    assert list_offset(node, 4, LATEST)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_leader_epochs_are_the_sources(node: Node, make_node: Callable[..., Node]) -> None:
    """After a restart they go on, and the end of an older one is where the source's was."""
    node.close()
    again = make_node()
    again.append(SOURCE, b"d", partition=1)
    assert list_offset(again, 3, LATEST, epoch=1) == (0, 4, 1)
    assert list_offset(again, 3, LATEST, epoch=0)[0] == ErrorCode.FENCED_LEADER_EPOCH

    def end_of(epoch: int, name: str, index: int) -> tuple[int, int, int]:
        asked = OffsetForLeaderPartition(
            partition=index, current_leader_epoch=1, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])]
        )
        (answer,) = again.call(request).topics[0].partitions
        return answer.error_code, answer.leader_epoch, answer.end_offset

    assert end_of(0, BRANCHED, 3) == end_of(0, SOURCE, 1) == (0, 0, 3)
    assert end_of(1, BRANCHED, 3) == (0, 1, 4)


# Metadata -----------------------------------------------------------------------------------------


def test_metadata_shows_an_ordinary_topic(node: Node) -> None:
    """By name, by id and among all; with the leader epochs of the source, and its growth."""
    topic = found(node, BRANCHED)
    asked = [
        [MetadataRequestTopic(name=BRANCHED)],
        [MetadataRequestTopic(name=None, topic_id=topic.topic_id)],
        None,
    ]
    grow(node, (SOURCE, 3))
    for topics in asked:
        answers = node.call(MetadataRequest(topics=topics)).topics
        (answer,) = [one for one in answers if one.name == BRANCHED]
        assert (answer.error_code, answer.topic_id, answer.is_internal) == (
            0,
            topic.topic_id,
            False,
        )
        assert [p.partition_index for p in answer.partitions] == list(range(6))
        assert {(p.leader_id, p.leader_epoch) for p in answer.partitions} == {(1, 0)}
        assert {tuple(p.isr_nodes) for p in answer.partitions} == {(1,)}


def test_pages_of_topics_show_it(node: Node) -> None:
    """DescribeTopicPartitions counts branches like other partitions."""
    request = DescribeTopicPartitionsRequest(
        topics=[DescribedTopic(name=SOURCE), DescribedTopic(name=BRANCHED)],
        response_partition_limit=4,
    )
    answer = node.call(request)
    assert [(t.name, len(t.partitions)) for t in answer.topics] == [(SOURCE, 2), (BRANCHED, 2)]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == (BRANCHED, 2)
    assert answer.topics[1].topic_id == found(node, BRANCHED).topic_id


def test_directories_show_the_source_alone(node: Node) -> None:
    """Branches have no size of their own, whether all is asked for or they are."""
    (directory,) = node.call(DescribeLogDirsRequest(topics=None)).results
    assert [(t.name, len(t.partitions)) for t in directory.topics] == [(SOURCE, 2)]
    asked = [DescribableLogDirTopic(topic=BRANCHED, partitions=[0, 1])]
    (directory,) = node.call(DescribeLogDirsRequest(topics=asked)).results
    assert (directory.error_code, directory.topics) == (0, [])


def test_producers_are_the_sources(node: Node) -> None:
    """Who wrote the records of a branch is who wrote to its source."""
    batch = make_batch(b"v", producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=0)
    log = found(node, SOURCE).partitions[1].log
    log.append(memoryview(bytearray(batch)), now_ms=NOW_MS)
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name=SOURCE, partition_indexes=[1]),
            TopicRequest(name=BRANCHED, partition_indexes=[3, 0, 4]),
        ]
    )
    source, branched = node.call(request).topics
    assert [p.producer_id for p in source.partitions[0].active_producers] == [PRODUCER_ID]
    assert branched.partitions[0].active_producers == source.partitions[0].active_producers
    assert branched.partitions[1].active_producers == []
    assert branched.partitions[2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
