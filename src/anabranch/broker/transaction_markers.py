"""Writing the end of a transaction into its partitions.

All markers of a task are appended in one turn of the loop: in transaction version 0 the next
transaction has the same epoch, and a marker that came late would end it.

Writing one twice does no harm, so after a start all markers of a decision are written again whose
completion the journal does not have.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anabranch.broker.group_coordinator import JOURNAL_TOPIC
from anabranch.broker.partition import Partition
from anabranch.coordinator.transaction.commands import WriteMarkers
from anabranch.coordinator.transaction.state import TopicPartition
from anabranch.log.markers import append_marker
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.wire.control_records import ABORT, COMMIT

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

_MARKER_BYTES = 78
# Somebody newer has ended the transaction, an admin for example: there is nothing left to end.
_ENDED_BY_OTHERS = frozenset(
    (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
)


@dataclass(slots=True)
class WrittenMarkers:
    """What came of a task: what is written, and where the disk has to be waited for."""

    written: set[TopicPartition] = field(default_factory=set)
    # With the reasons.
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    unsynced: dict[TopicPartition, list[Partition]] = field(default_factory=dict)


def write_markers(broker: "Broker", task: WriteMarkers, coordinator_epoch: int) -> WrittenMarkers:
    """Append the markers of a task where there is anything to be ended."""
    outcome = WrittenMarkers()
    for name, index in sorted(task.partitions):
        place = (name, index)
        partition = _partition(broker, name, index)
        if partition is None:
            outcome.written.add(place)
            continue
        written = [partition]
        try:
            written = _write(broker, task, partition, coordinator_epoch)
        except KafkaError as error:
            if error.code not in _ENDED_BY_OTHERS:
                outcome.failed[place] = error.message
                continue
            logs.warning(
                "transaction.marker.fenced",
                transactional_id=task.transactional_id,
                partition=f"{name}-{index}",
                reason=error.message,
            )
        unsynced = [one for one in written if broker.must_sync(one, acks=-1)]
        if unsynced:
            outcome.unsynced[place] = unsynced
        else:
            outcome.written.add(place)
    return outcome


def _partition(broker: "Broker", name: str, index: int) -> Partition | None:
    """The partition that needs a marker; None when it is gone, or was never one to write to."""
    topic = broker.topics.get(name)
    if topic is None or topic.source is not None or not topic.has_partition(index):
        return None
    return topic.partitions[index]


def _write(
    broker: "Broker", task: WriteMarkers, partition: Partition, coordinator_epoch: int
) -> list[Partition]:
    """Write a marker; the partitions that were written to with it."""
    if partition.log.topic == JOURNAL_TOPIC:
        # Offsets are decided with their marker, which the shard writes itself.
        return broker.groups.end_transaction(
            partition.log.partition,
            task.producer_id,
            task.producer_epoch,
            is_commit=task.is_commit,
            coordinator_epoch=coordinator_epoch,
        )
    append_marker(
        partition.log,
        COMMIT if task.is_commit else ABORT,
        producer_id=task.producer_id,
        producer_epoch=task.producer_epoch,
        coordinator_epoch=coordinator_epoch,
        now_ms=broker.now_ms(),
    )
    broker.purgatory.mark(partition, _MARKER_BYTES)
    return [partition]
