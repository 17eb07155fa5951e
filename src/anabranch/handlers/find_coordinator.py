"""FindCoordinator (10), versions 0-6: which node coordinates a group or a transactional id.

Version notes: 1 key types (0 group, 1 transaction); 4 many keys at once (KIP-699); 6 share groups
(KIP-932). One node coordinates everything there is. Share groups are not there, and asking for
their coordinator is refused with an error that clients do not retry.
"""

from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_GROUP = 0
_TRANSACTION = 1
_SHARE_GROUP = 2
_FIRST_WITH_MANY_KEYS = 4


def handle(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if context.version >= _FIRST_WITH_MANY_KEYS:
        found = [_find(broker, context, request.key_type, key) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _find(broker, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _find(broker: Broker, context: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        if key_type == _TRANSACTION:
            if not key:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "A transactional id is not empty.")
            broker.transactions.ensure_journal()
        elif key_type == _SHARE_GROUP:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "Share groups are not available on this broker."
            )
        elif key_type != _GROUP:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no key type {key_type}.")
    except KafkaError as error:
        return Coordinator(
            key=key, node_id=-1, port=-1, error_code=error.code, error_message=error.message
        )
    host, port = broker.endpoint(context.listener)
    return Coordinator(key=key, node_id=broker.node_id, host=host, port=port)


ROUTE = route(FIND_COORDINATOR, "0-6", handle)
