"""WriteTxnMarkers (27), versions 1-2: end a transaction in partitions, whatever became of it.

It comes from administrators who abort a transaction that hangs (KIP-664); the coordinator of this
broker writes its markers without it. Only partitions are told: where the coordinator still has the
transaction open, its producer can go on with it.

Version note: 2 says by which rules the transaction was made (KIP-1228). By those of version 2 every
end has an epoch of its own, so a marker in the epoch that wrote is a late one.
"""

import functools

from anabranch.broker.branch_topics import produce_refusal
from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.group_coordinator import JOURNAL_TOPIC
from anabranch.broker.partition import Partition
from anabranch.coordinator.transaction.state import TransactionVersion
from anabranch.handlers.route import RequestContext, route
from anabranch.log.markers import append_marker
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.wire.control_records import ABORT, COMMIT
from anabranch.wire.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_MARKER_BYTES = 78
_LAST_EPOCH = 2**15 - 1


def handle(
    broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Deferred[WriteTxnMarkersResponse]:
    unsynced: list[tuple[Partition, WritableTxnMarkerPartitionResult]] = []
    response = WriteTxnMarkersResponse()
    for marker in request.markers:
        answered = WritableTxnMarkerResult(producer_id=marker.producer_id)
        response.markers.append(answered)
        for topic in marker.topics:
            results = [
                WritableTxnMarkerPartitionResult(partition_index=i) for i in topic.partition_indexes
            ]
            answered.topics.append(
                WritableTxnMarkerTopicResult(name=topic.name, partitions=results)
            )
            for result in results:
                try:
                    written = _write(broker, marker, topic.name, result.partition_index)
                except KafkaError as error:
                    result.error_code = error.code
                    _tell(marker, topic.name, result, error)
                    continue
                unsynced += [(one, result) for one in written if broker.must_sync(one, acks=-1)]
    return _when_synced(broker, response, unsynced) if unsynced else response


def _write(broker: Broker, marker: WritableTxnMarker, name: str, index: int) -> list[Partition]:
    """Write a marker; the partitions that were written to with it."""
    topic = broker.topics.get(name)
    if topic is not None and topic.source is not None:
        raise produce_refusal(broker.topics, name)
    partition = broker.topics.partition(name, index)
    _check_version_2(marker, partition)
    if name == JOURNAL_TOPIC:
        # Offsets are decided with their marker, which the shard writes itself.
        return broker.groups.end_transaction(
            index,
            marker.producer_id,
            marker.producer_epoch,
            is_commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
        )
    append_marker(
        partition.log,
        COMMIT if marker.transaction_result else ABORT,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        now_ms=broker.now_ms(),
    )
    broker.purgatory.mark(partition, _MARKER_BYTES)
    return [partition]


def _check_version_2(marker: WritableTxnMarker, partition: Partition) -> None:
    """A marker of version 2 has to be newer than what it ends; written again it does no harm."""
    entry = partition.log.producer_states.entries.get(marker.producer_id)
    if (
        marker.transaction_version >= TransactionVersion.TV_2
        and entry is not None
        and marker.producer_epoch == entry.producer_epoch
        and marker.producer_epoch < _LAST_EPOCH
        and entry.current_txn_first_offset >= 0
    ):
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"the marker of producer {marker.producer_id} has epoch {marker.producer_epoch}, in"
            " which the open transaction was written; one of version 2 has a newer one",
        )


def _when_synced(
    broker: Broker,
    response: WriteTxnMarkersResponse,
    unsynced: list[tuple[Partition, WritableTxnMarkerPartitionResult]],
) -> Deferred[WriteTxnMarkersResponse]:
    """Answer when the disk has the markers that must not be lost."""
    answer: Deferred[WriteTxnMarkersResponse] = Deferred()
    left = len(unsynced)

    def synced(result: WritableTxnMarkerPartitionResult, is_safe: bool) -> None:
        nonlocal left
        if not is_safe:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        left -= 1
        if not left:
            answer.complete(response)

    for partition, result in unsynced:
        broker.flusher.sync(partition.log, functools.partial(synced, result))
    return answer


def _tell(
    marker: WritableTxnMarker,
    name: str,
    result: WritableTxnMarkerPartitionResult,
    error: KafkaError,
) -> None:
    # The answer has room for a code alone.
    logs.warning(
        "transaction.marker.refused",
        producer_id=marker.producer_id,
        partition=f"{name}-{result.partition_index}",
        reason=error.message,
    )


ROUTE = route(WRITE_TXN_MARKERS, "1-2", handle)
