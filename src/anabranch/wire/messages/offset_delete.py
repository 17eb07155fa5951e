"""OffsetDelete (key 47): forget committed offsets of topics that a group no longer reads (KIP-496).

Its one version is not flexible, and its response has the error before the throttle time.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, String, at, struct


@struct
class OffsetDeleteRequestPartition:
    partition_index: Int32 = at("0+")


@struct
class OffsetDeleteRequestTopic:
    name: String = at("0+")
    partitions: list[OffsetDeleteRequestPartition] = at("0+")


@struct
class OffsetDeleteRequest:
    group_id: String = at("0+")
    topics: list[OffsetDeleteRequestTopic] = at("0+")


@struct
class OffsetDeleteResponsePartition:
    partition_index: Int32 = at("0+")
    error_code: Int16 = at("0+")


@struct
class OffsetDeleteResponseTopic:
    name: String = at("0+")
    partitions: list[OffsetDeleteResponsePartition] = at("0+")


@struct
class OffsetDeleteResponse:
    error_code: Int16 = at("0+")
    throttle_time_ms: Int32 = at("0+", ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = at("0+")


OFFSET_DELETE = api(
    47,
    "OffsetDelete",
    request=OffsetDeleteRequest,
    response=OffsetDeleteResponse,
    versions="0",
    flexible="none",
)
