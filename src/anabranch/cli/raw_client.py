"""A connection that speaks Kafka's protocol through our own codecs.

librdkafka's admin client keeps some of what a broker says to itself: the epochs of consumer groups,
states that came with KIP-848, and the fields that only this broker has. Those few questions are
asked here, one after the other, without TLS and SASL.
"""

import contextlib
import socket
import struct
from types import TracebackType
from typing import Any

from anabranch.cli.connection import Troubles, client_config
from anabranch.cli.errors import CliError
from anabranch.cli.options import Connection
from anabranch.wire.api import Api
from anabranch.wire.header import write_request_header
from anabranch.wire.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from anabranch.wire.primitives import DecodeError, read_uvarint, skip_tags

_SIZE = struct.Struct(">i")
_RESPONSE_MAX_BYTES = 256 * 1024 * 1024
_ANY_VERSION = 1_000
_PORT_DEFAULT = 9092


def bootstrap_places(connection: Connection) -> list[tuple[str, int]]:
    """Host and port of each server that the command line or its properties file names."""
    servers: str = client_config(connection, Troubles())["bootstrap.servers"]
    places = []
    for server in servers.split(","):
        place = server.strip().rpartition("://")[2]
        host, colon, port = place.rpartition(":")
        if colon and port.isdecimal():
            places.append((host.strip("[]"), int(port)))
        else:
            places.append((place.strip("[]"), _PORT_DEFAULT))
    return places


def first_client(connection: Connection) -> "RawClient":
    """A connection to the first of them that answers; CliError of the last when none does."""
    *others, last = bootstrap_places(connection)
    for host, port in others:
        with contextlib.suppress(CliError):
            return RawClient(host, port, connection.timeout_s)
    return RawClient(*last, connection.timeout_s)


class RawClient:
    """One connection to one broker; CliError for whatever goes wrong on it."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._place = f"{host}:{port}"
        self._next_id = 0
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise self._failure(error) from error
        try:
            self._served = self._ask_versions()
        except (OSError, EOFError, DecodeError) as error:
            self._socket.close()
            raise self._failure(error) from error

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def served(self) -> dict[int, tuple[int, int]]:
        """The APIs that the broker has by key, each with its first and last version."""
        return dict(self._served)

    def send(
        self, api: Api, request: Any, least_version: int = 0, last_version: int = _ANY_VERSION
    ) -> Any:
        """The answer in the newest version that both know; None where there is no such version."""
        first, last = self._served.get(api.key, (1, 0))
        version = min(last, api.versions.last, last_version)
        if version < max(first, api.versions.first, least_version):
            return None
        try:
            return self._exchange(api, version, request)
        except (OSError, EOFError, DecodeError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> CliError:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return CliError(
            f"Cannot ask the broker at {self._place}",
            why[:1].lower() + why[1:],
            "look at the broker's log, or run again with --debug",
        )

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        answer = self._exchange(API_VERSIONS, 0, ApiVersionsRequest())
        return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}

    def _exchange(self, api: Api, version: int, request: Any) -> Any:
        self._next_id += 1
        is_flexible = api.is_flexible(version)
        head = write_request_header(
            api.key, version, self._next_id, "anabranch-cli", flexible=is_flexible
        )
        body = b"".join([head, *map(bytes, api.encode_request(version)(request))])
        self._socket.sendall(_SIZE.pack(len(body)) + body)
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
        if not _SIZE.size <= size <= _RESPONSE_MAX_BYTES:
            raise DecodeError(f"an answer of {size} bytes is none of Kafka's protocol")
        frame = memoryview(self._exactly(size))
        (found_id,) = _SIZE.unpack_from(frame)
        if found_id != self._next_id:
            raise DecodeError("the answer belongs to another request")
        position = _SIZE.size
        if api.has_tagged_response_header(version):
            count, position = read_uvarint(frame, position)
            position = skip_tags(frame, position, count)
        answer, _ = api.decode_response(version)(frame, position)
        return answer

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            more = self._socket.recv(size - len(content))
            if not more:
                raise EOFError("the connection ended in the middle of an answer")
            content += more
        return bytes(content)
