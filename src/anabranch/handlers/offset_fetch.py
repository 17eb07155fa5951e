"""OffsetFetch (9), versions 0-10: how far groups have read.

Version notes: 2 null topics mean all; 5 leader epochs; 7 require_stable (KIP-447), which changes
nothing while there are no transactions; 8 many groups (KIP-709); 9 member epochs (KIP-848);
10 topic ids. What was never committed is offset -1 without an error, also for a group that does not
exist.
"""

from dataclasses import dataclass

from anabranch.broker.broker import Broker
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from anabranch.wire.schema import ZERO_UUID

_FIRST_WITH_MANY_GROUPS = 8
_FIRST_WITH_TOPIC_IDS = 10
_NEVER_COMMITTED = CommittedOffset(offset=-1)

Committed = dict[tuple[str, int], CommittedOffset]


@dataclass(slots=True)
class _Topic:
    """The topic of an answer: an id that nobody knows has an error instead of a name."""

    name: str
    topic_id: bytes
    error: ErrorCode = ErrorCode.NONE


def handle(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    uses_ids = context.version >= _FIRST_WITH_TOPIC_IDS
    if context.version >= _FIRST_WITH_MANY_GROUPS:
        return OffsetFetchResponse(
            groups=[_group(broker, group, uses_ids) for group in request.groups]
        )
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes)
            for t in request.topics
        ]
    one = _group(
        broker, OffsetFetchRequestGroup(group_id=request.group_id, topics=topics), uses_ids
    )
    return OffsetFetchResponse(
        error_code=one.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=p.partition_index,
                        committed_offset=p.committed_offset,
                        committed_leader_epoch=p.committed_leader_epoch,
                        metadata=p.metadata,
                        error_code=p.error_code or one.error_code,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in one.topics
        ],
    )


def _group(
    broker: Broker, asked: OffsetFetchRequestGroup, uses_ids: bool
) -> OffsetFetchResponseGroup:
    error = ErrorCode.NONE
    committed: Committed = {}
    try:
        if not asked.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
        committed = dict(broker.groups.offsets(asked.group_id))
    except KafkaError as refusal:
        error = refusal.code
    topics = asked.topics if asked.topics is not None else _all_topics(broker, committed, uses_ids)
    return OffsetFetchResponseGroup(
        group_id=asked.group_id,
        error_code=error,
        topics=[_answer(broker, topic, committed, uses_ids) for topic in topics],
    )


def _all_topics(
    broker: Broker, committed: Committed, uses_ids: bool
) -> list[OffsetFetchRequestTopics]:
    """Everything the group committed, in the form of a request for it."""
    indexes: dict[str, list[int]] = {}
    for name, partition in sorted(committed):
        indexes.setdefault(name, []).append(partition)
    topics = []
    for name, partitions in indexes.items():
        topic = broker.topics.get(name)
        topic_id = topic.topic_id if topic is not None else ZERO_UUID
        if uses_ids and topic is None:
            continue  # a topic that is gone has no id to be named by
        topics.append(
            OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=partitions)
        )
    return topics


def _answer(
    broker: Broker, asked: OffsetFetchRequestTopics, committed: Committed, uses_ids: bool
) -> OffsetFetchResponseTopics:
    topic = _Topic(asked.name, asked.topic_id)
    if uses_ids:
        known = broker.topics.get_by_id(asked.topic_id)
        if known is None:
            topic.error = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic.name = known.name
    partitions = []
    for index in asked.partition_indexes:
        offset = committed.get((topic.name, index), _NEVER_COMMITTED)
        is_of_other_topic = uses_ids and offset.topic_id not in (ZERO_UUID, asked.topic_id)
        if topic.error or is_of_other_topic:
            offset = _NEVER_COMMITTED
        partitions.append(
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=topic.error,
            )
        )
    return OffsetFetchResponseTopics(
        name=asked.name, topic_id=asked.topic_id, partitions=partitions
    )


ROUTE = route(OFFSET_FETCH, "0-10", handle)
