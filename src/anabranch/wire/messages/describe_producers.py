"""DescribeProducers (key 61): who is writing to a partition, as its log knows them (KIP-664)."""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, Int64, String, at, struct


@struct
class TopicRequest:
    name: String = at("0+")
    partition_indexes: list[Int32] = at("0+")


@struct
class DescribeProducersRequest:
    topics: list[TopicRequest] = at("0+")


@struct
class ProducerState:
    producer_id: Int64 = at("0+")
    producer_epoch: Int32 = at("0+")
    last_sequence: Int32 = at("0+", default=-1)
    last_timestamp: Int64 = at("0+", default=-1)
    coordinator_epoch: Int32 = at("0+")
    current_txn_start_offset: Int64 = at("0+", default=-1)


@struct
class PartitionResponse:
    partition_index: Int32 = at("0+")
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)
    active_producers: list[ProducerState] = at("0+")


@struct
class TopicResponse:
    name: String = at("0+")
    partitions: list[PartitionResponse] = at("0+")


@struct
class DescribeProducersResponse:
    throttle_time_ms: Int32 = at("0+")
    topics: list[TopicResponse] = at("0+")


DESCRIBE_PRODUCERS = api(
    61,
    "DescribeProducers",
    request=DescribeProducersRequest,
    response=DescribeProducersResponse,
    versions="0",
    flexible="0+",
)
