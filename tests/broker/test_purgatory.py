"""Parked fetches: who wakes them, when, and who does not."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from anabranch.broker.partition import Partition
from anabranch.broker.purgatory import ParkedFetch, Purgatory
from anabranch.log.partition_log import PartitionLog

LONG_MS = 60_000


def _partition(index: int = 0) -> Partition:
    return Partition(index, cast(PartitionLog, None), syncs_acks_all=False)


class Fetch:
    """A parked fetch that notes its answers and failures."""

    def __init__(
        self,
        partitions: list[Partition],
        missing_bytes: int,
        max_wait_ms: int = LONG_MS,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self.answers = 0
        self.failures: list[Exception] = []
        self._on_answer = on_answer
        self.parked = ParkedFetch(partitions, missing_bytes, self._complete, self.failures.append)
        self.parked.park(max_wait_ms)

    def _complete(self, is_satisfied: bool) -> None:
        self.answers += 1
        self._on_answer()


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_min_bytes_come_together() -> None:
    """Several appends to several partitions complete a fetch when their sum is enough."""

    async def work() -> None:
        purgatory = Purgatory()
        first, second = _partition(0), _partition(1)
        fetch = Fetch([first, second], missing_bytes=100)
        for partition, size in ((first, 40), (second, 40), (first, 19)):
            purgatory.mark(partition, size)
            purgatory.wake()
            assert fetch.answers == 0
        purgatory.mark(second, 1)
        assert fetch.answers == 0  # not before the producer has its answer
        purgatory.wake()
        assert fetch.answers == 1
        assert not first.parked_fetches and not second.parked_fetches
        purgatory.mark(first, 1000)
        purgatory.wake()
        assert fetch.answers == 1

    _run(work)


def test_appends_between_two_wakes_are_added_up() -> None:
    """Appends in one read of the socket count together."""

    async def work() -> None:
        purgatory = Purgatory()
        partition = _partition()
        fetch = Fetch([partition], missing_bytes=100)
        for _ in range(10):
            purgatory.mark(partition, 10)
        purgatory.wake()
        assert fetch.answers == 1

    _run(work)


def test_bytes_read_before_parking_do_not_count_again() -> None:
    """A fetch that parks between an append and its wake has already seen those bytes."""

    async def work() -> None:
        purgatory = Purgatory()
        partition = _partition()
        early = Fetch([partition], missing_bytes=1)
        purgatory.mark(partition, 100)
        late = Fetch([partition], missing_bytes=50)
        purgatory.wake()
        assert (early.answers, late.answers) == (1, 0)
        purgatory.mark(partition, 49)
        purgatory.wake()
        assert late.answers == 0
        purgatory.mark(partition, 1)
        purgatory.wake()
        assert late.answers == 1

    _run(work)


def test_timer() -> None:
    """A fetch whose time is up is answered with what there is, once."""

    async def work() -> None:
        purgatory = Purgatory()
        partition = _partition()
        answered = asyncio.Event()
        fetch = Fetch([partition], 100, max_wait_ms=5, on_answer=answered.set)
        await asyncio.wait_for(answered.wait(), 5)
        purgatory.mark(partition, 1000)
        purgatory.wake()
        assert fetch.answers == 1
        assert not partition.parked_fetches

    _run(work)


def test_leaving() -> None:
    """A fetch whose client left is answered by nothing and leaves no timer."""

    async def work() -> None:
        purgatory = Purgatory()
        partition = _partition()
        fetch = Fetch([partition], 1, max_wait_ms=1)
        fetch.parked.leave()
        purgatory.mark(partition, 1000)
        purgatory.wake()
        await asyncio.sleep(0.01)
        assert fetch.answers == 0

    _run(work)


def test_partitions_that_go_away() -> None:
    """A deleted partition answers everybody who waits for it, wherever else they wait."""

    async def work() -> None:
        first, second = _partition(0), _partition(1)
        both, other = Fetch([first, second], 100), Fetch([second], 100)
        Purgatory.finish_all([first])
        assert (both.answers, other.answers) == (1, 0)
        assert list(second.parked_fetches) == [other.parked]
        other.parked.leave()

    _run(work)


def test_one_failure_does_not_stop_the_others() -> None:
    """A fetch that cannot be answered hears of it; the producer and the others do not."""

    async def work() -> None:
        def fail() -> None:
            raise OSError("the disk is gone")

        purgatory = Purgatory()
        first, second = _partition(0), _partition(1)
        broken = Fetch([first], 1, on_answer=fail)
        others = [Fetch([first], 1), Fetch([second], 1)]
        purgatory.mark(first, 1)
        purgatory.mark(second, 1)
        purgatory.wake()
        assert [str(error) for error in broken.failures] == ["the disk is gone"]
        assert [fetch.answers for fetch in others] == [1, 1]

    _run(work)


def test_appends_while_waking() -> None:
    """An answer that leads to another append wakes those who wait for it, too."""

    async def work() -> None:
        purgatory = Purgatory()
        first, second = _partition(0), _partition(1)

        def append() -> None:
            purgatory.mark(second, 10)
            purgatory.wake()

        chained = Fetch([second], 10)
        Fetch([first], 1, on_answer=append)
        purgatory.mark(first, 1)
        purgatory.wake()
        assert chained.answers == 1

    _run(work)


def test_nobody_waits() -> None:
    """Appends to partitions that nobody waits for leave nothing behind."""
    purgatory = Purgatory()
    partition = _partition()
    purgatory.mark(partition, 100)
    assert partition.appended_bytes == 0
    purgatory.wake()
