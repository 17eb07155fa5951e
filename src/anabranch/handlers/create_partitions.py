"""CreatePartitions (37), versions 0-3: give topics more partitions (KIP-195).

Versions differ only in their encoding. `count` is how many partitions the topic shall have
afterwards; records stay where they are, so a key may continue in another partition. The branch
topics of a topic grow with it, and only so.
"""

from collections import Counter

from anabranch.broker.branch_topics import check_can_grow, growth_with_branches
from anabranch.broker.broker import Broker
from anabranch.broker.partition_limits import check_request_size, check_room
from anabranch.handlers.replica_assignments import check_replicas
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def handle(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    counts = Counter(topic.name for topic in request.topics)
    refusal = _refusal(broker, request)
    # A name that is there twice is answered once, as Kafka does.
    asked = {topic.name: topic for topic in request.topics}
    results = []
    for name, topic in asked.items():
        result = CreatePartitionsTopicResult(name=name)
        try:
            if refusal is not None:
                raise refusal
            if counts[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _grow(broker, topic, validate_only=request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
    return CreatePartitionsResponse(results=results)


def _refusal(broker: Broker, request: CreatePartitionsRequest) -> KafkaError | None:
    """Why nothing of the request is done, if so: it asks for too many partitions."""
    additional = 0
    for asked in request.topics:
        topic = broker.topics.get(asked.name)
        if topic is not None:
            new = max(0, asked.count - len(topic.partitions))
            additional += growth_with_branches(topic, new)
    try:
        check_request_size(additional)
    except KafkaError as error:
        return error
    return None


def _grow(broker: Broker, asked: CreatePartitionsTopic, *, validate_only: bool) -> None:
    topic = broker.topics.get(asked.name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{asked.name[:249]}'."
        )
    if topic.is_internal:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"A group belongs to a partition of {topic.name} by their number, so that it cannot be "
            "changed any more.",
        )
    check_can_grow(topic)
    existing = len(topic.partitions)
    if asked.count == existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partition(s)."
        )
    if asked.count < existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {existing} partition(s); {asked.count} would "
            "not be an increase.",
        )
    additional = asked.count - existing
    if asked.assignments is not None:
        if len(asked.assignments) != additional:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {additional} additional partition(s), but "
                f"{len(asked.assignments)} assignment(s) were specified.",
            )
        for assignment in asked.assignments:
            check_replicas(broker, assignment.broker_ids)
    check_room(len(broker.engine.logs), additional)
    if not validate_only:
        broker.topics.grow(topic, asked.count, broker.now_ms())


ROUTE = route(CREATE_PARTITIONS, "0-3", handle)
