"""ConsumerGroupHeartbeat (68), versions 0-1: join, stay in, acknowledge and leave (KIP-848).

Version notes: 1 regular expressions, and the client makes its member id itself (KIP-1082). Leaving
`consumer` out of `group.coordinator.rebalance.protocols` turns it off: then it is answered with
UNSUPPORTED_VERSION.
"""

from itertools import groupby
from operator import attrgetter

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.config.group_config import serves_consumer_protocol
from anabranch.coordinator.group.consumer_commands import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
)
from anabranch.handlers.group_answers import PROTOCOL_IS_OFF, answer
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import Unit, whole_partitions
from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

_FIRST_WITH_OWN_MEMBER_ID = 1


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Deferred[ConsumerGroupHeartbeatResponse]:
    if not serves_consumer_protocol(broker.settings):
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message=PROTOCOL_IS_OFF,
        )
    names = request.subscribed_topic_names
    has_own_member_id = context.version >= _FIRST_WITH_OWN_MEMBER_ID
    command = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=_units(request.topic_partitions),
        client_id=context.client_id,
        client_host=f"/{context.client_host}",
        has_own_member_id=has_own_member_id,
        unique="" if request.member_id else broker.groups.new_unique(),
    )
    return answer(broker, request.group_id, command, _response)


def _units(topics: list[TopicPartitions] | None) -> tuple[Unit, ...] | None:
    if topics is None:
        return None
    return tuple(
        unit for topic in topics for unit in whole_partitions(topic.topic_id, topic.partitions)
    )


def _response(outcome: ConsumerHeartbeatAnswer | KafkaError) -> ConsumerGroupHeartbeatResponse:
    if isinstance(outcome, KafkaError):
        return ConsumerGroupHeartbeatResponse(
            error_code=outcome.code, error_message=outcome.message
        )
    assignment = None
    if outcome.assignment is not None:
        assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=[unit.partition for unit in units])
                for topic_id, units in groupby(outcome.assignment, key=attrgetter("topic_id"))
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=outcome.error,
        error_message=outcome.error_message,
        member_id=outcome.member_id,
        member_epoch=outcome.member_epoch,
        heartbeat_interval_ms=outcome.heartbeat_interval_ms,
        assignment=assignment,
    )


ROUTE = route(CONSUMER_GROUP_HEARTBEAT, "0-1", handle)
