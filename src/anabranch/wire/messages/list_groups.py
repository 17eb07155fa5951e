"""ListGroups (key 16): the groups of this broker, of every type.

A filter with nothing in it lets everything through.

1 throttle time (KIP-124), 2 responses leave before throttling (KIP-219), 3 flexible, 4 states, to
see and to filter by (KIP-518), 5 types, likewise (KIP-848).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, String, at, struct


@struct
class ListGroupsRequest:
    states_filter: list[String] = at("4+")
    types_filter: list[String] = at("5+")


@struct
class ListedGroup:
    group_id: String = at("0+")
    protocol_type: String = at("0+")
    group_state: String = at("4+", ignorable=True)
    group_type: String = at("5+", ignorable=True)


@struct
class ListGroupsResponse:
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    error_code: Int16 = at("0+")
    groups: list[ListedGroup] = at("0+")


LIST_GROUPS = api(
    16,
    "ListGroups",
    request=ListGroupsRequest,
    response=ListGroupsResponse,
    versions="0-5",
    flexible="3+",
)
