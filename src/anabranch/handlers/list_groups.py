"""ListGroups (16), versions 0-5: the groups of this coordinator.

Version notes: 3 flexible; 4 state filter (KIP-518); 5 type filter (KIP-848). Filters ignore case.
"""

from anabranch.broker.broker import Broker
from anabranch.coordinator.group.describe import list_groups
from anabranch.handlers.route import RequestContext, route
from anabranch.wire.messages.list_groups import (
    LIST_GROUPS,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)


def handle(
    broker: Broker, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    listed = list_groups(broker.groups.all_groups(), request.states_filter, request.types_filter)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.type,
            )
            for group in listed
        ]
    )


ROUTE = route(LIST_GROUPS, "0-5", handle)
