"""A connection without a socket: bytes go in through the protocol, answers come out of a list."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.config.load import load_settings
from anabranch.server.admission import Limits
from anabranch.server.connection import Connection
from anabranch.server.dispatch import Dispatch
from anabranch.server.listener import Listener

LIMITS = Limits(
    request_max_bytes=1024 * 1024,
    connections_max=1000,
    connections_per_ip_max=1000,
    connections_idle_max_ms=600_000,
    queued_request_max_bytes=-1,
    backlog=50,
)


@contextmanager
def open_broker(folder: Path, *overrides: str) -> Iterator[Broker]:
    """A broker without a listener; clients are told that it is at fake:9092."""
    settings = load_settings(environ={}, overrides=[f"log.dirs={folder}", *overrides])
    broker = Broker(settings)
    broker.set_endpoint("PLAINTEXT", "fake", 9092)
    try:
        yield broker
    finally:
        broker.close()


class FakeTransport(asyncio.Transport):
    """Takes everything at once unless told to keep it back, as a full socket would."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.unsent_bytes = 0
        self.keeps_back = False
        self.is_open = True
        self.was_aborted = False
        self.reads = True
        self.protocol: Any = None

    def writelines(self, parts: Any) -> None:
        assert self.is_open, "written to after close"
        for part in parts:
            self.sent += part
            self.unsent_bytes += len(part) if self.keeps_back else 0
        if self.unsent_bytes > self._high_bytes:
            self.protocol.pause_writing()

    def take_all(self) -> None:
        """The client reads everything."""
        self.unsent_bytes = 0
        self.keeps_back = False
        self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 5000) if name == "peername" else default

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    def abort(self) -> None:
        self.is_open = False
        self.was_aborted = True


class FakeWire:
    """One client's end of a connection; used inside a running event loop."""

    def __init__(self, listener: Listener, dispatch: Dispatch) -> None:
        self.transport = FakeTransport()
        self.connection = Connection(listener, dispatch)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self._waiting = bytearray()

    def feed(self, data: bytes, piece_bytes: int = 1 << 30) -> None:
        """Send; what the connection does not want to read now waits, as in a socket's buffer."""
        self._waiting += data
        while self._waiting and self.transport.reads and self.transport.is_open:
            buffer = self.connection.get_buffer(-1)
            assert len(buffer) > 0, "an empty buffer would read as the end of the stream"
            size = min(len(buffer), len(self._waiting), piece_bytes)
            buffer[:size] = self._waiting[:size]
            del self._waiting[:size]
            self.connection.buffer_updated(size)

    async def settle(self) -> None:
        """Let the loop run what was put off, and read what became readable."""
        quiet_turns = 0
        while quiet_turns < 3:
            before = len(self._waiting), len(self.transport.sent)
            await asyncio.sleep(0)
            self.feed(b"")
            is_quiet = before == (len(self._waiting), len(self.transport.sent))
            quiet_turns = quiet_turns + 1 if is_quiet else 0

    def responses(self) -> list[bytes]:
        """The responses so far without their sizes; what was sent must be whole responses."""
        found, pos = [], 0
        while pos < len(self.transport.sent):
            (size,) = struct.unpack_from(">i", self.transport.sent, pos)
            assert size >= 4, size
            body = bytes(self.transport.sent[pos + 4 : pos + 4 + size])
            assert len(body) == size, "a response is cut off"
            found.append(body)
            pos += 4 + size
        return found

    def ids(self) -> list[int]:
        return [struct.unpack_from(">i", response)[0] for response in self.responses()]

    def lose(self) -> None:
        """The end of the connection, whoever closed it."""
        self.transport.is_open = False
        self.connection.connection_lost(None)


def run(work: Callable[[], Any]) -> None:
    """Run a coroutine function in a fresh loop whose unhandled errors are failures."""
    failures: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        await work()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert not failures, failures
