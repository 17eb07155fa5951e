"""EndTxn (key 26): commit or abort a transaction (KIP-98).

1 responses leave before throttling (KIP-219), 2 PRODUCER_FENCED may be answered (KIP-588), 3
flexible, 4 TRANSACTION_ABORTABLE may be answered (KIP-890), 5 every end brings the producer a new
epoch, and the response says which (KIP-890).

Tags of our own prepare a transaction for a batch of a sink, and commit such batches: see
`sink_batches`.
"""

from anabranch.wire.api import api
from anabranch.wire.messages.sink_batches import (
    PrepareTxn,
    PrepareTxnAnswer,
    SinkBatch,
    SinkBatchAnswer,
)
from anabranch.wire.schema import Bool, Int16, Int32, Int64, String, at, struct


@struct
class EndTxnRequest:
    transactional_id: String = at("0+")
    producer_id: Int64 = at("0+")
    producer_epoch: Int16 = at("0+")
    committed: Bool = at("0+")
    prepare: PrepareTxn | None = at("3+", tag=10_000, nullable="none", default=None)
    batch: SinkBatch | None = at("3+", tag=10_001, nullable="none", default=None)


@struct
class EndTxnResponse:
    throttle_time_ms: Int32 = at("0+")
    error_code: Int16 = at("0+")
    producer_id: Int64 = at("5+", default=-1, ignorable=True)
    producer_epoch: Int16 = at("5+", default=-1, ignorable=True)
    prepare: PrepareTxnAnswer | None = at("3+", tag=10_000, nullable="none", default=None)
    batch: SinkBatchAnswer | None = at("3+", tag=10_001, nullable="none", default=None)


END_TXN = api(
    26, "EndTxn", request=EndTxnRequest, response=EndTxnResponse, versions="0-5", flexible="3+"
)
