"""DescribeGroups (15), versions 0-6: classic groups with their members.

Version notes: 3 authorized operations (KIP-430); 4 instance ids (KIP-345); 5 flexible; 6 an unknown
group, or one of another kind, is GROUP_ID_NOT_FOUND with a message (KIP-1043), before it was just
Dead.
"""

from anabranch.broker.broker import Broker
from anabranch.coordinator.group import describe
from anabranch.coordinator.group.describe import describe_group
from anabranch.handlers.route import RequestContext, route
from anabranch.model.authorization import GROUP_OPERATIONS, operations_bits
from anabranch.model.errors import ErrorCode, KafkaError
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
        try:
            group = broker.groups.group(group_id)
            answer = _described(context.version, describe_group(group_id, group))
            if answer.error_code:
                what = "not found" if group is None else "is not a classic group"
                answer.error_message = f"Group {group_id} {what}."
        except KafkaError as error:
            answer = DescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message
            )
        if request.include_authorized_operations and not answer.error_code:
            answer.authorized_operations = operations_bits(GROUP_OPERATIONS)
        answers.append(answer)
    return DescribeGroupsResponse(groups=answers)


def _described(version: int, group: describe.DescribedGroup) -> DescribedGroup:
    answer = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    if group.error is ErrorCode.GROUP_ID_NOT_FOUND and version >= _FIRST_WITH_NOT_FOUND:
        answer.error_code = group.error
    return answer


ROUTE = route(DESCRIBE_GROUPS, "0-6", handle)
