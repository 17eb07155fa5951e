"""LeaveGroup (13), versions 0-5: members go.

Version notes: 3 several members in one request, static ones by instance id (KIP-345); 4 flexible;
5 a reason (KIP-800). Up to version 2 the one member's error is the error of the request.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import LeaveAnswer, LeaveGroup, LeavingMember
from anabranch.handlers.group_answers import answer
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.leave_group import (
    LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)

_FIRST_WITH_MANY_MEMBERS = 3


def handle(
    broker: Broker, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Deferred[LeaveGroupResponse]:
    if context.version < _FIRST_WITH_MANY_MEMBERS:
        members = [LeavingMember(member_id=request.member_id, group_instance_id=None)]
    else:
        members = [
            LeavingMember(member_id=m.member_id, group_instance_id=m.group_instance_id)
            for m in request.members
        ]
    command = LeaveGroup(group_id=request.group_id, members=tuple(members))
    return answer(
        broker, request.group_id, command, lambda outcome: _response(context.version, outcome)
    )


def _response(version: int, outcome: LeaveAnswer | KafkaError) -> LeaveGroupResponse:
    if isinstance(outcome, KafkaError):
        return LeaveGroupResponse(error_code=outcome.code)
    if version < _FIRST_WITH_MANY_MEMBERS:
        errors = [outcome.error, *(member.error for member in outcome.members)]
        return LeaveGroupResponse(
            error_code=next((error for error in errors if error), ErrorCode.NONE)
        )
    return LeaveGroupResponse(
        error_code=outcome.error,
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=member.error,
            )
            for member in outcome.members
        ],
    )


ROUTE = route(LEAVE_GROUP, "0-5", handle)
