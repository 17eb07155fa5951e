"""InitProducerId: which producer id and epoch a producer gets, and whom it fences.

Rules
- A producer that starts gets the next epoch; whoever had the one before is fenced.
- A producer that goes on (KIP-360) has to have the present epoch, and gets the next one. If it has
  the epoch before that, it has not heard the answer to its first request: it gets the present one.
- An Ongoing transaction is aborted first, and the producer comes again (CONCURRENT_TRANSACTIONS). A
  producer that is fenced by now aborts nobody's. (Kafka does not look at its epoch there: it aborts
  the transaction of the one that has fenced it, and only then turns it away.)
- With two-phase commit (KIP-939), which a setting has to allow, no time ends the transactions of
  the producer, whatever time it asks for.
- A used-up epoch leads to another producer id, from epoch 0.
"""

from anabranch.coordinator.runtime.result import Result
from anabranch.coordinator.transaction.commands import InitProducerId, InitProducerIdAnswer
from anabranch.coordinator.transaction.ending import fence
from anabranch.coordinator.transaction.fencing import fenced_code, has_epoch_before
from anabranch.coordinator.transaction.records import TransactionWritten
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    Transaction,
    TransactionState,
    initialized,
    new_transaction,
)
from anabranch.model.errors import ErrorCode


def init_producer_id(
    transaction: Transaction | None,
    command: InitProducerId,
    settings: TransactionSettings,
    now_ms: int,
) -> Result:
    error = _check_request(command, settings)
    if error is not ErrorCode.NONE:
        return _refused(error)
    if command.transactional_id is None:
        return _idempotent_only(command)
    if transaction is None:
        if command.new_producer_id is None:
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        transaction = new_transaction(
            command.transactional_id, command.new_producer_id, command.timeout_ms, now_ms
        )
    error = _check_producer(transaction, command)
    if error is not ErrorCode.NONE:
        return _refused(error)
    if transaction.state is TransactionState.ONGOING:
        return _abort_first(transaction, command, now_ms)
    return _initialize(transaction, command, now_ms)


def _check_request(command: InitProducerId, settings: TransactionSettings) -> ErrorCode:
    has_id = command.producer_id != NO_PRODUCER_ID
    has_epoch = command.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        return ErrorCode.INVALID_REQUEST
    if command.transactional_id is None:
        return ErrorCode.NONE
    if not command.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if command.is_two_phase_commit:
        # Kafka's word for it: who may not do it is not told that others may.
        is_allowed = settings.is_two_phase_commit_enabled
        return ErrorCode.NONE if is_allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not 0 < command.timeout_ms <= settings.max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def _check_producer(transaction: Transaction, command: InitProducerId) -> ErrorCode:
    if transaction.state.is_decided:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_new = transaction.producer_epoch == NO_PRODUCER_EPOCH
    if is_new or not _goes_on(command) or _has_present(transaction, command):
        return ErrorCode.NONE
    if has_epoch_before(transaction, command):
        return ErrorCode.NONE
    return fenced_code(command)


def _goes_on(command: InitProducerId) -> bool:
    """Whether the producer says that it is the one that has the id already."""
    return command.producer_id != NO_PRODUCER_ID


def _has_present(transaction: Transaction, command: InitProducerId) -> bool:
    present = (transaction.producer_id, transaction.producer_epoch)
    return (command.producer_id, command.producer_epoch) == present


def _idempotent_only(command: InitProducerId) -> Result:
    """A producer without a transactional id gets a producer id of its own, always."""
    if command.new_producer_id is None:
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    answer = InitProducerIdAnswer(producer_id=command.new_producer_id, producer_epoch=0)
    return Result(response=answer)


def _abort_first(transaction: Transaction, command: InitProducerId, now_ms: int) -> Result:
    if transaction.is_exhausted and command.new_producer_id is None:
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    again = InitProducerIdAnswer(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    return fence(transaction, command.new_producer_id, now_ms, response=again)


def _initialize(transaction: Transaction, command: InitProducerId, now_ms: int) -> Result:
    is_new = transaction.producer_epoch == NO_PRODUCER_EPOCH
    producer_id, epoch = transaction.producer_id, transaction.producer_epoch
    last_epoch = epoch if _goes_on(command) else NO_PRODUCER_EPOCH
    if not is_new and _goes_on(command) and not _has_present(transaction, command):
        last_epoch = transaction.last_producer_epoch  # it asks again: nothing but the timeout
    elif transaction.is_exhausted:
        if command.new_producer_id is None:
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        producer_id, epoch = command.new_producer_id, 0
    else:
        epoch += 1
    after = initialized(
        transaction,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=NO_TIMEOUT_MS if command.is_two_phase_commit else command.timeout_ms,
        now_ms=now_ms,
    )
    return Result(
        records=(TransactionWritten(transactional_id=after.transactional_id, transaction=after),),
        response=InitProducerIdAnswer(producer_id=producer_id, producer_epoch=epoch),
    )


def _refused(error: ErrorCode) -> Result:
    return Result(response=InitProducerIdAnswer(error=error))
