"""ListOffsets (key 2): the offset of a time, or of a special place in the log.

`timestamp` is milliseconds, or one of the constants below. 1 one offset with its timestamp
(KIP-79), 2 isolation level and throttle time (KIP-98, KIP-124), 3 responses leave before
throttling (KIP-219), 4 leader epochs (KIP-320), 5 OFFSET_NOT_AVAILABLE may be answered (KIP-207),
6 flexible, 7 the offset of the largest timestamp (KIP-734), 8 the first local offset (KIP-405),
9 the last tiered offset (KIP-1005), 10 a timeout for remote storage (KIP-1075), 11 the first
offset not yet in remote storage (KIP-1023).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int8, Int16, Int32, Int64, String, at, struct

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6


@struct
class ListOffsetsPartition:
    partition_index: Int32 = at("1+")
    current_leader_epoch: Int32 = at("4+", default=-1, ignorable=True)
    timestamp: Int64 = at("1+")


@struct
class ListOffsetsTopic:
    name: String = at("1+")
    partitions: list[ListOffsetsPartition] = at("1+")


@struct
class ListOffsetsRequest:
    replica_id: Int32 = at("1+")
    isolation_level: Int8 = at("2+")
    topics: list[ListOffsetsTopic] = at("1+")
    timeout_ms: Int32 = at("10+", ignorable=True)


@struct
class ListOffsetsPartitionResponse:
    partition_index: Int32 = at("1+")
    error_code: Int16 = at("1+")
    timestamp: Int64 = at("1+", default=-1)
    offset: Int64 = at("1+", default=-1)
    # A hint: Kafka's table refuses to drop it, here an older client simply does not get it.
    leader_epoch: Int32 = at("4+", default=-1, ignorable=True)


@struct
class ListOffsetsTopicResponse:
    name: String = at("1+")
    partitions: list[ListOffsetsPartitionResponse] = at("1+")


@struct
class ListOffsetsResponse:
    throttle_time_ms: Int32 = at("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = at("1+")


LIST_OFFSETS = api(
    2,
    "ListOffsets",
    request=ListOffsetsRequest,
    response=ListOffsetsResponse,
    versions="1-11",
    flexible="6+",
)
