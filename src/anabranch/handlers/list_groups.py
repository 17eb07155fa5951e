"""ListGroups (16), versions 0-5: the groups of this coordinator.

Version notes: 3 flexible; 4 state filter (KIP-518); 5 type filter (KIP-848). Filters ignore case.
"""

from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, route
from anabranch.wire.messages.list_groups import (
    LIST_GROUPS,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

_CLASSIC = "classic"


def handle(
    broker: Broker, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    states = {state.lower() for state in request.states_filter}
    types = {type_.lower() for type_ in request.types_filter}
    if types and _CLASSIC not in types:
        return ListGroupsResponse()
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=_CLASSIC,
            )
            for group in broker.groups.all_groups()
            if not states or group.state.value.lower() in states
        ]
    )


ROUTE = route(LIST_GROUPS, "0-5", handle)
