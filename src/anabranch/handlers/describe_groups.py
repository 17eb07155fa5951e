"""DescribeGroups (15), versions 0-6: classic groups with their members.

Version notes: 3 authorized operations (KIP-430); 4 instance ids (KIP-345); 5 flexible; 6 an unknown
group is GROUP_ID_NOT_FOUND with a message (KIP-1043), before it was just Dead.
"""

from anabranch.broker.broker import Broker
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicState
from anabranch.handlers.route import RequestContext, route
from anabranch.model.authorization import GROUP_OPERATIONS, operations_bits
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_groups import (
    DESCRIBE_GROUPS,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_FIRST_WITH_NOT_FOUND = 6


def handle(
    broker: Broker, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    answers = []
    for group_id in request.groups:
        group = broker.groups.group(group_id)
        answer = _described(group) if group is not None else _unknown(context.version, group_id)
        if request.include_authorized_operations and group is not None:
            answer.authorized_operations = operations_bits(GROUP_OPERATIONS)
        answers.append(answer)
    return DescribeGroupsResponse(groups=answers)


def _unknown(version: int, group_id: str) -> DescribedGroup:
    answer = DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
    if version >= _FIRST_WITH_NOT_FOUND:
        answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        answer.error_message = f"Group {group_id} not found."
    return answer


def _described(group: ClassicGroup) -> DescribedGroup:
    # Between generations there is no protocol that metadata could belong to.
    is_stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ],
    )


ROUTE = route(DESCRIBE_GROUPS, "0-6", handle)
