"""What a handler file declares: which API, which versions, which function.

A handler takes the broker, the context of the request and the decoded request, and returns the
response, or a `Deferred` when the request has to wait, or None when the protocol has no answer for
it (a produce with acks=0).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.wire.api import Api
from anabranch.wire.schema import Versions, parse_versions


@dataclass(slots=True)
class RequestContext:
    """Who asks, and in which version."""

    version: int
    client_id: str
    client_host: str
    listener: str
    # Ends the connection after what was already answered; used where the protocol has no other
    # way to say that something failed.
    close: Callable[[str], None]


Handler = Callable[[Broker, RequestContext, Any], Any]


@dataclass(frozen=True, slots=True)
class Route:
    """An API as this broker serves it."""

    api: Api
    versions: Versions
    advertised: Versions
    handle: Handler


def route(api: Api, versions: str, handle: Handler, *, advertised: str | None = None) -> Route:
    """Declare a route; `advertised` differs from `versions` only where old clients need it."""
    served = parse_versions(versions)
    return Route(api, served, parse_versions(advertised) if advertised else served, handle)
