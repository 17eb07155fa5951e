"""What a produce with transactional batches has to be asked of the coordinator before it is taken.

A partition in which the producer's transaction is open already is known to be in it, and nobody is
asked, unless the transaction is prepared and takes no more. For the others there is one command for
all partitions of the request: from Produce 12 on the broker adds them to the transaction for the
client; an older client has added them, and they are taken only if it has (KIP-890): a late message
would open a transaction that nobody ends.

The coordinator's answers are not all for producers. What is the matter with the coordinator is told
as NOT_ENOUGH_REPLICAS, which every producer retries, and a fenced producer is told
INVALID_PRODUCER_EPOCH, as the log tells it.
"""

from collections.abc import Iterable, Mapping
from struct import Struct

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.partition import Partition
from anabranch.config.transaction_settings import PARTITION_VERIFICATION
from anabranch.coordinator.transaction.commands import (
    AddPartitionsToTxn,
    PartitionsAnswer,
    VerifyPartitions,
)
from anabranch.coordinator.transaction.state import TopicPartition, TransactionVersion
from anabranch.handlers.transaction_answers import answer, is_still_open
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import HEADER_SIZE, TRANSACTIONAL_FLAG

_FIRST_WITH_ABORTABLE = 11
_FIRST_WITH_ADDING = 12
_OF_THE_COORDINATOR = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
# Attributes, producer id and epoch of a batch.
_unpack_producer = Struct(">21xh20xqh").unpack_from

Producer = tuple[int, int]
Refusals = Mapping[TopicPartition, KafkaError]
"""The partitions that are not taken, and why."""


def producer_of(records: bytes | memoryview | None) -> Producer | None:
    """The producer id and epoch of a transactional batch; None for any other."""
    if records is None or len(records) < HEADER_SIZE:
        return None
    attributes, producer_id, producer_epoch = _unpack_producer(records)
    return (producer_id, producer_epoch) if attributes & TRANSACTIONAL_FLAG else None


def check_one_producer(producers: Iterable[Producer]) -> KafkaError | None:
    """Why a request is refused whose batches are of more than one producer."""
    if len(set(producers)) < 2:
        return None
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        "Transactional records contained more than one producer ID.",
    )


def ask_coordinator(
    broker: Broker,
    version: int,
    transactional_id: str,
    producer: Producer,
    partitions: Mapping[TopicPartition, Partition],
) -> Refusals | Deferred[Refusals]:
    """Which partitions a transactional producer must not write to; none is the usual answer."""
    is_prepared = broker.transactions.is_prepared(transactional_id)
    unknown = tuple(
        place
        for place, partition in partitions.items()
        if is_prepared or not _is_open(partition, producer)
    )
    if not unknown:
        return {}
    producer_id, producer_epoch = producer
    command: AddPartitionsToTxn | VerifyPartitions
    if version >= _FIRST_WITH_ADDING:
        command = AddPartitionsToTxn(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=unknown,
            transaction_version=TransactionVersion.TV_2,
        )
    elif is_prepared or broker.get_bool(PARTITION_VERIFICATION):
        command = VerifyPartitions(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=unknown,
        )
    else:
        return {}

    def refusals(outcome: PartitionsAnswer | KafkaError) -> Refusals:
        refused = _refusals(outcome, unknown, version)
        taken = tuple(place for place in unknown if place not in refused)
        if taken and not is_still_open(broker, transactional_id, producer, taken):
            # The truth is told when it asks again.
            ended = PartitionsAnswer(error=ErrorCode.CONCURRENT_TRANSACTIONS)
            refused = {**refused, **_refusals(ended, taken, version)}
        return refused

    return answer(broker, transactional_id, command, refusals)


def _is_open(partition: Partition, producer: Producer) -> bool:
    """Whether the producer's transaction has written here before."""
    producer_id, producer_epoch = producer
    entry = partition.log.producer_states.entries.get(producer_id)
    return (
        entry is not None
        and entry.producer_epoch == producer_epoch
        and entry.current_txn_first_offset >= 0
    )


def _refusals(
    outcome: PartitionsAnswer | KafkaError, asked: tuple[TopicPartition, ...], version: int
) -> Refusals:
    if isinstance(outcome, KafkaError):
        error = KafkaError(_told(outcome.code, version), outcome.message)
        return dict.fromkeys(asked, error)
    if not outcome.errors:
        codes = [outcome.error] * len(asked)
    else:
        codes = list(outcome.errors)
    return {
        place: KafkaError(_told(code, version), _why(code, place))
        for place, code in zip(asked, codes, strict=True)
        if code is not ErrorCode.NONE
    }


def _told(code: ErrorCode, version: int) -> ErrorCode:
    """What a producer is told in place of a coordinator's error."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if code in _OF_THE_COORDINATOR:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _FIRST_WITH_ADDING:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


def _why(code: ErrorCode, place: TopicPartition) -> str:
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return "A newer producer has this transactional id; this one must stop."
        case ErrorCode.TRANSACTION_ABORTABLE:
            return f"{place[0]}-{place[1]} is not in the transaction. Abort it and begin again."
        case ErrorCode.INVALID_TXN_STATE:
            return "The transaction is prepared for a batch of a sink, and takes no more records."
        case ErrorCode.CONCURRENT_TRANSACTIONS:
            return "The transaction before is being completed. Try again."
        case ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return "The transactional id does not have this producer id. Initialize the producer."
        case _:
            return f"The transaction does not take the records ({code.name})."
