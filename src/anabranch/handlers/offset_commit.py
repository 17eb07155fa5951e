"""OffsetCommit (8), versions 0-10: remember how far a group has read.

Version notes: 1 generation and member; 2-4 a retention of the client's own; 6 leader epochs
(KIP-320); 7 static members (KIP-345); 8 flexible; 9 member epochs (KIP-848); 10 topic ids.
Version 0 wrote to ZooKeeper in Kafka; here it is a commit by nobody in particular, like version 1
with generation -1. A partition that does not exist is refused for itself; the rest is committed.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.topics import Topic
from anabranch.coordinator.group.commands import CommitAnswer, CommitOffsets, OffsetToCommit
from anabranch.handlers.group_answers import answer
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_FIRST_WITH_GROUP_ID_NOT_FOUND = 9
_FIRST_WITH_TOPIC_IDS = 10


def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Deferred[OffsetCommitResponse]:
    response = OffsetCommitResponse()
    offsets: list[OffsetToCommit] = []
    waiting: list[OffsetCommitResponsePartition] = []
    for asked in request.topics:
        topic, refusal = _topic(broker, context.version, asked)
        answers = []
        for partition in asked.partitions:
            answered = OffsetCommitResponsePartition(
                partition_index=partition.partition_index, error_code=refusal
            )
            answers.append(answered)
            if topic is None:
                continue
            if not topic.has_partition(partition.partition_index):
                answered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            waiting.append(answered)
            offsets.append(
                OffsetToCommit(
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partition=partition.partition_index,
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata,
                )
            )
        response.topics.append(
            OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=answers)
        )
    if not offsets:
        return response  # nothing is left to commit, and who asks does not matter

    def respond(outcome: CommitAnswer | KafkaError) -> OffsetCommitResponse:
        if isinstance(outcome, KafkaError):
            codes = [outcome.code] * len(waiting)
        elif outcome.error:
            codes = [outcome.error] * len(waiting)
        else:
            codes = list(outcome.errors)
        for partition, code in zip(waiting, codes, strict=True):
            partition.error_code = code
        return response

    command = _command(context, request, tuple(offsets))
    return answer(broker, request.group_id, command, respond)


def _topic(
    broker: Broker, version: int, asked: OffsetCommitRequestTopic
) -> tuple[Topic | None, ErrorCode]:
    """The topic that is committed for, or why there is none."""
    if version >= _FIRST_WITH_TOPIC_IDS:
        return broker.topics.get_by_id(asked.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    return broker.topics.get(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _command(
    context: RequestContext, request: OffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
) -> CommitOffsets:
    return CommitOffsets(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id_or_member_epoch,
        retention_ms=request.retention_time_ms,
        knows_group_id_not_found=context.version >= _FIRST_WITH_GROUP_ID_NOT_FOUND,
        offsets=offsets,
    )


ROUTE = route(OFFSET_COMMIT, "0-10", handle)
