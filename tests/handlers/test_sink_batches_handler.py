"""Batches of sinks over EndTxn and DescribeTransactions: tags that are asked and answered."""

from collections.abc import Callable
from typing import Any

import pytest
from transaction_calls import ID, TransactionNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_transactions import DescribeTransactionsRequest
from anabranch.wire.messages.end_txn import EndTxnRequest
from anabranch.wire.messages.init_producer_id import InitProducerIdRequest
from anabranch.wire.messages.sink_batches import (
    PreparedTxn,
    PrepareTxn,
    PrepareTxnAnswer,
    RefusedTransaction,
    SinkBatch,
    SinkBatchAnswer,
    SinksAnswer,
    SinksQuestion,
    SinkState,
    SinkTransaction,
)
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

SINK = "s"
Pair = tuple[int, int]


def prepare(node: TransactionNode, producer: Pair, batch_id: int = 0, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "transactional_id": ID,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "committed": False,
        "prepare": PrepareTxn(sink_id=SINK, batch_id=batch_id),
    }
    return node.call(EndTxnRequest(**values | changes), 5)


def end_batch(node: TransactionNode, *batch: Pair, batch_id: int = 0, **changes: Any) -> Any:
    listed = [
        SinkTransaction(transactional_id=ID, producer_id=producer_id, producer_epoch=epoch)
        for producer_id, epoch in batch
    ]
    values: dict[str, Any] = {
        "transactional_id": SINK,
        "producer_id": -1,
        "producer_epoch": -1,
        "committed": True,
        "batch": SinkBatch(batch_id=batch_id, transactions=listed),
    }
    return node.call(EndTxnRequest(**values | changes), 5)


def sinks(node: TransactionNode, *sink_ids: str) -> Any:
    request = DescribeTransactionsRequest(
        transactional_ids=[ID], sinks=SinksQuestion(sink_ids=list(sink_ids))
    )
    return node.call(request, 0)


def written(node: TransactionNode) -> Pair:
    """A transaction with records in both partitions."""
    producer = node.start_producer()
    assert node.produce(producer, ("t", 0), ("t", 1)) == [0, 0]
    return producer


def test_a_batch_of_one_transaction(transaction_node: TransactionNode) -> None:
    """Prepared, committed as a batch, and remembered; the second time it is a replay."""
    node = transaction_node
    producer = written(node)
    answer = prepare(node, producer)
    assert (answer.error_code, answer.prepare) == (0, PrepareTxnAnswer(last_batch_id=-1))
    assert prepare(node, producer).error_code == 0
    answer = end_batch(node, producer)
    assert (answer.error_code, answer.batch) == (0, SinkBatchAnswer(last_batch_id=0))
    assert node.state == "CompleteCommit"
    assert node.markers() == [(1, producer[0], producer[1] + 1)]
    answer = end_batch(node, producer)
    assert answer.batch == SinkBatchAnswer(last_batch_id=0, is_replay=True)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, -1, -1)


def test_no_more_records_after_it_is_prepared(transaction_node: TransactionNode) -> None:
    """Not where the transaction has records, nor elsewhere, nor offsets, in any version."""
    node = transaction_node
    producer = written(node)
    prepare(node, producer)
    end = node.log().log_end_offset
    for version in (9, 11, 13):
        assert node.produce(producer, ("t", 0), sequence=1, version=version) == [
            ErrorCode.INVALID_TXN_STATE
        ]
    assert node.add(producer, ("t", 1)) == {("t", 1): ErrorCode.INVALID_TXN_STATE}
    assert node.add_offsets(producer) == ErrorCode.INVALID_TXN_STATE
    assert node.log().log_end_offset == end


def commit_offset(node: TransactionNode, producer: Pair, version: int) -> int:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = TxnOffsetCommitRequest(
        transactional_id=ID,
        group_id="g",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    code: int = node.call(request, version).topics[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("is_verified", ["true", "false"])
def test_no_more_offsets_after_it_is_prepared(
    make_transaction_node: Callable[..., TransactionNode], is_verified: str
) -> None:
    """Not even of a group that the transaction has offsets of."""
    node = make_transaction_node(f"transaction.partition.verification.enable={is_verified}")
    producer = written(node)
    assert commit_offset(node, producer, 5) == 0
    prepare(node, producer)
    for version in (3, 5):
        assert commit_offset(node, producer, version) == ErrorCode.INVALID_TXN_STATE


def test_records_without_verification_after_it_is_prepared(
    make_transaction_node: Callable[..., TransactionNode],
) -> None:
    """What older clients send unasked is refused all the same."""
    node = make_transaction_node("transaction.partition.verification.enable=false")
    producer = written(node)
    prepare(node, producer)
    assert node.produce(producer, sequence=1, version=9) == [ErrorCode.INVALID_TXN_STATE]


def test_a_batch_that_was_committed_is_not_prepared_again(
    transaction_node: TransactionNode,
) -> None:
    """The transaction is aborted, and its task is told; asked again it is told the same."""
    node = transaction_node
    assert end_batch(node, batch_id=3).error_code == 0
    producer = written(node)
    for _ in range(2):
        answer = prepare(node, producer, 3)
        assert (answer.error_code, answer.prepare) == (0, PrepareTxnAnswer(last_batch_id=3))
        assert node.state == "CompleteAbort"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"committed": True}, ErrorCode.INVALID_REQUEST),
        ({"batch": SinkBatch()}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"prepare": PrepareTxn(batch_id=1)}, ErrorCode.INVALID_REQUEST),
        ({"prepare": PrepareTxn(sink_id=SINK)}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 77}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_epoch": 7}, ErrorCode.PRODUCER_FENCED),
        ({"transactional_id": "other"}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_what_is_not_prepared(
    transaction_node: TransactionNode, changes: dict[str, Any], code: ErrorCode
) -> None:
    """The tag is answered with a reason, and the transaction goes on."""
    producer = written(transaction_node)
    answer = prepare(transaction_node, producer, **changes)
    assert answer.error_code == code
    assert answer.prepare.error_message
    assert transaction_node.state == "Ongoing"
    assert transaction_node.produce(producer, sequence=1) == [0]


def test_a_batch_that_is_refused(transaction_node: TransactionNode) -> None:
    """The transaction that is in the way is named, with its error and a reason."""
    node = transaction_node
    producer = written(node)
    answer = end_batch(node, producer)
    why = "it is not prepared for this batch of this sink"
    refused = RefusedTransaction(
        transactional_id=ID, error_code=ErrorCode.INVALID_TXN_STATE, error_message=why
    )
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE
    assert answer.batch.refused == [refused]
    assert answer.batch.error_message == f"Nothing was committed. {ID}: {why}."
    for pair, code in (
        ((producer[0], 9), ErrorCode.PRODUCER_FENCED),
        ((77, producer[1]), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ):
        assert end_batch(node, pair).error_code == code
    stranger = SinkTransaction(transactional_id="nobody", producer_id=1, producer_epoch=0)
    batch = SinkBatch(batch_id=0, transactions=[stranger] * 2)
    assert end_batch(node, batch=batch).error_code == ErrorCode.INVALID_REQUEST
    named = [SinkTransaction(transactional_id=f"n{i}", producer_id=1) for i in range(5)]
    answer = end_batch(node, batch=SinkBatch(batch_id=0, transactions=named))
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert len(answer.batch.refused) == 5 and "and 2 more" in answer.batch.error_message
    assert node.state == "Ongoing"


@pytest.mark.parametrize(
    "changes",
    [{"producer_id": 1}, {"producer_epoch": 0}, {"transactional_id": ""}, {"batch": SinkBatch()}],
)
def test_a_batch_that_makes_no_sense(
    transaction_node: TransactionNode, changes: dict[str, Any]
) -> None:
    """It is of a sink and no producer, and has a number."""
    answer = end_batch(transaction_node, **changes)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.batch.error_message


def test_aborting_what_is_prepared(transaction_node: TransactionNode) -> None:
    """The same request that does not commit: what has ended is passed over."""
    node = transaction_node
    producer = written(node)
    prepare(node, producer)
    for _ in range(2):
        answer = end_batch(node, producer, (77, 0), committed=False)
        assert (answer.error_code, answer.batch) == (0, SinkBatchAnswer())
        assert node.state == "CompleteAbort"
    assert sinks(node, SINK).sinks.sinks[0].last_batch_id == -1


def test_sinks_are_described(transaction_node: TransactionNode) -> None:
    """Their last batches, and what a prepared transaction waits for; to who asks for it."""
    node = transaction_node
    assert sinks(node, SINK).sinks == SinksAnswer(sinks=[SinkState(sink_id=SINK)])
    producer = written(node)
    end_batch(node, batch_id=4)
    prepare(node, producer, 5)
    answer = sinks(node, SINK, "other")
    assert answer.sinks == SinksAnswer(
        sinks=[
            SinkState(sink_id=SINK, last_batch_id=4, last_batch_time_ms=node.now_ms),
            SinkState(sink_id="other"),
        ]
    )
    (state,) = answer.transaction_states
    assert state.transaction_state == "Ongoing"
    assert state.prepared == PreparedTxn(sink_id=SINK, batch_id=5, prepared_time_ms=node.now_ms)
    plain = node.call(DescribeTransactionsRequest(transactional_ids=[ID]), 0)
    assert plain.sinks is None and plain.transaction_states[0].prepared is None


def test_a_plain_end_has_no_tags(transaction_node: TransactionNode) -> None:
    """Stock clients see nothing of it, and cannot commit a part of a batch."""
    node = transaction_node
    producer = written(node)
    prepare(node, producer)
    assert node.end(producer)[0] == ErrorCode.INVALID_TXN_STATE
    answer = node.begin_end(producer, is_commit=False).answer
    assert (answer.error_code, answer.prepare, answer.batch) == (0, None, None)


def init_6(node: TransactionNode, **changes: Any) -> Any:
    request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=60_000, **changes)
    return node.call(request, 6)


def test_two_phase_commit_has_to_be_allowed(
    make_transaction_node: Callable[..., TransactionNode],
) -> None:
    """With the setting no time ends a transaction; to keep one is not there, as in Kafka 4.3."""
    node = make_transaction_node()
    refused = init_6(node, enable2_pc=True)
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert init_6(node, keep_prepared_txn=True).error_code == ErrorCode.UNSUPPORTED_VERSION
    answer = init_6(node)
    assert (answer.error_code, answer.ongoing_txn_producer_id) == (0, -1)
    node.close()
    node = make_transaction_node("transaction.two.phase.commit.enable=true")
    answer = init_6(node, enable2_pc=True)
    assert answer.error_code == 0
    assert node.produce((answer.producer_id, answer.producer_epoch)) == [0]
    node.pass_ms(30 * 24 * 3600 * 1000)
    assert node.state == "Ongoing"
