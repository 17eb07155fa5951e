"""Heartbeat (12), versions 0-4: a classic member's sign of life.

Version notes: 3 static members (KIP-345); 4 flexible.
"""

from anabranch.broker.broker import Broker
from anabranch.coordinator.group.commands import Heartbeat
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import KafkaError
from anabranch.wire.messages.heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse


def handle(broker: Broker, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    command = Heartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id,
    )
    try:
        answer = broker.groups.submit(request.group_id, command)
    except KafkaError as error:
        return HeartbeatResponse(error_code=error.code)
    return HeartbeatResponse(error_code=answer.error)


ROUTE = route(HEARTBEAT, "0-4", handle)
