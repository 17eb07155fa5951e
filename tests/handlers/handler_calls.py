"""Calling handlers as the server does: through the codecs of one version, without a socket.

Request and response go through the wire codecs of the version under test, so a handler that
answers what its version cannot carry fails here, and what a test compares is what a client reads.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.config.load import load_settings
from anabranch.handlers.registry import ROUTES
from anabranch.handlers.route import RequestContext
from anabranch.wire.record_batch import Record, build_batch

NOW_MS = 1_700_000_000_000
LISTENER = "PLAINTEXT"


class Node:
    """A broker with a clock that stands still until it is moved."""

    def __init__(self, folder: Path, overrides: tuple[str, ...] = ()) -> None:
        self.now_ms = NOW_MS
        self.closed_because: list[str] = []
        settings = load_settings(environ={}, overrides=[f"log.dirs={folder}", *overrides])
        self.broker = Broker(settings, now_ms=lambda: self.now_ms)
        self.broker.set_endpoint(LISTENER, "kafka.example", 9092)
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.broker.close()

    def begin(self, request: Any, version: int | None = None) -> "Call":
        """Hand a request to its handler; the answer may be there or still to come."""
        return Call(self, request, version)

    def call(self, request: Any, version: int | None = None) -> Any:
        """The answer to a request that does not have to wait."""
        return self.begin(request, version).answer

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Any:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        return self.broker.create_topic(name, partitions, given)

    def append(self, name: str, *values: bytes, partition: int = 0) -> int:
        """Append one batch as a producer's would be; returns its first offset."""
        batch = bytearray(make_batch(*values))
        log = self.broker.topics.partition(name, partition).log
        return log.append(memoryview(batch), now_ms=self.now_ms).first_offset


class Call:
    """A request under way."""

    def __init__(self, node: Node, request: Any, version: int | None) -> None:
        route = next(r for r in ROUTES.values() if r.api.request is type(request))
        self._api = route.api
        self._version = route.versions.last if version is None else version
        assert self._version in route.versions, "the version is not served"
        body = memoryview(bytearray(b"".join(self._api.encode_request(self._version)(request))))
        decoded, end = self._api.decode_request(self._version)(body, 0)
        assert end == len(body), "the request was not read to its end"
        context = RequestContext(
            self._version, "tests", "127.0.0.1", LISTENER, node.closed_because.append
        )
        self._answers: list[Any] = []
        answer = route.handle(node.broker, context, decoded)
        if isinstance(answer, Deferred):
            self.deferred: Deferred[Any] | None = answer
            answer.deliver_to(self._answers.append)
        else:
            self.deferred = None
            self._answers.append(answer)

    @property
    def is_answered(self) -> bool:
        return bool(self._answers)

    @property
    def answer(self) -> Any:
        """The answer as the client decodes it; None for a request that has none."""
        assert self._answers, "the request is still waiting"
        if self._answers[0] is None:
            return None
        parts = self._api.encode_response(self._version)(self._answers[0])
        body = memoryview(b"".join(parts))
        decoded, end = self._api.decode_response(self._version)(body, 0)
        assert end == len(body), "the response was not read to its end"
        return decoded


def make_batch(*values: bytes, timestamp: int = NOW_MS, **header: Any) -> bytes:
    """A record batch with a record of each value, as a producer sends it."""
    records = [
        Record(
            offset=offset,
            timestamp=timestamp,
            key=None,
            value=value,
            headers=(),
        )
        for offset, value in enumerate(values)
    ]
    return build_batch(records, base_offset=0, **header)


class Timer:
    """A timer of the loop that goes off only when a test says so."""

    def __init__(self, delay_s: float, callback: Callable[..., None], args: tuple[Any, ...]):
        self.delay_s = delay_s
        self.is_cancelled = False
        self._callback = callback
        self._args = args

    def cancel(self) -> None:
        self.is_cancelled = True

    def go_off(self) -> None:
        assert not self.is_cancelled
        self._callback(*self._args)


def run_in_loop(body: Callable[[list[Timer]], None]) -> None:
    """Run a test inside an event loop whose timers are collected instead of started."""

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        timers: list[Timer] = []
        real = loop.call_later

        def collect(delay_s: float, callback: Callable[..., None], *args: Any) -> Timer:
            timers.append(Timer(delay_s, callback, args))
            return timers[-1]

        loop.call_later = collect
        try:
            body(timers)
        finally:
            loop.call_later = real

    asyncio.run(main())
