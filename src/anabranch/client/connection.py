"""One connection to one broker: requests out, answers to whoever asked, in the order of asking.

Rules
- Requests can be sent before earlier ones are answered; answers are told apart by their
  correlation ids, and must come in order, as every Kafka broker sends them.
- The first thing on a connection is to ask which versions the broker serves. A request goes in the
  newest version that both sides know. The same answer tells the broker's features.
- An answer that does not come in time, or that makes no sense, ends the connection: there is no
  other way to know what the next bytes are. Whoever waits gets an exception; nothing hangs.
- Each answer is received into a buffer of its own, so views of its records stay valid.
"""

import asyncio
import ssl
import struct
from collections import deque
from typing import Any, NamedTuple, cast

from anabranch import __version__
from anabranch.client.errors import (
    BrokerConnectionError,
    ConsumerError,
    ProtocolError,
    RequestTimedOutError,
    broker_error,
)
from anabranch.model.errors import ErrorCode
from anabranch.wire.api import Api
from anabranch.wire.header import write_request_header
from anabranch.wire.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from anabranch.wire.primitives import DecodeError, read_uvarint, skip_tags

_SIZE = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_ANSWER_MAX_BYTES = 1024 * 1024 * 1024
_NAMED_SOFTWARE_VERSION = 3
_SOFTWARE_NAME = "anabranch-python"


class _Waiting(NamedTuple):
    correlation_id: int
    answered: "asyncio.Future[memoryview]"


class Connection(asyncio.BufferedProtocol):
    """Open one with `open_connection`."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self.place = f"{host}:{port}"
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._next_id = 0
        self._waiting: deque[_Waiting] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        # What the broker can do, and what of it is turned on.
        self.supported_features: dict[str, tuple[int, int]] = {}
        self.finalized_features: dict[str, int] = {}
        self._error: ConsumerError | None = None
        self._prefix = bytearray(_SIZE.size)
        self._frame: bytearray | None = None
        self._filled = 0
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    async def request(
        self,
        api: Api,
        message: Any,
        *,
        least_version: int = 0,
        most_version: int | None = None,
        timeout_s: float,
    ) -> Any:
        """Send a request and wait for its answer."""
        version = self._version_of(api, least_version, most_version)
        return await self._exchange(api, version, message, timeout_s)

    def close(self, error: ConsumerError | None = None) -> None:
        """End the connection; whoever waits for an answer gets the error."""
        if self._error is not None:
            return
        self._error = error or BrokerConnectionError(f"the connection to {self.place} was closed")
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if not one.answered.done():
                one.answered.set_exception(self._error)
        self._is_writable.set()

    # Asking ---------------------------------------------------------------------------------------

    async def learn_versions(self, timeout_s: float) -> None:
        """Ask which APIs the broker serves, in which versions."""
        request = ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME, client_software_version=__version__
        )
        version = _NAMED_SOFTWARE_VERSION
        body = await self._raw_exchange(API_VERSIONS, version, request, timeout_s)
        if (
            len(body) >= _INT16.size
            and _INT16.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION
        ):
            version = 0
            body = await self._raw_exchange(API_VERSIONS, version, ApiVersionsRequest(), timeout_s)
        answer = self._decode(API_VERSIONS, version, body)
        if answer.error_code:
            raise broker_error(answer.error_code, f"ApiVersions at {self.place}")
        self._versions = {
            one.api_key: (one.min_version, one.max_version) for one in answer.api_keys
        }
        self.supported_features = {
            one.name: (one.min_version, one.max_version) for one in answer.supported_features
        }
        self.finalized_features = {
            one.name: one.max_version_level for one in answer.finalized_features
        }

    def _version_of(self, api: Api, least_version: int, most_version: int | None = None) -> int:
        first, last = self._versions.get(api.key, (1, 0))
        version = min(last, api.versions.last)
        if most_version is not None:
            version = min(version, most_version)
        if version < max(first, api.versions.first, least_version):
            serves = f"{first} to {last}" if first <= last else "none"
            raise broker_error(
                ErrorCode.UNSUPPORTED_VERSION,
                api.name,
                f"the broker at {self.place} serves {serves} of its versions, needed is"
                f" {max(api.versions.first, least_version)} to {api.versions.last}; use a broker"
                " that serves cooperative consumption",
            )
        return version

    async def _exchange(self, api: Api, version: int, message: Any, timeout_s: float) -> Any:
        body = await self._raw_exchange(api, version, message, timeout_s)
        position = 0
        if api.has_tagged_response_header(version):
            try:
                count, position = read_uvarint(body, 0)
                position = skip_tags(body, position, count)
            except (IndexError, DecodeError) as error:
                raise self._broken(api, error) from error
        return self._decode(api, version, body[position:])

    async def _raw_exchange(
        self, api: Api, version: int, message: Any, timeout_s: float
    ) -> memoryview:
        """The answer's bytes after the correlation id."""
        if not self._is_writable.is_set():
            await self._is_writable.wait()
        if self._error is not None:
            raise self._error
        answered = self._send(api, version, message)
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            error = RequestTimedOutError(
                f"{self.place} did not answer {api.name} within {timeout_s:g} s"
            )
            self.close(error)
            raise error from None

    def _send(self, api: Api, version: int, message: Any) -> "asyncio.Future[memoryview]":
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        head = write_request_header(
            api.key,
            version,
            self._next_id,
            self._client_id,
            flexible=api.is_flexible(version),
        )
        body = b"".join([head, *api.encode_request(version)(message)])
        answered: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(self._next_id, answered))
        cast(asyncio.Transport, self._transport).write(_SIZE.pack(len(body)) + body)
        return answered

    def _decode(self, api: Api, version: int, body: memoryview) -> Any:
        try:
            answer, _ = api.decode_response(version)(body, 0)
        except (DecodeError, IndexError, struct.error) as error:
            raise self._broken(api, error) from error
        return answer

    def _broken(self, api: Api, error: Exception) -> ProtocolError:
        broken = ProtocolError(f"{self.place} answered {api.name} with nonsense: {error}")
        self.close(broken)
        return broken

    # What arrives ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc else ""
        self.close(BrokerConnectionError(f"the connection to {self.place} ended{why}"))

    def pause_writing(self) -> None:
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self._is_writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._prefix if self._frame is None else self._frame
        return memoryview(buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            if self._filled == _SIZE.size:
                self._begin_frame()
        elif self._filled == len(self._frame):
            self._end_frame()

    def _begin_frame(self) -> None:
        (size,) = _SIZE.unpack(self._prefix)
        if not _SIZE.size <= size <= _ANSWER_MAX_BYTES:
            self.close(
                ProtocolError(f"{self.place} sent an answer of {size} bytes: is it a Kafka broker?")
            )
            return
        self._frame = bytearray(size)
        self._filled = 0

    def _end_frame(self) -> None:
        frame = memoryview(cast(bytearray, self._frame))
        self._frame = None
        self._filled = 0
        (found,) = _SIZE.unpack_from(frame)
        expected = self._waiting.popleft() if self._waiting else None
        if expected is None or expected.correlation_id != found:
            self.close(ProtocolError(f"{self.place} answered a request that was not the next one"))
            if expected is not None and not expected.answered.done():
                expected.answered.set_exception(cast(ConsumerError, self._error))
            return
        if not expected.answered.done():  # or nobody waits any more
            expected.answered.set_result(frame[_SIZE.size :])


async def open_connection(
    host: str, port: int, *, client_id: str, tls: ssl.SSLContext | None, timeout_s: float
) -> Connection:
    """Connect, and ask which versions are served; BrokerConnectionError when it cannot be."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(host, port, client_id), host, port, ssl=tls
            )
    except TimeoutError:
        raise RequestTimedOutError(
            f"{host}:{port} did not accept a connection within {timeout_s:g} s"
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise BrokerConnectionError(f"cannot connect to {host}:{port}: {error}") from error
    try:
        await connection.learn_versions(timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection
