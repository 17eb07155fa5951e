"""Prepared transactions: how one comes to wait for the batch of a sink, and how it ends.

Rules
- Only what is Ongoing can be prepared, by its present producer. Being prepared for the same batch
  once more changes nothing; for another one it is refused.
- A batch that is committed commits the transactions that it lists in the epoch that it lists, and
  nothing else: who finds another epoch, or a transaction that has ended, finds it done already. An
  end takes another epoch (transaction version 2, whatever the producer speaks), so that the same
  work done twice, after a restart for example, is done once.
- An abort is for what is prepared for that sink and in that epoch only.
- What a committed batch lists belongs to it (`is_claimed`), from the decision until it is
  committed: nobody can end it otherwise, neither its producer, nor another one with the same id,
  nor an administrator, nor time. They are told CONCURRENT_TRANSACTIONS, and come again.
"""

from anabranch.coordinator.runtime.result import Result, TimerChange
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.ending import end_by_coordinator, timeout_timer
from anabranch.coordinator.transaction.fencing import check_producer
from anabranch.coordinator.transaction.records import TransactionWritten
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.sink_state import listed
from anabranch.coordinator.transaction.state import (
    NO_BATCH,
    Transaction,
    TransactionState,
    prepared,
)
from anabranch.model.errors import ErrorCode


def prepare_transaction(
    transaction: Transaction | None,
    command: c.PrepareTxn,
    settings: TransactionSettings,
    now_ms: int,
) -> Result:
    error = _check_prepare(transaction, command)
    if error is not ErrorCode.NONE:
        return Result(response=c.PrepareAnswer(error=error))
    assert transaction is not None
    if transaction.is_prepared:
        return Result(response=c.PrepareAnswer())
    after = prepared(
        transaction, command.sink_id, command.batch_id, settings.prepared_retention_ms, now_ms
    )
    transactional_id = after.transactional_id
    return Result(
        records=(TransactionWritten(transactional_id=transactional_id, transaction=after),),
        response=c.PrepareAnswer(),
        timers=(TimerChange(timeout_timer(transactional_id), after.deadline_ms),),
    )


def _check_prepare(transaction: Transaction | None, command: c.PrepareTxn) -> ErrorCode:
    if not command.transactional_id or not command.sink_id or command.batch_id <= NO_BATCH:
        return ErrorCode.INVALID_REQUEST
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.state.is_decided:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    error = check_producer(transaction, command)
    if error is not ErrorCode.NONE:
        return error
    if transaction.state is not TransactionState.ONGOING:
        return ErrorCode.INVALID_TXN_STATE
    preparation = transaction.preparation
    if preparation is None:
        return ErrorCode.NONE
    if (preparation.sink_id, preparation.batch_id) != (command.sink_id, command.batch_id):
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def end_prepared(transaction: Transaction | None, command: c.EndPrepared, now_ms: int) -> Result:
    """Commit or abort for a sink; what has ended otherwise is left as it is."""
    if transaction is None or not _is_meant(transaction, command):
        return Result(response=c.EndPreparedAnswer())
    if transaction.is_exhausted and command.new_producer_id is None:
        return Result(response=c.EndPreparedAnswer(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    return end_by_coordinator(
        transaction,
        is_commit=command.is_commit,
        new_producer_id=command.new_producer_id,
        now_ms=now_ms,
        response=c.EndPreparedAnswer(),
    )


def _is_meant(transaction: Transaction, command: c.EndPrepared) -> bool:
    if listed(transaction) != command.listed:
        return False
    preparation = transaction.preparation
    return preparation is not None and preparation.sink_id == command.sink_id


def refuse_claimed(
    command: c.InitProducerId | c.EndTxn | c.AbortTransaction | c.EndPrepared,
) -> Result:
    """The transaction belongs to a batch that is being committed."""
    error = ErrorCode.CONCURRENT_TRANSACTIONS
    match command:
        case c.InitProducerId():
            return Result(response=c.InitProducerIdAnswer(error=error))
        case c.EndTxn():
            return Result(response=c.EndTxnAnswer(error=error))
        case c.AbortTransaction():
            return Result(response=c.AbortAnswer(error=error))
        case c.EndPrepared():
            return Result(response=c.EndPreparedAnswer(error=error))
