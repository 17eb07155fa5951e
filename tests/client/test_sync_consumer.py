"""The consumer without an event loop of one's own."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fake_broker import FakeBroker
from loop_kit import ORDERS, give_all

from anabranch.client import (
    ConsumerClosedError,
    ConsumerRecord,
    ConsumerStateError,
    KeyRange,
    SyncCooperativeConsumer,
)


@contextmanager
def broker_in_a_thread() -> Iterator[FakeBroker]:
    """A scripted broker whose loop is not the test's."""
    broker = FakeBroker()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(broker.__aenter__(), loop).result()
    broker.loop = loop  # type: ignore[attr-defined]
    try:
        yield broker
    finally:
        asyncio.run_coroutine_threadsafe(broker.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def until(broker: FakeBroker, condition: Callable[[], bool]) -> None:
    loop = broker.loop  # type: ignore[attr-defined]
    asyncio.run_coroutine_threadsafe(broker.until(condition), loop).result()


def new_consumer(broker: FakeBroker, **options: object) -> SyncCooperativeConsumer:
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": "workers",
        "fetch_max_wait_ms": 50,
        **options,
    }
    consumer = SyncCooperativeConsumer(**settings)  # type: ignore[arg-type]
    if settings["group_id"] is not None:
        consumer.subscribe(["orders"])
    return consumer


def test_poll_and_ack() -> None:
    """Records are polled, acknowledged and committed without an event loop in sight."""
    with broker_in_a_thread() as broker:
        give_all(broker)
        broker.append("orders", [b"a", b"b", b"c"])
        with new_consumer(broker) as consumer:
            records: list[ConsumerRecord] = []
            while len(records) < 3:
                records += consumer.poll(5)
            assert all(consumer.may_start(record) for record in records)
            assert consumer.nack(records[0], retry_after_s=0.01)
            assert [consumer.ack(record) for record in records[1:]] == [True, True]
            (again,) = consumer.poll(5)
            assert (again.offset, again.attempt) == (0, 2)
            consumer.ack(again)
            consumer.commit()
            assert broker.stable_offset("orders") == 3
            assert consumer.progress().lag_records == 0
        assert broker.members == {}


def test_iteration() -> None:
    """A loop over the consumer has one record after the other."""
    with broker_in_a_thread() as broker:
        broker.create("orders")
        broker.append("orders", [b"%d" % i for i in range(50)])
        with new_consumer(broker, group_id=None) as consumer:
            consumer.assign({ORDERS: [KeyRange.whole()]})
            seen = []
            for record in consumer:
                consumer.ack(record)
                seen.append(record.offset)
                if len(seen) == 50:
                    break
            assert seen == list(range(50))


def test_run_in_threads() -> None:
    """Handlers are called in threads, until stopped from anywhere."""
    with broker_in_a_thread() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(20)])
        names = set()
        left = threading.Semaphore(19)
        consumer = new_consumer(broker)

        def handle(record: ConsumerRecord) -> None:
            names.add(threading.current_thread().name)
            if not left.acquire(blocking=False):
                consumer.stop()

        consumer.run(handle, concurrency=2)
        consumer.close()
        assert broker.stable_offset("orders") == 20
        assert all(name.startswith("anabranch-worker-") for name in names)


def test_async_handler() -> None:
    """An async handler runs in the consumer's own loop."""
    with broker_in_a_thread() as broker:
        give_all(broker)
        broker.append("orders", [b"a"])
        consumer = new_consumer(broker)

        async def handle(record: ConsumerRecord) -> None:
            await asyncio.sleep(0)
            consumer.stop()

        consumer.run(handle, concurrency=2)
        consumer.close()
        assert broker.stable_offset("orders") == 1


def test_signal() -> None:
    """SIGTERM ends a run in order, and the program's own handler is back afterwards."""
    with broker_in_a_thread() as broker:
        give_all(broker)
        broker.append("orders", [b"a"])
        before = signal.getsignal(signal.SIGTERM)

        def handle(record: ConsumerRecord) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        with new_consumer(broker) as consumer:
            consumer.run(handle, concurrency=2)
            assert broker.stable_offset("orders") == 1
        assert signal.getsignal(signal.SIGTERM) is before


def test_callback_must_not_wait() -> None:
    """A callback that would wait for itself is refused instead."""
    with broker_in_a_thread() as broker:
        give_all(broker)
        errors: list[Exception] = []

        def prepare(ranges: object) -> None:
            try:
                consumer.poll(1)
            except ConsumerStateError as error:
                errors.append(error)

        consumer = new_consumer(broker, on_ranges_assigned=prepare)
        consumer.poll()
        until(broker, lambda: bool(errors))
        consumer.close()


def test_closed() -> None:
    """After its end every method says so, and iterating ends."""
    with broker_in_a_thread() as broker:
        give_all(broker)
        consumer = new_consumer(broker)
        consumer.close()
        consumer.close()
        assert list(consumer) == []
        with pytest.raises(ConsumerClosedError):
            consumer.poll()
