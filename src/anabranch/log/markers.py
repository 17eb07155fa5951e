"""Writing the end of a transaction into a partition."""

from anabranch.log.partition_log import AppendInfo, PartitionLog
from anabranch.wire.control_records import build_marker


def append_marker(
    log: PartitionLog,
    control_type: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    now_ms: int,
) -> AppendInfo:
    """Commit or abort what a producer's transaction has written here, if it has any open.

    INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED when somebody newer wrote.
    """
    log.producer_states.check_marker(producer_id, producer_epoch, coordinator_epoch)
    marker = build_marker(
        control_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=now_ms,
    )
    return log.append(memoryview(bytearray(marker)), now_ms=now_ms, is_client=False)
