"""Who may speak for a transaction: the producer that has its id in the present epoch."""

from typing import Protocol

from anabranch.coordinator.transaction.state import NO_PRODUCER_EPOCH, Transaction
from anabranch.model.errors import ErrorCode


class FromClient(Protocol):
    """A request whose version says whether its sender knows of PRODUCER_FENCED."""

    @property
    def knows_producer_fenced(self) -> bool: ...


class FromProducer(Protocol):
    """A request that says which producer it comes from."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...


def fenced_code(command: FromClient) -> ErrorCode:
    """How a producer of an older epoch is told so (KIP-588)."""
    if command.knows_producer_fenced:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH


def check_producer(
    transaction: Transaction, command: FromProducer, fenced: ErrorCode = ErrorCode.PRODUCER_FENCED
) -> ErrorCode:
    """Whether a request comes from the present producer; `fenced` if it was that once."""
    if command.producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if command.producer_epoch != transaction.producer_epoch:
        return fenced
    return ErrorCode.NONE


def has_epoch_before(transaction: Transaction, command: FromProducer) -> bool:
    """Whether a producer was told the present epoch, and has not heard of it.

    Another producer id follows only one whose epochs are used up, so that the epoch before is its
    last.
    """
    if command.producer_epoch == NO_PRODUCER_EPOCH:
        return False  # which is no epoch, and so there may be none before
    if command.producer_epoch != transaction.last_producer_epoch:
        return False
    return command.producer_id in (transaction.producer_id, transaction.previous_producer_id)
