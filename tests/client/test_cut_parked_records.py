"""Keys whose next record is parked go on, whatever becomes of the ranges around them."""

import asyncio
from collections.abc import Callable

import pytest
from fake_broker import FakeBroker
from loop_kit import give_all, in_loop, new_consumer, only_member
from workload_kit import HALVES, TOPIC_ID, Log, active, deliver, key_in, new_workload, take_all

from anabranch.client import ConsumerRecord
from anabranch.client.fetch_plan import PartitionFetch, finish, plan_refills
from anabranch.client.range_work import RangeWork
from anabranch.client.work_queues import WAITING_WITH_CONTENT
from anabranch.client.workload import Workload
from anabranch.model.units import SlotRange

PLACE = (TOPIC_ID, 0)
QUARTERS = [SlotRange(number * 16_384, (number + 1) * 16_384) for number in range(4)]
SLOW = key_in(QUARTERS[0])
SLOTS = QUARTERS[0]
LOG = Log([SLOW] * (WAITING_WITH_CONTENT + 20))


def _until_empty(workload: Workload) -> int:
    """Process the slow key until its next record is parked; returns its offset."""
    while (record := workload.take(0.0)) is not None:
        workload.done(record)
    (empty,) = workload.queue.empty
    return empty.offset


def _refill(workload: Workload, fetch: PartitionFetch) -> None:
    rows = LOG.fetch(fetch.asked, fetch.first, LOG.end)
    workload.refill(PLACE, fetch.asked, rows, fetch.first, LOG.end)
    finish(workload, fetch)


def _planned(workload: Workload) -> PartitionFetch:
    ((fetch,),) = plan_refills(workload, lambda place: 7).values()
    return fetch


def _cut_off(workload: Workload, work: RangeWork) -> None:
    """The slow key's slots become a range of their own."""
    workload.cut(work, SLOTS)


def _cut_away(workload: Workload, work: RangeWork) -> None:
    """The other half is cut off and given back."""
    other = workload.cut(work, HALVES[1])
    workload.drain(other)
    workload.end(other)


def _grant(workload: Workload, work: RangeWork) -> None:
    """Another range of the partition comes."""
    other = workload.cut(work, HALVES[1])
    workload.end(other)
    active(workload, HALVES[1], epoch=2)


@pytest.mark.parametrize("change", [_cut_off, _cut_away, _grant])
@pytest.mark.parametrize("is_asked", [True, False])
def test_ranges_change_around_it(
    change: Callable[[Workload, RangeWork], None], is_asked: bool
) -> None:
    """A parked record whose turn has come is fetched, and its key goes on, when ranges change
    before the request is sent or while it is on its way."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, LOG)
    offset = _until_empty(workload)
    fetch = _planned(workload) if is_asked else None
    change(workload, work)
    _refill(workload, fetch or _planned(workload))
    assert [record.offset for record in take_all(workload)] == [offset]


def test_its_range_comes_back() -> None:
    """A range that is lost with a parked record, and comes back while that is asked for, begins at
    the same record."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, LOG)
    offset = _until_empty(workload)
    fetch = _planned(workload)
    workload.end(work)
    active(workload, epoch=2, position=offset)
    deliver(workload, LOG, first=offset)
    _refill(workload, fetch)
    seen = []
    while len(workload.queue) or workload.queue.empty:
        for record in take_all(workload):
            seen.append(record.offset)
            workload.done(record)
        if workload.queue.empty:
            _refill(workload, _planned(workload))
    assert seen == list(range(offset, LOG.end))


@in_loop
async def test_every_range_waits_for_records() -> None:
    """Requests that wait at the end of the log, one for each range, do not keep the parked records
    of a key from coming back."""
    async with FakeBroker() as broker:
        give_all(broker)
        units = [broker.unit("orders", quarter) for quarter in QUARTERS]
        broker.on_join = lambda member: broker.give(member, {units[0]: 1})
        broker.append("orders", [SLOW] * 300)
        gate = asyncio.Event()
        seen: list[int] = []

        async def handle(record: ConsumerRecord) -> None:
            await gate.wait()
            seen.append(record.offset)

        consumer = new_consumer(
            broker, buffer_max_records=400, auto_commit_interval_ms=10, fetch_max_wait_ms=60_000
        )
        running = asyncio.ensure_future(consumer.run(handle, concurrency=4))
        await broker.until(lambda: broker.members)
        for held in range(1, 5):
            # Each range asks for itself, as those before it are waiting.
            broker.give(only_member(broker), dict.fromkeys(units[:held], 1))
            await broker.until(lambda held=held: broker.fetches_waiting == held)
        assert sum(one.parked for one in consumer._core.workload) >= 90
        gate.set()
        await broker.until(lambda: seen == list(range(300)))
        consumer.stop()
        await running
        await consumer.close()
