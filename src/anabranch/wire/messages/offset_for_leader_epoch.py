"""OffsetForLeaderEpoch (key 23): where a leader epoch ended, to find divergence (KIP-101).

2 the leader epoch fences the request, and throttle time (KIP-320), 3 replica id (KIP-392, where
-2 is a consumer that debugs), 4 flexible.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, Int64, String, at, struct


@struct
class OffsetForLeaderPartition:
    partition: Int32 = at("0+")
    current_leader_epoch: Int32 = at("2+", default=-1, ignorable=True)
    leader_epoch: Int32 = at("0+")


@struct
class OffsetForLeaderTopic:
    topic: String = at("0+")
    partitions: list[OffsetForLeaderPartition] = at("0+")


@struct
class OffsetForLeaderEpochRequest:
    replica_id: Int32 = at("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = at("0+")


@struct
class EpochEndOffset:
    error_code: Int16 = at("0+")
    partition: Int32 = at("0+")
    leader_epoch: Int32 = at("1+", default=-1, ignorable=True)
    end_offset: Int64 = at("0+", default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: String = at("0+")
    partitions: list[EpochEndOffset] = at("0+")


@struct
class OffsetForLeaderEpochResponse:
    throttle_time_ms: Int32 = at("2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = at("0+")


OFFSET_FOR_LEADER_EPOCH = api(
    23,
    "OffsetForLeaderEpoch",
    request=OffsetForLeaderEpochRequest,
    response=OffsetForLeaderEpochResponse,
    versions="2-4",
    flexible="4+",
)
