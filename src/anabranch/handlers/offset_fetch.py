"""OffsetFetch (9), versions 0-10: how far groups have read.

Version notes: 2 null topics mean all, and an error of the group as a whole; 5 leader epochs;
7 require_stable (KIP-447), which changes nothing while there are no transactions; 8 many groups
(KIP-709); 9 member epochs (KIP-848); 10 topic ids. What was never committed is offset -1 without an
error, also for a group that does not exist; so is what was committed for a former topic of the same
name. The empty group id is one like any other: clients from before groups commit under it.
"""

from collections.abc import Mapping

from anabranch.broker.broker import Broker
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.consumer_offsets import check_fetch
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.offsets import committed_offset
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.offset_fetch import (
    NO_OFFSET,
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

_FIRST_WITH_GROUP_ERROR = 2
_FIRST_WITH_MANY_GROUPS = 8
_FIRST_WITH_TOPIC_IDS = 10
_NEVER_COMMITTED = CommittedOffset(offset=NO_OFFSET)

Committed = Mapping[tuple[str, int], CommittedOffset]


def handle(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    if context.version >= _FIRST_WITH_MANY_GROUPS:
        return OffsetFetchResponse(
            groups=[_group(broker, context.version, group) for group in request.groups]
        )
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes)
            for t in request.topics
        ]
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    return _one_group(_group(broker, context.version, asked))


def _one_group(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """The answer in the form of versions that know one group only."""
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=p.partition_index,
                        committed_offset=p.committed_offset,
                        committed_leader_epoch=p.committed_leader_epoch,
                        metadata=p.metadata,
                        error_code=p.error_code,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _group(
    broker: Broker, version: int, asked: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    answer = OffsetFetchResponseGroup(group_id=asked.group_id)
    try:
        _check_member(broker, asked)
        committed = broker.groups.offsets(asked.group_id)
    except KafkaError as refusal:
        answer.error_code = refusal.code
        if version < _FIRST_WITH_GROUP_ERROR:
            # These versions have no place for it but the partitions.
            answer.topics = [_refused(topic, refusal.code) for topic in asked.topics or ()]
        return answer
    uses_ids = version >= _FIRST_WITH_TOPIC_IDS
    topics = asked.topics if asked.topics is not None else _all_topics(broker, committed, uses_ids)
    answer.topics = [_answer(broker, topic, committed, uses_ids) for topic in topics]
    return answer


def _check_member(broker: Broker, asked: OffsetFetchRequestGroup) -> None:
    """Refuse who is not, or not any more, the member of a consumer group that it says it is."""
    group = broker.groups.group(asked.group_id)
    if isinstance(group, ConsumerGroup):
        code = check_fetch(group, asked.member_id, asked.member_epoch)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"Member {asked.member_id} of group {asked.group_id}.")


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
        if uses_ids and topic is None:
            continue  # a topic that is gone has no id to be named by
        topic_id = topic.topic_id if topic is not None else ZERO_UUID
        kept = [p for p in partitions if committed_offset(committed, name, topic_id, p)]
        if kept:
            topics.append(
                OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=kept)
            )
    return topics


def _answer(
    broker: Broker, asked: OffsetFetchRequestTopics, committed: Committed, uses_ids: bool
) -> OffsetFetchResponseTopics:
    if uses_ids:
        topic = broker.topics.get_by_id(asked.topic_id)
        if topic is None:
            return _refused(asked, ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        topic = broker.topics.get(asked.name)
    name, topic_id = asked.name, ZERO_UUID
    if topic is not None:
        name, topic_id = topic.name, topic.topic_id
    partitions = []
    for index in asked.partition_indexes:
        offset = committed_offset(committed, name, topic_id, index) or _NEVER_COMMITTED
        partitions.append(
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
            )
        )
    return OffsetFetchResponseTopics(
        name=asked.name, topic_id=asked.topic_id, partitions=partitions
    )


def _refused(asked: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
            )
            for index in asked.partition_indexes
        ],
    )


ROUTE = route(OFFSET_FETCH, "0-10", handle)
