"""ListTransactions (66), versions 0-2: the transactional ids of this coordinator (KIP-664).

Version notes: 1 those that run for longer than some time (KIP-994); 2 those whose id matches a
pattern (KIP-1152).
"""

from anabranch.broker.broker import Broker
from anabranch.coordinator.transaction.describe import ListFilters, list_transactions
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import KafkaError
from anabranch.wire.messages.list_transactions import (
    LIST_TRANSACTIONS,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    filters = ListFilters(
        states=request.state_filters,
        producer_ids=request.producer_id_filters,
        duration_ms=request.duration_filter,
        transactional_id_pattern=request.transactional_id_pattern,
    )
    try:
        found = list_transactions(broker.transactions.all_transactions(), filters, broker.now_ms())
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(
        unknown_state_filters=list(found.unknown_states),
        transaction_states=[
            ListedTransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state,
            )
            for one in found.transactions
        ],
    )


ROUTE = route(LIST_TRANSACTIONS, "0-2", handle)
