"""AddOffsetsToTxn (key 25): a group whose offsets a transaction is about to commit (KIP-98).

1 responses leave before throttling (KIP-219), 2 PRODUCER_FENCED may be answered (KIP-588), 3
flexible, 4 TRANSACTION_ABORTABLE may be answered (KIP-890).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, Int64, String, at, struct


@struct
class AddOffsetsToTxnRequest:
    transactional_id: String = at("0+")
    producer_id: Int64 = at("0+")
    producer_epoch: Int16 = at("0+")
    group_id: String = at("0+")


@struct
class AddOffsetsToTxnResponse:
    throttle_time_ms: Int32 = at("0+")
    error_code: Int16 = at("0+")


ADD_OFFSETS_TO_TXN = api(
    25,
    "AddOffsetsToTxn",
    request=AddOffsetsToTxnRequest,
    response=AddOffsetsToTxnResponse,
    versions="0-4",
    flexible="3+",
)
