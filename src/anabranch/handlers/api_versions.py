"""ApiVersions (18), versions 0-5: what this broker serves.

Version notes: 0 error and ranges; 3 names the client's software (KIP-511); 5 lets a client check
that it reached the cluster and node it meant (KIP-1242). A request newer than 5 gets the version 0
answer with UNSUPPORTED_VERSION, so that the client can ask again.
"""

import re

from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, Route, route
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

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
    return ApiVersionsResponse(api_keys=_served)


def unsupported_version_answer(
    broker: Broker, context: RequestContext, request: None
) -> ApiVersionsResponse:
    """The version 0 answer to a version that does not exist here yet."""
    mine = [version for version in _served if version.api_key == API_VERSIONS.key]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=mine)


ROUTE = route(API_VERSIONS, "0-5", handle)
