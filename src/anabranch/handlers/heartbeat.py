"""Heartbeat (12), versions 0-4: a classic member's sign of life.

Version notes: 3 static members (KIP-345); 4 flexible.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import Heartbeat, HeartbeatAnswer
from anabranch.handlers.group_answers import answer
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import KafkaError
from anabranch.wire.messages.heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse


def handle(
    broker: Broker, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Deferred[HeartbeatResponse]:
    command = Heartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id,
    )
    return answer(broker, request.group_id, command, _response)


def _response(outcome: HeartbeatAnswer | KafkaError) -> HeartbeatResponse:
    code = outcome.code if isinstance(outcome, KafkaError) else outcome.error
    return HeartbeatResponse(error_code=code)


ROUTE = route(HEARTBEAT, "0-4", handle)
