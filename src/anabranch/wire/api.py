"""What an API is on the wire: its key, its versions, and codecs made on first use.

Generating a codec takes a few milliseconds and a broker serves only a handful of the versions of
each API in its life, so each (API, version) is generated when the first request of it arrives and
kept for good.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anabranch.wire.codegen_decode import DecodeFunction, make_decoder
from anabranch.wire.codegen_encode import EncodeFunction, make_encoder
from anabranch.wire.schema import Versions, parse_versions

REQUEST_ELEMENTS_MAX = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One Kafka API: `versions` are those this code can read and write."""

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    versions: Versions
    first_flexible: int
    # ApiVersions answers with header v0 always, so that a client of any age can read it (KIP-511).
    plain_response_header: bool = False
    _made: dict[tuple[str, int], Any] = field(default_factory=dict, repr=False)

    def is_flexible(self, version: int) -> bool:
        return version >= self.first_flexible

    def has_tagged_response_header(self, version: int) -> bool:
        return self.is_flexible(version) and not self.plain_response_header

    def decode_request(self, version: int) -> DecodeFunction:
        return self._codec("decode_request", version, make_decoder, self.request)

    def decode_large_request(self, version: int) -> DecodeFunction:
        """As `decode_request`, and refuses more than REQUEST_ELEMENTS_MAX elements in all lists."""
        make = functools.partial(make_decoder, elements_max=REQUEST_ELEMENTS_MAX)
        return self._codec("decode_large_request", version, make, self.request)

    def encode_request(self, version: int) -> EncodeFunction:
        return self._codec("encode_request", version, make_encoder, self.request)

    def decode_response(self, version: int) -> DecodeFunction:
        return self._codec("decode_response", version, make_decoder, self.response)

    def encode_response(self, version: int) -> EncodeFunction:
        return self._codec("encode_response", version, make_encoder, self.response)

    def _codec(
        self, kind: str, version: int, make: Callable[..., Any], cls: type[Any]
    ) -> Callable[..., Any]:
        made = self._made.get((kind, version))
        if made is None:
            if version not in self.versions:
                raise ValueError(f"{self.name} has no version {version}")
            made = make(cls, version, flexible=self.is_flexible(version))
            self._made[kind, version] = made
        function: Callable[..., Any] = made
        return function


def api(
    key: int,
    name: str,
    *,
    request: type[Any],
    response: type[Any],
    versions: str,
    flexible: str,
    plain_response_header: bool = False,
) -> Api:
    """Declare an API: `versions` as "0-13", `flexible` as "9+" or "none"."""
    first = parse_versions(flexible)
    return Api(
        key=key,
        name=name,
        request=request,
        response=response,
        versions=parse_versions(versions),
        first_flexible=first.first if flexible != "none" else 1 << 15,
        plain_response_header=plain_response_header,
    )
