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
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.server.request_metrics import RequestMetrics
from anabranch.wire.api import Api
from anabranch.wire.codegen_decode import DecodeFunction
from anabranch.wire.codegen_encode import EncodeFunction
from anabranch.wire.header import frame_response, frame_response_with_records
from anabranch.wire.messages.api_versions import API_VERSIONS
from anabranch.wire.messages.fetch import FETCH
from anabranch.wire.schema import fields_of

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
    has_error_code: bool  # whether the response of this version can say that all of it failed


class Dispatch:
    """The routes of one broker."""

    def __init__(self, broker: Broker, routes: dict[int, Route] = ROUTES) -> None:
        self.broker = broker
        self._routes = routes
        self._prepared: dict[int, Prepared] = {}
        self.metrics = RequestMetrics()
        # A client newer than us learns our versions from an answer in version 0 (KIP-511); its
        # body may be anything, so it is not read.
        self._newer_client = Prepared(
            api=API_VERSIONS,
            handle=unsupported_version_answer,
            decode=None,
            encode=API_VERSIONS.encode_response(0),
            is_flexible=False,
            has_tagged_response_header=False,
            frame=frame_response,
            has_error_code=True,
        )

    def prepare(self, key: int, version: int) -> Prepared | None:
        """The functions for this request, or None when the broker does not serve it."""
        prepared = self._prepared.get(key << 16 | version & 0xFFFF)
        if prepared is not None:
            return prepared
        route = self._routes.get(key)
        if route is not None and version in route.versions:
            prepared = self._make(route, version)
            self._prepared[key << 16 | version & 0xFFFF] = prepared
            return prepared
        return self._newer_client if key == API_VERSIONS.key else None

    def _make(self, route: Route, version: int) -> Prepared:
        api = route.api
        return Prepared(
            api=api,
            handle=self.metrics.counted(api, route.handle),
            decode=api.decode_request(version),
            encode=api.encode_response(version),
            is_flexible=api.is_flexible(version),
            has_tagged_response_header=api.has_tagged_response_header(version),
            frame=frame_response_with_records if api is FETCH else frame_response,
            has_error_code=_has_error_code(api, version),
        )

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
        """The answer to a request whose handler broke, or None when its version cannot say so."""
        if isinstance(error, KafkaError):
            code = error.code
        else:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            logs.error(
                "handler.failed", api=prepared.api.name, error=repr(error), calls=last_calls(error)
            )
        make: Callable[..., Any] = prepared.api.response
        return make(error_code=int(code)) if prepared.has_error_code else None


def _has_error_code(api: Api, version: int) -> bool:
    return any(
        field.name == "error_code" and field.exists_in(version, flexible=api.is_flexible(version))
        for field in fields_of(api.response)
    )


def last_calls(error: BaseException) -> str:
    """Where an exception came from, in one line."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " > ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in frames)
