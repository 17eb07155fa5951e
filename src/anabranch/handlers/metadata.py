"""Metadata (3), versions 0-13: brokers, topics, partitions, leaders.

Version notes: 0 has no null list, its empty list means all topics; 4 lets the client forbid
auto-creation; 10 topic ids in the answer; 12 topics asked for by id.
"""

from dataclasses import dataclass

from anabranch.broker.broker import Broker
from anabranch.broker.topics import Topic
from anabranch.handlers.route import RequestContext, route
from anabranch.model.authorization import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, operations_bits
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.topics import check_topic_name
from anabranch.wire.messages.metadata import (
    METADATA,
    OPERATIONS_NOT_REQUESTED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from anabranch.wire.schema import ZERO_UUID

_FIRST_BY_ID = 12
_CREATED_PER_REQUEST_MAX = 100


@dataclass(slots=True)
class _Budget:
    """How many topics one request may still create by asking for them."""

    left: int = _CREATED_PER_REQUEST_MAX


def handle(broker: Broker, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    wants_all = request.topics is None or (context.version == 0 and not request.topics)
    if wants_all:
        topics = [_topic(broker, topic) for topic in broker.topics]
    else:
        asked_topics = request.topics or []
        if context.version < _FIRST_BY_ID and any(
            asked.topic_id != ZERO_UUID or asked.name is None for asked in asked_topics
        ):
            return _refused_request(asked_topics)
        budget = _Budget()
        # Asked for twice is answered once.
        unique = {
            asked.name if asked.topic_id == ZERO_UUID else asked.topic_id: asked
            for asked in asked_topics
        }
        topics = [_asked(broker, request, asked, budget) for asked in unique.values()]
    if request.include_topic_authorized_operations:
        for answer in topics:
            if not answer.error_code:
                answer.topic_authorized_operations = operations_bits(TOPIC_OPERATIONS)
    cluster_operations = OPERATIONS_NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        cluster_operations = operations_bits(CLUSTER_OPERATIONS)
    host, port = broker.endpoint(context.listener)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.node_id, host=host, port=port, rack=broker.rack)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        cluster_authorized_operations=cluster_operations,
    )


def _refused_request(asked_topics: list[MetadataRequestTopic]) -> MetadataResponse:
    """Kafka's answer to ids in versions that have the field but cannot use it: nothing but them."""
    return MetadataResponse(
        topics=[
            _refused(asked.name or "", asked.topic_id, ErrorCode.INVALID_REQUEST)
            for asked in asked_topics
        ]
    )


def _asked(
    broker: Broker,
    request: MetadataRequest,
    asked: MetadataRequestTopic,
    budget: _Budget,
) -> MetadataResponseTopic:
    """One topic that was asked for by name or by id."""
    if asked.topic_id != ZERO_UUID:
        by_id = broker.topics.get_by_id(asked.topic_id)
        if by_id is None:
            return _refused(None, asked.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return _topic(broker, by_id)
    name = asked.name or ""
    topic = broker.topics.get(name)
    if topic is None:
        try:
            check_topic_name(name)
            if not (request.allow_auto_topic_creation and broker.auto_creates_topics):
                return _refused(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if budget.left <= 0:
                # Creating a topic holds up everybody else; the client asks again for the rest.
                return _refused(name, ZERO_UUID, ErrorCode.LEADER_NOT_AVAILABLE)
            budget.left -= 1
            topic = broker.create_topic(name)
        except KafkaError as error:
            return _refused(name, ZERO_UUID, error.code)
    return _topic(broker, topic)


def _refused(name: str | None, topic_id: bytes, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)


def _topic(broker: Broker, topic: Topic) -> MetadataResponseTopic:
    replicas = [broker.node_id]
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                partition_index=partition.index,
                leader_id=broker.node_id,
                leader_epoch=partition.log.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
            for partition in topic.partitions
        ],
    )


ROUTE = route(METADATA, "0-13", handle)
