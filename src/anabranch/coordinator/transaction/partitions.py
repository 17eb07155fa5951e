"""Partitions of a transaction: adding them, and asking whether they are there.

Rules
- The first partition begins the transaction, and its time begins to run.
- While the markers of the last transaction are written, nothing can be added to the next; that is
  said first, because a producer that waits for its new epoch may still show the old one.
- A prepared transaction takes nothing any more (INVALID_TXN_STATE).
- Adding what is there already changes nothing and is not written.
"""

from collections.abc import Collection

from anabranch.coordinator.runtime.result import Result, TimerChange
from anabranch.coordinator.transaction.commands import (
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    PartitionsAnswer,
    VerifyPartitions,
)
from anabranch.coordinator.transaction.ending import timeout_timer
from anabranch.coordinator.transaction.fencing import check_producer, fenced_code
from anabranch.coordinator.transaction.records import TransactionWritten
from anabranch.coordinator.transaction.state import (
    TopicPartition,
    Transaction,
    TransactionState,
    TransactionVersion,
    with_partitions,
)
from anabranch.model.errors import ErrorCode


def add_partitions(
    transaction: Transaction | None, command: AddPartitionsToTxn, now_ms: int
) -> Result:
    error = _check_add(transaction, command)
    if error is not ErrorCode.NONE:
        return Result(response=PartitionsAnswer(error=error))
    assert transaction is not None
    return _add(transaction, command.partitions, command.transaction_version, now_ms)


def add_offsets(transaction: Transaction | None, command: AddOffsetsToTxn, now_ms: int) -> Result:
    """Only clients of transaction version 0 send it: for the others the broker adds partitions."""
    error = _check_add(transaction, command)
    if error is not ErrorCode.NONE:
        return Result(response=PartitionsAnswer(error=error))
    assert transaction is not None
    return _add(transaction, (command.offsets_partition,), TransactionVersion.TV_0, now_ms)


def _check_add(
    transaction: Transaction | None, command: AddPartitionsToTxn | AddOffsetsToTxn
) -> ErrorCode:
    if not command.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.state.is_decided:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    error = check_producer(transaction, command, fenced_code(command))
    if error is not ErrorCode.NONE:
        return error
    return ErrorCode.INVALID_TXN_STATE if transaction.is_prepared else ErrorCode.NONE


def _add(
    transaction: Transaction,
    partitions: Collection[TopicPartition],
    version: TransactionVersion,
    now_ms: int,
) -> Result:
    is_ongoing = transaction.state is TransactionState.ONGOING
    if is_ongoing and transaction.partitions.issuperset(partitions):
        return Result(response=PartitionsAnswer())
    after = with_partitions(transaction, frozenset(partitions), version, now_ms)
    transactional_id = after.transactional_id
    timer = TimerChange(timeout_timer(transactional_id), after.deadline_ms)
    return Result(
        records=(TransactionWritten(transactional_id=transactional_id, transaction=after),),
        response=PartitionsAnswer(),
        timers=() if is_ongoing else (timer,),
    )


def verify_partitions(transaction: Transaction | None, command: VerifyPartitions) -> Result:
    """Whether a producer may write to partitions; one that is missing can be aborted (KIP-890)."""
    error = _check_verify(transaction, command)
    if error is not ErrorCode.NONE:
        return Result(response=PartitionsAnswer(error=error))
    assert transaction is not None
    return Result(
        response=PartitionsAnswer(
            errors=tuple(
                ErrorCode.NONE
                if partition in transaction.partitions
                else ErrorCode.TRANSACTION_ABORTABLE
                for partition in command.partitions
            )
        )
    )


def _check_verify(transaction: Transaction | None, command: VerifyPartitions) -> ErrorCode:
    if not command.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    error = check_producer(transaction, command)
    if error is not ErrorCode.NONE:
        return error
    if transaction.state.is_decided:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.INVALID_TXN_STATE if transaction.is_prepared else ErrorCode.NONE
