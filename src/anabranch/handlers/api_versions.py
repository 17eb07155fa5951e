"""ApiVersions (18), versions 0-5: what this broker serves.

Version notes: 0 error and ranges; 3 names the client's software (KIP-511); 5 lets a client check
that it reached the cluster and node it meant (KIP-1242). A request newer than 5 gets the version 0
answer with UNSUPPORTED_VERSION, so that the client can ask again.
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

# The consumer protocol of KIP-848: 1 where it is served.
_GROUP_VERSION = "group.version"
_SUPPORTED_FEATURES = [SupportedFeatureKey(name=_GROUP_VERSION, min_version=0, max_version=1)]
# Features follow from the settings here and never change while a broker runs.
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
    level = int(serves_consumer_protocol(broker.settings))
    return ApiVersionsResponse(
        api_keys=_served,
        # Clients of version 3 stumble over a lowest version of 0.
        supported_features=_SUPPORTED_FEATURES if context.version >= 4 else [],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(
                name=_GROUP_VERSION, max_version_level=level, min_version_level=level
            )
        ],
    )


def unsupported_version_answer(
    broker: Broker, context: RequestContext, request: None
) -> ApiVersionsResponse:
    """The version 0 answer to a version that does not exist here yet."""
    mine = [version for version in _served if version.api_key == API_VERSIONS.key]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=mine)


ROUTE = route(API_VERSIONS, "0-5", handle)
