"""DescribeTransactions (key 65): what transactions are doing (KIP-664).

Tags of our own ask for the last batches of sinks, and whether a transaction is prepared for one:
see `sink_batches`.
"""

from anabranch.wire.api import api
from anabranch.wire.messages.sink_batches import PreparedTxn, SinksAnswer, SinksQuestion
from anabranch.wire.schema import Int16, Int32, Int64, String, at, struct


@struct
class DescribeTransactionsRequest:
    transactional_ids: list[String] = at("0+")
    sinks: SinksQuestion | None = at("0+", tag=10_000, nullable="none", default=None)


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
    prepared: PreparedTxn | None = at("0+", tag=10_000, nullable="none", default=None)


@struct
class DescribeTransactionsResponse:
    throttle_time_ms: Int32 = at("0+")
    transaction_states: list[DescribedTransactionState] = at("0+")
    sinks: SinksAnswer | None = at("0+", tag=10_000, nullable="none", default=None)


DESCRIBE_TRANSACTIONS = api(
    65,
    "DescribeTransactions",
    request=DescribeTransactionsRequest,
    response=DescribeTransactionsResponse,
    versions="0",
    flexible="0+",
)
