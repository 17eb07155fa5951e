"""Batches of sinks: decided once, in the shard of the sink, and then carried out in the others.

A batch comes with its transactions as their shards have them at that moment (`CommitBatch.found`).

Rules
- A batch is committed by one record, all its transactions or none: each has to be prepared for that
  very batch, by the producer that the batch names.
- Batches of a sink are committed in their order, and each once. One that is not after the last one
  is a replay: nothing is committed, and what was prepared for it is aborted.
- After the decision the transactions are committed in their own shards. As long as one of them is
  not known to be, the sink remembers it, and `EndListed` is under way or the timer of the next
  attempt runs, across restarts: what is decided is carried out.
- Whatever else is prepared for this batch or an earlier one can never be committed any more, and is
  aborted with it. That is not remembered: the next batch finds what is left.
- A sink is forgotten when it had no batch for long, and nothing of it is pending.
"""

from collections.abc import Iterable, Iterator

from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.records import SinkWritten
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.sink_state import Listed, Sink, committed, listed, without
from anabranch.coordinator.transaction.state import NO_BATCH, Transaction
from anabranch.model.errors import ErrorCode


def sink_timer(sink_id: str) -> TimerKey:
    """The next attempt to commit what a batch lists."""
    return ("sink", sink_id)


def ask_sink(sink: Sink | None) -> Result:
    return Result(response=c.SinkAnswer(sink=sink))


def last_batch(sink: Sink | None) -> int:
    """The last batch of a sink, or none."""
    return NO_BATCH if sink is None else sink.last_batch_id


# The decision -----------------------------------------------------------------------------------


def commit_batch(sink: Sink | None, command: c.CommitBatch, now_ms: int) -> Result:
    last_batch_id = last_batch(sink)
    if _is_malformed(command):
        error = ErrorCode.INVALID_REQUEST
        return Result(response=c.BatchAnswer(error=error, last_batch_id=last_batch_id))
    if sink is not None and command.batch_id <= sink.last_batch_id:
        aborted = _aborted(command, sink.last_batch_id, frozenset(sink.pending))
        return Result(
            response=c.BatchAnswer(last_batch_id=last_batch_id, is_replay=True),
            tasks=_end(command.sink_id, (), aborted),
        )
    refused = tuple(_refusals(command))
    if refused:
        answer = c.BatchAnswer(error=refused[0].error, last_batch_id=last_batch_id, refused=refused)
        return Result(response=answer)
    after = committed(sink, command.sink_id, command.batch_id, command.listed, now_ms)
    aborted = _aborted(command, command.batch_id, frozenset(after.pending))
    return Result(
        records=(SinkWritten(sink_id=command.sink_id, sink=after),),
        response=c.BatchAnswer(last_batch_id=command.batch_id),
        # What is pending of earlier batches has its own attempt coming; one more does no harm.
        tasks=_end(command.sink_id, after.pending, aborted),
        timers=(TimerChange(sink_timer(command.sink_id), None),),
    )


def _is_malformed(command: c.CommitBatch) -> bool:
    if not command.sink_id or command.batch_id <= NO_BATCH:
        return True
    return len({one.transactional_id for one in command.listed}) < len(command.listed)


def _refusals(command: c.CommitBatch) -> Iterator[c.Refusal]:
    for wanted, transaction in zip(command.listed, command.found, strict=True):
        error = _check_listed(wanted, transaction, command)
        if error is not ErrorCode.NONE:
            state = None if transaction is None else transaction.state
            yield c.Refusal(listed=wanted, error=error, state=state)


def _check_listed(
    wanted: Listed, transaction: Transaction | None, command: c.CommitBatch
) -> ErrorCode:
    if transaction is None:
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if transaction.producer_id != wanted.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.producer_epoch != wanted.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if not _is_prepared_for(transaction, command.sink_id, command.batch_id, command.batch_id):
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def _is_prepared_for(
    transaction: Transaction, sink_id: str, first_batch_id: int, last_batch_id: int
) -> bool:
    preparation = transaction.preparation
    if preparation is None or preparation.sink_id != sink_id:
        return False
    return first_batch_id <= preparation.batch_id <= last_batch_id


def _aborted(
    command: c.CommitBatch, last_batch_id: int, kept: frozenset[Listed]
) -> tuple[Listed, ...]:
    """What is prepared for the sink and has come too late for its batch."""
    late = {
        listed(transaction): None
        for transaction in _known(command)
        if _is_prepared_for(transaction, command.sink_id, 0, last_batch_id)
    }
    return tuple(one for one in late if one not in kept)


def _known(command: c.CommitBatch) -> Iterable[Transaction]:
    yield from (transaction for transaction in command.found if transaction is not None)
    yield from command.others


# Carrying it out ----------------------------------------------------------------------------------


def _end(
    sink_id: str, commits: tuple[Listed, ...], aborts: tuple[Listed, ...]
) -> tuple[c.EndListed, ...]:
    if not commits and not aborts:
        return ()
    return (c.EndListed(sink_id=sink_id, commits=commits, aborts=aborts),)


def listed_ended(
    sink: Sink | None, command: c.ListedEnded, settings: TransactionSettings, now_ms: int
) -> Result:
    """Forget what is committed, and try the rest again later."""
    if sink is None or not sink.pending:
        return Result()
    after = without(sink, command.ended)
    timer = TimerChange(sink_timer(sink.sink_id), now_ms + settings.retry_ms)
    if not after.pending:
        timer = TimerChange(sink_timer(sink.sink_id), None)
    return Result(
        records=() if after == sink else (SinkWritten(sink_id=sink.sink_id, sink=after),),
        timers=(timer,),
    )


def try_batch_again(sink: Sink | None) -> Result:
    if sink is None:
        return Result()
    return Result(tasks=_end(sink.sink_id, sink.pending, ()))


def expired_sinks(
    sinks: Iterable[Sink], settings: TransactionSettings, now_ms: int
) -> tuple[SinkWritten, ...]:
    before_ms = now_ms - settings.sink_expiration_ms
    return tuple(
        SinkWritten(sink_id=sink.sink_id, sink=None)
        for sink in sinks
        if not sink.pending and sink.last_update_timestamp_ms <= before_ms
    )
