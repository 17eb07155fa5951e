"""SyncGroup (key 14): the leader brings the assignment, every member takes its own part of it.

Assignments belong to the members: the broker passes them on as they came.

1 throttle time (KIP-124), 2 responses leave before throttling (KIP-219), 3 static members
(KIP-345), 4 flexible, 5 protocol type and name are sent and answered (KIP-559).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bytes, Int16, Int32, String, at, struct


@struct
class SyncGroupRequestAssignment:
    member_id: String = at("0+")
    assignment: Bytes = at("0+")


@struct
class SyncGroupRequest:
    group_id: String = at("0+")
    generation_id: Int32 = at("0+")
    member_id: String = at("0+")
    group_instance_id: String | None = at("3+", default=None)
    protocol_type: String | None = at("5+", default=None, ignorable=True)
    protocol_name: String | None = at("5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = at("0+")


@struct
class SyncGroupResponse:
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    error_code: Int16 = at("0+")
    protocol_type: String | None = at("5+", default=None, ignorable=True)
    protocol_name: String | None = at("5+", default=None, ignorable=True)
    assignment: Bytes = at("0+")


SYNC_GROUP = api(
    14,
    "SyncGroup",
    request=SyncGroupRequest,
    response=SyncGroupResponse,
    versions="0-5",
    flexible="4+",
)
