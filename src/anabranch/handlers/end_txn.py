"""EndTxn (26), versions 0-5: commit or abort a transaction.

Version notes: 2 a fenced producer is told PRODUCER_FENCED (KIP-588); 5 every end brings the
producer another epoch, and sometimes another producer id, which the answer says (KIP-890).

The answer comes when the markers are in all partitions, so that the producer can go on with the
next transaction at once; where a marker cannot be written, it does not wait for it.

Tags of our own prepare a transaction for a batch of a sink, and commit such batches: see
`sink_batches`.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction.commands import EndTxn, EndTxnAnswer
from anabranch.coordinator.transaction.state import TransactionVersion
from anabranch.handlers import sink_batches
from anabranch.handlers.route import RequestContext, route
from anabranch.handlers.transaction_answers import answer
from anabranch.model.errors import KafkaError
from anabranch.wire.messages.end_txn import END_TXN, EndTxnRequest, EndTxnResponse

_FIRST_WITH_PRODUCER_FENCED = 2
_FIRST_WITH_EPOCH = 5


def handle(
    broker: Broker, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse | Deferred[EndTxnResponse]:
    if request.prepare is not None:
        return sink_batches.prepare(broker, request, request.prepare)
    if request.batch is not None:
        return sink_batches.end_batch(broker, request, request.batch)
    is_version_2 = context.version >= _FIRST_WITH_EPOCH
    command = EndTxn(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        is_commit=request.committed,
        transaction_version=TransactionVersion.TV_2 if is_version_2 else TransactionVersion.TV_0,
        knows_producer_fenced=context.version >= _FIRST_WITH_PRODUCER_FENCED,
    )
    return answer(broker, request.transactional_id, command, _response)


def _response(outcome: EndTxnAnswer | KafkaError) -> EndTxnResponse:
    if isinstance(outcome, KafkaError):
        return EndTxnResponse(error_code=outcome.code)
    return EndTxnResponse(
        error_code=outcome.error,
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
    )


ROUTE = route(END_TXN, "0-5", handle)
