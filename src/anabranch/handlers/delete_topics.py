"""DeleteTopics (20), versions 1-6: remove topics by name or id.

Version notes: 3 says TOPIC_DELETION_DISABLED, which older versions know as INVALID_REQUEST;
5 error messages; 6 topics by name or id (KIP-516), one of the two for each.

A topic that has branch topics goes only after them, or with them in one request in any order.
"""

from collections import Counter

from anabranch.broker.broker import Broker
from anabranch.broker.topics import Topic
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.topics import format_topic_id
from anabranch.wire.messages.delete_topics import (
    DELETE_TOPICS,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from anabranch.wire.schema import ZERO_UUID

_FIRST_WITH_IDS = 6
_FIRST_WITH_DISABLED = 3

# How often each (name, topic id) is asked for.
_Counts = Counter[tuple[str | None, bytes]]


def handle(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    asked = request.topics
    if context.version < _FIRST_WITH_IDS:
        asked = [DeleteTopicState(name=name) for name in request.topic_names]
    if not broker.get_bool("delete.topic.enable"):
        is_known = context.version >= _FIRST_WITH_DISABLED
        disabled = KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST,
            "Topics cannot be deleted because delete.topic.enable is false.",
        )
        return DeleteTopicsResponse(responses=[_refused(one, disabled) for one in asked])
    # What is there twice is answered once, as Kafka does.
    counts = Counter((one.name, one.topic_id) for one in asked)
    results = {
        key: _delete(broker, DeleteTopicState(name=key[0], topic_id=key[1]), counts)
        for key in sorted(counts, key=lambda key: not _is_branch_topic(broker, *key))
    }
    return DeleteTopicsResponse(
        responses=[result for key in counts if (result := results[key]) is not None]
    )


def _is_branch_topic(broker: Broker, name: str | None, topic_id: bytes) -> bool:
    topic = broker.topics.get_by_id(topic_id) if name is None else broker.topics.get(name)
    return topic is not None and topic.source is not None


def _delete(broker: Broker, one: DeleteTopicState, counts: _Counts) -> DeletableTopicResult | None:
    """Delete one topic; None when its answer is that of another mention of the same topic."""
    try:
        _check_naming(one)
        if counts[one.name, one.topic_id] > 1:
            what = "id" if one.name is None else "name"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
        topic = _find(broker, one)
        if counts[topic.name, ZERO_UUID] and counts[None, topic.topic_id]:
            if one.name is None:
                return None
            one = DeleteTopicState(name=topic.name, topic_id=topic.topic_id)
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "The provided topic name maps to an ID that was already supplied.",
            )
        if topic.is_internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{topic.name} keeps the state of this broker's groups and cannot be deleted. "
                "Delete the groups instead.",
            )
        broker.delete_topic(topic)
    except KafkaError as error:
        return _refused(one, error)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)


def _check_naming(one: DeleteTopicState) -> None:
    if one.name is None and one.topic_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if one.name is not None and one.topic_id != ZERO_UUID:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        )


def _find(broker: Broker, one: DeleteTopicState) -> Topic:
    if one.name is None:
        topic = broker.topics.get_by_id(one.topic_id)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"There is no topic with id {format_topic_id(one.topic_id)}.",
            )
        return topic
    topic = broker.topics.get(one.name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{one.name[:249]}'."
        )
    return topic


def _refused(one: DeleteTopicState, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=one.name, topic_id=one.topic_id, error_code=error.code, error_message=error.message
    )


ROUTE = route(DELETE_TOPICS, "1-6", handle)
