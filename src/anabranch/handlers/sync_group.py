"""SyncGroup (14), versions 0-5: wait for the assignment, or as the leader bring it.

Version notes: 3 static members (KIP-345); 4 flexible; 5 protocol type and name are checked and
answered (KIP-559).
"""

from typing import Any

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import SyncAnswer, SyncGroup
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import KafkaError
from anabranch.wire.messages.sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupResponse


def handle(
    broker: Broker, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Deferred[SyncGroupResponse]:
    waiter = broker.groups.new_waiter()
    command = SyncGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((a.member_id, a.assignment) for a in request.assignments),
        waiter=waiter,
    )
    try:
        answer: Any = broker.groups.submit(request.group_id, command, waiter)
    except KafkaError as error:
        return _response(error)
    return answer.then(_response) if isinstance(answer, Deferred) else _response(answer)


def _response(answer: SyncAnswer | KafkaError) -> SyncGroupResponse:
    if isinstance(answer, KafkaError):
        answer = SyncAnswer(error=answer.code)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


ROUTE = route(SYNC_GROUP, "0-5", handle)
