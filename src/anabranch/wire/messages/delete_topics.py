"""DeleteTopics (key 20): remove topics by name or id (KIP-4).

1 throttle time (KIP-124), 2 responses leave before throttling (KIP-219), 3 TOPIC_DELETION_DISABLED
may be answered (KIP-322), 4 flexible, 5 error messages and THROTTLING_QUOTA_EXCEEDED (KIP-599),
6 topics by name or id, so the list of names gives way to a list of structs (KIP-516).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, String, Uuid, at, struct


@struct
class DeleteTopicState:
    name: String | None = at("6+", default=None)
    topic_id: Uuid = at("6+")


@struct
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = at("6+")
    topic_names: list[String] = at("0-5", ignorable=True)
    timeout_ms: Int32 = at("0+")


@struct
class DeletableTopicResult:
    name: String | None = at("0+", default="", nullable="6+")
    topic_id: Uuid = at("6+", ignorable=True)
    error_code: Int16 = at("0+")
    error_message: String | None = at("5+", default=None, ignorable=True)


@struct
class DeleteTopicsResponse:
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    responses: list[DeletableTopicResult] = at("0+")


DELETE_TOPICS = api(
    20,
    "DeleteTopics",
    request=DeleteTopicsRequest,
    response=DeleteTopicsResponse,
    versions="1-6",
    flexible="4+",
)
