"""What the handlers of transactions share: a command goes to the coordinator, an answer comes back.

It may be there at once, or later (its records have to reach the disk first), or never: then
a KafkaError stands for it. `convert` turns whichever it is into the response.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction.commands import Command
from anabranch.coordinator.transaction.state import TopicPartition, TransactionState
from anabranch.model.errors import ErrorCode, KafkaError

T = TypeVar("T")


def answer(
    broker: Broker, transactional_id: str | None, command: Command, convert: Callable[[Any], T]
) -> T | Deferred[T]:
    """Submit a command and turn its answer, or the KafkaError in its place, into a response."""
    try:
        outcome = broker.transactions.submit(transactional_id, command)
    except KafkaError as error:
        return convert(error)
    return outcome.then(convert) if isinstance(outcome, Deferred) else convert(outcome)


def is_still_open(
    broker: Broker,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Iterable[TopicPartition],
) -> bool:
    """Whether partitions are in a transaction that may have waited for the disk.

    It may have been ended meanwhile, because its time was up for example. What is written after
    the markers would belong to a transaction that nobody ends.
    """
    transaction = broker.transactions.describe(transactional_id)
    return (
        transaction.state == TransactionState.ONGOING.value
        and transaction.preparation is None
        and (transaction.producer_id, transaction.producer_epoch) == producer
        and set(partitions) <= set(transaction.partitions)
    )


def error_of(outcome: Any) -> ErrorCode:
    """The error of an answer, or of the KafkaError in its place."""
    code: ErrorCode = outcome.code if isinstance(outcome, KafkaError) else outcome.error
    return code
