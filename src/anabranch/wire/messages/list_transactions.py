"""ListTransactions (key 66): the transactions that a broker coordinates (KIP-664).

1 those that run for longer than some time (KIP-994), 2 those whose id matches a pattern (KIP-1152).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, Int64, String, at, struct


@struct
class ListTransactionsRequest:
    state_filters: list[String] = at("0+")
    producer_id_filters: list[Int64] = at("0+")
    duration_filter: Int64 = at("1+", default=-1)
    transactional_id_pattern: String | None = at("2+", default=None)


@struct
class ListedTransactionState:
    transactional_id: String = at("0+")
    producer_id: Int64 = at("0+")
    transaction_state: String = at("0+")


@struct
class ListTransactionsResponse:
    throttle_time_ms: Int32 = at("0+")
    error_code: Int16 = at("0+")
    unknown_state_filters: list[String] = at("0+")
    transaction_states: list[ListedTransactionState] = at("0+")


LIST_TRANSACTIONS = api(
    66,
    "ListTransactions",
    request=ListTransactionsRequest,
    response=ListTransactionsResponse,
    versions="0-2",
    flexible="0+",
)
