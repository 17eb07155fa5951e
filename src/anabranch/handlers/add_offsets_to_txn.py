"""AddOffsetsToTxn (25), versions 0-4: a transaction will commit offsets of a group.

Version notes: 2 a fenced producer is told PRODUCER_FENCED (KIP-588). What is added is the partition
of `__consumer_offsets` that the group belongs to; the offsets come with TxnOffsetCommit.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction.commands import AddOffsetsToTxn
from anabranch.handlers.route import RequestContext, route
from anabranch.handlers.transaction_answers import answer, error_of
from anabranch.model.errors import KafkaError
from anabranch.wire.messages.add_offsets_to_txn import (
    ADD_OFFSETS_TO_TXN,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_FIRST_WITH_PRODUCER_FENCED = 2


def handle(
    broker: Broker, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Deferred[AddOffsetsToTxnResponse]:
    try:
        offsets_partition = broker.groups.offsets_partition(request.group_id)
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    command = AddOffsetsToTxn(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        offsets_partition=offsets_partition,
        knows_producer_fenced=context.version >= _FIRST_WITH_PRODUCER_FENCED,
    )
    return answer(
        broker,
        request.transactional_id,
        command,
        lambda outcome: AddOffsetsToTxnResponse(error_code=error_of(outcome)),
    )


ROUTE = route(ADD_OFFSETS_TO_TXN, "0-4", handle)
