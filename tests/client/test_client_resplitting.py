"""Members whose load is uneven, and a real broker that moves ranges between them."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from loop_kit import in_loop
from test_client_real_broker import SHARED, Crew, committed, new_member

from anabranch.branch.slots import slot_of_key
from anabranch.client import ConsumerRecord
from anabranch.model.units import SLOT_COUNT
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic

TOTAL = 4000


def keys_in(first: int, end: int, count: int) -> list[bytes]:
    """Keys whose slots are in a range."""
    numbers = (b"k%d" % number for number in range(1_000_000))
    wanted = (key for key in numbers if first <= slot_of_key(key) < end)
    return [next(wanted) for _ in range(count)]


def produce_skewed(broker: BrokerProcess) -> None:
    """Nine of ten records are in the first third of the slots."""
    chance = random.Random(3)
    heavy = keys_in(0, SLOT_COUNT // 3, 200)
    light = keys_in(SLOT_COUNT // 3, SLOT_COUNT, 200)
    with RawClient(broker.bootstrap) as client:
        for first in range(0, TOTAL, 100):
            records = [
                Record(i, 0, chance.choice(heavy if chance.random() < 0.9 else light), b"v")
                for i in range(100)
            ]
            batch = build_batch(records, base_offset=0, partition_leader_epoch=-1)
            assert client.produce("orders", 0, batch).error_code == 0, first


class CountingCrew(Crew):
    """Counts by member too: the busy third's records, and all records after the first half."""

    def __init__(self, broker: BrokerProcess, work_s: float) -> None:
        super().__init__(broker, work_s)
        self.heavy: Counter[int] = Counter()
        self.late: Counter[int] = Counter()

    def join_counted(self) -> None:
        number = len(self.members)
        self.members.append(member := new_member(self.broker, max_poll_records=20))

        async def handle(record: ConsumerRecord) -> None:
            await self.handle(record)
            if slot_of_key(record.key or b"") < SLOT_COUNT // 3:
                self.heavy[number] += 1
            if len(self.counts) > TOTAL / 2:
                self.late[number] += 1

        work = member.run(handle, concurrency=2, handle_signals=False)
        self.tasks.append(asyncio.ensure_future(work))


def test_load_evens_out(make_broker: Callable[..., BrokerProcess]) -> None:
    """A backlog in one member's range is shared by all; no record is lost, doubled or swapped."""
    broker = make_broker(**{"coop.resplit.interval.ms": "100"})
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce_skewed(broker)

    @in_loop
    async def scenario() -> None:
        crew = CountingCrew(broker, work_s=0.005)
        for _ in range(3):
            crew.join_counted()
        await crew.finish(TOTAL)
        assert set(crew.counts.values()) == {1}
        assert all(offsets == sorted(offsets) for offsets in crew.by_key.values())
        assert committed(broker) == TOTAL
        # With ranges of equal width one member does all of them: nine of ten records, 2.7 times
        # the mean. How soon that changes is the machine's as much as the broker's, and measured by
        # bench/cooperative.py.
        assert len(crew.heavy) > 1, crew.heavy
        print(f"most: {max(crew.late.values()) * 3 / crew.late.total():.2f} times the mean")

    scenario()
    assert "group.ranges.moving" in broker.log_text
