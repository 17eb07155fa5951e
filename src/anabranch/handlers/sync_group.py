"""SyncGroup (14), versions 0-5: wait for the assignment, or as the leader bring it.

Version notes: 3 static members (KIP-345); 4 flexible; 5 protocol type and name are checked and
answered (KIP-559).
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import SyncAnswer, SyncGroup
from anabranch.handlers.group_answers import answer
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
    return answer(broker, request.group_id, command, _response, waiter)


def _response(outcome: SyncAnswer | KafkaError) -> SyncGroupResponse:
    if isinstance(outcome, KafkaError):
        outcome = SyncAnswer(error=outcome.code)
    return SyncGroupResponse(
        error_code=outcome.error,
        protocol_type=outcome.protocol_type,
        protocol_name=outcome.protocol_name,
        assignment=outcome.assignment,
    )


ROUTE = route(SYNC_GROUP, "0-5", handle)
