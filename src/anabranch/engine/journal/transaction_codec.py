"""The transaction coordinator's records as bytes of `__transaction_state`, in Kafka's own format.

Kafka's tools, and whatever else reads that topic, read ours; a topic that Apache Kafka wrote is
read here. The version written is that of Kafka 4, which is 1. Sinks have a type of their own. The
layouts are in `wire.journal.transaction_state`.
"""

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

from anabranch.coordinator.transaction.records import SinkWritten, TransactionWritten
from anabranch.coordinator.transaction.sink_state import Listed, Sink
from anabranch.coordinator.transaction.state import (
    NO_PRODUCER_EPOCH,
    Preparation,
    TopicPartition,
    Transaction,
    TransactionState,
    TransactionVersion,
    ended_epoch,
)
from anabranch.engine.journal.batch import Entry
from anabranch.engine.journal.errors import JournalError
from anabranch.wire.journal.record_type import read_prefix
from anabranch.wire.journal.transaction_state import (
    SINK_BATCH,
    TRANSACTION_LOG,
    SinkBatchTransaction,
    SinkBatchValue,
    TransactionLogValue,
    TransactionPreparation,
    TransactionTopic,
)
from anabranch.wire.primitives import DecodeError

_VERSION = 1
_SINK_VERSION = 0

# Kafka's numbers of the states, which are those of their order.
_STATUS = {state: number for number, state in enumerate(TransactionState)}
_STATES = {number: state for state, number in _STATUS.items()}
# A record of these has never been written: ids are forgotten by tombstones.
_NEVER_KEPT = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)

_encode_key = TRANSACTION_LOG.key_encoder()
_encode_value = TRANSACTION_LOG.value_encoder(_VERSION)
_encode_sink_key = SINK_BATCH.key_encoder()
_encode_sink = SINK_BATCH.value_encoder(_SINK_VERSION)

Durable = TransactionWritten | SinkWritten

# Writing ----------------------------------------------------------------------------------------


def encode_transactions(records: Sequence[Durable]) -> list[Entry]:
    """The keys and values of a decision's records; no value for a tombstone."""
    return [_entry(record) for record in records]


def _entry(record: Durable) -> Entry:
    if isinstance(record, SinkWritten):
        sink = record.sink
        value = None if sink is None else _encode_sink(_sink_value(sink))
        return _encode_sink_key(record), value
    key, transaction = _encode_key(record), record.transaction
    return key, None if transaction is None else _encode_value(_value(transaction))


def _value(transaction: Transaction) -> TransactionLogValue:
    is_empty = transaction.state is TransactionState.EMPTY
    last_epoch = transaction.last_producer_epoch
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        timeout_ms=transaction.timeout_ms,
        status=_STATUS[transaction.state],
        topics=None if is_empty else _topics(transaction.partitions),
        last_update_timestamp_ms=transaction.last_update_timestamp_ms,
        start_timestamp_ms=transaction.start_timestamp_ms,
        client_transaction_version=transaction.client_transaction_version,
        last_producer_epoch=(
            NO_PRODUCER_EPOCH if last_epoch == ended_epoch(transaction) else last_epoch
        ),
        preparation=_preparation_value(transaction.preparation),
    )


def _preparation_value(preparation: Preparation | None) -> TransactionPreparation | None:
    if preparation is None:
        return None
    return TransactionPreparation(
        sink_id=preparation.sink_id,
        batch_id=preparation.batch_id,
        prepared_timestamp_ms=preparation.prepared_ms,
        retention_ms=preparation.retention_ms,
    )


def _sink_value(sink: Sink) -> SinkBatchValue:
    return SinkBatchValue(
        last_batch_id=sink.last_batch_id,
        last_update_timestamp_ms=sink.last_update_timestamp_ms,
        pending=[
            SinkBatchTransaction(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
            )
            for one in sink.pending
        ],
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[TransactionTopic]:
    return [
        TransactionTopic(topic=topic, partition_ids=[partition for _, partition in together])
        for topic, together in groupby(sorted(partitions), key=lambda one: one[0])
    ]


# Reading ----------------------------------------------------------------------------------------


def decode_transaction(key: bytes, value: bytes | None) -> Durable | None:
    """The record of a key and a value; None for a type that is not known here.

    Anything malformed is a JournalError.
    """
    try:
        number = read_prefix(key)
        if number == SINK_BATCH.number:
            return _sink_written(key, value)
        if number != TRANSACTION_LOG.number:
            return None
        transactional_id = TRANSACTION_LOG.key_decoder()(key).transactional_id
        transaction = None
        if value is not None:
            said = TRANSACTION_LOG.value_decoder(read_prefix(value))(value)
            transaction = _transaction(transactional_id, said)
        return TransactionWritten(transactional_id=transactional_id, transaction=transaction)
    except (DecodeError, ValueError) as error:
        raise JournalError(f"a record of __transaction_state cannot be read: {error}") from error


def _sink_written(key: bytes, value: bytes | None) -> SinkWritten:
    sink_id = SINK_BATCH.key_decoder()(key).sink_id
    if value is None:
        return SinkWritten(sink_id=sink_id, sink=None)
    said = SINK_BATCH.value_decoder(read_prefix(value))(value)
    pending = tuple(
        Listed(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
        )
        for one in said.pending
    )
    sink = Sink(
        sink_id=sink_id,
        last_batch_id=said.last_batch_id,
        last_update_timestamp_ms=said.last_update_timestamp_ms,
        pending=pending,
    )
    return SinkWritten(sink_id=sink_id, sink=sink)


def _preparation(said: TransactionPreparation | None) -> Preparation | None:
    if said is None:
        return None
    return Preparation(
        sink_id=said.sink_id,
        batch_id=said.batch_id,
        prepared_ms=said.prepared_timestamp_ms,
        retention_ms=said.retention_ms,
    )


def _transaction(transactional_id: str, said: TransactionLogValue) -> Transaction:
    state = _STATES.get(said.status)
    if state is None or state in _NEVER_KEPT:
        raise ValueError(f"no transaction is kept in state {said.status}")
    transaction = Transaction(
        transactional_id=transactional_id,
        producer_id=said.producer_id,
        previous_producer_id=said.previous_producer_id,
        next_producer_id=said.next_producer_id,
        producer_epoch=said.producer_epoch,
        last_producer_epoch=said.last_producer_epoch,
        timeout_ms=said.timeout_ms,
        state=state,
        # A few names are in all the records of a journal: each is held once.
        partitions=frozenset(
            (sys.intern(one.topic), partition)
            for one in said.topics or ()
            for partition in one.partition_ids
        ),
        start_timestamp_ms=said.start_timestamp_ms,
        last_update_timestamp_ms=said.last_update_timestamp_ms,
        client_transaction_version=TransactionVersion(said.client_transaction_version),
        preparation=_preparation(said.preparation),
    )
    if said.last_producer_epoch != NO_PRODUCER_EPOCH:
        return transaction
    return dataclasses.replace(transaction, last_producer_epoch=ended_epoch(transaction))
