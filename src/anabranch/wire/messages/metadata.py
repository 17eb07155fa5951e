"""Metadata (key 3): the brokers, and the topics with their partitions and leaders.

An empty topic list asks for all topics in version 0 and for none from version 1 on, where null
asks for all. 1 racks, controller, internal topics (KIP-36, KIP-4), 2 cluster id (KIP-78),
3 throttle time (KIP-124), 4 auto-creation can be declined (KIP-117), 5 offline replicas
(KIP-112), 6 responses leave before throttling (KIP-219), 7 leader epochs (KIP-320), 8 authorized
operations (KIP-430), 9 flexible, 10 topic ids in responses (KIP-516), 11 the cluster's operations
moved to DescribeCluster (KIP-700), 12 topics can be asked for by id (KIP-516), 13 a top-level error
(KIP-1102).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int16, Int32, String, Uuid, at, struct

# The bit field of authorized operations when they were not asked for.
OPERATIONS_NOT_REQUESTED = -(1 << 31)


@struct
class MetadataRequestTopic:
    topic_id: Uuid = at("10+", ignorable=True)
    name: String | None = at("0+", default="", nullable="10+")


@struct
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = at("0+", nullable="1+")
    allow_auto_topic_creation: Bool = at("4+", default=True)
    include_cluster_authorized_operations: Bool = at("8-10")
    include_topic_authorized_operations: Bool = at("8+")


@struct
class MetadataResponseBroker:
    node_id: Int32 = at("0+")
    host: String = at("0+")
    port: Int32 = at("0+")
    rack: String | None = at("1+", default=None, ignorable=True)


@struct
class MetadataResponsePartition:
    error_code: Int16 = at("0+")
    partition_index: Int32 = at("0+")
    leader_id: Int32 = at("0+")
    leader_epoch: Int32 = at("7+", default=-1, ignorable=True)
    replica_nodes: list[Int32] = at("0+")
    isr_nodes: list[Int32] = at("0+")
    offline_replicas: list[Int32] = at("5+", ignorable=True)


@struct
class MetadataResponseTopic:
    error_code: Int16 = at("0+")
    name: String | None = at("0+", default="", nullable="12+")
    topic_id: Uuid = at("10+", ignorable=True)
    is_internal: Bool = at("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = at("0+")
    topic_authorized_operations: Int32 = at("8+", default=OPERATIONS_NOT_REQUESTED)


@struct
class MetadataResponse:
    throttle_time_ms: Int32 = at("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = at("0+")
    cluster_id: String | None = at("2+", default=None, ignorable=True)
    controller_id: Int32 = at("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = at("0+")
    cluster_authorized_operations: Int32 = at("8-10", default=OPERATIONS_NOT_REQUESTED)
    error_code: Int16 = at("13+", ignorable=True)


METADATA = api(
    3,
    "Metadata",
    request=MetadataRequest,
    response=MetadataResponse,
    versions="0-13",
    flexible="9+",
)
