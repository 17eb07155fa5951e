"""A handler that hangs on one record: what becomes of the others, and of the record."""

import asyncio
from collections.abc import Callable
from typing import Any

from loop_kit import in_loop
from test_client_real_broker import SHARED, Crew, committed, produce

from anabranch.client import ConsumerRecord
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic

RECORDS = 2_000
FIRST = 100
STUCK_OFFSET = 140


class HangingCrew(Crew):
    """Members whose handlers hang on one record, the first time that it comes."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(broker, work_s=0)
        self.stuck: list[tuple[int, int]] = []
        self.is_over = asyncio.Event()
        self.tokens: list[Any] = []

    async def handle(self, record: ConsumerRecord) -> None:
        if record.offset == STUCK_OFFSET:
            self.stuck.append((record.offset, record.attempt))
            self.tokens.append(record.token)
            self._changed.set()
            if record.attempt == 1:
                await self.is_over.wait()
        await super().handle(record)

    async def until_quiet(self) -> None:
        """Wait until nothing comes any more, or as if: a machine that is busy pauses too."""
        count = -1
        while count != len(self.counts):
            count = len(self.counts)
            await asyncio.sleep(0.6)


def offsets_before_the_stuck_key(broker: BrokerProcess) -> set[int]:
    """The records that nobody has to wait for: all but those that come after it in its key."""
    with RawClient(broker.bootstrap) as client:
        records = client.read_all("orders", 0)
    stuck = next(one.key for one in records if one.offset == STUCK_OFFSET)
    return {one.offset for one in records if one.key != stuck or one.offset < STUCK_OFFSET}


def test_others_go_on(broker: BrokerProcess) -> None:
    """All records of all other keys are done as if nothing were, while one is stuck."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, RECORDS)

    @in_loop
    async def scenario() -> None:
        crew = HangingCrew(broker)
        crew.join()
        crew.join()
        free = offsets_before_the_stuck_key(broker)
        await crew.until(lambda: bool(crew.stuck) and crew.counts.keys() >= free)
        await crew.until_quiet()
        assert crew.counts.keys() == free
        assert committed(broker) <= STUCK_OFFSET
        crew.is_over.set()
        await crew.finish(RECORDS)
        crew.check_order()
        assert set(crew.counts.values()) == {1}

    scenario()


def test_others_wait_when_the_window_is_full(make_broker: Callable[..., BrokerProcess]) -> None:
    """They go on up to the window, and again when the record is done."""
    broker = make_broker(**{"coop.max.window.offsets": "400"})
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, FIRST)

    @in_loop
    async def scenario() -> None:
        crew = HangingCrew(broker)
        # Small answers: nobody is shown much more than a window has room for.
        crew.join(fetch_max_bytes=4_000, max_partition_fetch_bytes=4_000)
        while await asyncio.to_thread(committed, broker) < FIRST:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(produce, broker, RECORDS - FIRST)
        await crew.until(lambda: bool(crew.stuck) and max(crew.counts) > STUCK_OFFSET + 100)
        await crew.until_quiet()
        # Three quarters of the window, and what was under way.
        assert max(crew.counts) < STUCK_OFFSET + 300 + 300
        assert committed(broker) <= STUCK_OFFSET
        crew.is_over.set()
        await crew.finish(RECORDS)
        crew.check_order()
        assert set(crew.counts.values()) == {1}

    scenario()


def test_what_is_stuck_goes_to_another_member(make_broker: Callable[..., BrokerProcess]) -> None:
    """Its slot changes hands, it is delivered again there, in order, and the group goes on."""
    broker = make_broker(
        **{
            "coop.stuck.ms": "800",
            "coop.retry.backoff.ms": "50",
            "coop.max.window.offsets": "400",
            "group.consumer.heartbeat.interval.ms": "200",
            "group.consumer.min.heartbeat.interval.ms": "100",
        }
    )
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, RECORDS)

    @in_loop
    async def scenario() -> None:
        crew = HangingCrew(broker)
        for _ in range(2):
            crew.join(rebalance_timeout_ms=1_500)
        await crew.until(lambda: len(crew.counts) == RECORDS)
        while await asyncio.to_thread(committed, broker) < RECORDS:
            await asyncio.sleep(0.02)
        assert crew.stuck[:2] == [(STUCK_OFFSET, 1), (STUCK_OFFSET, 2)]
        # Whoever hangs may wake up and do what it was about to; its token is an old one.
        assert crew.tokens[0].epoch < crew.tokens[1].epoch
        crew.check_order()
        for task in crew.tasks:
            task.cancel()
        crew.is_over.set()
        for member in crew.members:
            await member.close()
        await asyncio.gather(*crew.tasks, return_exceptions=True)

    scenario()


def test_what_is_stuck_for_good_is_disposed_of(make_broker: Callable[..., BrokerProcess]) -> None:
    """After its last attempt it goes to the dead-letter topic, also with nobody else to try it."""
    broker = make_broker(
        **{"coop.stuck.ms": "400", "coop.delivery.limit": "1", "coop.disposition": "dlq"}
    )
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 300, keys=1_000_000)

    @in_loop
    async def scenario() -> None:
        crew = HangingCrew(broker)
        crew.join()
        while await asyncio.to_thread(committed, broker) < 300:
            await asyncio.sleep(0.02)
        assert crew.stuck == [(STUCK_OFFSET, 1)]
        assert STUCK_OFFSET not in crew.counts
        with RawClient(broker.bootstrap) as client:
            assert client.fetch("orders.dlq", 0, 0).high_watermark == 1
        crew.is_over.set()
        for member in crew.members:
            await member.close()
        await asyncio.gather(*crew.tasks)

    scenario()
