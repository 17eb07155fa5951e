"""CreateTopics (key 19): make topics, with their partitions and configs (KIP-4).

1 validate-only and error messages, 2 throttle time (KIP-124), 3 responses leave before throttling
(KIP-219), 4 partitions and replication factor of -1 mean the broker's default (KIP-464),
5 flexible, the response tells what was made (KIP-525), 6 THROTTLING_QUOTA_EXCEEDED may be answered
(KIP-599), 7 topic ids in responses (KIP-516). Kafka 4 dropped 0 and 1; old clients still send them.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int8, Int16, Int32, String, Uuid, at, struct


@struct
class CreatableReplicaAssignment:
    partition_index: Int32 = at("0+")
    broker_ids: list[Int32] = at("0+")


@struct
class CreatableTopicConfig:
    name: String = at("0+")
    value: String | None = at("0+", default=None)


@struct
class CreatableTopic:
    name: String = at("0+")
    num_partitions: Int32 = at("0+")
    replication_factor: Int16 = at("0+")
    assignments: list[CreatableReplicaAssignment] = at("0+")
    configs: list[CreatableTopicConfig] = at("0+")


@struct
class CreateTopicsRequest:
    topics: list[CreatableTopic] = at("0+")
    timeout_ms: Int32 = at("0+", default=60000)
    validate_only: Bool = at("1+")


@struct
class CreatableTopicConfigs:
    name: String = at("5+")
    value: String | None = at("5+", default=None)
    read_only: Bool = at("5+")
    config_source: Int8 = at("5+", default=-1, ignorable=True)
    is_sensitive: Bool = at("5+")


@struct
class CreatableTopicResult:
    name: String = at("0+")
    topic_id: Uuid = at("7+", ignorable=True)
    error_code: Int16 = at("0+")
    error_message: String | None = at("1+", default=None, ignorable=True)
    topic_config_error_code: Int16 = at("5+", tag=0, ignorable=True)
    num_partitions: Int32 = at("5+", default=-1, ignorable=True)
    replication_factor: Int16 = at("5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = at("5+", ignorable=True)


@struct
class CreateTopicsResponse:
    throttle_time_ms: Int32 = at("2+", ignorable=True)
    topics: list[CreatableTopicResult] = at("0+")


CREATE_TOPICS = api(
    19,
    "CreateTopics",
    request=CreateTopicsRequest,
    response=CreateTopicsResponse,
    versions="0-7",
    flexible="5+",
)
