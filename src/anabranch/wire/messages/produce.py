"""Produce (key 0): append record batches to partitions.

Versions 0-2 carried message formats v0 and v1, which are refused; they are readable here only so
that the refusal can be said in their own schema. 3 transactional id, 5 log start offset, 8 record
errors (KIP-467), 9 flexible, 10 leader hints in the response (KIP-951), 12 implicit transaction
partitions (KIP-890), 13 topic ids (KIP-516).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, Int64, Records, String, Uuid, at, struct


@struct
class PartitionProduceData:
    index: Int32 = at("0+")
    records: Records | None = at("0+")


@struct
class TopicProduceData:
    name: String = at("0-12", ignorable=True)
    topic_id: Uuid = at("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = at("0+")


@struct
class ProduceRequest:
    transactional_id: String | None = at("3+", default=None, ignorable=True)
    acks: Int16 = at("0+")
    timeout_ms: Int32 = at("0+")
    topic_data: list[TopicProduceData] = at("0+")


@struct
class BatchIndexAndErrorMessage:
    batch_index: Int32 = at("8+")
    batch_index_error_message: String | None = at("8+", default=None)


@struct
class ProduceLeaderIdAndEpoch:
    leader_id: Int32 = at("10+", default=-1)
    leader_epoch: Int32 = at("10+", default=-1)


@struct
class PartitionProduceResponse:
    index: Int32 = at("0+")
    error_code: Int16 = at("0+")
    base_offset: Int64 = at("0+")
    log_append_time_ms: Int64 = at("2+", default=-1, ignorable=True)
    log_start_offset: Int64 = at("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = at("8+", ignorable=True)
    error_message: String | None = at("8+", default=None, ignorable=True)
    current_leader: ProduceLeaderIdAndEpoch | None = at(
        "10+", tag=0, nullable="none", default=None, ignorable=True
    )


@struct
class TopicProduceResponse:
    name: String = at("0-12", ignorable=True)
    topic_id: Uuid = at("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = at("0+")


@struct
class ProduceNodeEndpoint:
    node_id: Int32 = at("10+")
    host: String = at("10+")
    port: Int32 = at("10+")
    rack: String | None = at("10+", default=None)


@struct
class ProduceResponse:
    responses: list[TopicProduceResponse] = at("0+")
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    node_endpoints: list[ProduceNodeEndpoint] = at("10+", tag=0, ignorable=True)


PRODUCE = api(
    0,
    "Produce",
    request=ProduceRequest,
    response=ProduceResponse,
    versions="0-13",
    flexible="9+",
)
