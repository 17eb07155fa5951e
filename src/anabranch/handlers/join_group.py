"""JoinGroup (11), versions 0-9: enter a classic group and wait for its generation.

Version notes: 0 has no rebalance timeout, the session timeout stands in for it; 4 a new member is
told its id first (KIP-394); 5 static members (KIP-345); 6 flexible; 7 protocol type in the answer;
8 a reason for the join (KIP-800); 9 skip_assignment (KIP-814).
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import JoinAnswer, JoinGroup
from anabranch.handlers.group_answers import answer
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import KafkaError
from anabranch.wire.messages.join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

_FIRST_WITH_REBALANCE_TIMEOUT = 1
_FIRST_WITH_KNOWN_MEMBER_ID = 4
_FIRST_WITH_NULLABLE_PROTOCOL = 7
_FIRST_WITH_SKIP_ASSIGNMENT = 9


def handle(
    broker: Broker, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Deferred[JoinGroupResponse]:
    waiter = broker.groups.new_waiter()
    has_own_timeout = context.version >= _FIRST_WITH_REBALANCE_TIMEOUT
    command = JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=f"/{context.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if has_own_timeout else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((p.name, p.metadata) for p in request.protocols),
        requires_known_member_id=context.version >= _FIRST_WITH_KNOWN_MEMBER_ID,
        can_skip_assignment=context.version >= _FIRST_WITH_SKIP_ASSIGNMENT,
        waiter=waiter,
        unique="" if request.member_id else broker.groups.new_unique(),
    )

    def respond(outcome: JoinAnswer | KafkaError) -> JoinGroupResponse:
        return _response(context.version, request, outcome)

    return answer(broker, request.group_id, command, respond, waiter)


def _response(
    version: int, request: JoinGroupRequest, outcome: JoinAnswer | KafkaError
) -> JoinGroupResponse:
    if isinstance(outcome, KafkaError):
        outcome = JoinAnswer(error=outcome.code, member_id=request.member_id)
    protocol_name = outcome.protocol_name
    if protocol_name is None and version < _FIRST_WITH_NULLABLE_PROTOCOL:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=outcome.error,
        generation_id=outcome.generation_id,
        protocol_type=outcome.protocol_type,
        protocol_name=protocol_name,
        leader=outcome.leader_id,
        skip_assignment=outcome.skip_assignment,
        member_id=outcome.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in outcome.members
        ],
    )


ROUTE = route(JOIN_GROUP, "0-9", handle)
