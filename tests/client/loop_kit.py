"""Tests that run in an event loop, and consumers for them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fake_broker import FakeBroker, FakeMember

from anabranch.client import ConsumerRecord, CooperativeConsumer, TopicPartition
from anabranch.model.units import Unit

ORDERS = TopicPartition("orders", 0)


def in_loop(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop."""

    def test(**arguments: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(200):
                await scenario(**arguments)

        asyncio.run(bounded())

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    test.__signature__ = __import__("inspect").signature(scenario)  # type: ignore[attr-defined]
    return test


def new_consumer(broker: FakeBroker, **options: Any) -> CooperativeConsumer:
    """A member of a group, which subscribes to orders; quick to try again."""
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": "workers",
        "retry_backoff_ms": 5,
        "retry_backoff_max_ms": 20,
        "auto_commit_interval_ms": None,
        "fetch_max_wait_ms": 50,
        **options,
    }
    consumer = CooperativeConsumer(**settings)
    if settings["group_id"] is not None:
        consumer.subscribe(["orders"])
    return consumer


async def polled(consumer: CooperativeConsumer, count: int) -> list[ConsumerRecord]:
    """Exactly so many records."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        records += await consumer.poll(5, max_records=count - len(records))
    return records


def give_all(broker: FakeBroker, epoch: int = 1) -> None:
    """Whoever joins gets all of orders-0."""
    broker.create("orders")
    broker.on_join = lambda member: broker.give(member, {broker.unit("orders"): epoch})


def only_member(broker: FakeBroker) -> FakeMember:
    (member,) = broker.members.values()
    return member


def is_held(member: FakeMember, unit: Unit) -> bool:
    return any(
        one[:2] == unit[:2]
        and one.slots.first < unit.slots.end
        and unit.slots.first < one.slots.end
        for one in member.held
    )


class Calls:
    """Callbacks that note what they were called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(ranges: Any) -> None:
            texts = [f"{place} {one}" for place, some in ranges.items() for one in some]
            self.calls.append((name, texts))

        return note

    @property
    def options(self) -> dict[str, Any]:
        return {
            "on_ranges_assigned": self.assigned,
            "on_ranges_revoked": self.revoked,
            "on_ranges_lost": self.lost,
        }

    def of(self, name: str) -> list[list[str]]:
        return [texts for found, texts in self.calls if found == name]
