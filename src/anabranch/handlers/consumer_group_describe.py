"""ConsumerGroupDescribe (69), versions 0-1: groups of KIP-848 with their members and epochs.

Version notes: 1 which protocol each member speaks (KIP-1099). Topics that are gone are left out of
assignments. A tagged field of our own (10000) has the partitions that are on their way from one
member to another, for those who ask for it by another tagged field. Where the protocol is turned
off (`group.coordinator.rebalance.protocols`) every group is UNSUPPORTED_VERSION, as in Kafka.
"""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from anabranch.broker.broker import Broker
from anabranch.config.group_config import serves_consumer_protocol
from anabranch.coordinator.group.consumer_describe import (
    DescribedConsumerGroup,
    DescribedConsumerMember,
    describe_consumer_group,
)
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.handlers.group_answers import PROTOCOL_IS_OFF
from anabranch.handlers.route import RequestContext, route
from anabranch.model.authorization import GROUP_OPERATIONS, operations_bits
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import Unit, hashes_of
from anabranch.wire.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    MEMBER_TYPE_CLASSIC,
    MEMBER_TYPE_CONSUMER,
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    Movement,
    TopicPartitions,
)


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    answers = []
    is_served = serves_consumer_protocol(broker.settings)
    for group_id in request.group_ids:
        try:
            if not is_served:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, PROTOCOL_IS_OFF)
            answer = _describe(broker, group_id)
            if not request.include_movements:
                answer.movements = []
        except KafkaError as error:
            answer = DescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message
            )
        if request.include_authorized_operations and not answer.error_code:
            answer.authorized_operations = operations_bits(GROUP_OPERATIONS)
        answers.append(answer)
    return ConsumerGroupDescribeResponse(groups=answers)


def _describe(broker: Broker, group_id: str) -> DescribedGroup:
    group = broker.groups.group(group_id)
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
    described = describe_consumer_group(group, broker.groups.environment(group_id))
    return DescribedGroup(
        group_id=group_id,
        group_state=described.state,
        group_epoch=described.group_epoch,
        assignment_epoch=described.target_epoch,
        assignor_name=described.assignor,
        members=[_member(broker, member) for member in described.members],
        movements=_movements(broker, described),
    )


def _member(broker: Broker, member: DescribedConsumerMember) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex or None,
        assignment=_assignment(broker, member.assignment),
        target_assignment=_assignment(broker, member.target),
        member_type=MEMBER_TYPE_CLASSIC if member.is_classic else MEMBER_TYPE_CONSUMER,
    )


def _assignment(broker: Broker, units: Iterable[Unit]) -> Assignment:
    topics = []
    for topic_id, of_topic in groupby(units, key=attrgetter("topic_id")):
        topic = broker.topics.get_by_id(topic_id)
        if topic is not None:
            # Of a partition that it shares a member may have several ranges.
            partitions = list(dict.fromkeys(unit.partition for unit in of_topic))
            topics.append(
                TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=partitions)
            )
    return Assignment(topic_partitions=topics)


def _movements(broker: Broker, group: DescribedConsumerGroup) -> list[Movement]:
    found = []
    for movement in group.movements:
        topic = broker.topics.get_by_id(movement.unit.topic_id)
        first_hash, last_hash = hashes_of(movement.unit.slots)
        found.append(
            Movement(
                topic_id=movement.unit.topic_id,
                topic_name=topic.name if topic is not None else "",
                partition=movement.unit.partition,
                first_hash=first_hash,
                last_hash=last_hash,
                from_member_id=movement.from_member_id or "",
                to_member_id=movement.to_member_id or "",
                state=movement.state,
                since_ms=movement.since_ms,
            )
        )
    return found


ROUTE = route(CONSUMER_GROUP_DESCRIBE, "0-1", handle)
