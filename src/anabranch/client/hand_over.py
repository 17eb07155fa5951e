"""Making assignments true: taking ranges over, and giving them back.

Taking over: the application is told, progress is loaded, and then the range is fetched for.

Giving back: nothing more is started; what runs may end, within the rebalance timeout; the
application is told; progress is stored; and only after that does a heartbeat confirm it. Ranges
are given back one by one, so that a slow record holds up its own range only.
"""

import asyncio
import inspect
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from anabranch.client.core import Core, Tasks, log
from anabranch.client.errors import CallbackError, ConsumerError
from anabranch.client.holdings import Assignment, Holdings
from anabranch.client.range_work import Place, RangeState, RangeWork
from anabranch.client.records import KeyRange, TopicPartition
from anabranch.client.settings import RangesCallback
from anabranch.client.starting_points import StartingPoints
from anabranch.client.timing import Attempts
from anabranch.model.units import Unit

# The rest is for the commit, and for the way of the confirmation.
_DRAIN_SHARE = 0.8


class HandOver:
    """Takes ranges over and gives them back."""

    def __init__(self, core: Core, holdings: Holdings, starting_points: StartingPoints) -> None:
        self._core = core
        self._holdings = holdings
        self._starting_points = starting_points
        self.random_share: Callable[[], float] = random.random
        # Set by whoever does it.
        self.commit: Callable[[Collection[RangeWork]], Coroutine[Any, Any, None]] = _do_nothing
        self.confirm: Callable[[], None] = lambda: None
        self.abandon: Callable[[Collection[RangeWork]], None] = lambda works: None
        # Called when ranges are waited for that may have records in a transaction.
        self.hurry: Callable[[], None] = lambda: None
        self._tasks = Tasks(core)
        self._drained = asyncio.Event()
        core.on_drained = self._drained.set

    async def stop(self) -> None:
        await self._tasks.stop()

    # Assignments ----------------------------------------------------------------------------------

    def assign(self, target: Assignment) -> None:
        """Go over to an assignment; returns before it is true."""
        with self._core.lock:
            changes = self._holdings.assign(target)
            missing = self._holdings.missing_topics
        if missing:
            self._tasks.spawn("looking up topics", self._look_up, missing)
        if changes.lost:
            self._tasks.spawn("a callback", self._tell_lost, changes.lost)
        self._begin(changes.begun)
        idle = [work for work in changes.draining if work.in_flight == 0]
        if idle:
            self._tasks.spawn("giving back", self._give_back, idle)
        for work in changes.draining:
            if work not in idle:
                self._tasks.spawn("giving back", self._give_back, [work])
        self.confirm()

    def lose_all(self) -> None:
        """The group went on without this member."""
        with self._core.lock:
            lost = self._holdings.lose_all()
        if lost:
            self._tasks.spawn("a callback", self._tell_lost, lost)

    def reload(self, works: Iterable[RangeWork]) -> None:
        """Start over with ranges whose log has changed under them."""
        lost = [work for work in works if work.is_held]
        with self._core.lock:
            for work in lost:
                self._core.workload.end(work)
            begun = self._holdings.begin_missing()
        if lost:
            self._tasks.spawn("a callback", self._tell_lost, lost)
        self._begin(begun)

    async def _look_up(self, topic_ids: Collection[bytes]) -> None:
        attempts = Attempts(self._core.settings.retry_backoff, self.random_share)
        while True:
            try:
                await self._core.cluster.refresh(ids=topic_ids)
            except ConsumerError as error:
                await self.wait_after(error, attempts)
                continue
            with self._core.lock:
                missing = self._holdings.missing_topics
                begun = self._holdings.begin_missing()
            self._begin(begun)
            if not missing:
                return
            # A topic that was deleted leaves the assignment as well, with the next heartbeats.
            await asyncio.sleep(attempts.failed())

    async def wait_after(self, error: ConsumerError, attempts: Attempts) -> None:
        if not self._starting_points.may_retry(error):
            raise error
        delay_s = attempts.failed()
        log.info("%s; trying again in %.1f s", error, delay_s)
        await asyncio.sleep(delay_s)

    # Taking over ----------------------------------------------------------------------------------

    def _begin(self, works: list[RangeWork]) -> None:
        if works:
            self._tasks.spawn("taking over", self._take_over, [work.unit for work in works])

    async def _take_over(self, units: list[Unit]) -> None:
        # Before this began they may have been cut, or be to be given back.
        with self._core.lock:
            begun = [work for work in self._core.workload if _is_new_in(units, work)]
            for work in begun:
                work.is_announced = True
        await self._call(self._core.settings.on_ranges_assigned, begun)
        places = {unit[:2] for unit in units}
        attempts = Attempts(self._core.settings.retry_backoff, self.random_share)
        while True:
            # Ranges that were given back or cut meanwhile are found by what is still to be loaded.
            with self._core.lock:
                loading = [
                    work
                    for work in self._core.workload
                    if work.state is RangeState.LOADING
                    and work.unit[:2] in places
                    and work.is_announced
                ]
            if not loading:
                return
            try:
                await self._starting_points.load(loading)
            except ConsumerError as error:
                await self.wait_after(error, attempts)
                continue
            log.info("took over %s", _text_of(loading))
            self._core.on_hungry()

    async def learn_rule(self, topic_id: bytes, *, again: bool = False) -> None:
        """Ask by what the records of a topic keep their order."""
        await self._starting_points.learn_rule(topic_id, again=again)

    def refresh_rests(self, places: Collection[Place]) -> None:
        """Records failed: ask what the broker makes of it, how long they rest, or that it is done
        with them."""
        self._tasks.spawn("asking for rests", self._starting_points.refresh_rests, places)

    # Giving back ----------------------------------------------------------------------------------

    async def _give_back(self, works: list[RangeWork]) -> None:
        timeout_s = self._core.settings.rebalance_timeout_ms / 1000
        lease = self._core.workload.lease
        with self._core.lock:
            lease.hand_back_begins(works[0], self._core.clock(), timeout_s)
        await self.wait_drained(works, timeout_s * _DRAIN_SHARE)
        await self.tell_revoked(works)
        try:
            await self.commit(works)
        except ConsumerError as error:
            log.warning("gave back %s without storing progress: %s", _text_of(works), error)
        with self._core.lock:
            for work in works:
                self._holdings.drained(work)
            lease.hand_back_is_over(works[0], self._core.clock())
            begun = self._holdings.begin_missing()
        log.info("gave back %s", _text_of(works))
        self._begin(begun)
        self.confirm()

    async def wait_drained(self, works: Collection[RangeWork], timeout_s: float) -> None:
        """Wait until nothing of the ranges runs, or the time is over."""
        self.hurry()
        try:
            async with asyncio.timeout(timeout_s):
                while any(work.in_flight for work in works if work.is_held):
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            busy = [work for work in works if work.in_flight]
            log.warning(
                "records of %s took longer than %.1f s to end; giving the ranges up",
                _text_of(busy),
                timeout_s,
            )
            self.abandon(busy)

    async def tell_revoked(self, works: Collection[RangeWork]) -> None:
        """Tell the application that ranges are about to be given back."""
        await self._call(self._core.settings.on_ranges_revoked, _announced_last(works))

    async def _tell_lost(self, works: list[RangeWork]) -> None:
        log.warning("lost %s", _text_of(works))
        await self._call(self._core.settings.on_ranges_lost, _announced_last(works))

    async def _call(self, callback: RangesCallback | None, works: Sequence[RangeWork]) -> None:
        if callback is None or not works:
            return
        try:
            result = callback(ranges_of(works))
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            name = getattr(callback, "__name__", "a callback")
            raise CallbackError(f"{name}: {error}") from error


def _announced_last(works: Iterable[RangeWork]) -> list[RangeWork]:
    """Those that the application knows of; it will not hear of them again.

    A range can be lost while it is given back: then it is told of the one that comes first.
    """
    announced = [work for work in works if work.is_announced]
    for work in announced:
        work.is_announced = False
    return announced


def _is_new_in(units: Iterable[Unit], work: RangeWork) -> bool:
    """Whether a range is a part of one of these, and nobody was told of it yet."""
    return (
        work.state is RangeState.LOADING
        and not work.is_announced
        and any(
            unit[:2] == work.unit[:2]
            and unit.slots.first <= work.slots.first
            and work.slots.end <= unit.slots.end
            for unit in units
        )
    )


async def _do_nothing(works: Collection[RangeWork]) -> None:
    pass


def ranges_of(works: Iterable[RangeWork]) -> dict[TopicPartition, list[KeyRange]]:
    """Key ranges by partition, as the application sees them."""
    found: dict[TopicPartition, list[KeyRange]] = {}
    for work in sorted(works, key=lambda one: (one.place, one.slots)):
        found.setdefault(work.place, []).append(work.key_range)
    return found


def _text_of(works: Iterable[RangeWork]) -> str:
    return ", ".join(f"{work.place} {work.key_range}" for work in works) or "nothing"
