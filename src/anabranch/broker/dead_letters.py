"""Copies of records that nobody could process, and the topic that they go to.

A copy has the key, the value and the headers of the record, and behind them headers that say where
it comes from and why, with the names of KIP-1191 and text as values. Its time is that of the copy,
so that the retention of the dead-letter topic counts from when it got there; the record's own time
is among the headers. It is not part of any transaction, so a record of one is copied when it is
committed and never when it is aborted. It goes to the partition of the same number, or, where the
topic has fewer, to that modulo their number, as in Kafka: records of a key stay in order.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from anabranch.branch.slots import SlotRule
from anabranch.broker.partition import Partition
from anabranch.broker.topics import INTERNAL_TOPICS, Topic
from anabranch.coordinator.cooperative.progress import Attempt
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.wire.record_batch import Record, build_batch, iter_records, read_header

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

DLQ_SUFFIX = ".dlq"
# What the headers of a copy may add to a record.
_HEADERS_MAX_BYTES = 64 * 1024


class FoundRecord(NamedTuple):
    """A record, and the codec that it was compressed with."""

    record: Record
    codec: int


class Origin(NamedTuple):
    """Where a record was when nobody could process it."""

    group_id: str
    topic: str
    partition: int


class ReadBatch(NamedTuple):
    """A batch, and the offset that follows it."""

    content: bytes
    next_offset: int


def read_batch(log: PartitionLog, offset: int) -> ReadBatch | None:
    """The batch that a record is in, if it is still there; it may begin after the record.

    None too when it was aborted. KafkaError when its transaction is open.
    """
    if not log.log_start_offset <= offset < log.log_end_offset:
        return None
    found = log.read(offset, 1)
    if not found:
        return None
    header = read_header(found)
    if header.is_transactional and not header.is_control:
        if log.transactions.is_open(header.producer_id, header.base_offset):
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"The record at offset {offset} of {log.topic}-{log.partition} is part of a "
                "transaction that is open. It is copied when that is committed.",
            )
        if log.transactions.is_aborted(header.producer_id, header.base_offset):
            return None
    return ReadBatch(bytes(found), header.next_offset)


def find_records(batch: bytes, offsets: Collection[int]) -> dict[int, FoundRecord]:
    """The records with these offsets, as far as compaction left them. KafkaError when damaged."""
    codec = read_header(batch).codec
    return {
        record.offset: FoundRecord(record, codec)
        for record in iter_records(batch)
        if record.offset in offsets
    }


def is_ordered(record: Record, rule: SlotRule) -> bool:
    """Whether the record keeps an order with others at all."""
    if record.key is not None or rule.is_null_key_ordered:
        return True
    header = rule.ordering_header
    return header is not None and any(
        name.encode("utf-8", "surrogateescape") == header and value is not None
        for name, value in record.headers
    )


def dead_letter(found: FoundRecord, origin: Origin, attempt: Attempt, now_ms: int) -> bytearray:
    """The copy of a record, as a batch to append."""
    record, codec = found
    notes = {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "group": origin.group_id,
        "delivery.count": attempt.count,
        "message": attempt.reason,
    }
    headers = tuple((f"__dlq.errors.{name}", str(value).encode()) for name, value in notes.items())
    copy = Record(0, now_ms, record.key, record.value, (*record.headers, *headers))
    return bytearray(build_batch([copy], base_offset=0, codec=codec))


def dlq_topic_name(wanted: str, source: str) -> str:
    """The name of the topic that records of a topic go to."""
    return wanted or source + DLQ_SUFFIX


def dlq_partition(broker: "Broker", name: str, source: Topic, number: int) -> Partition:
    """Where copies from a partition go; the topic is created if there is none.

    KafkaError when there can be no such topic.
    """
    if name == source.name or name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name} cannot be the dead-letter topic of {source.name}. Set coop.dlq.topic to "
            "another one.",
        )
    topic = broker.topics.get(name)
    if topic is None:
        size = source.partitions[0].log.config.max_message_bytes + _HEADERS_MAX_BYTES
        topic = broker.create_topic(
            name, len(source.partitions), {"max.message.bytes": str(min(size, 2**31 - 1))}
        )
        logs.info("coop.dlq.created", topic=name, source=source.name)
    elif topic.source is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name} shows the records of another topic and takes none of its own. Set "
            "coop.dlq.topic to another one.",
        )
    return topic.partitions[number % len(topic.partitions)]
