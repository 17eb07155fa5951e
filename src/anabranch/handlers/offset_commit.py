"""OffsetCommit (8), versions 0-10: remember how far a group has read.

Version notes: 1 generation and member; 2-4 a retention of the client's own; 6 leader epochs
(KIP-320); 7 static members (KIP-345); 8 flexible; 9 member epochs (KIP-848); 10 topic ids.
Version 0 wrote to ZooKeeper in Kafka; here it is a commit by nobody in particular, like version 1
with generation -1. A partition that does not exist is refused for itself; the rest is committed.

A tagged field of our own (10000), on a partition from version 9 on, says record by record what is
done (see `individual_commits`). Such partitions and plain ones can be in one request; they are two
decisions, the plain ones first.

Another one (10001) decides about records that are not tried again (see `record_decisions`). It
needs no member, and a partition that has it commits nothing.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.topics import Topic
from anabranch.coordinator.cooperative.commands import PartitionAcks, TakeAcks
from anabranch.coordinator.group.commands import CommitAnswer, CommitOffsets, OffsetToCommit
from anabranch.handlers import record_decisions
from anabranch.handlers.group_answers import answer, gather
from anabranch.handlers.individual_commits import answer_acks, read_acks, refuse
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_FIRST_WITH_GROUP_ID_NOT_FOUND = 9
_FIRST_WITH_MEMBER_EPOCHS = 9
_FIRST_WITH_TOPIC_IDS = 10


def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Deferred[OffsetCommitResponse]:
    response = OffsetCommitResponse()
    offsets: list[OffsetToCommit] = []
    waiting: list[OffsetCommitResponsePartition] = []
    acks: list[PartitionAcks] = []
    waiting_acks: list[OffsetCommitResponsePartition] = []
    parts: list[Deferred[None] | None] = []
    for asked in request.topics:
        topic, refusal = _topic(broker, context.version, asked)
        answers = []
        for partition in asked.partitions:
            answered = OffsetCommitResponsePartition(partition_index=partition.partition_index)
            answers.append(answered)
            if topic is None or not topic.has_partition(partition.partition_index):
                code = refusal if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                _refuse_missing(answered, partition, code)
            elif partition.decisions is not None:
                parts.append(_decide(broker, request.group_id, topic, partition, answered))
            elif partition.individual is None:
                waiting.append(answered)
                offsets.append(_offset_to_commit(topic, partition))
            else:
                try:
                    acks.append(_acks(broker, context, request, topic, partition))
                    waiting_acks.append(answered)
                except KafkaError as error:
                    refuse(answered, error)
        response.topics.append(
            OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=answers)
        )
    # Where nothing is left to commit, who asks does not matter.
    if offsets:
        command = _command(context, request, tuple(offsets))
        parts.append(answer(broker, request.group_id, command, lambda o: _answer(waiting, o)))
    if acks:
        take = _take_acks(request, tuple(acks))
        parts.append(answer(broker, request.group_id, take, lambda o: answer_acks(waiting_acks, o)))
    outcome: OffsetCommitResponse | Deferred[OffsetCommitResponse]
    outcome = gather(parts, lambda _: response)
    return outcome


def _refuse_missing(
    answered: OffsetCommitResponsePartition,
    partition: OffsetCommitRequestPartition,
    code: ErrorCode,
) -> None:
    if partition.decisions is not None:
        record_decisions.refuse(answered, KafkaError(code, "There is no such partition."))
    elif partition.individual is None:
        answered.error_code = code
    else:
        refuse(answered, KafkaError(code, "There is no such partition."))


def _offset_to_commit(topic: Topic, partition: OffsetCommitRequestPartition) -> OffsetToCommit:
    return OffsetToCommit(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata,
    )


def _answer(
    waiting: list[OffsetCommitResponsePartition], outcome: CommitAnswer | KafkaError
) -> None:
    if isinstance(outcome, KafkaError):
        codes = [outcome.code] * len(waiting)
    elif outcome.error:
        codes = [outcome.error] * len(waiting)
    else:
        codes = list(outcome.errors)
    for partition, code in zip(waiting, codes, strict=True):
        partition.error_code = code


def _decide(
    broker: Broker,
    group_id: str,
    topic: Topic,
    partition: OffsetCommitRequestPartition,
    answered: OffsetCommitResponsePartition,
) -> Deferred[None] | None:
    try:
        if partition.decisions is None or partition.individual is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Decide about a partition, or commit for it, not both."
            )
        return record_decisions.decide(
            broker, group_id, topic, partition.partition_index, partition.decisions, answered
        )
    except KafkaError as error:
        record_decisions.refuse(answered, error)
        return None


def _acks(
    broker: Broker,
    context: RequestContext,
    request: OffsetCommitRequest,
    topic: Topic,
    partition: OffsetCommitRequestPartition,
) -> PartitionAcks:
    if context.version < _FIRST_WITH_MEMBER_EPOCHS or partition.individual is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "Members have epochs from version 9 on.")
    return read_acks(broker, request, topic, partition, partition.individual)


def _take_acks(request: OffsetCommitRequest, acks: tuple[PartitionAcks, ...]) -> TakeAcks:
    return TakeAcks(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.generation_id_or_member_epoch,
        partitions=acks,
    )


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
