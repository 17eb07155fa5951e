"""ApiVersions (18), versions 0-5: what this broker serves.

Version notes: 0 error and ranges; 3 names the client's software (KIP-511); 5 lets a client check
that it reached the cluster and node it meant (KIP-1242). A request newer than 5 gets the version 0
answer with UNSUPPORTED_VERSION, so that the client can ask again.

Features: what this software can do is supported, what is turned on is finalized. Cooperative
consumption and batches of sinks are our own.
"""

import re

from anabranch.broker.broker import Broker
from anabranch.config.group_config import serves_consumer_protocol
from anabranch.handlers.route import RequestContext, Route, route
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from anabranch.wire.messages.cooperation import COOPERATION_FEATURE, COOPERATION_VERSION
from anabranch.wire.messages.sink_batches import SINK_BATCHES_FEATURE, SINK_BATCHES_VERSION

# The consumer protocol of KIP-848: 1 where it is served.
_GROUP_VERSION = "group.version"
# How transactions go (KIP-890): with 2, producers of Kafka 4 let the broker add partitions to them,
# and get another epoch with every end.
_TRANSACTION_VERSION = "transaction.version"
_TRANSACTION_LEVEL = 2
_COOPERATION = SupportedFeatureKey(
    name=COOPERATION_FEATURE, min_version=COOPERATION_VERSION, max_version=COOPERATION_VERSION
)
_SINK_BATCHES = SupportedFeatureKey(
    name=SINK_BATCHES_FEATURE, min_version=SINK_BATCHES_VERSION, max_version=SINK_BATCHES_VERSION
)
_SUPPORTED_FEATURES = [
    SupportedFeatureKey(name=_GROUP_VERSION, min_version=0, max_version=1),
    SupportedFeatureKey(name=_TRANSACTION_VERSION, min_version=0, max_version=_TRANSACTION_LEVEL),
    _COOPERATION,
    _SINK_BATCHES,
]
# Clients of version 3 stumble over a lowest version of 0.
_SUPPORTED_FEATURES_V3 = [_COOPERATION, _SINK_BATCHES]
_FIRST_WITH_VERSION_0 = 4
# Features follow from the settings here. Those that stock clients look at never change while a
# broker runs; who asks for ours believes the answer of its own connection, whatever its epoch.
_FEATURES_EPOCH = 0

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")

# Filled by the registry, which knows all routes.
_served: list[ApiVersion] = []


def set_served(routes: dict[int, Route]) -> None:
    """Tell the handler what to advertise."""
    _served[:] = [
        ApiVersion(
            api_key=key,
            min_version=routes[key].advertised.first,
            max_version=routes[key].advertised.last,
        )
        for key in sorted(routes)
    ]


def handle(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    error = ErrorCode.NONE
    if context.version >= 3:
        software = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.match(text) for text in software):
            error = ErrorCode.INVALID_REQUEST
    if (request.cluster_id is None) != (request.node_id == -1):
        error = ErrorCode.INVALID_REQUEST
    elif request.cluster_id not in (None, broker.cluster_id) or request.node_id not in (
        -1,
        broker.node_id,
    ):
        error = ErrorCode.REBOOTSTRAP_REQUIRED
    if error:
        return ApiVersionsResponse(error_code=error)
    supports_0 = context.version >= _FIRST_WITH_VERSION_0
    return ApiVersionsResponse(
        api_keys=_served,
        supported_features=_SUPPORTED_FEATURES if supports_0 else _SUPPORTED_FEATURES_V3,
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=_finalized_features(broker),
    )


def _finalized_features(broker: Broker) -> list[FinalizedFeatureKey]:
    levels = {
        _GROUP_VERSION: int(serves_consumer_protocol(broker.settings)),
        _TRANSACTION_VERSION: _TRANSACTION_LEVEL,
        SINK_BATCHES_FEATURE: SINK_BATCHES_VERSION,
    }
    if broker.get_bool("group.individual.commit.enable"):
        levels[COOPERATION_FEATURE] = COOPERATION_VERSION
    return [
        FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in levels.items()
    ]


def unsupported_version_answer(
    broker: Broker, context: RequestContext, request: None
) -> ApiVersionsResponse:
    """The version 0 answer to a version that does not exist here yet."""
    mine = [version for version in _served if version.api_key == API_VERSIONS.key]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=mine)


ROUTE = route(API_VERSIONS, "0-5", handle)
