"""InitProducerId (22), versions 0-6: a producer id and epoch, for idempotence and transactions.

Version notes: 3 a producer may ask to go on with its id and a higher epoch (KIP-360); 4 a fenced
producer is told PRODUCER_FENCED (KIP-588); 6 a producer may ask for transactions that no time ends,
where `transaction.two.phase.commit.enable` allows it (KIP-939). To keep the transaction that
another producer has left is refused, as Kafka 4.3 does (UNSUPPORTED_VERSION). Without a
transactional id every call gets a new id, as in Kafka: an old id with a bumped epoch would have to
be remembered by somebody.

While no producer id can be had, the disk being full for example, the answer is
COORDINATOR_LOAD_IN_PROGRESS: clients ask again, where a storage error would end them.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction.commands import InitProducerId, InitProducerIdAnswer
from anabranch.coordinator.transaction.state import NO_PRODUCER_EPOCH
from anabranch.handlers.route import RequestContext, route
from anabranch.handlers.transaction_answers import answer
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_FIRST_WITH_PRODUCER_FENCED = 4


def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Deferred[InitProducerIdResponse]:
    if request.keep_prepared_txn:
        return InitProducerIdResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, producer_epoch=NO_PRODUCER_EPOCH
        )
    command = InitProducerId(
        transactional_id=request.transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        knows_producer_fenced=context.version >= _FIRST_WITH_PRODUCER_FENCED,
        is_two_phase_commit=request.enable2_pc,
    )
    return answer(broker, request.transactional_id, command, _response)


def _response(outcome: InitProducerIdAnswer | KafkaError) -> InitProducerIdResponse:
    if isinstance(outcome, KafkaError):
        return InitProducerIdResponse(error_code=outcome.code, producer_epoch=-1)
    return InitProducerIdResponse(
        error_code=outcome.error,
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
    )


ROUTE = route(INIT_PRODUCER_ID, "0-6", handle)
