"""EndTxn: the decision, the markers, and what the producer goes on with."""

from collections.abc import Callable

import pytest
from transaction_calls import NEW, OLD, TIMEOUT_MS, TransactionNode

from anabranch.model.errors import ErrorCode

ABORT, COMMIT = 0, 1


@pytest.mark.parametrize(("is_commit", "marker"), [(True, COMMIT), (False, ABORT)])
def test_a_transaction_of_version_2(
    transaction_node: TransactionNode, is_commit: bool, marker: int
) -> None:
    """What was produced ends with a marker of the next epoch, which the producer is told."""
    node = transaction_node
    producer_id, epoch = producer = node.start_producer()
    assert node.produce(producer, ("t", 0), ("t", 1)) == [0, 0]
    assert node.state == "Ongoing"
    assert node.log().last_stable_offset == 0
    assert node.end(producer, is_commit=is_commit) == (0, producer_id, epoch + 1)
    assert node.state == ("CompleteCommit" if is_commit else "CompleteAbort")
    for partition in (0, 1):
        assert node.markers(partition=partition) == [(marker, producer_id, epoch + 1)]
        assert node.log(partition=partition).last_stable_offset == 2


@pytest.mark.parametrize(("is_commit", "marker"), [(True, COMMIT), (False, ABORT)])
def test_a_transaction_of_version_0(
    transaction_node: TransactionNode, is_commit: bool, marker: int
) -> None:
    """An older producer adds partitions itself, and goes on in the same epoch, at once."""
    node = transaction_node
    producer = node.start_producer(version=3)
    for number in range(3):
        assert node.add(producer, ("t", 0)) == {("t", 0): 0}
        assert node.produce(producer, sequence=number, version=OLD[0]) == [0]
        assert node.end(producer, is_commit=is_commit, version=OLD[1])[0] == 0
    assert node.markers() == [(marker, *producer)] * 3
    assert node.log().last_stable_offset == node.log().log_end_offset == 6


def test_the_next_transaction_of_version_2(transaction_node: TransactionNode) -> None:
    """It is in the epoch that the end of the one before has told, from sequence 0 on."""
    node = transaction_node
    producer = node.start_producer()
    for _ in range(3):
        assert node.produce(producer, version=NEW[0]) == [0]
        error, *told = node.end(producer)
        assert error == 0
        producer = (told[0], told[1])
    assert [epoch for _, _, epoch in node.markers()] == [1, 2, 3]


def test_a_zombie_ends_nothing(transaction_node: TransactionNode) -> None:
    """A producer that was fenced is told so, in the words that its version knows."""
    node = transaction_node
    zombie = node.start_producer()
    assert node.produce(zombie) == [0]
    assert node.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS  # which aborts
    producer = node.start_producer()
    assert node.markers() == [(ABORT, zombie[0], zombie[1] + 1)]
    assert node.produce(producer) == [0]
    assert node.end(zombie)[0] == ErrorCode.PRODUCER_FENCED
    assert node.end(zombie, version=1)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert node.state == "Ongoing"
    assert len(node.markers()) == 1


def test_nothing_to_commit(transaction_node: TransactionNode) -> None:
    """A commit without a transaction is refused; who has never been initialized is not known."""
    node = transaction_node
    assert node.end((7, 0))[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer = node.start_producer()
    assert node.end(producer)[0] == ErrorCode.INVALID_TXN_STATE
    assert node.end(producer, version=3)[0] == ErrorCode.INVALID_TXN_STATE


def test_time_is_up(transaction_node: TransactionNode) -> None:
    """A transaction that its producer leaves open is aborted when its time is up, not before."""
    node = transaction_node
    producer = node.start_producer()
    assert node.produce(producer) == [0]
    node.pass_ms(TIMEOUT_MS - 1)
    assert node.state == "Ongoing"
    node.pass_ms(1)
    assert node.state == "CompleteAbort"
    assert node.markers() == [(ABORT, producer[0], producer[1] + 1)]
    assert node.log().last_stable_offset == 2
    assert node.end(producer)[0] == ErrorCode.INVALID_TXN_STATE


def test_a_topic_that_is_deleted(transaction_node: TransactionNode) -> None:
    """A transaction ends in the partitions that there still are."""
    node = transaction_node
    node.create_topic("gone", 1)
    producer = node.start_producer()
    assert node.produce(producer, ("t", 0), ("gone", 0)) == [0, 0]
    topic = node.broker.topics.get("gone")
    assert topic is not None
    node.broker.delete_topic(topic)
    assert node.end(producer)[0] == 0
    assert node.state == "CompleteCommit"
    assert len(node.markers()) == 1


def test_the_answer_waits_for_the_disk(
    make_transaction_node: Callable[..., TransactionNode],
) -> None:
    """With flush.on.acks.all no marker is written before the disk has the decision."""
    node = make_transaction_node("flush.on.acks.all=true")
    first = node.begin_init()
    assert not first.is_answered
    node.loop.finish_jobs()
    producer = (first.answer.producer_id, first.answer.producer_epoch)
    producing = node.begin_produce(producer)
    assert node.log().log_end_offset == 0
    node.loop.finish_jobs()
    assert node.log().log_end_offset == 1 and not producing.is_answered
    node.loop.finish_jobs()
    assert producing.answer.responses[0].partition_responses[0].error_code == 0
    ending = node.begin_end(producer)
    assert node.state == "PrepareCommit" and node.markers() == []
    again = node.begin_end(producer)
    node.loop.finish_jobs()
    assert len(node.markers()) == 1 and not ending.is_answered
    node.loop.finish_jobs()
    assert ending.answer.error_code == 0
    assert node.state == "CompleteCommit"
    node.loop.finish_jobs()
    assert again.answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
