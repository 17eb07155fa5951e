"""The end of a transaction: EndTxn, abort without being asked, and markers.

Rules
- The decision is written before any marker; the answer does not wait for the markers.
- In transaction version 0 the same EndTxn may come again and again with the same epoch. In version
  2 the epoch is another one afterwards: the old one is a question that is asked again, the present
  one is about the next transaction.

      version 2         abort, old   abort, present   commit, old   commit, present
      Empty             fenced       ends at once     fenced        INVALID_TXN_STATE
      CompleteAbort     none         ends at once     INVALID_...   INVALID_...
      CompleteCommit    INVALID_...  ends at once     none          INVALID_...

  An abort "ends at once" where nothing has begun as far as is known here: a producer whose message
  was refused does not know either, and has to get to another epoch.
- Kafka takes the epoch before the present one for a question asked again, whoever had it. Here it
  has to be the epoch that ended the transaction: a producer that was fenced in between, and whose
  successor speaks version 0, is not told that it has committed.
- A prepared transaction is committed by its batch alone; its producer may abort it (`preparing`).
- One `WriteMarkers` is under way for a decided transaction, or the timer of the next attempt runs,
  until all markers are written.
"""

from typing import Any

from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey
from anabranch.coordinator.transaction.commands import (
    AbortAnswer,
    AbortTransaction,
    AllocateProducerId,
    EndTxn,
    EndTxnAnswer,
    MarkersWritten,
    WriteMarkers,
)
from anabranch.coordinator.transaction.fencing import check_producer, fenced_code, has_epoch_before
from anabranch.coordinator.transaction.records import (
    MarkersProgressed,
    TransactionRecord,
    TransactionWritten,
)
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.state import (
    NO_PRODUCER_ID,
    SERVER_VERSION,
    TopicPartition,
    Transaction,
    TransactionState,
    TransactionVersion,
    completed,
    decided,
)
from anabranch.model.errors import ErrorCode


def timeout_timer(transactional_id: str) -> TimerKey:
    """The end of a transaction that its producer does not end."""
    return ("timeout", transactional_id)


def markers_timer(transactional_id: str) -> TimerKey:
    """The next attempt to write markers that could not be written."""
    return ("markers", transactional_id)


# By its producer ----------------------------------------------------------------------------


def end_transaction(transaction: Transaction | None, command: EndTxn, now_ms: int) -> Result:
    if not command.transactional_id:
        return _refused(ErrorCode.INVALID_REQUEST)
    if transaction is None:
        return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not command.transaction_version.bumps_epoch:
        return _end_in_same_epoch(transaction, command, now_ms)
    return _end_in_next_epoch(transaction, command, now_ms)


def _end_in_same_epoch(transaction: Transaction, command: EndTxn, now_ms: int) -> Result:
    """Transaction version 0: the producer goes on with the epoch it has."""
    error = check_producer(transaction, command, fenced_code(command))
    if error is not ErrorCode.NONE:
        return _refused(error)
    if transaction.state.is_decided:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if _waits_for_batch(transaction, command):
        return _refused(ErrorCode.INVALID_TXN_STATE)
    if transaction.state is TransactionState.ONGOING:
        return _end(transaction, command, now_ms, EndTxnAnswer())
    if not _has_ended_so(transaction, command):
        return _refused(ErrorCode.INVALID_TXN_STATE)
    return Result(response=EndTxnAnswer())


def _end_in_next_epoch(transaction: Transaction, command: EndTxn, now_ms: int) -> Result:
    """Transaction version 2: the producer goes on with the next epoch, and is told so."""
    if transaction.state.is_decided:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state.is_complete and has_epoch_before(transaction, command):
        if not _has_ended_so(transaction, command):
            return _refused(ErrorCode.INVALID_TXN_STATE)
        return Result(response=_told(transaction))
    error = check_producer(transaction, command, fenced_code(command))
    if error is not ErrorCode.NONE:
        return _refused(error)
    is_ongoing = transaction.state is TransactionState.ONGOING
    if command.is_commit and not is_ongoing:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    if _waits_for_batch(transaction, command):
        return _refused(ErrorCode.INVALID_TXN_STATE)
    if transaction.is_exhausted and command.new_producer_id is None:
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return _end(transaction, command, now_ms, None)


def _waits_for_batch(transaction: Transaction, command: EndTxn) -> bool:
    """Whether this end would commit a part of a batch."""
    return command.is_commit and transaction.is_prepared


def _has_ended_so(transaction: Transaction, command: EndTxn) -> bool:
    if command.is_commit:
        return transaction.state is TransactionState.COMPLETE_COMMIT
    return transaction.state is TransactionState.COMPLETE_ABORT


def _told(transaction: Transaction) -> EndTxnAnswer:
    return EndTxnAnswer(
        producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
    )


def _refused(error: ErrorCode) -> Result:
    return Result(response=EndTxnAnswer(error=error))


def _end(
    transaction: Transaction, command: EndTxn, now_ms: int, answer: EndTxnAnswer | None
) -> Result:
    after = _decided(
        transaction,
        is_commit=command.is_commit,
        version=command.transaction_version,
        new_producer_id=command.new_producer_id,
        now_ms=now_ms,
    )
    return _write_down(after, now_ms, answer or _told(completed(after, now_ms)))


def _decided(
    transaction: Transaction,
    *,
    is_commit: bool,
    version: TransactionVersion,
    new_producer_id: int | None,
    now_ms: int,
) -> Transaction:
    next_producer_id = NO_PRODUCER_ID
    if version.bumps_epoch and transaction.is_exhausted:
        assert new_producer_id is not None, "an epoch is used up and there is no other producer id"
        next_producer_id = new_producer_id
    return decided(
        transaction,
        is_commit=is_commit,
        version=version,
        next_producer_id=next_producer_id,
        now_ms=now_ms,
    )


def _write_down(after: Transaction, now_ms: int, response: Any) -> Result:
    """Write the decision down and have the markers written, if there is any partition."""
    transactional_id = after.transactional_id
    records: list[TransactionRecord] = [
        TransactionWritten(transactional_id=transactional_id, transaction=after)
    ]
    tasks: tuple[WriteMarkers, ...] = ()
    if after.partitions:
        tasks = (write_markers(after, after.partitions),)
    else:
        done = completed(after, now_ms)
        records.append(TransactionWritten(transactional_id=transactional_id, transaction=done))
    return Result(
        records=tuple(records),
        response=response,
        timers=(TimerChange(timeout_timer(transactional_id), None),),
        tasks=tasks,
    )


# By the coordinator -------------------------------------------------------------------------


def fence(
    transaction: Transaction, new_producer_id: int | None, now_ms: int, response: Any = None
) -> Result:
    """Abort an Ongoing transaction in a new epoch, whatever version its producer speaks."""
    return end_by_coordinator(
        transaction,
        is_commit=False,
        new_producer_id=new_producer_id,
        now_ms=now_ms,
        response=response,
    )


def end_by_coordinator(
    transaction: Transaction,
    *,
    is_commit: bool,
    new_producer_id: int | None,
    now_ms: int,
    response: Any,
) -> Result:
    """End an Ongoing transaction in a new epoch: its producer is told nothing, and is fenced."""
    after = _decided(
        transaction,
        is_commit=is_commit,
        version=SERVER_VERSION,
        new_producer_id=new_producer_id,
        now_ms=now_ms,
    )
    return _write_down(after, now_ms, response)


def time_is_up(
    transaction: Transaction | None,
    new_producer_id: int | None,
    settings: TransactionSettings,
    now_ms: int,
) -> Result:
    """Abort a transaction that has been Ongoing for too long.

    Where that takes another producer id it is asked for first, until it comes.
    """
    if transaction is None or transaction.state is not TransactionState.ONGOING:
        return Result()
    key = timeout_timer(transaction.transactional_id)
    if transaction.deadline_ms is None or now_ms < transaction.deadline_ms:
        # The clock was set back, or the timer was that of an earlier transaction.
        return Result(timers=(TimerChange(key, transaction.deadline_ms),))
    if transaction.is_exhausted and new_producer_id is None:
        task = AllocateProducerId(transactional_id=transaction.transactional_id)
        retry = TimerChange(key, now_ms + settings.retry_ms)
        return Result(timers=(retry,), tasks=(task,))
    return fence(transaction, new_producer_id, now_ms)


def abort_transaction(
    transaction: Transaction | None, command: AbortTransaction, now_ms: int
) -> Result:
    error = _check_abort(transaction, command)
    if error is not ErrorCode.NONE:
        return Result(response=AbortAnswer(error=error))
    assert transaction is not None
    return fence(transaction, command.new_producer_id, now_ms, response=AbortAnswer())


def _check_abort(transaction: Transaction | None, command: AbortTransaction) -> ErrorCode:
    if transaction is None:
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if transaction.state.is_decided:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction.state is not TransactionState.ONGOING:
        return ErrorCode.INVALID_TXN_STATE
    if transaction.is_exhausted and command.new_producer_id is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.NONE


# Markers ------------------------------------------------------------------------------------


def write_markers(transaction: Transaction, missing: frozenset[TopicPartition]) -> WriteMarkers:
    """The work that a decided transaction is waiting for."""
    return WriteMarkers(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        is_commit=transaction.state is TransactionState.PREPARE_COMMIT,
        partitions=missing,
        transaction_version=transaction.client_transaction_version,
        decided_ms=transaction.last_update_timestamp_ms,
    )


def markers_written(
    transaction: Transaction | None,
    missing: frozenset[TopicPartition],
    command: MarkersWritten,
    settings: TransactionSettings,
    now_ms: int,
) -> Result:
    """Complete the transaction when no marker is missing any more, or try again later."""
    if transaction is None or not transaction.state.is_decided:
        return Result()
    if command.task != write_markers(transaction, missing):
        return Result()  # the work of an earlier transaction, or of before the shard was loaded
    transactional_id = transaction.transactional_id
    still_missing = missing - command.written
    if still_missing:
        key = markers_timer(transactional_id)
        return Result(
            records=(MarkersProgressed(transactional_id=transactional_id, missing=still_missing),),
            timers=(TimerChange(key, now_ms + settings.retry_ms),),
        )
    done = completed(transaction, now_ms)
    return Result(
        records=(TransactionWritten(transactional_id=transactional_id, transaction=done),),
        timers=(TimerChange(markers_timer(transactional_id), None),),
    )


def try_markers_again(
    transaction: Transaction | None, missing: frozenset[TopicPartition]
) -> Result:
    if transaction is None or not transaction.state.is_decided:
        return Result()
    return Result(tasks=(write_markers(transaction, missing),))
