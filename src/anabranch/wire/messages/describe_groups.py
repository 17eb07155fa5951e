"""DescribeGroups (key 15): the state and the members of classic groups.

A group that does not exist is described as Dead, without an error, up to version 5.

1 throttle time (KIP-124), 2 responses leave before throttling (KIP-219), 3 authorized operations
(KIP-430), 4 static members (KIP-345), 5 flexible, 6 GROUP_ID_NOT_FOUND and error messages
(KIP-1043).
"""

from anabranch.wire.api import api
from anabranch.wire.messages.metadata import OPERATIONS_NOT_REQUESTED
from anabranch.wire.schema import Bool, Bytes, Int16, Int32, String, at, struct


@struct
class DescribeGroupsRequest:
    groups: list[String] = at("0+")
    include_authorized_operations: Bool = at("3+")


@struct
class DescribedGroupMember:
    member_id: String = at("0+")
    group_instance_id: String | None = at("4+", default=None, ignorable=True)
    client_id: String = at("0+")
    client_host: String = at("0+")
    member_metadata: Bytes = at("0+")
    member_assignment: Bytes = at("0+")


@struct
class DescribedGroup:
    error_code: Int16 = at("0+")
    # Kafka's table refuses to drop it; here an older client simply gets the code alone.
    error_message: String | None = at("6+", default=None, ignorable=True)
    group_id: String = at("0+")
    group_state: String = at("0+")
    protocol_type: String = at("0+")
    protocol_data: String = at("0+")
    members: list[DescribedGroupMember] = at("0+")
    authorized_operations: Int32 = at("3+", default=OPERATIONS_NOT_REQUESTED)


@struct
class DescribeGroupsResponse:
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    groups: list[DescribedGroup] = at("0+")


DESCRIBE_GROUPS = api(
    15,
    "DescribeGroups",
    request=DescribeGroupsRequest,
    response=DescribeGroupsResponse,
    versions="0-6",
    flexible="5+",
)
