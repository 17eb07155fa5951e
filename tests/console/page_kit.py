"""A broker with its console in the test's own loop, and somebody who reads its pages over HTTP."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from anabranch.config.load import load_settings
from anabranch.server.run import Server
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch

# A limit for what is waited for; nothing is expected to take so long.
LIMIT_S = 90

Scenario = Callable[["PageSite"], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of a table as JSON."""
        assert self.status == 200, self.text
        found: list[dict[str, Any]] = json.loads(self.text)
        return found


class PageSite:
    """A broker and its console."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.broker = server.broker

    @property
    def bootstrap(self) -> str:
        return self.server.addresses[0].removeprefix("PLAINTEXT://")

    @property
    def port(self) -> int:
        return int(self.server.console_urls[0].rpartition(":")[2])

    async def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request, from another thread; underlines in names of headers are dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        def talk() -> Answer:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
            try:
                connection.request(method, path, headers=named)
                answer = connection.getresponse()
                found = {name.lower(): value for name, value in answer.getheaders()}
                return Answer(answer.status, found, answer.read().decode())
            finally:
                connection.close()

        return await asyncio.to_thread(talk)

    async def page(self, path: str) -> str:
        answer = await self.ask(path)
        assert answer.status == 200, (path, answer.status, answer.text)
        return answer.text

    async def rows(self, path: str) -> list[dict[str, Any]]:
        """A table of a page, as its export has it."""
        mark = "&" if "?" in path else "?"
        return (await self.ask(f"{path}{mark}format=json")).rows

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator["Stream"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n".encode()
        )
        try:
            yield Stream(reader)
        finally:
            writer.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.02)

    async def produce(self, topic: str, records: Sequence[tuple[Any, ...]]) -> None:
        """(key, value, headers) of records, by a stock client."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for key, value, *rest in records:
            producer.produce(topic, value, key=key, headers=rest[0] if rest else None, partition=0)
        assert await asyncio.to_thread(producer.flush, LIMIT_S) == 0


class Stream:
    """A live page."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def event(self) -> tuple[str, str]:
        """The next event and its data; ("", "") when the stream has ended."""
        name = ""
        async with asyncio.timeout(LIMIT_S):
            while line := (await self._reader.readline()).decode():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ").strip()
                elif line.startswith("data: "):
                    return name, line.removeprefix("data: ").strip()
        return "", ""

    async def page(self) -> str:
        """The next page; what is the same is passed over."""
        name, data = await self.event()
        while name == "same":
            name, data = await self.event()
        assert name == "page", name
        html: str = json.loads(data)
        return html

    async def end(self) -> None:
        """Wait until the other side has ended it."""
        async with asyncio.timeout(LIMIT_S):
            await self._reader.read(-1)


def at_page_site(folder: Path, scenario: Scenario, *overrides: str) -> None:
    """Play a scenario at a broker of its own."""

    async def play() -> None:
        settings = load_settings(
            environ={},
            overrides=[
                f"log.dirs={folder}",
                "listeners=PLAINTEXT://127.0.0.1:0",
                "console.listeners=localhost:0",
                "group.initial.rebalance.delay.ms=0",
                "offsets.topic.num.partitions=3",
                "transaction.state.log.num.partitions=2",
                *overrides,
            ],
        )
        server = Server(settings)
        await server.start()
        try:
            await scenario(PageSite(server))
        finally:
            await server.stop()

    asyncio.run(play())


def append(site_log: Any, records: Sequence[Record], now_ms: int, **batch: Any) -> None:
    """Put one batch into a log, without a client."""
    base = site_log.log_end_offset
    moved = [record._replace(offset=base + i) for i, record in enumerate(records)]
    content = build_batch(moved, base_offset=base, **batch)
    site_log.append(memoryview(bytearray(content)), now_ms=now_ms, is_client=False)


def append_in_transaction(site_log: Any, producer_id: int, record: Record, now_ms: int) -> None:
    append(
        site_log,
        [record],
        now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL_FLAG,
    )
