"""Metrics over HTTP: `GET /metrics`, `/health` and `/ready`, one answer for each connection.

A scraper comes every few seconds and wants one text, so this is no web server: it reads the head of
one request within a time and a size, answers, and closes.
"""

import asyncio
import contextlib
from http import HTTPStatus

from anabranch.broker.broker import Broker
from anabranch.broker.health import health, readiness
from anabranch.broker.metrics_text import render_metrics
from anabranch.config.metrics_settings import Address
from anabranch.observe import logs

_HEAD_MAX_BYTES = 16 * 1024
_HEAD_WAIT_S = 10.0
METRICS_PATH = "/metrics"
HEALTH_PATH = "/health"
READY_PATH = "/ready"


class MetricsListener:
    """One bound address that metrics are served on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, wanted: Address) -> Address:
        """Bind and serve; the address, whose port matters when 0 was asked for."""
        self._server = await asyncio.start_server(
            self._accept, wanted.host or None, wanted.port, limit=_HEAD_MAX_BYTES
        )
        return Address(wanted.host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the address, and whatever has not been answered yet."""
        if self._server is not None:
            self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_WAIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(head))
                await writer.drain()
        except asyncio.LimitOverrunError:
            writer.write(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # it went, or never said what it wanted
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _response(self, head: bytes) -> bytes:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        target, _, protocol = rest.rpartition(" ")
        if not protocol.startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        path = target.partition("?")[0]
        if path not in (METRICS_PATH, HEALTH_PATH, READY_PATH):
            return _response(HTTPStatus.NOT_FOUND)
        if method != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, extra=("Allow: GET",))
        try:
            return await self._answer_to(path, _field(fields, "accept"))
        except Exception as error:
            logs.error("metrics.failed", error=repr(error))
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _answer_to(self, path: str, accept: str) -> bytes:
        if path == METRICS_PATH:
            body, content_type = await render_metrics(self._broker, accept)
            return _response(HTTPStatus.OK, body, content_type)
        is_health = path == HEALTH_PATH
        state = health(self._broker) if is_health else await readiness(self._broker)
        status = HTTPStatus.OK if state.is_ok else HTTPStatus.SERVICE_UNAVAILABLE
        return _response(status, state.text.encode())


def _field(fields: list[str], name: str) -> str:
    for field in fields:
        key, _, value = field.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _response(
    status: HTTPStatus,
    body: bytes = b"",
    content_type: str = "text/plain; charset=utf-8",
    extra: tuple[str, ...] = (),
) -> bytes:
    if not body:
        body = f"{status.phrase}. Metrics are at {METRICS_PATH}.\n".encode()
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *extra,
    ]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body
