"""TxnOffsetCommit (28), versions 0-6: commit offsets of a group with a transaction.

Version notes: 2 leader epochs (KIP-320); 3 the consumer is named, so that it is fenced with its
group (KIP-447); 4 TRANSACTION_ABORTABLE; 5 the group need not have been added to the transaction
before (KIP-890); 6 topic ids, and member epochs have errors of their own (KIP-1319). A partition
that does not exist is refused for itself; the rest is committed.

Whether the transaction may have offsets of the group is asked of the transaction coordinator, as
for a produce (see `transactional_produce`), and only the first time or once it is prepared. From
version 5 on it adds them for the client; an older client has added them, and they are taken only if
it has: a late request would open a transaction that nobody ends.

A tagged field of our own (10000), on a partition from version 3 on, says record by record what is
done (see `individual_commits`): it counts when the transaction is committed. The member is named by
its epoch, as the generation. Failures have no part in a transaction, and are refused here; they go
by OffsetCommit. The answer may have to wait for other members (`coop.txn.order`). Such partitions
and plain ones can be in one request; they are two decisions, the plain ones first.

Errors are told as clients of each version know them: before version 5 no commit is expected to find
its transaction busy, and before version 2 the coordinator that is loading is one that is not there.
"""

from dataclasses import dataclass, field

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.topics import Topic
from anabranch.config.transaction_settings import PARTITION_VERIFICATION
from anabranch.coordinator.cooperative.commands import AcksAnswer, PartitionAcks, TakeAcks
from anabranch.coordinator.group.commands import CommitAnswer, CommitTxnOffsets, OffsetToCommit
from anabranch.coordinator.transaction.commands import (
    AddPartitionsToTxn,
    PartitionsAnswer,
    VerifyPartitions,
)
from anabranch.coordinator.transaction.state import TransactionVersion
from anabranch.handlers import group_answers, transaction_answers
from anabranch.handlers.individual_commits import (
    IndividualCommitError,
    answer_acks,
    read_acks,
    refuse,
)
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_FIRST_WITH_LOAD_IN_PROGRESS = 2
_FIRST_WITH_ABORTABLE = 4
_FIRST_WITH_ADDING = 5
_FIRST_WITH_TOPIC_IDS = 6
_FIRST_WITH_MEMBER_EPOCHS = 6

Outcome = CommitAnswer | KafkaError


@dataclass(slots=True)
class _Commit:
    """What a request wants committed, and the answers that wait for it, in the same order."""

    version: int
    request: TxnOffsetCommitRequest
    response: TxnOffsetCommitResponse = field(default_factory=TxnOffsetCommitResponse)
    offsets: list[OffsetToCommit] = field(default_factory=list)
    waiting: list[TxnOffsetCommitResponsePartition] = field(default_factory=list)
    acks: list[PartitionAcks] = field(default_factory=list)
    waiting_acks: list[TxnOffsetCommitResponsePartition] = field(default_factory=list)

    def refused(self, code: ErrorCode) -> TxnOffsetCommitResponse:
        """The response when nothing of it is taken."""
        error = KafkaError(code, "The transaction does not take the offsets.")
        self.answer_offsets(error)
        self.answer_acks(error)
        return self.response

    def answer_offsets(self, outcome: Outcome) -> None:
        codes = _codes(outcome, len(self.waiting))
        for answered, code in zip(self.waiting, codes, strict=True):
            answered.error_code = _told(code, self.version)

    def answer_acks(self, outcome: AcksAnswer | KafkaError) -> None:
        answer_acks(self.waiting_acks, outcome)
        for answered in self.waiting_acks:
            answered.error_code = _told(ErrorCode(answered.error_code), self.version)


def handle(
    broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]:
    commit = _Commit(context.version, request)
    for asked in request.topics:
        topic = _topic(broker, context.version, asked)
        answers = []
        for partition in asked.partitions:
            answered = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
            answers.append(answered)
            _read(broker, commit, topic, partition, answered)
        commit.response.topics.append(
            TxnOffsetCommitResponseTopic(
                name=asked.name, topic_id=asked.topic_id, partitions=answers
            )
        )
    if not commit.offsets and not commit.acks:
        return commit.response
    return _commit(broker, commit)


def _topic(broker: Broker, version: int, asked: TxnOffsetCommitRequestTopic) -> Topic | None:
    if version >= _FIRST_WITH_TOPIC_IDS:
        return broker.topics.get_by_id(asked.topic_id)
    return broker.topics.get(asked.name)


def _read(
    broker: Broker,
    commit: _Commit,
    topic: Topic | None,
    partition: TxnOffsetCommitRequestPartition,
    answered: TxnOffsetCommitResponsePartition,
) -> None:
    """Take what a partition wants to the rest, or answer why not."""
    if topic is None or not topic.has_partition(partition.partition_index):
        is_unknown_id = topic is None and commit.version >= _FIRST_WITH_TOPIC_IDS
        code = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition.individual is None:
            answered.error_code = code
        else:
            refuse(answered, KafkaError(code, "There is no such partition."))
    elif partition.individual is None:
        commit.waiting.append(answered)
        commit.offsets.append(_offset_to_commit(topic, partition))
    else:
        try:
            if partition.individual.failures:
                raise IndividualCommitError(
                    ErrorCode.INVALID_REQUEST,
                    "Failures have no part in a transaction. Send them with OffsetCommit.",
                )
            acks = read_acks(broker, commit.request, topic, partition, partition.individual)
            commit.acks.append(acks)
            commit.waiting_acks.append(answered)
        except KafkaError as error:
            refuse(answered, error)


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
    broker: Broker, commit: _Commit
) -> TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]:
    """Let all of it be pending, if it may be in the transaction."""
    request = commit.request

    def go_on(code: ErrorCode) -> TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]:
        if code is not ErrorCode.NONE:
            return commit.refused(code)
        return _submit(broker, commit)

    if not request.group_id:
        return go_on(ErrorCode.INVALID_GROUP_ID)
    asked = _ask_coordinator(broker, commit.version, request)
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


def _submit(
    broker: Broker, commit: _Commit
) -> TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]:
    request = commit.request
    parts: list[Deferred[None] | None] = []
    if commit.offsets:
        offsets = CommitTxnOffsets(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
            offsets=tuple(commit.offsets),
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            knows_member_epochs=commit.version >= _FIRST_WITH_MEMBER_EPOCHS,
        )
        parts.append(group_answers.answer(broker, request.group_id, offsets, commit.answer_offsets))
    if commit.acks:
        waiter = broker.groups.new_waiter()
        acks = TakeAcks(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.generation_id,
            partitions=tuple(commit.acks),
            producer=(request.producer_id, request.producer_epoch),
            waiter=waiter,
            wait_until_ms=broker.transactions.patience_ms(request.transactional_id),
        )
        parts.append(
            group_answers.answer(broker, request.group_id, acks, commit.answer_acks, waiter)
        )
    outcome: TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]
    outcome = group_answers.gather(parts, lambda _: commit.response)
    return outcome


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


ROUTE = route(TXN_OFFSET_COMMIT, "0-6", handle)
