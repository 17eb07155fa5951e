"""JoinGroup (key 11): take part in a group, and wait until all its members have joined.

The metadata of a protocol belongs to the members: the broker hands it to the leader as it came.

1 a rebalance timeout apart from the session's (KIP-62), 2 throttle time (KIP-124), 3 responses
leave before throttling (KIP-219), 4 a new member is told its id first and joins with it (KIP-394),
5 static members (KIP-345), 6 flexible, 7 the protocol type is answered and the protocol's name may
be null (KIP-559), 8 the reason for joining (KIP-800), 9 the leader may be told not to assign again
(KIP-814).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Bytes, Int16, Int32, String, at, struct


@struct
class JoinGroupRequestProtocol:
    name: String = at("0+")
    metadata: Bytes = at("0+")


@struct
class JoinGroupRequest:
    group_id: String = at("0+")
    session_timeout_ms: Int32 = at("0+")
    # Version 0 has none: there the session timeout stands for it.
    rebalance_timeout_ms: Int32 = at("1+", default=-1, ignorable=True)
    member_id: String = at("0+")
    group_instance_id: String | None = at("5+", default=None)
    protocol_type: String = at("0+")
    protocols: list[JoinGroupRequestProtocol] = at("0+")
    reason: String | None = at("8+", default=None, ignorable=True)


@struct
class JoinGroupResponseMember:
    member_id: String = at("0+")
    group_instance_id: String | None = at("5+", default=None, ignorable=True)
    metadata: Bytes = at("0+")


@struct
class JoinGroupResponse:
    throttle_time_ms: Int32 = at("2+", ignorable=True)
    error_code: Int16 = at("0+")
    generation_id: Int32 = at("0+", default=-1)
    protocol_type: String | None = at("7+", default=None, ignorable=True)
    protocol_name: String | None = at("0+", default="", nullable="7+")
    leader: String = at("0+")
    skip_assignment: Bool = at("9+")
    member_id: String = at("0+")
    members: list[JoinGroupResponseMember] = at("0+")


JOIN_GROUP = api(
    11,
    "JoinGroup",
    request=JoinGroupRequest,
    response=JoinGroupResponse,
    versions="0-9",
    flexible="6+",
)
