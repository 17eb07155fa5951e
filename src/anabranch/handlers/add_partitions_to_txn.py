"""AddPartitionsToTxn (24), versions 0-5: partitions that a transaction is about to write to.

Version notes: 2 a fenced producer is told PRODUCER_FENCED (KIP-588); 4 brokers add for several
transactions at once, or only ask whether partitions are in them (KIP-890). Clients use versions up
to 3, and those of Kafka 4 none: the broker adds what they produce to.

A request of a client is carried out whole or not at all: where one partition is refused, the others
are told OPERATION_NOT_ATTEMPTED.
"""

from collections.abc import Sequence
from typing import Any

from anabranch.broker.branch_topics import produce_refusal
from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.topics import INTERNAL_TOPICS
from anabranch.coordinator.transaction.commands import (
    AddPartitionsToTxn,
    PartitionsAnswer,
    VerifyPartitions,
)
from anabranch.coordinator.transaction.state import TopicPartition, TransactionVersion
from anabranch.handlers.group_answers import gather
from anabranch.handlers.route import RequestContext, route
from anabranch.handlers.transaction_answers import answer
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_FIRST_WITH_PRODUCER_FENCED = 2
_FIRST_OF_BROKERS = 4


def handle(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Deferred[AddPartitionsToTxnResponse]:
    if context.version < _FIRST_OF_BROKERS:
        return _add_for_client(broker, context, request)
    results = [_take(broker, transaction) for transaction in request.transactions]
    response: AddPartitionsToTxnResponse | Deferred[AddPartitionsToTxnResponse] = gather(
        results, lambda found: AddPartitionsToTxnResponse(results_by_transaction=found)
    )
    return response


def _add_for_client(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Deferred[AddPartitionsToTxnResponse]:
    topics = request.v3_and_below_topics
    places = _places(topics)
    refused = {place: code for place in places if (code := _refusal(broker, place))}
    if refused:
        codes = [refused.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED) for place in places]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, codes))
    command = AddPartitionsToTxn(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        partitions=places,
        transaction_version=TransactionVersion.TV_0,
        knows_producer_fenced=context.version >= _FIRST_WITH_PRODUCER_FENCED,
    )
    return answer(
        broker,
        command.transactional_id,
        command,
        lambda outcome: AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=_results(topics, _codes(outcome, len(places)))
        ),
    )


def _take(
    broker: Broker, transaction: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult | Deferred[AddPartitionsToTxnResult]:
    """One transaction of a broker's request."""
    topics = transaction.topics
    places = _places(topics)
    command: AddPartitionsToTxn | VerifyPartitions
    if transaction.verify_only:
        command = VerifyPartitions(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            partitions=places,
        )
    else:
        command = AddPartitionsToTxn(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            partitions=places,
            transaction_version=TransactionVersion.TV_2,
        )
    return answer(
        broker,
        transaction.transactional_id,
        command,
        lambda outcome: AddPartitionsToTxnResult(
            transactional_id=transaction.transactional_id,
            topic_results=_results(topics, _codes(outcome, len(places))),
        ),
    )


def _places(topics: Sequence[AddPartitionsToTxnTopic]) -> tuple[TopicPartition, ...]:
    return tuple((topic.name, index) for topic in topics for index in topic.partitions)


def _refusal(broker: Broker, place: TopicPartition) -> ErrorCode:
    """Why a client cannot write to a partition, if it cannot."""
    name, index = place
    if name in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        partition = broker.topics.partition(name, index)
    except KafkaError as error:
        return error.code
    if partition.branch is not None:
        return produce_refusal(broker.topics, name).code
    return ErrorCode.NONE


def _codes(outcome: PartitionsAnswer | KafkaError, count: int) -> list[ErrorCode]:
    """The error of each partition."""
    if isinstance(outcome, KafkaError):
        return [outcome.code] * count
    return list(outcome.errors) or [outcome.error] * count


def _results(
    topics: Sequence[AddPartitionsToTxnTopic], codes: Sequence[ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    rest: Any = iter(codes)
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=next(rest)
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


ROUTE = route(ADD_PARTITIONS_TO_TXN, "0-5", handle)
