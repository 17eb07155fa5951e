"""DescribeTopicPartitions (75), version 0: topics page by page (KIP-966).

Topics come in the order of their names. A page holds at most `response_partition_limit` partitions
and this broker's own limit; where it ends, `next_cursor` says what the next request starts with.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.topics import Topic
from anabranch.handlers.route import RequestContext, route
from anabranch.model.authorization import TOPIC_OPERATIONS, operations_bits
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.topics import check_topic_name
from anabranch.wire.messages.describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    NextCursor,
)

# Kafka's default of max.request.partition.size.limit.
_PARTITIONS_MAX = 2000


def handle(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    is_asked_for_all = not request.topics
    cursor = request.cursor or Cursor()
    names = {one.name for one in request.topics}
    if is_asked_for_all:
        names = {topic.name for topic in broker.topics}
    names = {name for name in names if name >= cursor.topic_name}
    is_lost = not is_asked_for_all and request.cursor is not None and cursor.topic_name not in names
    if is_lost or cursor.partition_index < 0:
        return _refused(request)

    room = max(1, min(_PARTITIONS_MAX, request.response_partition_limit))
    response = DescribeTopicPartitionsResponse()
    for name in sorted(names):
        if not room:
            response.next_cursor = NextCursor(topic_name=name, partition_index=0)
            break
        topic = broker.topics.get(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        first = cursor.partition_index if name == cursor.topic_name else 0
        end = min(len(topic.partitions), first + room)
        response.topics.append(_describe(broker, topic, range(first, end)))
        if end < len(topic.partitions):
            response.next_cursor = NextCursor(topic_name=name, partition_index=end)
            break
        room -= max(0, end - first)
    for described in response.topics:
        described.topic_authorized_operations = operations_bits(TOPIC_OPERATIONS)
    return response


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """A cursor that fits no page. The response has no error of its own, only its topics do."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(
                name=one.name, error_code=ErrorCode.INVALID_REQUEST
            )
            for one in request.topics
        ]
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except KafkaError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=code)


def _describe(broker: Broker, topic: Topic, indexes: range) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=broker.node_id,
                leader_epoch=topic.partitions[index].log.leader_epoch,
                replica_nodes=[broker.node_id],
                isr_nodes=[broker.node_id],
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for index in indexes
        ],
    )


ROUTE = route(DESCRIBE_TOPIC_PARTITIONS, "0", handle)
