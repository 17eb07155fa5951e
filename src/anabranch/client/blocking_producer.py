"""The transactional producer for programs without an event loop."""

from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from anabranch.client.errors import BufferFullError
from anabranch.client.loop_thread import LoopThread
from anabranch.client.outbox import Outgoing
from anabranch.client.producer_settings import ProducerOptions
from anabranch.client.records import TopicPartition
from anabranch.client.transactional_producer import Transaction, TransactionalProducer, outgoing

if TYPE_CHECKING:
    from anabranch.client.blocking import SyncCooperativeConsumer

T = TypeVar("T")

# So many records go to the other thread at once.
_NOTED_MAX = 200


class SyncTransactionalProducer:
    """`TransactionalProducer` with methods that wait.

    With `beside` it works in the thread of that consumer, as it must for the consumer's
    `run_in_transactions` and `acks_in`.
    """

    def __init__(
        self,
        *,
        beside: "SyncCooperativeConsumer | None" = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self.producer = TransactionalProducer(**options)
        self._is_alone = beside is None
        self.thread = LoopThread("anabranch-producer") if beside is None else beside.thread
        self._is_closed = False

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.thread.wait(work, "producer")

    def start(self) -> None:
        """As `TransactionalProducer.start`."""
        self.wait(self.producer.start())

    def transaction(self) -> "SyncTransaction":
        """As `TransactionalProducer.transaction`; to be used in `with`."""

        async def begin() -> Transaction:
            return self.producer.transaction()

        return SyncTransaction(self, self.wait(begin()))

    def close(self) -> None:
        """Abort what is open, and end the connections."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.thread.is_stopped:  # with the consumer it was beside
            return
        try:
            self.wait(self.producer.close())
        finally:
            if self._is_alone:
                self.thread.stop()

    def __enter__(self) -> "SyncTransactionalProducer":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SyncTransaction:
    """One transaction of a `SyncTransactionalProducer`."""

    def __init__(self, producer: SyncTransactionalProducer, transaction: Transaction) -> None:
        self._producer = producer
        self.transaction = transaction
        self._noted: list[Outgoing] = []

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """As `Transaction.send`; waits when too much is to be sent."""
        self.transaction.check_usable()
        self._noted.append(outgoing(topic, value, key, partition, headers, timestamp_ms))
        if len(self._noted) >= _NOTED_MAX:
            self._producer.wait(self._send_noted())

    async def _send_noted(self) -> None:
        noted, self._noted = self._noted, []
        for record in noted:
            try:
                self.transaction.send_outgoing(record)
            except BufferFullError:
                await self.transaction.flush()
                self.transaction.send_outgoing(record)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int],
        group_id: str,
        *,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
    ) -> None:
        """As `Transaction.send_offsets`."""
        self._producer.wait(
            self.transaction.send_offsets(
                offsets,
                group_id,
                member_id=member_id,
                generation_id=generation_id,
                group_instance_id=group_instance_id,
            )
        )

    def flush(self) -> None:
        """As `Transaction.flush`."""

        async def flush() -> None:
            await self._send_noted()
            await self.transaction.flush()

        self._producer.wait(flush())

    def commit(self) -> None:
        """As `Transaction.commit`."""

        async def commit() -> None:
            await self._send_noted()
            await self.transaction.commit()

        self._producer.wait(commit())

    def abort(self) -> None:
        """As `Transaction.abort`."""
        self._noted.clear()
        self._producer.wait(self.transaction.abort())

    def __enter__(self) -> "SyncTransaction":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.transaction.is_over:
            return
        if error is None:
            self.commit()
        elif not self.transaction.is_commit_asked:
            self.abort()
