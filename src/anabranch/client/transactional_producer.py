"""A producer whose records, and acknowledgements, count together or not at all.

    async with TransactionalProducer(transactional_id="billing-1") as producer:
        async with producer.transaction() as transaction:
            transaction.send("invoices", b"...", key=b"customer-7")

One transaction is open at a time. It is committed when the block ends, and aborted when the block
raises. Whatever a consumer acknowledges in it (`consumer.acks_in(transaction)`) is a *participant*:
it tells the broker what it has before the end, and hears how the transaction has ended.

States of a transaction
    OPEN       records may be sent
    FAILED     something of it was refused: it can only be aborted
    UNCERTAIN  its end was asked for and not answered: only the same end may be asked for again
    ENDED
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Iterable, Mapping
from enum import Enum
from types import TracebackType
from typing import Protocol, Unpack

from anabranch.client.core import log
from anabranch.client.errors import (
    BufferFullError,
    ConsumerClosedError,
    ConsumerError,
    ConsumerStateError,
    TransactionAbortedError,
    TransactionUncertainError,
    broker_error,
)
from anabranch.client.outbox import Outbox, Outgoing
from anabranch.client.producer_settings import (
    ProducerOptions,
    ProducerSettings,
    producer_settings_of,
)
from anabranch.client.records import TopicPartition
from anabranch.client.transaction_session import TransactionSession, is_fatal
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

_CLOSE_TIMEOUT_S = 5.0


class Participant(Protocol):
    """Something that counts with a transaction, beside its records."""

    async def prepare(self, session: TransactionSession) -> None:
        """Tell the broker what is to count; TransactionAbortedError when it does not."""

    def committed(self) -> None:
        """It counts."""

    def aborted(self) -> None:
        """It does not, and never will."""

    def given_up(self) -> None:
        """Nobody here will know: the producer was fenced, or may not go on."""


class TransactionState(Enum):
    OPEN = "open"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    ENDED = "ended"


class TransactionalProducer:
    """Writes records in transactions. Give each running process a `transactional_id` of its own."""

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        """The settings are those of `ProducerSettings`; nothing happens before the first use."""
        self._settings = producer_settings_of(options)
        self._session = TransactionSession(self._settings)
        self._outbox = Outbox(self._settings.batch_size, random.randrange)
        self._transaction: Transaction | None = None
        self._starting = asyncio.Lock()
        self._is_started = False
        self._is_closed = False

    @property
    def settings(self) -> ProducerSettings:
        return self._settings

    async def start(self) -> None:
        """Take the transactional id: aborts what the producer before left open, and fences it."""
        self._check_open()
        async with self._starting:
            if not self._is_started:
                await self._session.start()
                self._is_started = True

    def transaction(self) -> "Transaction":
        """Begin a transaction; to be used in `async with`, or ended by `commit` or `abort`."""
        self._check_open()
        if self._transaction is not None:
            if self._transaction.is_over:
                raise ConsumerStateError(
                    "the producer cannot go on: another one has its transactional_id, or it may"
                    " not use it"
                )
            state = self._transaction.state.value
            raise ConsumerStateError(
                f"the transaction before is {state}: call its commit() or abort() first"
            )
        self._transaction = Transaction(self)
        return self._transaction

    async def close(self) -> None:
        """Abort what is open, and end the connections."""
        if self._is_closed:
            return
        transaction = self._transaction
        if transaction is not None and transaction.state is not TransactionState.UNCERTAIN:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await transaction.abort()
            except (ConsumerError, TimeoutError) as error:
                log.warning("closed without having aborted the open transaction: %s", error)
        self._is_closed = True
        await self._session.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosedError("the producer is closed")

    async def __aenter__(self) -> "TransactionalProducer":
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Transaction:
    """One transaction of a `TransactionalProducer`."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer
        self._settings = producer._settings
        self._session = producer._session
        self._outbox = producer._outbox
        self._participants: list[Participant] = []
        self._state = TransactionState.OPEN
        self._failure: ConsumerError | None = None
        self._sending: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.is_commit_asked = False

    @property
    def state(self) -> TransactionState:
        return self._state

    # What it has ----------------------------------------------------------------------------------

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
        """Write a record; it is sent in the background, and `commit` or `flush` waits for it.

        Records with a key go to the partition that Kafka's own producers choose. To be called in
        the thread of the event loop.
        """
        self.send_outgoing(
            outgoing(topic, value, key, partition, headers, timestamp_ms),
        )

    def send_outgoing(self, record: Outgoing) -> None:
        """The same with a record that is made already."""
        self.check_usable()
        if self._outbox.size_bytes + record.size_bytes > self._settings.buffer_memory:
            raise BufferFullError(
                f"more than {self._settings.buffer_memory} bytes (buffer_memory) wait to be sent;"
                " await transaction.flush() first"
            )
        self._outbox.add(record)
        if self._sending is not None:
            return
        if self._outbox.size_bytes >= self._settings.batch_size:
            self._begin_sending()
        elif self._linger is None:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(self._settings.linger_ms / 1000, self._begin_sending)

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int],
        group_id: str,
        *,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
    ) -> None:
        """Commit offsets of an ordinary consumer group with the transaction.

        With the member's id and generation (or epoch) they are refused when the member is not in
        the group any more.
        """
        self.check_usable()
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (name, partition), offset in offsets.items():
            topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name))
            topic.partitions.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=""
                )
            )

        def make_request() -> TxnOffsetCommitRequest:
            return TxnOffsetCommitRequest(
                group_id=group_id,
                generation_id=generation_id,
                member_id=member_id,
                group_instance_id=group_instance_id,
                topics=list(topics.values()),
            )

        async def commit_offsets() -> None:
            await self._producer.start()
            await self._session.commit_offsets(make_request, _check_offsets)

        await self._guarded(commit_offsets())

    @property
    def is_over(self) -> bool:
        return self._state is TransactionState.ENDED

    def join(self, participant: Participant) -> None:
        """Let something count with the transaction."""
        self.check_usable()
        self._participants.append(participant)

    async def flush(self) -> None:
        """Wait until the broker has all records; TransactionAbortedError when it cannot be."""
        self.check_usable()
        while self._outbox or self._sending is not None:
            self._begin_sending()
            if self._sending is not None:
                await asyncio.shield(self._sending)
            self.check_usable()

    def check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._state is not TransactionState.OPEN:
            raise ConsumerStateError(f"the transaction is {self._state.value}")

    def fail(self, error: ConsumerError) -> None:
        """Let the transaction be aborted; whoever uses it next gets the error."""
        if self._state is TransactionState.OPEN:
            self._state = TransactionState.FAILED
            self._failure = error

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except ConsumerError as error:
            self.fail(error)
            raise

    # Sending --------------------------------------------------------------------------------------

    def _begin_sending(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._sending is None and self._outbox and self._state is TransactionState.OPEN:
            self._sending = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        try:
            await self._producer.start()
            while self._outbox and self._state is TransactionState.OPEN:
                topics = self._outbox.topics
                if topics:
                    self._outbox.place(await self._session.learn_partitions(topics))
                await self._session.produce(self._outbox.take_batches())
        except ConsumerError as error:
            self.fail(error)
        except Exception as error:
            log.exception("sending records of a transaction failed")
            self.fail(TransactionAbortedError(f"sending failed unexpectedly: {error!r}"))
        finally:
            self._sending = None

    # The end --------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Let everything count.

        TransactionAbortedError when it cannot be: then nothing counts. TransactionUncertainError
        when it is not known: call `commit` again. ProducerFencedError when another producer has the
        transactional id.
        """
        if self._state is TransactionState.UNCERTAIN and not self.is_commit_asked:
            raise ConsumerStateError("the transaction is being aborted: call abort() again")
        try:
            if self._state is not TransactionState.UNCERTAIN:
                await self._prepare()
                self.is_commit_asked = True
            await self._end(is_commit=True)
        except TransactionUncertainError:
            raise
        except ConsumerError as error:
            if is_fatal(error):
                self._give_up()
            else:
                self.is_commit_asked = False
                self._state = TransactionState.FAILED
                self._failure = error
                await self.abort()
            raise
        for participant in self._participants:
            participant.committed()

    async def _prepare(self) -> None:
        await self.flush()
        for participant in self._participants:
            await self._guarded(self._prepare_one(participant))

    async def _prepare_one(self, participant: Participant) -> None:
        await self._producer.start()
        await participant.prepare(self._session)

    async def abort(self) -> None:
        """Let nothing count. Records that were acknowledged in it come again."""
        if self._state is TransactionState.ENDED:
            return
        if self.is_commit_asked:
            raise ConsumerStateError(
                "the transaction is being committed, and may be already: call commit() again"
            )
        if self._state is TransactionState.OPEN:
            self.fail(TransactionAbortedError("the transaction is being aborted"))
        await self._stop_sending()
        try:
            await self._end(is_commit=False)
        except TransactionUncertainError:
            raise
        except ConsumerError:
            self._give_up()
            raise
        for participant in self._participants:
            participant.aborted()

    def _give_up(self) -> None:
        """The producer cannot go on. Who has the transactional id now ends the transaction."""
        self._state = TransactionState.ENDED
        self._outbox.clear()
        for participant in self._participants:
            participant.given_up()

    async def _stop_sending(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._outbox.clear()
        if self._sending is not None:
            # With version 2 whatever is under way is of an epoch that is over then.
            if self._session.is_version_2:
                self._sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._sending, return_exceptions=True)

    async def _end(self, *, is_commit: bool) -> None:
        try:
            await self._session.end(is_commit=is_commit)
        except (TransactionUncertainError, asyncio.CancelledError):
            # Nobody knows whether the request has arrived.
            self._state = TransactionState.UNCERTAIN
            raise
        self._state = TransactionState.ENDED
        self._producer._transaction = None

    async def __aenter__(self) -> "Transaction":
        try:
            await self._producer.start()
        except BaseException:
            await self.abort()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._state is TransactionState.ENDED:
            return
        if error is None:
            await self.commit()
        elif not self.is_commit_asked:
            await self.abort()


def outgoing(
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int | None,
    headers: Iterable[tuple[str, bytes | None]],
    timestamp_ms: int | None,
) -> Outgoing:
    """A record to be written; its time is now, if nothing is said."""
    if timestamp_ms is None:
        timestamp_ms = time.time_ns() // 1_000_000
    return Outgoing(topic, value, key, partition, tuple(headers), timestamp_ms)


def _check_offsets(answer: TxnOffsetCommitResponse) -> None:
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code != ErrorCode.NONE:
                place = TopicPartition(topic.name, one.partition_index)
                raise broker_error(one.error_code, f"committing the offset of {place}")
