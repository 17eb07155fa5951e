"""InitProducerId (22), versions 0-5: a producer id and epoch for an idempotent producer.

Version notes: 3 a producer may ask to go on with its id and a higher epoch (KIP-360). Transactional
ids are refused: this broker does not coordinate transactions.
"""

from anabranch.broker.broker import Broker
from anabranch.engine.metadata_store import STORE_ERRORS
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode
from anabranch.observe import logs
from anabranch.wire.messages.init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)


def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        # An empty id is a mistake; any other asks for what is not there, and must not be retried.
        empty = request.transactional_id == ""
        code = ErrorCode.INVALID_REQUEST if empty else ErrorCode.UNSUPPORTED_VERSION
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    # Without a transactional id every call gets a new id, as in Kafka: an old id with a bumped
    # epoch would have to be remembered by somebody.
    try:
        return InitProducerIdResponse(producer_id=broker.producer_ids.next(), producer_epoch=0)
    except STORE_ERRORS as error:
        # A block of ids cannot be written down, the disk being full for example. Kafka says this
        # while it has no ids: clients ask again, where a storage error would end them.
        logs.error("producer.ids.failed", reason=str(error))
        return InitProducerIdResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1
        )


ROUTE = route(INIT_PRODUCER_ID, "0-5", handle)
