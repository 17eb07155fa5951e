"""One blocking connection to one broker.

Rules
- The first thing on a connection is to ask which versions the broker serves (and, with SASL, to say
  who we are). A request goes in the newest version that both sides know.
- Several requests may be sent before the first is answered; answers come in the order of asking.
- Whatever goes wrong on the way closes the connection: there is no other way to know what the next
  bytes are. The caller gets a LinkError, and opens another connection if it likes.
- Each answer is received into a buffer of its own, so views of its records stay valid.
"""

import contextlib
import socket
import ssl
import struct
from collections import deque
from typing import Any, NamedTuple

from anabranch import __version__
from anabranch.model.errors import ErrorCode
from anabranch.spark.errors import BrokerRefusal, LinkBrokenError, LinkProtocolError
from anabranch.spark.link_sasl import authenticate
from anabranch.spark.link_settings import LinkSettings, Security
from anabranch.wire.api import Api
from anabranch.wire.header import write_request_header
from anabranch.wire.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from anabranch.wire.primitives import DecodeError, read_uvarint, skip_tags

_SIZE = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_ANSWER_MAX_BYTES = 1024 * 1024 * 1024
_NAMED_SOFTWARE_VERSION = 3
_SOFTWARE_NAME = "anabranch-spark"


class Ticket(NamedTuple):
    """A request whose answer is on its way."""

    correlation_id: int
    api: Api
    version: int


class Connection:
    """Open, until something goes wrong or `close` is called."""

    def __init__(self, host: str, port: int, settings: LinkSettings) -> None:
        self.place = f"{host}:{port}"
        self._client_id = settings.client_id
        self._timeout_s = settings.request_timeout_ms / 1000
        self._next_id = 0
        self._waiting: deque[Ticket] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self.supported_features: dict[str, tuple[int, int]] = {}
        self._socket: socket.socket | None = None
        try:
            self._socket = _connected_socket(host, port, settings.security, self._timeout_s)
            self._learn_versions()
            if settings.security.sasl_mechanism is not None:
                authenticate(self, settings.security)
        except BaseException:
            self.close()
            raise

    @property
    def is_closed(self) -> bool:
        return self._socket is None

    @property
    def is_idle(self) -> bool:
        """Whether all that was asked has been answered."""
        return not self._waiting

    def fileno(self) -> int:
        """For `select`: readable when an answer comes."""
        return self._socket.fileno() if self._socket is not None else -1

    def close(self) -> None:
        self._waiting.clear()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def ask(
        self, api: Api, message: Any, *, least_version: int = 0, most_version: int = 1 << 15
    ) -> Any:
        """Send a request and wait for its answer."""
        return self.receive(
            self.send(api, message, least_version=least_version, most_version=most_version)
        )

    def version_of(self, api: Api, least_version: int = 0, most_version: int = 1 << 15) -> int:
        """The newest version of an API that both sides know."""
        first, last = self._versions.get(api.key, (1, 0))
        version = min(last, api.versions.last, most_version)
        if version < max(first, api.versions.first, least_version):
            serves = f"{first} to {last}" if first <= last else "none"
            raise BrokerRefusal(
                ErrorCode.UNSUPPORTED_VERSION,
                api.name,
                f"the broker at {self.place} serves {serves} of its versions, needed is one from"
                f" {max(api.versions.first, least_version)} on",
            )
        return version

    def send(
        self, api: Api, message: Any, *, least_version: int = 0, most_version: int = 1 << 15
    ) -> Ticket:
        """Send a request; `receive` gets its answer."""
        version = self.version_of(api, least_version, most_version)
        return self._send(api, version, api.encode_request(version)(message))

    def _send(self, api: Api, version: int, parts: Any) -> Ticket:
        if self._socket is None:
            raise LinkBrokenError(f"the connection to {self.place} is closed")
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        head = write_request_header(
            api.key, version, self._next_id, self._client_id, flexible=api.is_flexible(version)
        )
        body = b"".join([head, *parts])
        try:
            self._socket.sendall(_SIZE.pack(len(body)) + body)
        except OSError as error:
            raise self._broken(f"sending {api.name}", error) from error
        ticket = Ticket(self._next_id, api, version)
        self._waiting.append(ticket)
        return ticket

    def receive(self, ticket: Ticket, *, extra_s: float = 0.0) -> Any:
        """The answer to the oldest request that has none yet, which must be this one."""
        body = self._receive_body(ticket, extra_s)
        position = 0
        try:
            if ticket.api.has_tagged_response_header(ticket.version):
                count, position = read_uvarint(body, 0)
                position = skip_tags(body, position, count)
            answer, _ = ticket.api.decode_response(ticket.version)(body[position:], 0)
        except (DecodeError, IndexError, struct.error) as error:
            self.close()
            raise LinkProtocolError(
                f"{self.place} answered {ticket.api.name} with nonsense: {error}"
            ) from error
        return answer

    def _receive_body(self, ticket: Ticket, extra_s: float = 0.0) -> memoryview:
        if not self._waiting or self._waiting.popleft() != ticket:
            self.close()
            raise LinkProtocolError(f"the answers of {self.place} were taken out of order")
        what = f"waiting for the answer to {ticket.api.name}"
        (size,) = _SIZE.unpack(self._receive_exactly(_SIZE.size, what, extra_s))
        if not _SIZE.size <= size <= _ANSWER_MAX_BYTES:
            self.close()
            raise LinkProtocolError(
                f"{self.place} sent an answer of {size} bytes: is it a Kafka broker?"
            )
        frame = self._receive_exactly(size, what, extra_s)
        if _SIZE.unpack_from(frame)[0] != ticket.correlation_id:
            self.close()
            raise LinkProtocolError(f"{self.place} answered a request that was not the next one")
        return frame[_SIZE.size :]

    def _receive_exactly(self, size: int, what: str, extra_s: float) -> memoryview:
        if self._socket is None:
            raise LinkBrokenError(f"the connection to {self.place} is closed")
        buffer = memoryview(bytearray(size))
        filled = 0
        try:
            self._socket.settimeout(self._timeout_s + extra_s)
            while filled < size:
                count = self._socket.recv_into(buffer[filled:])
                if count == 0:
                    raise ConnectionError("the broker closed the connection")
                filled += count
        except OSError as error:
            raise self._broken(what, error) from error
        return buffer

    def _broken(self, what: str, error: OSError) -> LinkBrokenError:
        self.close()
        why = "no answer in time (kafka.request.timeout.ms)" if _is_late(error) else str(error)
        return LinkBrokenError(f"{self.place}: {what}: {why}")

    def _learn_versions(self) -> None:
        request = ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME, client_software_version=__version__
        )
        version = _NAMED_SOFTWARE_VERSION
        parts = API_VERSIONS.encode_request(version)(request)
        body = self._receive_body(self._send(API_VERSIONS, version, parts))
        if (
            len(body) >= _INT16.size
            and _INT16.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION
        ):
            version = 0
            parts = API_VERSIONS.encode_request(version)(ApiVersionsRequest())
            body = self._receive_body(self._send(API_VERSIONS, version, parts))
        try:
            answer, _ = API_VERSIONS.decode_response(version)(body, 0)
        except (DecodeError, IndexError, struct.error) as error:
            raise LinkProtocolError(
                f"{self.place} answered ApiVersions with nonsense: {error}"
            ) from error
        if answer.error_code:
            raise BrokerRefusal(answer.error_code, f"ApiVersions at {self.place}")
        self._versions = {
            one.api_key: (one.min_version, one.max_version) for one in answer.api_keys
        }
        self.supported_features = {
            one.name: (one.min_version, one.max_version) for one in answer.supported_features
        }


def _is_late(error: OSError) -> bool:
    return isinstance(error, TimeoutError)


def _connected_socket(host: str, port: int, security: Security, timeout_s: float) -> socket.socket:
    place = f"{host}:{port}"
    try:
        plain = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        raise LinkBrokenError(f"cannot connect to {place}: {error}") from error
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not security.has_tls:
        return plain
    try:
        return tls_context(security).wrap_socket(plain, server_hostname=host)
    except ssl.SSLError as error:
        plain.close()
        # Not worth a retry: certificates do not get better by themselves.
        raise LinkProtocolError(
            f"TLS with {place} failed: {error}; see kafka.ssl.ca.location and"
            " kafka.ssl.endpoint.identification.algorithm"
        ) from error
    except OSError as error:
        plain.close()
        raise LinkBrokenError(f"cannot connect to {place}: {error}") from error
    except BaseException:
        plain.close()
        raise


def tls_context(security: Security) -> ssl.SSLContext:
    """TLS as the options have it; the system's authorities where they name none."""
    try:
        context = ssl.create_default_context(cafile=security.ca_file, cadata=security.ca_pem)
        context.check_hostname = security.checks_host_name
        if security.certificate_file is not None:
            context.load_cert_chain(
                security.certificate_file, security.key_file, security.key_password
            )
    except (OSError, ssl.SSLError) as error:
        named = [security.ca_file, security.certificate_file, security.key_file]
        files = ", ".join(filter(None, named)) or "the certificates in the options"
        raise LinkProtocolError(f"cannot read {files} as PEM: {error}") from error
    return context
