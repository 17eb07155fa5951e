"""DescribeTransactions (key 65): what transactions are doing (KIP-664)."""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, Int64, String, at, struct


@struct
class DescribeTransactionsRequest:
    transactional_ids: list[String] = at("0+")


@struct
class DescribedTransactionTopic:
    topic: String = at("0+")
    partitions: list[Int32] = at("0+")


@struct
class DescribedTransactionState:
    error_code: Int16 = at("0+")
    transactional_id: String = at("0+")
    transaction_state: String = at("0+")
    transaction_timeout_ms: Int32 = at("0+")
    transaction_start_time_ms: Int64 = at("0+")
    producer_id: Int64 = at("0+")
    producer_epoch: Int16 = at("0+")
    topics: list[DescribedTransactionTopic] = at("0+")


@struct
class DescribeTransactionsResponse:
    throttle_time_ms: Int32 = at("0+")
    transaction_states: list[DescribedTransactionState] = at("0+")


DESCRIBE_TRANSACTIONS = api(
    65,
    "DescribeTransactions",
    request=DescribeTransactionsRequest,
    response=DescribeTransactionsResponse,
    versions="0",
    flexible="0+",
)
