"""From (api key, version) to the functions that serve it.

Codecs are generated on first use and the lookup is one dictionary access per request after that.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.handlers.api_versions import unsupported_version_answer
from anabranch.handlers.registry import ROUTES
from anabranch.handlers.route import Handler, Route
from anabranch.model.errors import ErrorCode
from anabranch.observe import logs
from anabranch.wire.api import Api
from anabranch.wire.codegen_decode import DecodeFunction
from anabranch.wire.codegen_encode import EncodeFunction
from anabranch.wire.header import frame_response, frame_response_with_records
from anabranch.wire.messages.api_versions import API_VERSIONS
from anabranch.wire.messages.fetch import FETCH

FrameFunction = Callable[..., list[bytes | memoryview]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything needed to serve one version of one API."""

    api: Api
    handle: Handler
    decode: DecodeFunction | None  # None: the body is not looked at
    encode: EncodeFunction
    is_flexible: bool
    has_tagged_response_header: bool
    frame: FrameFunction


class Dispatch:
    """The routes of one broker."""

    def __init__(self, broker: Broker, routes: dict[int, Route] = ROUTES) -> None:
        self.broker = broker
        self._routes = routes
        self._prepared: dict[int, Prepared] = {}

    def prepare(self, key: int, version: int) -> Prepared | None:
        """The functions for this request, or None when the broker does not serve it."""
        prepared = self._prepared.get(key << 16 | version & 0xFFFF)
        if prepared is None:
            prepared = self._make(key, version)
            if prepared is not None:
                self._prepared[key << 16 | version & 0xFFFF] = prepared
        return prepared

    def _make(self, key: int, version: int) -> Prepared | None:
        route = self._routes.get(key)
        if route is None:
            return None
        api = route.api
        if version in route.versions:
            return Prepared(
                api=api,
                handle=route.handle,
                decode=api.decode_request(version),
                encode=api.encode_response(version),
                is_flexible=api.is_flexible(version),
                has_tagged_response_header=api.has_tagged_response_header(version),
                frame=frame_response_with_records if api is FETCH else frame_response,
            )
        if key == API_VERSIONS.key:
            # A client newer than us learns our versions from an answer in version 0 (KIP-511);
            # its body may be anything, so it is not read.
            return Prepared(
                api=api,
                handle=unsupported_version_answer,
                decode=None,
                encode=api.encode_response(0),
                is_flexible=False,
                has_tagged_response_header=False,
                frame=frame_response,
            )
        return None

    def refusal(self, key: int, version: int) -> str:
        """Why `prepare` found nothing, for the log."""
        route = self._routes.get(key)
        if route is None:
            return f"api key {key} is not served by this broker"
        served = route.versions
        return (
            f"{route.api.name} version {version} is not served; "
            f"versions {served.first} to {served.last} are"
        )

    def failure(self, prepared: Prepared, error: Exception) -> Any:
        """The answer to a request whose handler broke, or None when its API cannot say so."""
        logs.error(
            "handler.failed", api=prepared.api.name, error=repr(error), traceback=_last_calls(error)
        )
        make: Callable[..., Any] = prepared.api.response
        if "error_code" in getattr(prepared.api.response, "__slots__", ()):
            return make(error_code=int(ErrorCode.UNKNOWN_SERVER_ERROR))
        return None


def _last_calls(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " > ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in frames)
