"""Heartbeat (key 12): a member of a classic group says that it lives, and hears of rebalances.

1 throttle time (KIP-124), 2 responses leave before throttling (KIP-219), 3 static members
(KIP-345), 4 flexible.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, String, at, struct


@struct
class HeartbeatRequest:
    group_id: String = at("0+")
    generation_id: Int32 = at("0+")
    member_id: String = at("0+")
    group_instance_id: String | None = at("3+", default=None)


@struct
class HeartbeatResponse:
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    error_code: Int16 = at("0+")


HEARTBEAT = api(
    12,
    "Heartbeat",
    request=HeartbeatRequest,
    response=HeartbeatResponse,
    versions="0-4",
    flexible="4+",
)
