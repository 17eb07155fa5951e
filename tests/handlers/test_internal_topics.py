"""The topic that groups are kept in: clients read it, and change nothing about it."""

import pytest
from group_calls import GROUP, GroupNode
from handler_calls import make_batch

from anabranch.broker.topics import Topic
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
)
from anabranch.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from anabranch.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from anabranch.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from anabranch.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

JOURNAL = "__consumer_offsets"
REFUSED = ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.fixture
def node(group_node: GroupNode) -> GroupNode:
    """A broker with a group."""
    group_node.create_topic("t")
    group_node.commit(1)
    return group_node


def journal(node: GroupNode) -> Topic:
    topic = node.broker.topics.get(JOURNAL)
    assert topic is not None
    return topic


@pytest.mark.parametrize("version", [3, 12, 13])
def test_nobody_produces_to_it(node: GroupNode, version: int) -> None:
    """INVALID_TOPIC_EXCEPTION, by name and by id; the rest of the request goes through."""
    topic = journal(node)
    before = topic.partitions[0].log.log_end_offset
    other = node.broker.topics.get("t")
    assert other is not None
    data = [
        TopicProduceData(
            name=name,
            topic_id=topic_id,
            partition_data=[PartitionProduceData(index=0, records=make_batch(b"v"))],
        )
        for name, topic_id in ((JOURNAL, topic.topic_id), ("t", other.topic_id))
    ]
    answer = node.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=data), version)
    codes = [one.partition_responses[0].error_code for one in answer.responses]
    assert codes == [REFUSED, ErrorCode.NONE]
    if version >= 8:
        message = answer.responses[0].partition_responses[0].error_message
        assert message == "Cannot append to internal topic __consumer_offsets."
    assert topic.partitions[0].log.log_end_offset == before


def test_a_name_that_only_looks_internal(node: GroupNode) -> None:
    """A user's own topic with two underscores is a topic like any other."""
    node.create_topic("__mine")
    data = TopicProduceData(
        name="__mine", partition_data=[PartitionProduceData(index=0, records=make_batch(b"v"))]
    )
    answer = node.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data]), 12)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    states = [DeleteTopicState(name="__mine")]
    assert node.call(DeleteTopicsRequest(topics=states)).responses[0].error_code == 0


def test_nobody_deletes_it(node: GroupNode) -> None:
    """Groups would be lost; the refusal says what to do instead."""
    topic = journal(node)
    message = (
        "__consumer_offsets keeps the state of this broker's groups and cannot be deleted. "
        "Delete the groups instead."
    )
    answers = node.call(
        DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic.topic_id)])
    ).responses
    assert answers == [
        DeletableTopicResult(
            topic_id=topic.topic_id, name=None, error_code=REFUSED, error_message=message
        )
    ]
    (by_name,) = node.call(DeleteTopicsRequest(topic_names=[JOURNAL]), 1).responses
    assert by_name.error_code == REFUSED
    assert journal(node) is topic
    assert node.commit(2) == [0]


def test_nobody_gives_it_more_partitions(node: GroupNode) -> None:
    """A group would be looked for in another one than it is in."""
    for validate_only in (True, False):
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=JOURNAL, count=60)], validate_only=validate_only
        )
        assert node.call(request).results == [
            CreatePartitionsTopicResult(
                name=JOURNAL,
                error_code=REFUSED,
                error_message=(
                    "A group belongs to a partition of __consumer_offsets by their number, so that "
                    "it cannot be changed any more."
                ),
            )
        ]
    assert len(journal(node).partitions) == 1


def test_nobody_deletes_its_records(node: GroupNode) -> None:
    """What is deleted from it would be deleted from the groups."""
    asked = DeleteRecordsTopic(
        name=JOURNAL, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)]
    )
    answer = node.call(DeleteRecordsRequest(topics=[asked], timeout_ms=1000))
    assert answer.topics[0].partitions[0].error_code == REFUSED
    assert journal(node).partitions[0].log.log_start_offset == 0


def alter(node: GroupNode, **configs: str) -> AlterConfigsResourceResponse:
    """Replace the topic's settings, as AlterConfigs does: what is not named is gone."""
    resource = AlterConfigsResource(
        resource_type=2,
        resource_name=JOURNAL,
        configs=[
            AlterableConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ],
    )
    response: AlterConfigsResourceResponse
    (response,) = node.call(AlterConfigsRequest(resources=[resource])).responses
    return response


def test_it_stays_compacted(node: GroupNode) -> None:
    """Retention would take groups away, also when somebody only forgot to repeat the policy."""
    before = dict(journal(node).configs)
    for configs in (
        {"cleanup_policy": "delete"},
        {"cleanup_policy": "compact,delete"},
        {"segment_bytes": "5000000"},
        {},
    ):
        answer = alter(node, **configs)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "cleanup.policy=compact" in answer.error_message
    assert journal(node).configs == before
    answer = alter(node, cleanup_policy="compact", flush_on_acks_all="true")
    assert answer.error_code == ErrorCode.NONE
    assert journal(node).partitions[0].syncs_acks_all


def test_everybody_may_read_it(node: GroupNode) -> None:
    """Tools that follow commits fetch it like any other topic."""
    topic = journal(node)
    asked = FetchTopic(
        topic=JOURNAL,
        topic_id=topic.topic_id,
        partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
    )
    answer = node.call(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[asked]), 12)
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == ErrorCode.NONE
    assert len(partition.records) == topic.partitions[0].log.size_bytes
    (described,) = node.call(MetadataRequest(topics=[MetadataRequestTopic(name=JOURNAL)])).topics
    assert described.is_internal


def test_whoever_asks_for_it_first(group_node: GroupNode) -> None:
    """Auto-creation by a Metadata request makes it as the first group would have."""
    (topic,) = group_node.call(
        MetadataRequest(topics=[MetadataRequestTopic(name=JOURNAL)], allow_auto_topic_creation=True)
    ).topics
    assert (topic.error_code, len(topic.partitions)) == (ErrorCode.NONE, 1)
    assert journal(group_node).partitions[0].log.config.cleanup_policy == {"compact"}
    group_node.create_topic("t")
    assert group_node.commit(1) == [0]


def test_whoever_creates_it_first(group_node: GroupNode) -> None:
    """CreateTopics chooses the number of partitions; it is compacted whatever is asked for."""
    asked = CreatableTopic(name=JOURNAL, num_partitions=3, replication_factor=1)
    (answer,) = group_node.call(CreateTopicsRequest(topics=[asked], timeout_ms=1000)).topics
    assert (answer.error_code, answer.num_partitions) == (ErrorCode.NONE, 3)
    group_node.create_topic("t")
    assert group_node.commit(1) == [0]
    assert group_node.commit(2, group_id="other") == [0]
    written = [p.log.log_end_offset for p in journal(group_node).partitions]
    assert sum(written) == 2
    assert group_node.broker.groups.offsets(GROUP)
