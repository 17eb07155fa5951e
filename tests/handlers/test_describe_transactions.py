"""DescribeTransactions: what a transaction is doing, and in which partitions."""

from typing import Any

import pytest
from transaction_calls import TIMEOUT_MS, TransactionNode

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.describe_transactions import DescribeTransactionsRequest


def described(node: TransactionNode, *transactional_ids: str) -> list[Any]:
    request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
    found: list[Any] = node.call(request, 0).transaction_states
    return found


def places(state: Any) -> dict[str, list[int]]:
    return {topic.topic: topic.partitions for topic in state.topics}


def test_an_open_transaction(transaction_node: TransactionNode) -> None:
    """Its producer, its timeout, when it began and where it wrote; nothing of that at the end."""
    node = transaction_node
    node.create_topic("u")
    producer = node.start_producer()
    (state,) = described(node, "tx")
    assert (state.transaction_state, state.transaction_start_time_ms) == ("Empty", -1)
    assert node.produce(producer, ("u", 0), ("t", 1), ("t", 0)) == [0, 0, 0]
    (state,) = described(node, "tx")
    assert (state.error_code, state.transactional_id) == (0, "tx")
    assert (state.producer_id, state.producer_epoch) == producer
    assert state.transaction_state == "Ongoing"
    assert state.transaction_timeout_ms == TIMEOUT_MS
    assert state.transaction_start_time_ms == node.now_ms
    assert places(state) == {"t": [0, 1], "u": [0]}
    node.end(producer)
    (state,) = described(node, "tx")
    assert (state.transaction_state, places(state)) == ("CompleteCommit", {})


def test_a_marker_that_is_missing(
    transaction_node: TransactionNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a decided transaction only the partitions are told whose marker is still missing."""
    node = transaction_node
    producer = node.start_producer()
    node.produce(producer, ("t", 0), ("t", 1))

    def fail(*_: object, **__: object) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    monkeypatch.setattr(node.log(partition=1), "append", fail)
    assert node.end(producer)[0] == 0
    (state,) = described(node, "tx")
    assert (state.transaction_state, places(state)) == ("PrepareCommit", {"t": [1]})


def test_ids_that_are_not_there(transaction_node: TransactionNode) -> None:
    """Each is answered for itself, with or without a journal."""
    node = transaction_node
    for _ in range(2):
        codes = [state.error_code for state in described(node, "nobody", "")]
        assert codes == [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST]
        node.start_producer()
    known, unknown = described(node, "tx", "nobody")
    assert (known.error_code, known.transaction_start_time_ms) == (0, -1)
    assert (unknown.producer_id, unknown.transaction_start_time_ms) == (0, 0), "as Kafka says it"


def test_a_shard_that_serves_nothing(transaction_node: TransactionNode) -> None:
    """Clients are told to ask again."""
    transaction_node.start_producer()
    transaction_node.broker.transactions.stop()
    (state,) = described(transaction_node, "tx")
    assert (state.error_code, state.transactional_id) == (ErrorCode.NOT_COORDINATOR, "tx")
