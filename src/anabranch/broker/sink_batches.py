"""Batches of sinks across the shards of the transaction coordinator.

A sink and the transactions of its batches may belong to different shards, each with a journal of
its own. What is decided and carried out here, in this order:

    1. each transaction is prepared, in its own journal
    2. the batch is decided, in the sink's journal: one record that lists the transactions
    3. each transaction is committed: in its own journal, then by its markers, then completed
    4. the sink's journal says that nothing is pending any more

A crash before 2 leaves prepared transactions, which the next attempt of the batch, or time, aborts.
A crash after 2 finds the list when the journals are read again, and 3 is done (again, which changes
nothing for those that have ended). Between 2 and 3 the listed transactions are kept for the batch:
see `is_claimed`. As all shards are in one process and one turn of the loop looks at all of them,
nothing can come between the look at the transactions and the decision.

Where answers wait for the disk, 3 waits for 2 to be on it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.sink_state import Listed, Sink
from anabranch.coordinator.transaction.sinks import last_batch, sink_timer
from anabranch.coordinator.transaction.state import NO_BATCH, Transaction, TransactionVersion
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs

if TYPE_CHECKING:
    from anabranch.broker.transaction_coordinator import TransactionCoordinator


class SinkBatches:
    """What is asked about sinks, and what their batches want done."""

    def __init__(self, coordinator: "TransactionCoordinator") -> None:
        self._coordinator = coordinator

    # Requests -------------------------------------------------------------------------------------

    def prepare(self, command: c.PrepareTxn) -> Any:
        """Prepare a transaction, or abort it if its batch is committed already.

        A pair of the answer and the sink's last batch, or a Deferred of one; a KafkaError in place
        of the pair when a journal cannot be written.
        """

        def go_on(asked: c.SinkAnswer | KafkaError) -> Any:
            if isinstance(asked, KafkaError):
                return asked
            return self._prepare(command, last_batch(asked.sink))

        return _after(self.ask(command.sink_id), go_on)

    def _prepare(self, command: c.PrepareTxn, last_batch_id: int) -> Any:
        if not NO_BATCH < command.batch_id <= last_batch_id:
            outcome = self._submit(command)
        else:
            outcome = self._submit(
                c.EndTxn(
                    transactional_id=command.transactional_id,
                    producer_id=command.producer_id,
                    producer_epoch=command.producer_epoch,
                    is_commit=False,
                    transaction_version=TransactionVersion.TV_2,
                )
            )
            # Whatever is answered: a batch that is dropped needs no transaction.
            outcome = _after(outcome, lambda _: c.PrepareAnswer())
        return _after(
            outcome,
            lambda answer: answer if isinstance(answer, KafkaError) else (answer, last_batch_id),
        )

    def ask(self, sink_id: str) -> Any:
        """A sink in a SinkAnswer, which is as durable as any: or a Deferred, or a KafkaError.

        Who is told that a batch is committed may leave out its work.
        """
        if not self._coordinator.drivers:
            return c.SinkAnswer(sink=None)
        try:
            return self._coordinator.driver(sink_id).submit(c.AskSink(sink_id=sink_id))
        except KafkaError as error:
            return error

    def commit(self, sink_id: str, batch_id: int, batch: Sequence[Listed]) -> Any:
        """Commit transactions as a batch: a BatchAnswer, or a Deferred of one.

        KafkaError when a journal cannot be read or written; a Deferred is then completed with one.
        """
        drivers = self._coordinator.drivers
        command = c.CommitBatch(
            sink_id=sink_id,
            batch_id=batch_id,
            listed=tuple(batch),
            found=tuple(self._found(one) for one in batch),
            others=tuple(
                transaction
                for driver in drivers
                if driver.refusal is None
                for transaction in driver.shard.prepared_for(sink_id)
            ),
        )
        outcome = self._coordinator.driver(sink_id).submit(command)
        return _after(outcome, self._count)

    def _found(self, one: Listed) -> Transaction | None:
        driver = self._coordinator.driver(one.transactional_id)
        if driver.refusal is not None:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR,
                f"What is known of the transactional id {one.transactional_id} cannot be read: "
                f"{driver.refusal.message}",
            )
        return driver.shard.transaction(one.transactional_id)

    def _count(self, answer: c.BatchAnswer | KafkaError) -> c.BatchAnswer | KafkaError:
        if not isinstance(answer, KafkaError) and answer.error is ErrorCode.NONE:
            metrics = self._coordinator.metrics
            metrics.batches_replayed += answer.is_replay
            metrics.batches_committed += not answer.is_replay
        return answer

    def ask_all(self, sink_ids: Sequence[str]) -> Any:
        """What is known of sinks, in their order: a list of what `ask` says, or a Deferred."""
        return _gathered([self.ask(sink_id) for sink_id in sink_ids])

    def abort(self, sink_id: str, batch: Sequence[Listed]) -> Any:
        """Abort what is prepared of these: the answer to each, or a KafkaError in its place."""
        outcomes = [self._end(sink_id, one, is_commit=False) for one in batch]
        return _gathered(outcomes)

    # Claims ---------------------------------------------------------------------------------------

    def is_claimed(self, transaction: Transaction) -> bool:
        """Whether a batch that is decided has yet to commit a prepared transaction.

        While a shard cannot be read, nobody knows what its sinks have decided, and every prepared
        transaction has to wait.
        """
        return any(
            driver.refusal is not None or driver.shard.claims(transaction)
            for driver in self._coordinator.drivers
        )

    # Carrying out ---------------------------------------------------------------------------------

    def resume(self) -> None:
        """All shards are loaded: commit what was decided before."""
        for driver in self._coordinator.drivers:
            for sink in _pending(list(driver.shard.sinks.values())):
                if driver.refusal is None:
                    driver.submit(c.TimerFired(key=sink_timer(sink.sink_id)))

    def end_listed(self, task: c.EndListed) -> Deferred[None] | None:
        """Have each shard end what is its own, and tell the sink's what is committed."""
        aborts = [self._end(task.sink_id, one, is_commit=False) for one in task.aborts]
        commits = [self._end(task.sink_id, one, is_commit=True) for one in task.commits]

        def report(outcomes: list[Any]) -> None:
            ended = frozenset(
                one
                for one, outcome in zip(task.commits, outcomes[len(aborts) :], strict=True)
                if not isinstance(outcome, KafkaError) and outcome.error is ErrorCode.NONE
            )
            if task.commits:
                self._report(c.ListedEnded(sink_id=task.sink_id, ended=ended))

        done = _after(_gathered([*aborts, *commits]), report)
        return done if isinstance(done, Deferred) else None

    def _end(self, sink_id: str, one: Listed, *, is_commit: bool) -> Any:
        return self._submit(c.EndPrepared(sink_id=sink_id, listed=one, is_commit=is_commit))

    def _submit(self, command: c.PrepareTxn | c.EndPrepared | c.EndTxn) -> Any:
        """The answer of the shard of a transactional id, or a KafkaError."""
        try:
            return self._coordinator.submit(command.transactional_id, command)
        except KafkaError as error:
            return error

    def _report(self, command: c.ListedEnded) -> None:
        try:
            self._coordinator.driver(command.sink_id).submit(command)
        except KafkaError as error:
            # The list is still there: its shard is loaded again, or the broker started.
            logs.error("sink.batch.failed", sink=command.sink_id, reason=error.message)


def _pending(sinks: Sequence[Sink]) -> list[Sink]:
    return [sink for sink in sinks if sink.pending]


def _after(outcome: Any, convert: Callable[[Any], Any]) -> Any:
    """What follows from an outcome that may come later; and what follows may come later too."""
    if not isinstance(outcome, Deferred):
        return convert(outcome)
    answer: Deferred[Any] = Deferred()

    def arrived(value: Any) -> None:
        try:
            then = convert(value)
        except Exception as error:
            answer.fail(error)
            return
        if isinstance(then, Deferred):
            then.deliver_to(answer.complete, answer.fail)
        else:
            answer.complete(then)

    outcome.deliver_to(arrived, answer.fail)
    return answer


def _gathered(outcomes: list[Any]) -> Any:
    """All outcomes as one list, as soon as the last of them is there."""
    waiting = [number for number, one in enumerate(outcomes) if isinstance(one, Deferred)]
    if not waiting:
        return outcomes
    values, left = list(outcomes), len(waiting)
    answer: Deferred[list[Any]] = Deferred()

    def arrived(number: int, value: Any) -> None:
        nonlocal left
        values[number] = value
        left -= 1
        if not left:
            answer.complete(values)

    for number in waiting:
        outcomes[number].deliver_to(functools.partial(arrived, number), answer.fail)
    return answer
