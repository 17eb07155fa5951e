"""InitProducerId (key 22): a producer id and epoch, for idempotence and transactions (KIP-98).

1 responses leave before throttling (KIP-219), 2 flexible, 3 a producer can ask to go on with its
id and epoch (KIP-360), 4 PRODUCER_FENCED may be answered (KIP-588), 5 TRANSACTION_ABORTABLE may be
answered (KIP-890), 6 two-phase commit: transactions that time does not end, and that another
producer may find and end (KIP-939; not stable in Kafka 4.3).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int16, Int32, Int64, String, at, struct


@struct
class InitProducerIdRequest:
    transactional_id: String | None = at("0+", default=None)
    transaction_timeout_ms: Int32 = at("0+")
    producer_id: Int64 = at("3+", default=-1)
    producer_epoch: Int16 = at("3+", default=-1)
    enable2_pc: Bool = at("6+")
    keep_prepared_txn: Bool = at("6+")


@struct
class InitProducerIdResponse:
    throttle_time_ms: Int32 = at("0+", ignorable=True)
    error_code: Int16 = at("0+")
    producer_id: Int64 = at("0+", default=-1)
    producer_epoch: Int16 = at("0+")
    ongoing_txn_producer_id: Int64 = at("6+", default=-1)
    ongoing_txn_producer_epoch: Int16 = at("6+", default=-1)


INIT_PRODUCER_ID = api(
    22,
    "InitProducerId",
    request=InitProducerIdRequest,
    response=InitProducerIdResponse,
    versions="0-6",
    flexible="2+",
)
