"""A key that is slow does not fill the buffer: its records wait without their content."""

import asyncio

import pytest
from fake_broker import FakeBroker
from loop_kit import give_all, in_loop, new_consumer
from workload_kit import HALVES, TOPIC_ID, Log, active, deliver, key_in, new_workload, take_all

from anabranch.client import ConsumerRecord
from anabranch.client.fetch_plan import PARKED_MAX, BufferLimits, finish, plan, plan_refills
from anabranch.client.work_queues import WAITING_WITH_CONTENT, BatchQueue, KeyQueue
from anabranch.model.units import ALL_SLOTS

SLOW, OTHER = (key_in(half) for half in HALVES)
KEPT = WAITING_WITH_CONTENT
PLACE = (TOPIC_ID, 0)


def test_parked() -> None:
    """Only so many records of a key keep their content, and the others do not count as buffered."""
    workload = new_workload()
    work = active(workload)
    log = Log([SLOW] * (KEPT + 10) + [OTHER])
    deliver(workload, log)
    assert work.parked == 9, "one is ready, the others wait"
    assert work.buffered == len(log.keys) - 9
    parked = work.open[KEPT + 5]
    assert (parked.key, parked.value) == (None, None)
    assert work.watermark == 0


def test_not_parked_while_there_is_room() -> None:
    """Nothing is parked in a range whose buffer is far from full."""
    workload = new_workload()
    workload.queue.park_above = 1000
    work = active(workload)
    deliver(workload, Log([SLOW] * 500))
    assert work.parked == 0


def test_parked_records_come_in_their_turn() -> None:
    """Parked records are fetched again when their turn comes, in order, and none is left out."""
    workload = new_workload()
    work = active(workload)
    log = Log([SLOW, OTHER] * 200)
    deliver(workload, log)
    seen = []
    refills = 0
    while len(workload.queue) or workload.queue.empty:
        for record in take_all(workload):
            assert record.key == log.keys[record.offset]
            if record.key == SLOW:
                seen.append(record.offset)
            workload.done(record)
        requests = plan_refills(workload, lambda place: 7)
        assert plan_refills(workload, lambda place: 7) == {}, "one request at a time"
        for (fetch,) in requests.values():
            refills += 1
            rows = log.fetch(fetch.asked, fetch.first, fetch.first + 100)
            workload.refill(PLACE, fetch.asked, rows, fetch.first, fetch.first + 100)
            finish(workload, fetch)
    assert seen == list(range(0, 400, 2))
    assert 1 < refills < 10
    assert (work.open, work.parked, work.keys) == ({}, 0, {})


def test_parked_record_that_vanished() -> None:
    """A parked record that is not in the log any more is done with, and its key goes on."""
    workload = new_workload()
    work = active(workload)
    log = Log([SLOW] * (KEPT + 4))
    deliver(workload, log)
    while (record := workload.take(0.0)) is not None:
        workload.done(record)
    (empty,) = workload.queue.empty
    rows = log.fetch([ALL_SLOTS], empty.offset + 1, log.end)
    assert workload.refill(PLACE, [HALVES[1]], [], empty.offset, log.end) == 0, "other slots"
    assert workload.refill(PLACE, [ALL_SLOTS], rows, empty.offset, log.end) == 3
    assert [record.offset for record in take_all(workload)] == [empty.offset + 1]
    assert empty.offset not in work.open


@pytest.mark.parametrize("queue", [KeyQueue, BatchQueue])
def test_range_with_parked_records_ends(queue: type) -> None:
    """A range is drained and ended with parked records, which stay open for the next owner."""
    workload = new_workload(queue())
    work = active(workload)
    deliver(workload, Log([SLOW] * (KEPT + 4)))
    first = workload.take(0.0)
    assert first is not None
    workload.done(first)
    workload.drain(work)
    assert work.watermark == 1
    workload.end(work)
    assert workload.queue.empty == [] and work.keys == {}


def test_polled_records_of_a_key_that_rests() -> None:
    """While a key rests its later records are parked when polling, too, and come in order."""
    workload = new_workload(BatchQueue())
    work = active(workload)
    log = Log([SLOW] * (KEPT + 50))
    deliver(workload, Log(log.keys[:1]))
    (failing,) = take_all(workload)
    workload.failed(failing, retry_after_s=5.0, reason="no", now=0.0)
    deliver(workload, log)
    assert work.parked == 49
    workload.wake(5.0)
    seen = [record.offset for record in take_all(workload, 5.0)]
    (empty,) = workload.queue.empty
    assert seen == list(range(empty.offset))
    rows = log.fetch([ALL_SLOTS], empty.offset, log.end)
    workload.refill(PLACE, [ALL_SLOTS], rows, empty.offset, log.end)
    seen += [record.offset for record in take_all(workload, 5.0)]
    assert seen == list(range(log.end))
    assert (work.parked, work.keys) == (0, {})


def test_too_many_parked_records() -> None:
    """There is an end to how many records are parked: then the range is not read on."""
    workload = new_workload()
    work = active(workload)
    limits = BufferLimits(max_records=10, max_bytes=10)
    work.parked = PARKED_MAX
    assert plan(workload, limits, lambda place: 7) == {}
    work.parked -= 1
    assert len(plan(workload, limits, lambda place: 7)) == 1


@pytest.mark.parametrize("is_async", [True, False])
@in_loop
async def test_slow_key_does_not_stop_the_others(is_async: bool) -> None:
    """All other keys are processed while one is stuck, and that one goes on in order later."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.fetch_max_records = 300
        broker.append("orders", [b"slow", b"%d", b"slow"] * 2000)
        loop = asyncio.get_running_loop()
        gate = asyncio.Event()
        seen: list[int] = []
        others = 0

        async def handle(record: ConsumerRecord) -> None:
            nonlocal others
            if record.key == b"slow":
                await gate.wait()
                seen.append(record.offset)
            else:
                others += 1

        def block(record: ConsumerRecord) -> None:
            asyncio.run_coroutine_threadsafe(handle(record), loop).result()

        consumer = new_consumer(broker, buffer_max_records=500, auto_commit_interval_ms=10)
        running = asyncio.ensure_future(consumer.run(handle if is_async else block, concurrency=4))
        await broker.until(lambda: others == 2000)
        (one,) = consumer.progress().ranges
        assert (one.position, one.watermark) == (6000, 0)
        assert one.buffered < 500
        gate.set()
        await broker.until(lambda: broker.stable_offset("orders") == 6000)
        assert seen == [offset for offset in range(6000) if offset % 3 != 1]
        consumer.stop()
        await running
        await consumer.close()
