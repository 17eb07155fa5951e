"""OffsetFetch (9), versions 0-10: how far groups have read.

Version notes: 2 null topics mean all, and an error of the group as a whole; 5 leader epochs; 7
require_stable (KIP-447): where an open transaction may yet change what is committed, that is
UNSTABLE_OFFSET_COMMIT; 8 many groups (KIP-709); 9 member epochs (KIP-848); 10 topic ids. What was
never committed is offset -1 without an error, also for a group that does not exist; so is what was
committed for a former topic of the same name. The empty group id is one like any other: clients
from before groups commit under it.

A tagged field of our own (10000), from version 8 on, asks how far groups are with the sources of
branch topics: it is answered later, when that is counted, and only to who asks. What cannot be told
is an error in that answer and changes nothing of the rest.

Another one (10001) asks for what groups committed record by record: then every partition is
answered with its ranges, their owners, and records that failed; and null topics also mean those of
which members have done something, but not yet all up to some offset.
"""

from collections.abc import Collection, Mapping

from anabranch.broker.branch_survey import SourceProgress
from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.consumer_offsets import check_fetch
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.offsets import committed_offset
from anabranch.handlers.group_answers import gather
from anabranch.handlers.individual_commits import (
    GroupView,
    individual_progress,
    view_group,
)
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.offset_fetch import (
    NO_OFFSET,
    OFFSET_FETCH,
    BranchProgressAnswer,
    BranchProgressPartition,
    BranchProgressQuestion,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    PlannedRange,
)
from anabranch.wire.schema import ZERO_UUID

_FIRST_WITH_GROUP_ERROR = 2
_FIRST_WITH_MANY_GROUPS = 8
_FIRST_WITH_TOPIC_IDS = 10
_NEVER_COMMITTED = CommittedOffset(offset=NO_OFFSET)

Committed = Mapping[tuple[str, int], CommittedOffset]
# Partitions whose committed offset is not certain.
Unstable = Collection[tuple[str, int]]


def handle(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Deferred[OffsetFetchResponse]:
    if context.version >= _FIRST_WITH_MANY_GROUPS:
        response = OffsetFetchResponse(
            groups=[_group(broker, context.version, group, request) for group in request.groups]
        )
        if request.branch_progress is None:
            return response
        return _with_branch_progress(broker, response, request.branch_progress)
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes)
            for t in request.topics
        ]
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    return _one_group(_group(broker, context.version, asked, request))


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
    broker: Broker, version: int, asked: OffsetFetchRequestGroup, request: OffsetFetchRequest
) -> OffsetFetchResponseGroup:
    answer = OffsetFetchResponseGroup(group_id=asked.group_id)
    try:
        _check_member(broker, asked)
        committed = broker.groups.offsets(asked.group_id)
        unstable: Unstable = ()
        if request.require_stable:
            unstable = broker.groups.pending_offsets(asked.group_id)
        view = view_group(broker, asked.group_id) if request.with_individual else None
    except KafkaError as refusal:
        answer.error_code = refusal.code
        if version < _FIRST_WITH_GROUP_ERROR:
            # These versions have no place for it but the partitions.
            answer.topics = [_refused(topic, refusal.code) for topic in asked.topics or ()]
        return answer
    uses_ids = version >= _FIRST_WITH_TOPIC_IDS
    topics = asked.topics
    if topics is None:
        topics = _all_topics(broker, committed, uses_ids)
        if view is not None:
            topics += _begun_topics(broker, view, topics)
    answer.topics = [_answer(broker, topic, committed, unstable, uses_ids) for topic in topics]
    if view is not None:
        for topic in answer.topics:
            _add_individual(broker, view, topic, uses_ids)
    return answer


def _add_individual(
    broker: Broker, view: GroupView, answered: OffsetFetchResponseTopics, uses_ids: bool
) -> None:
    topics = broker.topics
    topic = topics.get_by_id(answered.topic_id) if uses_ids else topics.get(answered.name)
    now_ms = broker.now_ms()
    for partition in answered.partitions:
        partition.individual = individual_progress(
            view, topic, partition.partition_index, partition.committed_offset, now_ms
        )


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


def _begun_topics(
    broker: Broker, view: GroupView, listed: list[OffsetFetchRequestTopics]
) -> list[OffsetFetchRequestTopics]:
    """What members have begun, and is not so far that there is a committed offset."""
    known = {(topic.name, index) for topic in listed for index in topic.partition_indexes}
    topics: dict[str, OffsetFetchRequestTopics] = {}
    for topic_id, index in sorted(view.progress):
        topic = broker.topics.get_by_id(topic_id)
        if topic is not None and (topic.name, index) not in known:
            asked = OffsetFetchRequestTopics(name=topic.name, topic_id=topic_id)
            topics.setdefault(topic.name, asked).partition_indexes.append(index)
    return list(topics.values())


def _answer(
    broker: Broker,
    asked: OffsetFetchRequestTopics,
    committed: Committed,
    unstable: Unstable,
    uses_ids: bool,
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
        is_stable = (name, index) not in unstable
        offset = committed_offset(committed, name, topic_id, index) if is_stable else None
        offset = offset or _NEVER_COMMITTED
        partitions.append(
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=ErrorCode.NONE if is_stable else ErrorCode.UNSTABLE_OFFSET_COMMIT,
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


# Branch topics ----------------------------------------------------------------------------------


def _with_branch_progress(
    broker: Broker, response: OffsetFetchResponse, question: BranchProgressQuestion
) -> OffsetFetchResponse | Deferred[OffsetFetchResponse]:
    """The response, as soon as it is known how far its groups are."""
    groups = [group for group in response.groups if not group.error_code]
    answers = [_branch_progress(broker, group.group_id, question) for group in groups]

    def respond(found: list[BranchProgressAnswer]) -> OffsetFetchResponse:
        for group, answer in zip(groups, found, strict=True):
            group.branch_progress = answer
        return response

    outcome: OffsetFetchResponse | Deferred[OffsetFetchResponse] = gather(answers, respond)
    return outcome


def _branch_progress(
    broker: Broker, group_id: str, question: BranchProgressQuestion
) -> BranchProgressAnswer | Deferred[BranchProgressAnswer]:
    progress = broker.groups.branch_progress
    try:
        if question.planned_ranges:
            if len(question.topics) != 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "A plan is for one topic. Name it.")
            found = progress.plan(group_id, question.topics[0], question.planned_ranges)
        else:
            found = progress.of_group(group_id, question.topics)
    except KafkaError as refusal:
        return _no_progress(refusal)
    answer: Deferred[BranchProgressAnswer] = Deferred()
    answer.on_cancel = found.cancel

    def fail(error: Exception) -> None:
        if isinstance(error, KafkaError):
            answer.complete(_no_progress(error))
        else:
            answer.fail(error)

    found.deliver_to(
        lambda rows: answer.complete(BranchProgressAnswer(partitions=[_row(r) for r in rows])), fail
    )
    return answer


def _no_progress(refusal: KafkaError) -> BranchProgressAnswer:
    return BranchProgressAnswer(error_code=refusal.code, error_message=refusal.message)


def _row(found: SourceProgress) -> BranchProgressPartition:
    subject, progress = found.subject, found.progress
    return BranchProgressPartition(
        topic=subject.topic.name,
        source_topic=subject.source.name,
        source_partition=subject.partition,
        ranges=len(progress.commits),
        committed_ranges=progress.committed_ranges,
        stable_offset=progress.stable_offset,
        log_start_offset=progress.log_start_offset,
        high_watermark=progress.high_watermark,
        unprocessed_records=progress.unprocessed_records,
        planned_ranges=[
            PlannedRange(start_offset=one.start_offset, replayed_records=one.replayed_records)
            for one in found.plan
        ],
    )


ROUTE = route(OFFSET_FETCH, "0-10", handle)
