"""DescribeTopicPartitions (key 75): topics page by page, with eligible leader replicas (KIP-966).

A response that could not hold all partitions ends with a cursor; the next request starts there.
"""

from anabranch.wire.api import api
from anabranch.wire.messages.metadata import OPERATIONS_NOT_REQUESTED
from anabranch.wire.schema import Bool, Int16, Int32, String, Uuid, at, struct


@struct
class TopicRequest:
    name: String = at("0+")


@struct
class Cursor:
    topic_name: String = at("0+")
    partition_index: Int32 = at("0+")


@struct
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = at("0+")
    response_partition_limit: Int32 = at("0+", default=2000)
    cursor: Cursor | None = at("0+", default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: Int16 = at("0+")
    partition_index: Int32 = at("0+")
    leader_id: Int32 = at("0+")
    leader_epoch: Int32 = at("0+", default=-1)
    replica_nodes: list[Int32] = at("0+")
    isr_nodes: list[Int32] = at("0+")
    eligible_leader_replicas: list[Int32] | None = at("0+", default=None)
    last_known_elr: list[Int32] | None = at("0+", default=None)
    offline_replicas: list[Int32] = at("0+")


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: Int16 = at("0+")
    name: String | None = at("0+", default="")
    topic_id: Uuid = at("0+")
    is_internal: Bool = at("0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = at("0+")
    topic_authorized_operations: Int32 = at("0+", default=OPERATIONS_NOT_REQUESTED)


@struct
class NextCursor:
    topic_name: String = at("0+")
    partition_index: Int32 = at("0+")


@struct
class DescribeTopicPartitionsResponse:
    throttle_time_ms: Int32 = at("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = at("0+")
    next_cursor: NextCursor | None = at("0+", default=None)


DESCRIBE_TOPIC_PARTITIONS = api(
    75,
    "DescribeTopicPartitions",
    request=DescribeTopicPartitionsRequest,
    response=DescribeTopicPartitionsResponse,
    versions="0",
    flexible="0+",
)
