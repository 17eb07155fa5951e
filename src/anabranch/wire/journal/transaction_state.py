"""The records of `__transaction_state`: transactional ids, and sinks.

TransactionLog (type 0) is a transactional id with its producer and its transaction. 1 flexible,
with the producer ids before and after and the client's transaction version as tags (KIP-890). Kafka
writes 1. Partitions are null where no transaction has begun.

The epoch before the present one is not in Kafka's record, so that its coordinator fences a producer
that asks again after a restart. Here it is a tag of our own, which Kafka passes over; it is written
only where it does not follow from the rest. Another tag says which batch of a sink a prepared
transaction waits for; for Kafka it is Ongoing.

SinkBatch (type 10000, ours alone) is a sink with its last batch, and the transactions of it that
are still to be committed in the shards they belong to. Kafka passes over keys of a type that it
does not know.
"""

from anabranch.wire.journal.record_type import record_type
from anabranch.wire.schema import Int8, Int16, Int32, Int64, String, at, struct


@struct
class TransactionLogKey:
    transactional_id: String = at("0")


@struct
class TransactionTopic:
    topic: String = at("0+")
    partition_ids: list[Int32] = at("0+")


@struct
class TransactionPreparation:
    sink_id: String = at("1+")
    batch_id: Int64 = at("1+")
    prepared_timestamp_ms: Int64 = at("1+")
    retention_ms: Int64 = at("1+")


@struct
class TransactionLogValue:
    producer_id: Int64 = at("0+")
    previous_producer_id: Int64 = at("1+", tag=0, default=-1, ignorable=True)
    next_producer_id: Int64 = at("1+", tag=1, default=-1, ignorable=True)
    producer_epoch: Int16 = at("0+")
    timeout_ms: Int32 = at("0+")
    status: Int8 = at("0+")
    topics: list[TransactionTopic] | None = at("0+")
    last_update_timestamp_ms: Int64 = at("0+")
    start_timestamp_ms: Int64 = at("0+")
    client_transaction_version: Int16 = at("1+", tag=2, ignorable=True)
    last_producer_epoch: Int16 = at("1+", tag=10000, default=-1, ignorable=True)
    preparation: TransactionPreparation | None = at(
        "1+", tag=10001, nullable="none", default=None, ignorable=True
    )


@struct
class SinkBatchKey:
    sink_id: String = at("0")


@struct
class SinkBatchTransaction:
    transactional_id: String = at("0+")
    producer_id: Int64 = at("0+")
    producer_epoch: Int16 = at("0+")


@struct
class SinkBatchValue:
    last_batch_id: Int64 = at("0+")
    last_update_timestamp_ms: Int64 = at("0+")
    pending: list[SinkBatchTransaction] = at("0+")


TRANSACTION_LOG = record_type(
    0,
    "TransactionLog",
    key=TransactionLogKey,
    value=TransactionLogValue,
    versions="0-1",
    flexible="1+",
)

SINK_BATCH = record_type(
    10_000,
    "SinkBatch",
    key=SinkBatchKey,
    value=SinkBatchValue,
    versions="0",
    flexible="0+",
)
