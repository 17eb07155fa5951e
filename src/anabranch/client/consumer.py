"""The cooperative consumer: one member of a group whose members share partitions by key range.

Two ways to use it: `poll` (or `async for`) hands out records, which the application acknowledges
one by one with `ack`; `run` calls a handler with many records at once, each key in order, and does
the rest itself. `subscribe` leaves it to the group who has which key ranges; `assign` takes them
without a group.
"""

import asyncio
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, Literal, Unpack

from anabranch.client.committing import Committer
from anabranch.client.core import Core, Tasks, log
from anabranch.client.errors import (
    ConfigurationError,
    ConsumerClosedError,
    ConsumerError,
    ConsumerStateError,
    broker_error,
)
from anabranch.client.fetching import Fetcher
from anabranch.client.hand_over import HandOver
from anabranch.client.holdings import Holdings
from anabranch.client.membership import Membership
from anabranch.client.progress import ConsumerProgress, range_progress
from anabranch.client.range_work import Place
from anabranch.client.records import ConsumerRecord, KeyRange, TopicPartition
from anabranch.client.settings import ConsumerOptions, settings_of
from anabranch.client.starting_points import StartingPoints
from anabranch.client.timing import Attempts, Backoff
from anabranch.client.transaction_acks import AckTeller, TransactionAcks
from anabranch.client.transaction_loop import TransactionalHandler, TransactionLoop
from anabranch.client.transactional_producer import Transaction, TransactionalProducer
from anabranch.client.work_queues import KeyQueue
from anabranch.client.workers import DEFAULT_RETRY, AsyncCrew, Crew, Handler, ThreadCrew
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit

_STANDALONE_EPOCH = -1
# After so many records of an iteration others have their turn.
_TURN_RECORDS = 32


class CooperativeConsumer:
    """One member of a group that shares partitions by key range."""

    def __init__(self, **options: Unpack[ConsumerOptions]) -> None:
        """The settings are those of `ConsumerSettings`; nothing happens before the first use."""
        self._core = Core(settings_of(options))
        self._mode: Literal["poll", "run"] | None = None
        self._topics: list[str] = []
        self._assigned: dict[TopicPartition, list[KeyRange]] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self._membership: Membership | None = None
        self._holdings = Holdings(self._core.workload, self._core.cluster.place_of)
        self._hand_over: HandOver | None = None
        self._starting_points: StartingPoints | None = None
        self._fetcher: Fetcher | None = None
        self._committer: Committer | None = None
        self._tasks = Tasks(self._core)
        self._ready = asyncio.Event()
        self._crew: Crew | None = None
        self._is_closed = False
        self._turns = 0

    # What to consume ------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Join the group for these topics, instead of the former ones."""
        self._check_open()
        if self._core.settings.group_id is None:
            raise ConfigurationError("subscribe needs a group_id; assign does without")
        if self._assigned:
            raise ConsumerStateError("the consumer was given ranges by assign; use another one")
        wanted = [topics] if isinstance(topics, str) else sorted(set(topics))
        if not wanted:
            raise ConfigurationError("subscribe to at least one topic, or close the consumer")
        self._topics = wanted
        if self._membership is not None:
            self._membership.subscribe(wanted)

    def assign(
        self,
        ranges: Mapping[TopicPartition, Sequence[KeyRange]],
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Take these key ranges, without asking a group; no ranges are the whole partition.

        Nobody checks that no other process has the same ones. With a `group_id` progress is read
        from and stored in that group, which must not have members; otherwise records begin at
        `offsets`, or where `auto_offset_reset` says.
        """
        self._check_open()
        if self._topics:
            raise ConsumerStateError("the consumer has subscribed; use another one to assign")
        wanted: dict[TopicPartition, list[KeyRange]] = {}
        for place, some in ranges.items():
            chosen = sorted(some) or [KeyRange.whole()]
            slots = [one.slots for one in chosen]
            if any(one.end > after.first for one, after in pairwise(slots)):
                raise ConfigurationError(f"the key ranges of {place} overlap")
            wanted[TopicPartition(*place)] = chosen
        self._assigned = wanted
        self._offsets = dict(offsets or {})
        if self._hand_over is not None:
            self._tasks.spawn("assign", self._assign)

    # Records --------------------------------------------------------------------------------------

    async def poll(
        self, timeout_s: float = 0.0, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """The next records, at most so many; waits for the first one as long as is allowed.

        Records of a key range come in the order of their offsets. Each is to be acknowledged with
        `ack` or `nack`.
        """
        await self._start("poll")
        limit = max_records or self._core.settings.max_poll_records
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            self._core.check()
            self._ready.clear()
            records = self._core.take_many(limit)
            if records:
                return records
            left_s = deadline - loop.time()
            if left_s <= 0:
                return []
            try:
                async with asyncio.timeout(left_s):
                    await self._ready.wait()
            except TimeoutError:
                self._core.check()
                return self._core.take_many(limit)

    def __aiter__(self) -> "CooperativeConsumer":
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record; a record counts as started only when it is returned here."""
        if self._mode != "poll":
            await self._start("poll")
        self._turns += 1
        if self._turns % _TURN_RECORDS == 0:
            await asyncio.sleep(0)
        while True:
            self._core.check()
            if self._is_closed:
                raise StopAsyncIteration
            self._ready.clear()
            record = self._core.take()
            if record is not None:
                return record
            await self._ready.wait()

    def take_nowait(self) -> ConsumerRecord | None:
        """The next record if one is there; None also before the first poll."""
        return self._core.take() if self._mode == "poll" and not self._is_closed else None

    def ack(self, record: ConsumerRecord) -> bool:
        """The record is processed. False when that does not count, because its key range is not
        ours any more: then somebody else will process it again. Callable from any thread."""
        return self._core.done(record)

    def nack(
        self, record: ConsumerRecord, *, retry_after_s: float | None = 1.0, reason: str = ""
    ) -> bool:
        """The record could not be processed; it comes again later, and its key waits for it.

        Records of the key that were handed out after it are taken back, and come again too. With
        `retry_after_s=None` no more attempts are asked for: the broker decides what becomes of
        the record. Callable from any thread.
        """
        delay_s = -DEFAULT_RETRY.max_s if retry_after_s is None else max(retry_after_s, 0.0)
        return self._core.failed(record, delay_s, reason)

    def may_start(self, record: ConsumerRecord) -> bool:
        """Whether a record of a poll is still ours to process: its range was not taken away, it was
        not taken back by `nack`, and the lease has not ended. To be asked before a record of a
        large batch is begun, possibly long after it was polled."""
        with self._core.lock:
            return self._core.workload.may_start(record, self._core.clock())

    async def commit(self) -> None:
        """Store all progress; CommitFailedError, or another ConsumerError, when it cannot be."""
        self._check_open()
        self._core.check()
        if self._core.settings.group_id is None:
            raise ConfigurationError("progress is stored in a group; set group_id")
        if self._committer is not None:
            await self._committer.commit()

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 64,
        retry: Backoff = DEFAULT_RETRY,
        handle_signals: bool = True,
    ) -> None:
        """Call `handler` with every record, many at once, each key in order, until `stop`.

        The handler is an async function, or an ordinary one, which is called in threads. When it
        returns, the record is done; when it raises, it is called again after a rest. SIGTERM and
        SIGINT stop in order: what runs may end and its progress is stored.
        """
        if self._core.workload.is_transactional:
            raise ConsumerStateError("the consumer ran in transactions before; use another one")
        await self._run(handler, concurrency, retry, handle_signals, _nothing_to_end)

    async def _run(
        self,
        handler: Handler,
        concurrency: int,
        retry: Backoff,
        handle_signals: bool,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self._check_may_run(concurrency)
        await self._start("run")
        queue = self._core.workload.queue
        assert isinstance(queue, KeyQueue)
        queue.workers = concurrency
        crew: Crew
        if _is_async(handler):
            crew = AsyncCrew(self._core, handler, concurrency, retry)
        else:
            crew = ThreadCrew(self._core, handler, concurrency, retry)
        self._crew = crew
        if self._hand_over is not None:
            self._hand_over.abandon = crew.abandon
        signals = self._watch_signals() if handle_signals else []
        try:
            await crew.work()
            await end()
            self._core.check()
            if self._committer is not None:
                await self._committer.commit()
        finally:
            loop = asyncio.get_running_loop()
            for number in signals:
                loop.remove_signal_handler(number)
            self._crew = None

    # In transactions ------------------------------------------------------------------------------

    def acks_in(self, transaction: Transaction) -> TransactionAcks:
        """Acknowledge polled records in a transaction, with which they count.

        If it is aborted, all records that were handed out and are not done come again.
        """
        self._check_transactional()
        if self._mode == "run":
            raise ConsumerStateError("the consumer runs: use run_in_transactions")
        return TransactionAcks(self._core, self._new_teller, transaction)

    async def run_in_transactions(
        self,
        handler: TransactionalHandler,
        producer: TransactionalProducer,
        *,
        concurrency: int = 64,
        interval_ms: int = 100,
        max_records: int = 10_000,
        retry: Backoff = DEFAULT_RETRY,
        handle_signals: bool = True,
    ) -> None:
        """As `run`, with `handler(record, outputs)`: what it sends with `outputs.send(...)` and the
        record's acknowledgement count together, exactly once.

        What was finished within `interval_ms`, or `max_records` of it, is one transaction of the
        producer, which must not be used otherwise meanwhile. If that is aborted, the records are
        processed again, each key in order.
        """
        self._check_transactional()
        self._check_may_run(concurrency)
        if interval_ms < 1 or max_records < 1:
            raise ConfigurationError("interval_ms and max_records must be at least 1")
        # What a producer of the same name left open is aborted before anything is begun.
        await producer.start()
        await self._start("run")
        teller = self._new_teller()
        loop = TransactionLoop(
            self._core,
            teller,
            producer,
            interval_ms=interval_ms,
            max_records=max_records,
            is_in_order=await teller.is_in_order(),
        )
        assert self._hand_over is not None
        self._hand_over.hurry = loop.hurry
        ending = asyncio.ensure_future(self._end_transactions(loop))
        work: Handler
        if _is_async(handler):
            work = loop.async_handler(handler)
        else:
            work = loop.thread_handler(handler)

        async def end() -> None:
            loop.stop()
            await ending

        try:
            await self._run(work, concurrency, retry, handle_signals, end)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            loop.forsake()  # what workers have finished since

    async def _end_transactions(self, loop: TransactionLoop) -> None:
        try:
            await loop.run()
        except ConsumerError as error:
            self._core.fail(error)
        except Exception as error:
            log.exception("the transactions ended unexpectedly")
            self._core.fail(error)

    def _check_may_run(self, concurrency: int) -> None:
        if concurrency < 1:
            raise ConfigurationError("concurrency must be at least 1")
        if self._crew is not None:
            raise ConsumerStateError("the consumer runs already")

    def _check_transactional(self) -> None:
        self._check_open()
        if self._core.settings.group_id is None:
            raise ConfigurationError("progress is stored in a group; set group_id")

    def _new_teller(self) -> AckTeller:
        assert self._hand_over is not None, "there are records"
        return AckTeller(self._core, self._membership, self._hand_over)

    def stop(self) -> None:
        """Let `run` return when what runs has ended. Callable from any thread."""
        self._core.in_loop(self._stop_in_loop)

    def _stop_in_loop(self) -> None:
        if self._crew is not None:
            self._crew.stop()

    def _watch_signals(self) -> list[int]:
        watched: list[int] = []
        if threading.current_thread() is not threading.main_thread():
            return watched
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._stop_on_signal, number)
            except (NotImplementedError, RuntimeError):
                return watched
            watched.append(number)
        return watched

    def _stop_on_signal(self, number: int) -> None:
        log.info("%s: ending what runs", signal.Signals(number).name)
        self._stop_in_loop()

    # Looking --------------------------------------------------------------------------------------

    def progress(self) -> ConsumerProgress:
        """How far this consumer is with its key ranges."""
        core = self._core
        membership = self._membership
        with core.lock:
            ranges = range_progress(core.workload)
            ends_at = core.workload.lease.ends_at
        stable = {
            place: offset
            for key, offset in core.stable_offsets.items()
            if (place := core.cluster.place_of(*key)) is not None
        }
        return ConsumerProgress(
            member_id=membership.member_id if membership is not None else None,
            member_epoch=membership.epoch if membership is not None else _STANDALONE_EPOCH,
            lease_left_s=max(ends_at - core.clock(), 0.0),
            ranges=ranges,
            stable_offsets=stable,
        )

    # Beginning and ending -------------------------------------------------------------------------

    async def __aenter__(self) -> "CooperativeConsumer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosedError("the consumer is closed")

    async def _start(self, mode: Literal["poll", "run"]) -> None:
        self._check_open()
        if self._mode == mode:
            return
        if self._mode is not None:
            raise ConsumerStateError(
                f"the consumer was used by {self._mode} before; a consumer is used either by poll"
                " and iteration, or by run"
            )
        if not self._topics and not self._assigned:
            raise ConsumerStateError("call subscribe or assign first")
        self._mode = mode
        core = self._core
        core.attach()
        if mode == "run":
            core.workload.queue = KeyQueue()
        core.on_ready = self._ready.set
        if self._topics:
            self._membership = Membership(core, self._holdings, self._topics)
        membership = self._membership
        self._starting_points = StartingPoints(core, membership)
        hand_over = HandOver(core, self._holdings, self._starting_points)
        self._hand_over = hand_over
        self._fetcher = Fetcher(core, membership, hand_over)
        if core.settings.group_id is not None:
            self._committer = Committer(core, membership, hand_over)
            hand_over.commit = self._committer.commit
            self._tasks.spawn("commits", self._committer.run)
            self._tasks.spawn("rests", self._starting_points.watch_rests)
        if membership is not None:
            membership.on_assigned = hand_over.assign
            membership.on_fenced = hand_over.lose_all
            hand_over.confirm = membership.beat_soon
            self._tasks.spawn("heartbeats", membership.run)
        else:
            core.workload.lease.renew_for_ever()
            core.workload.is_told = core.settings.group_id is not None
            await self._assign()
        self._fetcher.start()

    async def _assign(self) -> None:
        """Make the standalone assignment true."""
        hand_over, starting_points = self._hand_over, self._starting_points
        if hand_over is None or starting_points is None:
            return
        cluster = self._core.cluster
        attempts = Attempts(self._core.settings.retry_backoff, hand_over.random_share)
        while True:
            try:
                await cluster.refresh(names={place.topic for place in self._assigned})
                break
            except ConsumerError as error:
                await hand_over.wait_after(error, attempts)
        target: dict[Unit, int] = {}
        for place, ranges in self._assigned.items():
            topic = cluster.topic(place.topic)
            if topic is None or place.partition not in topic.leaders:
                raise broker_error(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "assign", f"there is no {place}"
                )
            key: Place = (topic.topic_id, place.partition)
            if place in self._offsets:
                starting_points.fixed[key] = self._offsets[place]
            for one in ranges:
                target[Unit(*key, one.slots)] = _STANDALONE_EPOCH
        hand_over.assign(target)

    async def close(self, timeout_s: float = 30.0) -> None:
        """End what runs, store progress, and leave the group."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ready.set()
        if self._crew is not None:
            self._crew.stop()
        if self._fetcher is not None:
            await self._fetcher.stop()
        if self._hand_over is not None:
            await self._give_everything_back(self._hand_over, timeout_s)
            await self._hand_over.stop()
        await self._tasks.stop()
        if self._membership is not None:
            await self._membership.leave()
        self._core.detach()
        await self._core.cluster.close()

    async def _give_everything_back(self, hand_over: HandOver, timeout_s: float) -> None:
        core = self._core
        with core.lock:
            works = list(core.workload)
            for work in works:
                core.workload.drain(work)
        # What was polled and not acknowledged is not waited for: nobody would acknowledge it.
        if self._mode == "run":
            await hand_over.wait_drained(works, timeout_s)
        try:
            if core.error is None:
                await hand_over.tell_revoked(works)
            if self._committer is not None:
                await self._committer.commit(timeout_s=timeout_s)
        except ConsumerError as error:
            log.warning("closed without storing all progress: %s", error)


async def _nothing_to_end() -> None:
    pass


def _is_async(handler: Callable[..., Any]) -> bool:
    called = getattr(handler, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(inspect.unwrap(handler)) or inspect.iscoroutinefunction(
        called
    )
