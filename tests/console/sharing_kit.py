"""A broker in the test's own loop with members that share, and its Sharing tab."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from starlette.requests import Request

from anabranch.client import ConsumerRecord, CooperativeConsumer
from anabranch.config.load import load_settings
from anabranch.console.frame import Console, Page, render_inner
from anabranch.console.pages.group_sharing import make_tab
from anabranch.console.tables import Table
from anabranch.server.run import Server

GROUP = "billing"
# A limit for what is waited for; nothing is expected to take so long.
LIMIT_S = 90

Scenario = Callable[["Site"], Coroutine[Any, Any, None]]


class Site:
    """A broker, members of the group, and pages."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.broker = server.broker
        self.console = Console(server.broker)
        self.consumers: list[CooperativeConsumer] = []
        self.stack = contextlib.AsyncExitStack()

    @property
    def bootstrap(self) -> str:
        return self.server.addresses[0].removeprefix("PLAINTEXT://")

    async def produce(self, topic: str, keys: Sequence[str], partition: int = 0) -> None:
        """Records with these keys, when the broker has them."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for key in keys:
            producer.produce(topic, b"value", key=key.encode(), partition=partition)
        assert await asyncio.to_thread(producer.flush, LIMIT_S) == 0

    async def join(
        self, client_id: str, *topics: str, group_id: str = GROUP
    ) -> CooperativeConsumer:
        """A member that polls by hand."""
        consumer = await self.stack.enter_async_context(
            CooperativeConsumer(
                bootstrap_servers=self.bootstrap,
                group_id=group_id,
                client_id=client_id,
                auto_commit_interval_ms=None,
                fetch_max_wait_ms=50,
            )
        )
        consumer.subscribe(list(topics))
        self.consumers.append(consumer)
        return consumer

    async def polled(self, consumer: CooperativeConsumer, count: int) -> list[ConsumerRecord]:
        """So many records of a member, while the others go on being members."""
        records: list[ConsumerRecord] = []
        while len(records) < count:
            records += await consumer.poll(1, max_records=count - len(records))
        return records

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a fact; members join and hand over while they poll. What they get is left."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.01)
                for consumer in self.consumers:
                    await consumer.poll(0.02)

    def request(self, query: str = "") -> Request:
        return Request(
            {
                "type": "http",
                "method": "GET",
                "path": f"/groups/{GROUP}",
                "query_string": query.encode(),
                "headers": [],
                "server": ("localhost", 1),
                "scheme": "http",
            }
        )

    async def tab(self, query: str = "", group_id: str = GROUP) -> Page:
        return await make_tab(self.request(query), self.console, group_id)

    async def html(self, query: str = "", group_id: str = GROUP) -> str:
        request = self.request(query)
        page = await make_tab(request, self.console, group_id)
        return render_inner(request, self.console, page)


def table(page: Page, name: str) -> Table[Any]:
    (found,) = [one for one in page.tables if one.name == name]
    return found


def cells(page: Page, name: str, key: str) -> list[Any]:
    """All values of a column."""
    found = table(page, name)
    (column,) = [one for one in found.columns if one.key == key]
    return [column.value(row) for row in found.filtered]


@contextlib.asynccontextmanager
async def _site(folder: Path, overrides: Sequence[str]) -> AsyncIterator[Site]:
    settings = load_settings(
        environ={},
        overrides=[
            f"log.dirs={folder}",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "console.listeners=",
            "offsets.topic.num.partitions=1",
            *overrides,
        ],
    )
    server = Server(settings)
    await server.start()
    site = Site(server)
    try:
        async with site.stack:
            yield site
    finally:
        await server.stop()


def at_site(folder: Path, scenario: Scenario, *overrides: str) -> None:
    """Run a scenario."""

    async def run() -> None:
        async with asyncio.timeout(2 * LIMIT_S), _site(folder, overrides) as site:
            await scenario(site)

    asyncio.run(run())
