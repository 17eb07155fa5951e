"""LeaveGroup (key 13): members go, by their own will or an administrator's.

Up to version 2 one member leaves and the answer is one error; from version 3 on a list leaves,
each by its id, its instance id or both, and each has its own error (KIP-345).

1 throttle time (KIP-124), 2 responses leave before throttling (KIP-219), 3 many members (KIP-345),
4 flexible, 5 the reason for leaving (KIP-800).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, String, at, struct


@struct
class MemberIdentity:
    member_id: String = at("3+")
    group_instance_id: String | None = at("3+", default=None)
    reason: String | None = at("5+", default=None, ignorable=True)


@struct
class LeaveGroupRequest:
    group_id: String = at("0+")
    member_id: String = at("0-2")
    members: list[MemberIdentity] = at("3+")


@struct
class MemberResponse:
    member_id: String = at("3+")
    group_instance_id: String | None = at("3+", default=None)
    error_code: Int16 = at("3+")


@struct
class LeaveGroupResponse:
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    error_code: Int16 = at("0+")
    members: list[MemberResponse] = at("3+")


LEAVE_GROUP = api(
    13,
    "LeaveGroup",
    request=LeaveGroupRequest,
    response=LeaveGroupResponse,
    versions="0-5",
    flexible="4+",
)
