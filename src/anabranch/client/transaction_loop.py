"""Handlers whose outputs and acknowledgements are committed together, in one transaction for many.

Rules
- What a handler sends is kept with its record, and counts only if the handler returns: a handler
  that raises in the middle has sent nothing.
- Records whose handlers have returned are *held*, in the order in which they ended. Every interval
  all of them make one transaction: their outputs in that order, so each key's are in order, and
  their acknowledgements. Handlers go on meanwhile, and fill the next one.
- Nothing of a transaction is sent before the one before it has ended. If that was aborted, the
  records of both are processed again, and so are those of their keys that run: whatever was made of
  a record counts only if everything of its key before it does.
- Records whose range was lost while they were held are left out, with what was made of them.
- Ranges that are to be given back wait for the transaction that has their last records, which is
  then not waited for any longer.
- When too much is held, because a transaction does not end, nothing more is started.
- Where the group takes acknowledgements in the order of offsets only (`coop.txn.order=stable`), a
  transaction has nothing that comes after a record of this member that is not in it: it would wait
  for that record, which would wait for it. What such a record keeps from counting is left to the
  next owner when its range is to be given back.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from anabranch.client.core import Core, log
from anabranch.client.errors import (
    BufferFullError,
    ConsumerError,
    TransactionAbortedError,
    TransactionUncertainError,
)
from anabranch.client.outbox import Outgoing
from anabranch.client.range_work import Place, RangeState
from anabranch.client.records import PENDING, ConsumerRecord
from anabranch.client.timing import Attempts, Backoff
from anabranch.client.transaction_acks import AckTeller, HeldAcks
from anabranch.client.transactional_producer import (
    Transaction,
    TransactionalProducer,
    outgoing,
)
from anabranch.model.errors import ErrorCode

TransactionalHandler = Callable[[ConsumerRecord, "Outputs"], Any]

# What is the matter with a record, and would be the next time too.
_REFUSED = {
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
_UNLIMITED = 2**62
# Between transactions that are aborted.
_AFTER_ABORT = Backoff(first_s=0.05, max_s=2.0, spread=0.2)


class Outputs:
    """What a handler sends for one record; it counts with the record's acknowledgement."""

    __slots__ = ("records", "size_bytes")

    def __init__(self) -> None:
        self.records: list[Outgoing] = []
        self.size_bytes = 0

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
        """Write a record, as `Transaction.send` does."""
        record = outgoing(topic, value, key, partition, headers, timestamp_ms)
        self.records.append(record)
        self.size_bytes += record.size_bytes


class TransactionLoop:
    """Commits what handlers have finished, one transaction after the other."""

    def __init__(
        self,
        core: Core,
        teller: AckTeller,
        producer: TransactionalProducer,
        *,
        interval_ms: int,
        max_records: int,
        is_in_order: bool = False,
    ) -> None:
        self._is_in_order = is_in_order
        self._core = core
        self._teller = teller
        self._producer = producer
        self._interval_s = interval_ms / 1000
        self._max_bytes = producer.settings.buffer_memory
        self._held_bytes = 0
        self._soon = asyncio.Event()
        self._is_stopping = False
        self._attempts = Attempts(_AFTER_ABORT, random.random)
        # The records of the transaction that is being ended.
        self._ending: list[ConsumerRecord] = []
        workload = core.workload
        workload.is_transactional = True
        # In order, what is held may wait for what is not started yet: that must not wait for it.
        workload.held_max = _UNLIMITED if is_in_order else max_records
        if is_in_order:
            self._max_bytes = _UNLIMITED
        core.on_held_full = self.hurry

    # The handlers' side ---------------------------------------------------------------------------

    def async_handler(
        self, handler: TransactionalHandler
    ) -> Callable[[ConsumerRecord], Awaitable[None]]:
        """A handler for workers that calls this one, and keeps what it sends."""

        async def handle(record: ConsumerRecord) -> None:
            outputs = Outputs()
            await handler(record, outputs)
            self._keep(record, outputs)

        return handle

    def thread_handler(self, handler: TransactionalHandler) -> Callable[[ConsumerRecord], None]:
        """The same for threads."""

        def handle(record: ConsumerRecord) -> None:
            outputs = Outputs()
            handler(record, outputs)
            self._keep(record, outputs)

        return handle

    def _keep(self, record: ConsumerRecord, outputs: Outputs) -> None:
        record._outputs = outputs.records
        if outputs.size_bytes:
            with self._core.lock:
                self._held_bytes += outputs.size_bytes
                if self._held_bytes >= self._max_bytes:
                    self._core.workload.is_paused = True

    # The loop -------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Somebody waits for what is held: do not wait for the interval."""
        self._soon.set()

    def stop(self) -> None:
        """Commit what is held, and end."""
        self._is_stopping = True
        self._soon.set()

    async def run(self) -> None:
        """Commit until stopped; raises what the producer cannot go on after."""
        try:
            while True:
                is_last = self._is_stopping
                held = self._take()
                if held:
                    await self._commit(held)
                if is_last:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._soon.wait()
                self._soon.clear()
        finally:
            self.forsake()

    def _take(self) -> list[ConsumerRecord]:
        """What is held, and still ours."""
        workload = self._core.workload
        with self._core.lock:
            held, workload.held = workload.held, []
            self._held_bytes = 0
            was_paused, workload.is_paused = workload.is_paused, False
            ours = [record for record in held if workload.is_held(record)]
            if len(ours) < len(held):
                # They are nobody's here; of those that are still open the next owner has to know.
                lost = [record for record in held if not workload.is_held(record)]
                workload.forsake(lost)
            left: list[ConsumerRecord] = []
            if self._is_in_order:
                ours, rest = self._split_in_order(ours)
                left = [one for one in rest if one._work.state is RangeState.DRAINING]
                workload.held = [one for one in rest if one not in left]
                workload.recall(left)
            self._ending = ours
        self._note_ended(left)
        if was_paused:
            self._core.on_ready()
        return ours

    def _split_in_order(
        self, held: list[ConsumerRecord]
    ) -> tuple[list[ConsumerRecord], list[ConsumerRecord]]:
        """What comes before everything of this member that is not held, and the rest."""
        ends: dict[Place, int] = {}
        for work in self._core.workload:
            left = (at for at, record in work.open.items() if record._state != PENDING)
            place: Place = work.unit[:2]
            ends[place] = min(ends.get(place, work.position), *left, work.position)
        first: list[ConsumerRecord] = []
        rest: list[ConsumerRecord] = []
        for record in held:
            is_first = record.offset < ends[record._work.unit[:2]]
            (first if is_first else rest).append(record)
        return first, rest

    async def _commit(self, held: list[ConsumerRecord]) -> None:
        if self._is_in_order:
            self._core.on_ranges_full()  # ranges without records hold the stable offset back, too
        transaction = self._producer.transaction()
        transaction.join(HeldAcks(self._core, lambda: self._teller, held, self._take_back))
        try:
            await self._send(transaction, held)
            await self._commit_surely(transaction)
        except TransactionUncertainError:
            raise
        except ConsumerError as error:
            if not transaction.is_over:
                await self._abort_surely(transaction)
            if not _is_passing(error):
                raise
            delay_s = self._attempts.failed()
            log.warning(
                "a transaction with %d records was aborted, they are processed again: %s",
                len(held),
                error,
            )
            await asyncio.sleep(delay_s)
        else:
            self._attempts.succeeded()
        self._ending = []

    async def _send(self, transaction: Transaction, held: list[ConsumerRecord]) -> None:
        for record in held:
            for output in record._outputs:
                try:
                    transaction.send_outgoing(output)
                except BufferFullError:
                    await transaction.flush()
                    transaction.send_outgoing(output)

    async def _commit_surely(self, transaction: Transaction) -> None:
        """Commit, however long it takes to know that it is committed."""
        while True:
            try:
                await transaction.commit()
                return
            except TransactionUncertainError as error:
                if self._is_stopping:
                    raise
                log.warning("%s; asking again", error)

    async def _abort_surely(self, transaction: Transaction) -> None:
        while True:
            try:
                await transaction.abort()
                return
            except TransactionUncertainError as error:
                if self._is_stopping:
                    raise
                log.warning("%s; asking again", error)

    def _take_back(self, records: list[ConsumerRecord]) -> None:
        """A transaction is aborted: its records are processed again, and all that came after."""
        core = self._core
        with core.lock:
            held, core.workload.held = core.workload.held, []
            self._held_bytes = 0
            core.workload.is_paused = False
            core.workload.recall([*records, *held])
        self._note_ended(held)
        core.on_ready()
        core.on_hungry()

    def forsake(self) -> None:
        """Nobody goes on with what is held."""
        with self._core.lock:
            held, self._core.workload.held = self._core.workload.held, []
            self._core.workload.forsake([*self._ending, *held])
            self._core.workload.is_paused = False
        self._note_ended([*self._ending, *held])

    def _note_ended(self, records: list[ConsumerRecord]) -> None:
        for work in {id(one._work): one._work for one in records}.values():
            self._core.note_finished(work)


def _is_passing(error: ConsumerError) -> bool:
    """Whether the next transaction may be committed, with the same records."""
    cause = error.__cause__
    return isinstance(error, TransactionAbortedError) and (
        getattr(cause, "code", None) not in _REFUSED
    )
