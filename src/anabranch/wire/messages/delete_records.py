"""DeleteRecords (key 21): move a partition's log start offset forward (KIP-107).

An offset of -1 means the high watermark. 1 responses leave before throttling (KIP-219),
2 flexible.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, Int64, String, at, struct

HIGH_WATERMARK = -1


@struct
class DeleteRecordsPartition:
    partition_index: Int32 = at("0+")
    offset: Int64 = at("0+")


@struct
class DeleteRecordsTopic:
    name: String = at("0+")
    partitions: list[DeleteRecordsPartition] = at("0+")


@struct
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = at("0+")
    timeout_ms: Int32 = at("0+")


@struct
class DeleteRecordsPartitionResult:
    partition_index: Int32 = at("0+")
    low_watermark: Int64 = at("0+")
    error_code: Int16 = at("0+")


@struct
class DeleteRecordsTopicResult:
    name: String = at("0+")
    partitions: list[DeleteRecordsPartitionResult] = at("0+")


@struct
class DeleteRecordsResponse:
    throttle_time_ms: Int32 = at("0+")
    topics: list[DeleteRecordsTopicResult] = at("0+")


DELETE_RECORDS = api(
    21,
    "DeleteRecords",
    request=DeleteRecordsRequest,
    response=DeleteRecordsResponse,
    versions="0-2",
    flexible="2+",
)
