"""AddPartitionsToTxn (key 24): partitions that a transaction is about to write to (KIP-98).

1 responses leave before throttling (KIP-219), 2 PRODUCER_FENCED may be answered (KIP-588), 3
flexible, 4 brokers ask about several transactions at once, also only whether partitions are in them
(KIP-890), 5 TRANSACTION_ABORTABLE may be answered. Clients use versions up to 3.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int16, Int32, Int64, String, at, struct


@struct
class AddPartitionsToTxnTopic:
    name: String = at("0+")
    partitions: list[Int32] = at("0+")


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: String = at("4+")
    producer_id: Int64 = at("4+")
    producer_epoch: Int16 = at("4+")
    verify_only: Bool = at("4+")
    topics: list[AddPartitionsToTxnTopic] = at("4+")


@struct
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = at("4+")
    v3_and_below_transactional_id: String = at("0-3")
    v3_and_below_producer_id: Int64 = at("0-3")
    v3_and_below_producer_epoch: Int16 = at("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = at("0-3")


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: Int32 = at("0+")
    partition_error_code: Int16 = at("0+")


@struct
class AddPartitionsToTxnTopicResult:
    name: String = at("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = at("0+")


@struct
class AddPartitionsToTxnResult:
    transactional_id: String = at("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = at("4+")


@struct
class AddPartitionsToTxnResponse:
    throttle_time_ms: Int32 = at("0+", ignorable=True)
    error_code: Int16 = at("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = at("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = at("0-3")


ADD_PARTITIONS_TO_TXN = api(
    24,
    "AddPartitionsToTxn",
    request=AddPartitionsToTxnRequest,
    response=AddPartitionsToTxnResponse,
    versions="0-5",
    flexible="3+",
)
