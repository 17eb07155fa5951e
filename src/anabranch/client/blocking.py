"""The same consumer for programs without an event loop: its loop runs in a thread of its own."""

import signal
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, TypeVar, Unpack

from anabranch.client.blocking_producer import SyncTransaction, SyncTransactionalProducer
from anabranch.client.consumer import CooperativeConsumer
from anabranch.client.errors import ConfigurationError
from anabranch.client.loop_thread import LoopThread
from anabranch.client.progress import ConsumerProgress
from anabranch.client.records import ConsumerRecord, KeyRange, TopicPartition
from anabranch.client.settings import ConsumerOptions
from anabranch.client.timing import Backoff
from anabranch.client.transaction_acks import TransactionAcks
from anabranch.client.transaction_loop import TransactionalHandler
from anabranch.client.workers import DEFAULT_RETRY, Handler

T = TypeVar("T")


class SyncCooperativeConsumer:
    """`CooperativeConsumer` with methods that wait.

    Heartbeats, fetches and commits go on in a background thread, whatever the program does. The
    callbacks `on_ranges_assigned`, `on_ranges_revoked` and `on_ranges_lost` are called there: they
    must not call methods of the consumer that wait.
    """

    def __init__(self, **options: Unpack[ConsumerOptions]) -> None:
        self._consumer = CooperativeConsumer(**options)
        self.thread = LoopThread("anabranch-consumer")

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.thread.wait(work)

    # What to consume ------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """As `CooperativeConsumer.subscribe`."""

        async def subscribe() -> None:
            self._consumer.subscribe(topics)

        self._wait(subscribe())

    def assign(
        self,
        ranges: Mapping[TopicPartition, Sequence[KeyRange]],
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """As `CooperativeConsumer.assign`."""

        async def assign() -> None:
            self._consumer.assign(ranges, offsets=offsets)

        self._wait(assign())

    # Records --------------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 0.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """As `CooperativeConsumer.poll`."""
        return self._wait(self._consumer.poll(timeout_s, max_records))

    def __iter__(self) -> "SyncCooperativeConsumer":
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; a record counts as started only when it is returned here."""
        if self.thread.is_stopped:
            raise StopIteration
        record = self._consumer.take_nowait()
        if record is not None:
            return record
        try:
            return self._wait(self._consumer.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def ack(self, record: ConsumerRecord) -> bool:
        """As `CooperativeConsumer.ack`."""
        return self._consumer.ack(record)

    def nack(
        self, record: ConsumerRecord, *, retry_after_s: float | None = 1.0, reason: str = ""
    ) -> bool:
        """As `CooperativeConsumer.nack`."""
        return self._consumer.nack(record, retry_after_s=retry_after_s, reason=reason)

    def may_start(self, record: ConsumerRecord) -> bool:
        """As `CooperativeConsumer.may_start`."""
        return self._consumer.may_start(record)

    def commit(self) -> None:
        """As `CooperativeConsumer.commit`."""
        self._wait(self._consumer.commit())

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 64,
        retry: Backoff = DEFAULT_RETRY,
        handle_signals: bool = True,
    ) -> None:
        """As `CooperativeConsumer.run`; ordinary functions are called in threads."""
        work = self._consumer.run(
            handler, concurrency=concurrency, retry=retry, handle_signals=False
        )
        with _stopping_on_signals(self.stop, handle_signals):
            self._wait(work)

    def acks_in(self, transaction: SyncTransaction) -> TransactionAcks:
        """As `CooperativeConsumer.acks_in`."""
        return self._consumer.acks_in(transaction.transaction)

    def run_in_transactions(
        self,
        handler: TransactionalHandler,
        producer: SyncTransactionalProducer,
        *,
        concurrency: int = 64,
        interval_ms: int = 100,
        max_records: int = 10_000,
        retry: Backoff = DEFAULT_RETRY,
        handle_signals: bool = True,
    ) -> None:
        """As `CooperativeConsumer.run_in_transactions`, with a producer that is `beside` this."""
        if producer.thread is not self.thread:
            raise ConfigurationError("the producer must be made with beside=consumer")
        work = self._consumer.run_in_transactions(
            handler,
            producer.producer,
            concurrency=concurrency,
            interval_ms=interval_ms,
            max_records=max_records,
            retry=retry,
            handle_signals=False,
        )
        with _stopping_on_signals(self.stop, handle_signals):
            self._wait(work)

    def stop(self) -> None:
        """Let `run` return when what runs has ended."""
        self._consumer.stop()

    def progress(self) -> ConsumerProgress:
        """As `CooperativeConsumer.progress`."""
        return self._consumer.progress()

    # Ending ---------------------------------------------------------------------------------------

    def close(self, timeout_s: float = 30.0) -> None:
        """End what runs, store progress, leave the group, and end the thread."""
        if self.thread.is_stopped:
            return
        try:
            self._wait(self._consumer.close(timeout_s))
        finally:
            self.thread.stop()

    def __enter__(self) -> "SyncCooperativeConsumer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def _stopping_on_signals(stop: Any, is_wanted: bool) -> Iterator[None]:
    """SIGTERM and SIGINT stop in order, where signals can be handled: in the main thread."""
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop()

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
