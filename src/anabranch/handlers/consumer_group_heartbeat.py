"""ConsumerGroupHeartbeat (68), versions 0-1: join, stay in, acknowledge and leave (KIP-848).

Version notes: 1 regular expressions, and the client makes its member id itself (KIP-1082). Leaving
`consumer` out of `group.coordinator.rebalance.protocols` turns it off: then it is answered with
UNSUPPORTED_VERSION.

A member that sends our tag takes key ranges of partitions. What it owns and what it is given then
stand in the tags, whole partitions as the range of all hashes.
"""

from itertools import groupby
from operator import attrgetter, itemgetter

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.range_loads import RangeReport
from anabranch.config.group_config import serves_consumer_protocol
from anabranch.coordinator.cooperative.unit_cuts import joined_units
from anabranch.coordinator.group.consumer_commands import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
)
from anabranch.coordinator.group.consumer_ranges import whole_partitions_of
from anabranch.handlers.group_answers import PROTOCOL_IS_OFF, answer
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import SlotRange, Unit, hashes_of, slots_between, whole_partitions
from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from anabranch.wire.messages.cooperation import (
    AssignedPartition,
    Cooperation,
    CooperationAnswer,
    KeyRange,
    OwnedRange,
    RangeLoad,
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
    cooperation = request.cooperation
    try:
        owned = _units(request.topic_partitions)
        if cooperation is not None:
            owned = _held_units(cooperation)
            reports = [_report(load) for load in cooperation.loads]
            broker.groups.range_loads.take(request.group_id, request.member_id, reports)
    except KafkaError as error:
        return _response(error)
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
        owned=owned,
        shares=cooperation is not None,
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


def _held_units(cooperation: Cooperation) -> tuple[Unit, ...] | None:
    if cooperation.held is None:
        return None
    return tuple(
        Unit(held.topic_id, held.partition, read_key_range(one))
        for held in cooperation.held
        for one in held.ranges
    )


def _report(load: RangeLoad) -> RangeReport:
    slots = read_key_range(KeyRange(first_hash=load.first_hash, last_hash=load.last_hash))
    return RangeReport(Unit(load.topic_id, load.partition, slots), load.records, load.busy_us)


def read_key_range(one: KeyRange) -> SlotRange:
    """The slots of a key range of a client."""
    slots = slots_between(one.first_hash, one.last_hash)
    if slots is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The key range [{one.first_hash}, {one.last_hash}] does not begin and end at slots, "
            "which are multiples of 2^47.",
        )
    return slots


def _owned_range(slots: SlotRange, epoch: int) -> OwnedRange:
    first_hash, last_hash = hashes_of(slots)
    return OwnedRange(first_hash=first_hash, last_hash=last_hash, epoch=epoch)


def _cooperation(outcome: ConsumerHeartbeatAnswer) -> CooperationAnswer:
    assigned = None
    if outcome.assignment is not None and outcome.epochs is not None:
        units = joined_units(dict(zip(outcome.assignment, outcome.epochs, strict=True)))
        assigned = [
            AssignedPartition(
                topic_id=topic_id,
                partition=partition,
                ranges=[_owned_range(unit.slots, units[unit]) for unit in of_partition],
            )
            for (topic_id, partition), of_partition in groupby(units, key=itemgetter(0, 1))
        ]
    return CooperationAnswer(lease_ms=outcome.lease_ms, assigned=assigned)


def _response(outcome: ConsumerHeartbeatAnswer | KafkaError) -> ConsumerGroupHeartbeatResponse:
    if isinstance(outcome, KafkaError):
        return ConsumerGroupHeartbeatResponse(
            error_code=outcome.code, error_message=outcome.message
        )
    assignment = None
    if outcome.assignment is not None:
        whole = whole_partitions_of(outcome.assignment)
        assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=[unit.partition for unit in units])
                for topic_id, units in groupby(whole, key=attrgetter("topic_id"))
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=outcome.error,
        error_message=outcome.error_message,
        member_id=outcome.member_id,
        member_epoch=outcome.member_epoch,
        heartbeat_interval_ms=outcome.heartbeat_interval_ms,
        assignment=assignment,
        cooperation=_cooperation(outcome) if outcome.shares else None,
    )


ROUTE = route(CONSUMER_GROUP_HEARTBEAT, "0-1", handle)
