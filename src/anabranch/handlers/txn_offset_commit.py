"""TxnOffsetCommit (28), versions 0-5: commit offsets of a group with a transaction.

Version notes: 2 leader epochs (KIP-320); 3 the consumer is named, so that it is fenced with its
group (KIP-447); 4 TRANSACTION_ABORTABLE; 5 the group need not have been added to the transaction
before (KIP-890). A partition that does not exist is refused for itself; the rest is committed.

Whether the transaction may have offsets of the group is asked of the transaction coordinator, as
for a produce (see `transactional_produce`), and only the first time or once it is prepared. From
version 5 on it adds them for the client; an older client has added them, and they are taken only if
it has: a late request would open a transaction that nobody ends.

Errors are told as clients of each version know them: before version 5 no commit is expected to find
its transaction busy, and before version 2 the coordinator that is loading is one that is not there.
"""

from collections.abc import Callable

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.topics import Topic
from anabranch.config.transaction_settings import PARTITION_VERIFICATION
from anabranch.coordinator.group.commands import CommitAnswer, CommitTxnOffsets, OffsetToCommit
from anabranch.coordinator.transaction.commands import (
    AddPartitionsToTxn,
    PartitionsAnswer,
    VerifyPartitions,
)
from anabranch.coordinator.transaction.state import TransactionVersion
from anabranch.handlers import group_answers, transaction_answers
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_FIRST_WITH_LOAD_IN_PROGRESS = 2
_FIRST_WITH_ABORTABLE = 4
_FIRST_WITH_ADDING = 5

Outcome = CommitAnswer | KafkaError


def handle(
    broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]:
    response = TxnOffsetCommitResponse()
    offsets: list[OffsetToCommit] = []
    waiting: list[TxnOffsetCommitResponsePartition] = []
    for asked in request.topics:
        topic = broker.topics.get(asked.name)
        answers = []
        for partition in asked.partitions:
            answered = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
            answers.append(answered)
            if topic is None or not topic.has_partition(partition.partition_index):
                answered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                waiting.append(answered)
                offsets.append(_offset_to_commit(topic, partition))
        response.topics.append(TxnOffsetCommitResponseTopic(name=asked.name, partitions=answers))
    if not offsets:
        return response

    def respond(outcome: Outcome) -> TxnOffsetCommitResponse:
        for answered, code in zip(waiting, _codes(outcome, len(waiting)), strict=True):
            answered.error_code = _told(code, context.version)
        return response

    return _commit(broker, context.version, request, tuple(offsets), respond)


def _offset_to_commit(topic: Topic, partition: TxnOffsetCommitRequestPartition) -> OffsetToCommit:
    return OffsetToCommit(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata,
    )


def _commit(
    broker: Broker,
    version: int,
    request: TxnOffsetCommitRequest,
    offsets: tuple[OffsetToCommit, ...],
    respond: Callable[[Outcome], TxnOffsetCommitResponse],
) -> TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]:
    """Let the offsets be pending, if they may be in the transaction."""
    command = CommitTxnOffsets(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id,
        offsets=offsets,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )

    def go_on(code: ErrorCode) -> TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]:
        if code is not ErrorCode.NONE:
            return respond(KafkaError(code, "The transaction does not take the offsets."))
        return group_answers.answer(broker, request.group_id, command, respond)

    if not request.group_id:
        return go_on(ErrorCode.INVALID_GROUP_ID)
    asked = _ask_coordinator(broker, version, request)
    if not isinstance(asked, Deferred):
        return go_on(asked)
    answer: Deferred[TxnOffsetCommitResponse] = Deferred()

    def resume(code: ErrorCode) -> None:
        try:
            producer = (request.producer_id, request.producer_epoch)
            places = [broker.groups.offsets_partition(request.group_id)]
            if code is ErrorCode.NONE and not transaction_answers.is_still_open(
                broker, request.transactional_id, producer, places
            ):
                code = ErrorCode.CONCURRENT_TRANSACTIONS  # it is told the truth when it asks again
            outcome = go_on(code)
        except Exception as error:
            answer.fail(error)
            return
        if isinstance(outcome, Deferred):
            outcome.deliver_to(answer.complete, answer.fail)
        else:
            answer.complete(outcome)

    asked.deliver_to(resume, answer.fail)
    return answer


def _ask_coordinator(
    broker: Broker, version: int, request: TxnOffsetCommitRequest
) -> ErrorCode | Deferred[ErrorCode]:
    """Whether the transaction may have offsets of the group."""
    producer_id, producer_epoch = request.producer_id, request.producer_epoch
    try:
        partition = broker.groups.offsets_partition(request.group_id)
        is_in = broker.groups.is_in_transaction(request.group_id, producer_id, producer_epoch)
        is_prepared = broker.transactions.is_prepared(request.transactional_id)
        if is_in and not is_prepared:
            return ErrorCode.NONE
    except KafkaError as error:
        return error.code
    command: AddPartitionsToTxn | VerifyPartitions
    if version >= _FIRST_WITH_ADDING:
        command = AddPartitionsToTxn(
            transactional_id=request.transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=(partition,),
            transaction_version=TransactionVersion.TV_2,
        )
    elif is_prepared or broker.get_bool(PARTITION_VERIFICATION):
        command = VerifyPartitions(
            transactional_id=request.transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=(partition,),
        )
    else:
        return ErrorCode.NONE
    return transaction_answers.answer(broker, request.transactional_id, command, _error_of)


def _error_of(outcome: PartitionsAnswer | KafkaError) -> ErrorCode:
    if isinstance(outcome, KafkaError):
        return outcome.code
    return outcome.errors[0] if outcome.errors else outcome.error


def _codes(outcome: Outcome, count: int) -> list[ErrorCode]:
    if isinstance(outcome, KafkaError):
        return [outcome.code] * count
    if outcome.error is not ErrorCode.NONE:
        return [outcome.error] * count
    return list(outcome.errors)


def _told(code: ErrorCode, version: int) -> ErrorCode:
    """What a client of a version is told in place of an error that it does not know."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _FIRST_WITH_ADDING:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if is_loading and version < _FIRST_WITH_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


ROUTE = route(TXN_OFFSET_COMMIT, "0-5", handle)
