"""Produce in transactions: who may write where, and what a producer is told in place of it."""

from collections.abc import Callable
from typing import Any

import pytest
from handler_calls import make_batch
from transaction_calls import ID, JOURNAL, OLD, TransactionNode

from anabranch.coordinator.transaction.commands import AbortTransaction
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG

ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE


def journal_end(node: TransactionNode) -> int:
    return node.log(JOURNAL).log_end_offset


def test_the_broker_adds_partitions(transaction_node: TransactionNode) -> None:
    """From version 12 on the first batch adds its partition; the next ones ask nobody."""
    node = transaction_node
    producer = node.start_producer()
    end = journal_end(node)
    for number in range(3):
        assert node.produce(producer, sequence=number, version=12) == [0]
    assert node.described().partitions == (("t", 0),)
    assert journal_end(node) == end + 1
    assert node.produce(producer, ("t", 0), ("t", 1), sequence=3) == [0, 0]


@pytest.mark.parametrize(
    ("version", "code"),
    [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_an_older_producer_has_to_add(
    transaction_node: TransactionNode, version: int, code: ErrorCode
) -> None:
    """A batch for a partition that was not added is refused, and nothing is opened."""
    node = transaction_node
    producer = node.start_producer()
    node.add(producer, ("t", 1))
    assert node.produce(producer, ("t", 0), ("t", 1), version=version) == [code, 0]
    assert node.log().log_end_offset == 0
    assert node.log().last_stable_offset == 0


def test_verification_can_be_turned_off(transaction_node: TransactionNode) -> None:
    """Then a batch of an older producer is taken as it comes, as before Kafka 3.6."""
    node = transaction_node
    name = "transaction.partition.verification.enable"
    producer = node.start_producer()
    node.broker.set_broker_configs("", {name: "false"})
    assert node.produce(producer, version=OLD[0]) == [0]
    node.broker.set_broker_configs("", {name: "true"})
    assert node.produce(producer, ("t", 1), version=OLD[0]) == [ErrorCode.INVALID_TXN_STATE]


@pytest.mark.parametrize("version", [9, 11, 12, 13])
def test_a_zombie(transaction_node: TransactionNode, version: int) -> None:
    """A producer that was fenced is told what every version of a client takes for it."""
    node = transaction_node
    zombie = node.start_producer()
    node.start_producer()
    assert node.produce(zombie, version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert node.log().log_end_offset == 0


@pytest.mark.parametrize("version", [9, 13])
def test_a_zombie_in_an_open_transaction(transaction_node: TransactionNode, version: int) -> None:
    """A late message of an aborted transaction opens no new one."""
    node = transaction_node
    producer = node.start_producer()
    node.add(producer, ("t", 0))
    assert node.produce(producer, version=version) == [0]
    node.pass_ms(60_000)
    assert node.state == "CompleteAbort"
    assert node.produce(producer, sequence=1, version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert node.log().last_stable_offset == node.log().log_end_offset == 2


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.NOT_COORDINATOR, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 13, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 13, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 13, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_what_is_told(
    transaction_node: TransactionNode,
    monkeypatch: pytest.MonkeyPatch,
    code: ErrorCode,
    version: int,
    told: ErrorCode,
) -> None:
    """What is the matter with the coordinator is an error that every producer retries."""
    node = transaction_node
    producer = node.start_producer()

    def refuse(*_: Any) -> Any:
        raise KafkaError(code, "no")

    monkeypatch.setattr(node.broker.transactions, "submit", refuse)
    assert node.produce(producer, version=version) == [told]


def test_an_unknown_producer(transaction_node: TransactionNode) -> None:
    """A transactional id that was never initialized writes nothing."""
    node = transaction_node
    assert node.produce((9, 0)) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_a_batch_without_an_id(transaction_node: TransactionNode) -> None:
    """A transactional batch needs the id in its request."""
    node = transaction_node
    producer = node.start_producer()
    refused = node.produce(producer, transactional_id=None)
    assert refused == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]


def test_an_id_without_a_batch(transaction_node: TransactionNode) -> None:
    """What is not transactional belongs to no transaction, whatever the request says."""
    node = transaction_node
    producer = node.start_producer()
    assert node.produce(producer, is_transactional=False) == [0]
    assert node.state == "Empty"
    assert node.log().last_stable_offset == 1


def test_two_producers_in_a_request(transaction_node: TransactionNode) -> None:
    """Nobody sends that: the whole request is refused."""
    node = transaction_node
    batches = [
        make_batch(
            b"v",
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL_FLAG,
        )
        for producer_id in (1, 2)
    ]
    data = [PartitionProduceData(index=i, records=batch) for i, batch in enumerate(batches)]
    request = ProduceRequest(
        transactional_id=ID,
        acks=-1,
        topic_data=[TopicProduceData(name="t", partition_data=data)],
    )
    answer = node.call(request, 12)
    codes = [one.error_code for one in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2


def test_partitions_that_are_not_there(transaction_node: TransactionNode) -> None:
    """They are refused for themselves, and are not added."""
    node = transaction_node
    producer = node.start_producer()
    codes = node.produce(producer, ("t", 0), ("t", 7), ("__consumer_offsets", 0), version=12)
    assert codes == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert node.described().partitions == (("t", 0),)


def test_without_an_answer(make_transaction_node: Callable[..., TransactionNode]) -> None:
    """With acks=0 a refused batch costs the connection, also when that is known only later."""
    node = make_transaction_node()
    producer = node.start_producer()
    node.start_producer()
    assert node.begin_produce(producer, acks=0).answer is None
    assert len(node.closed_because) == 1
    node.close()
    node = make_transaction_node("flush.on.acks.all=true")
    node.begin_init("other")  # which has to reach the disk first
    assert node.begin_produce(producer, acks=0).answer is None
    assert node.closed_because == []
    node.loop.finish_jobs()
    assert len(node.closed_because) == 1


def test_a_produce_that_breaks_when_its_turn_comes(
    make_transaction_node: Callable[..., TransactionNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug behind the wait for the disk is an answer that fails, not one that never comes."""
    node = make_transaction_node("flush.on.acks.all=true")
    first = node.begin_init()
    node.loop.finish_jobs()
    producing = node.begin_produce((first.answer.producer_id, first.answer.producer_epoch))

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(node.log(), "append", broken)
    failures: list[Exception] = []
    assert producing.deferred is not None
    producing.deferred.deliver_to(lambda answer: None, failures.append)
    node.loop.finish_jobs()
    assert [repr(error) for error in failures] == ["RuntimeError('broken')"]


def test_a_transaction_that_ends_while_the_disk_is_waited_for_takes_no_records(
    make_transaction_node: Callable[..., TransactionNode],
) -> None:
    """They would come after its marker, and open what nobody ends."""
    node = make_transaction_node("flush.on.acks.all=true")
    first = node.begin_init()
    node.loop.finish_jobs()
    producing = node.begin_produce((first.answer.producer_id, first.answer.producer_epoch))
    node.broker.transactions.submit(ID, AbortTransaction(transactional_id=ID))
    while node.loop.finish_jobs():
        pass
    answered = producing.answer.responses[0].partition_responses[0]
    assert answered.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert node.log().last_stable_offset == node.log().log_end_offset
    assert not node.log().transactions.open


@pytest.mark.parametrize("is_commit", [True, False])
def test_numbers_of_an_ended_transaction_are_not_used_again(
    transaction_node: TransactionNode, is_commit: bool
) -> None:
    """Another batch with the same sequence is no duplicate: its records would be lost.

    A producer does so when it aborts without knowing what became of a batch.
    """
    node = transaction_node
    producer = node.start_producer()
    for sequence in (0, 0, 1):
        node.add(producer, ("t", 0))
        assert node.produce(producer, sequence=sequence, version=OLD[0]) == [0]
    assert node.log().log_end_offset == 2  # within its transaction it is a duplicate
    node.end(producer, is_commit=is_commit, version=OLD[1])
    node.add(producer, ("t", 0))
    out_of_order = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert node.produce(producer, sequence=1, version=OLD[0]) == out_of_order
    assert node.produce(producer, sequence=2, version=OLD[0]) == [0]
    assert node.produce(producer, sequence=1, version=OLD[0]) == out_of_order
    assert node.produce(producer, sequence=2, version=OLD[0]) == [0]
    assert node.log().log_end_offset == 4
