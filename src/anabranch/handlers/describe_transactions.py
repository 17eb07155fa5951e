"""DescribeTransactions (65), version 0: what transactions are doing, and where (KIP-664).

A tag of our own asks for the last batches of sinks too, and which transactions are prepared for
one: see `sink_batches`.
"""

from collections.abc import Iterable

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction.state import Preparation, TopicPartition
from anabranch.handlers.route import RequestContext, route
from anabranch.handlers.sink_batches import describe_sinks
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribedTransactionState,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from anabranch.wire.messages.sink_batches import PreparedTxn, SinksAnswer


def handle(
    broker: Broker, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse | Deferred[DescribeTransactionsResponse]:
    question = request.sinks

    def respond(sinks: SinksAnswer | None) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[
                _describe(broker, transactional_id, is_asked=question is not None)
                for transactional_id in request.transactional_ids
            ],
            sinks=sinks,
        )

    return respond(None) if question is None else describe_sinks(broker, question, respond)


def _describe(
    broker: Broker, transactional_id: str, *, is_asked: bool
) -> DescribedTransactionState:
    try:
        found = broker.transactions.describe(transactional_id)
        error = found.error
    except KafkaError as refusal:
        error = refusal.code
    if error is not ErrorCode.NONE:
        # Nothing else is known, and Kafka leaves the rest at zero then.
        return DescribedTransactionState(error_code=error, transactional_id=transactional_id)
    return DescribedTransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_timestamp_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=_by_topic(found.partitions),
        prepared=_prepared(found.preparation) if is_asked else None,
    )


def _prepared(preparation: Preparation | None) -> PreparedTxn | None:
    if preparation is None:
        return None
    return PreparedTxn(
        sink_id=preparation.sink_id,
        batch_id=preparation.batch_id,
        prepared_time_ms=preparation.prepared_ms,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[DescribedTransactionTopic]:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return [
        DescribedTransactionTopic(topic=name, partitions=indexes)
        for name, indexes in topics.items()
    ]


ROUTE = route(DESCRIBE_TRANSACTIONS, "0", handle)
