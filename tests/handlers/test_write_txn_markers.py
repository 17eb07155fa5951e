"""WriteTxnMarkers: an administrator ends what hangs in partitions."""

from collections.abc import Callable
from typing import Any

import pytest
from branch_topic_calls import asking, create
from transaction_calls import TransactionNode

from anabranch.engine.log_directory import DirectoryError
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from anabranch.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

ABORT, COMMIT = 0, 1
OFFSETS = "__consumer_offsets"


def begin_write(
    node: TransactionNode,
    producer: tuple[int, int],
    *places: tuple[str, int],
    is_commit: bool = False,
    version: int = 2,
    **more: Any,
) -> Any:
    marker = WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=is_commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=[index]) for name, index in places
        ],
        **more,
    )
    return node.begin(WriteTxnMarkersRequest(markers=[marker]), version)


def write(node: TransactionNode, producer: tuple[int, int], *args: Any, **how: Any) -> list[int]:
    """The error of each partition."""
    call = begin_write(node, producer, *args, **how)
    assert [one.producer_id for one in call.answer.markers] == [producer[0]]
    return codes_of(call)


def codes_of(call: Any) -> list[int]:
    (answered,) = call.answer.markers
    return [one.error_code for topic in answered.topics for one in topic.partitions]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("is_commit", "marker"), [(True, COMMIT), (False, ABORT)])
def test_it_ends_in_a_partition(
    transaction_node: TransactionNode, version: int, is_commit: bool, marker: int
) -> None:
    """The last stable offset goes on there and nowhere else; the coordinator has it open still."""
    node = transaction_node
    producer = node.start_producer()
    node.produce(producer, ("t", 0), ("t", 1))
    assert write(node, producer, ("t", 0), is_commit=is_commit, version=version) == [0]
    assert node.markers() == [(marker, *producer)]
    assert (node.log().last_stable_offset, node.log(partition=1).last_stable_offset) == (2, 0)
    assert node.state == "Ongoing"
    assert node.end(producer)[0] == 0
    assert node.log(partition=1).last_stable_offset == 2


def test_it_wakes_readers(transaction_node: TransactionNode) -> None:
    """Who waits for committed records gets what lies behind the transaction that hung."""
    node = transaction_node
    producer = node.start_producer()
    node.produce(producer)
    node.append("t", b"behind")
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
    request = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1,
        max_bytes=10_000,
        isolation_level=1,
        topics=[FetchTopic(topic="t", partitions=[asked])],
    )
    reading = node.begin(request, 11)
    assert not reading.is_answered
    assert write(node, producer, ("t", 0)) == [0]
    node.broker.wake_fetches()
    (partition,) = reading.answer.responses[0].partitions
    assert (partition.last_stable_offset, partition.error_code) == (3, 0)
    (aborted,) = partition.aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (producer[0], 0)


def test_each_partition_is_answered(transaction_node: TransactionNode) -> None:
    """One that is not there, or whose producer or coordinator is newer, fails by itself."""
    node = transaction_node
    producer_id, epoch = producer = node.start_producer()
    node.produce(producer)
    nowhere = [("t", 7), ("nobody", 0), ("t", 0)]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert write(node, producer, *nowhere, coordinator_epoch=3) == [unknown, unknown, 0]
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert write(node, producer, ("t", 0), coordinator_epoch=2) == [fenced]
    assert write(node, (producer_id, epoch + 1), ("t", 0), coordinator_epoch=3) == [0]
    old = ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(node, producer, ("t", 0), coordinator_epoch=3) == [old]
    assert len(node.markers()) == 2


def test_by_the_rules_of_version_2(transaction_node: TransactionNode) -> None:
    """A marker in the epoch that wrote is late, unless the transaction has ended already."""
    node = transaction_node
    producer_id, epoch = producer = node.start_producer()
    node.produce(producer)
    late = ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(node, producer, ("t", 0), transaction_version=2) == [late]
    assert write(node, (producer_id, epoch + 1), ("t", 0), transaction_version=2) == [0]
    assert write(node, (producer_id, epoch + 1), ("t", 0), transaction_version=2) == [0]
    assert node.log().last_stable_offset == 3


def test_a_branch_topic(transaction_node: TransactionNode) -> None:
    """It has no records of its own, so there is nothing in it to be ended."""
    node = transaction_node
    (created,) = create(node, asking("cut", source="t"))
    assert created.error_code == 0
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert write(node, (5, 0), ("cut", 0)) == [refused]
    assert node.log().log_end_offset == 0


@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_of_a_group(transaction_node: TransactionNode, is_commit: bool) -> None:
    """In the journal of groups a marker decides about the offsets that are pending."""
    node = transaction_node
    producer = node.start_producer()
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    answer = node.call(request, 5)
    assert answer.topics[0].partitions[0].error_code == 0
    assert not node.log(OFFSETS).last_stable_offset
    assert write(node, producer, (OFFSETS, 0), is_commit=is_commit) == [0]
    assert node.markers(OFFSETS) == [(int(is_commit), *producer)]
    assert ("t", 0) not in node.broker.groups.pending_offsets("g")
    committed = node.broker.groups.offsets("g")
    assert [one.offset for one in committed.values()] == ([7] if is_commit else [])


def test_the_answer_waits_for_the_disk(
    make_transaction_node: Callable[..., TransactionNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With flush.on.acks.all a marker is told when the disk has it, and a failure as one."""
    node = make_transaction_node()
    producer = node.start_producer()
    node.produce(producer, ("t", 0), ("t", 1))
    topic = node.broker.topics.get("t")
    assert topic is not None
    node.broker.topics.set_configs(topic, {**topic.configs, "flush.on.acks.all": "true"})
    writing = begin_write(node, producer, ("t", 0), ("t", 1))
    assert not writing.is_answered
    node.loop.finish_jobs()
    assert codes_of(writing) == [0, 0]

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr("os.fdatasync", broken)
        writing = begin_write(node, producer, ("t", 0))
        node.loop.finish_jobs()
    assert codes_of(writing) == [ErrorCode.KAFKA_STORAGE_ERROR]
    with pytest.raises(DirectoryError, match="t-0 failed"):
        node.close()
