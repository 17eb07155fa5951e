"""A broker under attack, and the checks that it came through: alive, in order, with clean words.

A test says which connections the broker has to close and why; at its end the log must hold one
line for each of these and nothing else that is wrong, and a normal client must be served.
"""

import contextlib
import json
import re
import socket
import struct
from typing import Any

from anabranch.wire.api import Api
from anabranch.wire.header import write_request_header
from anabranch.wire.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from anabranch.wire.messages.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from support.broker_process import BrokerProcess, wait_until
from support.raw_client import RawClient, batch_of

TIMEOUT_S = 60
REQUEST_MAX_BYTES = 2 * 1024 * 1024
FETCH_VERSION = 11


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(
    key: int, version: int, correlation_id: int = 1, client_id: str | None = "hostile"
) -> bytes:
    """A request header without tags; a client id of None is null."""
    raw = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(raw)
    return struct.pack(">hhih", key, version, correlation_id, length) + raw


def request(api: Api, version: int, message: Any, correlation_id: int = 1) -> bytes:
    """A whole frame of a valid request."""
    head = write_request_header(
        api.key, version, correlation_id, "hostile", flexible=api.is_flexible(version)
    )
    return frame(head + b"".join(map(bytes, api.encode_request(version)(message))))


def api_versions(correlation_id: int = 1) -> bytes:
    """The smallest useful request."""
    return request(API_VERSIONS, 0, ApiVersionsRequest(), correlation_id)


def fetch_message(
    topic: str,
    *,
    offset: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
) -> FetchRequest:
    """A fetch of partition 0 without a session, for versions 7 to 12."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def fetch_request(topic: str, *, correlation_id: int = 1, **facts: int) -> bytes:
    return request(FETCH, FETCH_VERSION, fetch_message(topic, **facts), correlation_id)


def fetch(client: RawClient, topic: str, offset: int = 0) -> PartitionData:
    """What partition 0 answers to a normal client."""
    response = client.send(FETCH, FETCH_VERSION, fetch_message(topic, offset=offset))
    data: PartitionData = response.responses[0].partitions[0]
    return data


class Attacker:
    """A socket that sends what it likes."""

    def __init__(self, port: int, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def try_send(self, data: bytes) -> None:
        """Send to a broker that may close the connection meanwhile."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def shut_writing(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leave with a RST instead of a FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def receive(self) -> memoryview:
        """The next response without its size; EOFError when the broker closed the connection."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return memoryview(self._exactly(size))

    def receive_id(self) -> int:
        """The correlation id of the next response."""
        found: int = struct.unpack_from(">i", self.receive())[0]
        return found

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            more = self.socket.recv(min(size - len(content), 1 << 20))
            if not more:
                raise EOFError
            self.received += more[: 1 << 16]
            content += more
        return bytes(content)

    def is_closed_by_broker(self) -> bool:
        """Wait for the end of the connection; False when something was sent before it."""
        try:
            more = self.socket.recv(65536)
        except ConnectionResetError:
            return True
        self.received += more
        return not more

    def close(self) -> None:
        self.socket.close()


class Victim:
    """The broker, and what its log says since the test began."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._log_start = len(broker.log_text)
        self._expected: list[str] = []
        self._attackers: list[Attacker] = []

    def connect(self, receive_buffer_bytes: int | None = None) -> Attacker:
        attacker = Attacker(self.broker.port, receive_buffer_bytes)
        self._attackers.append(attacker)
        return attacker

    def client(self) -> RawClient:
        return RawClient(self.broker.bootstrap)

    def restart(self) -> None:
        """Start again, and look only at the log from here on."""
        self.broker.start()
        self._log_start = len(self.broker.log_text)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The log since the test began; a line that is no event is a failure of its own."""
        lines = self.broker.log_text[self._log_start :].splitlines()
        return [json.loads(line) for line in lines]

    @property
    def reasons(self) -> list[str]:
        return [e["reason"] for e in self.events if e["event"] == "connection.closed"]

    def expect_closed(self, reason: str, times: int = 1) -> None:
        """Wait for log lines whose reason matches a pattern."""
        self._expected += [reason] * times
        wanted = self._expected.count(reason)

        def is_there() -> bool:
            return sum(re.search(reason, found) is not None for found in self.reasons) >= wanted

        assert wait_until(is_there), f"no line says {reason!r}: {self.reasons}"

    def rss_bytes(self) -> int:
        """Anonymous memory of the broker: what it allocated, without mapped files."""
        with open(f"/proc/{self.broker.pid}/status") as status:
            (line,) = [line for line in status if line.startswith("RssAnon")]
        return int(line.split()[1]) * 1024

    def check(self) -> None:
        """The broker came through, and said no more and no less than the test expects."""
        for attacker in self._attackers:
            assert b"Traceback" not in attacker.received
            assert b".py" not in attacker.received
            attacker.close()
        self.check_serves()
        assert len(self.reasons) == len(self._expected), self.reasons
        for reason in self.reasons:
            assert any(re.search(expected, reason) for expected in self._expected), reason
        for event in self.events:
            assert event["level"] == "INFO", event
            assert "Traceback" not in json.dumps(event)

    def check_serves(self, topic: str = "normal") -> None:
        """A normal client creates, writes and reads."""
        with self.client() as client:
            client.metadata(topic, auto_create=True)
            answer = client.produce(topic, 0, batch_of([b"value"]))
            assert answer.error_code == 0
            assert b"value" in bytes(fetch(client, topic, answer.base_offset).records or b"")
