"""CreatePartitions (key 37): raise a topic's partition count (KIP-195).

1 responses leave before throttling (KIP-219), 2 flexible, 3 THROTTLING_QUOTA_EXCEEDED may be
answered (KIP-599).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int16, Int32, String, at, struct


@struct
class CreatePartitionsAssignment:
    broker_ids: list[Int32] = at("0+")


@struct
class CreatePartitionsTopic:
    name: String = at("0+")
    count: Int32 = at("0+")
    assignments: list[CreatePartitionsAssignment] | None = at("0+", default=None)


@struct
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = at("0+")
    timeout_ms: Int32 = at("0+")
    validate_only: Bool = at("0+")


@struct
class CreatePartitionsTopicResult:
    name: String = at("0+")
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)


@struct
class CreatePartitionsResponse:
    throttle_time_ms: Int32 = at("0+")
    results: list[CreatePartitionsTopicResult] = at("0+")


CREATE_PARTITIONS = api(
    37,
    "CreatePartitions",
    request=CreatePartitionsRequest,
    response=CreatePartitionsResponse,
    versions="0-3",
    flexible="2+",
)
