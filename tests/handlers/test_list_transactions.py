"""ListTransactions: which transactional ids there are, and those that are wanted."""

from typing import Any

from transaction_calls import TransactionNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.list_transactions import ListTransactionsRequest


def listed(node: TransactionNode, version: int = 2, **filters: Any) -> dict[str, str]:
    """The state of each id that is listed."""
    answer = node.call(ListTransactionsRequest(**filters), version)
    assert answer.error_code == 0
    return {one.transactional_id: one.transaction_state for one in answer.transaction_states}


def test_nothing(transaction_node: TransactionNode) -> None:
    """Before the first transactional producer there is nothing, and no journal is made for it."""
    assert listed(transaction_node) == {}
    assert transaction_node.broker.topics.get("__transaction_state") is None


def test_filters(transaction_node: TransactionNode) -> None:
    """By state, by producer id, by age and by pattern; each in the versions that have it."""
    node = transaction_node
    idle = node.start_producer(transactional_id="idle")
    open_one = node.start_producer()
    node.produce(open_one)
    everything = {"idle": "Empty", "tx": "Ongoing"}
    for version in (0, 1, 2):
        assert listed(node, version) == everything
        assert listed(node, version, state_filters=["Ongoing"]) == {"tx": "Ongoing"}
        assert listed(node, version, producer_id_filters=[idle[0]]) == {"idle": "Empty"}
    assert listed(node, 1, state_filters=["Ongoing"], duration_filter=1000) == {}
    node.pass_ms(1001)
    assert listed(node, 1, state_filters=["Ongoing"], duration_filter=1000) == {"tx": "Ongoing"}
    assert listed(node, 1, duration_filter=0) == everything
    assert listed(node, transactional_id_pattern="t.") == {"tx": "Ongoing"}
    assert listed(node, transactional_id_pattern="t") == {}


def test_the_producer_id(transaction_node: TransactionNode) -> None:
    """Each id is listed with the producer id that it has."""
    producer = transaction_node.start_producer()
    (one,) = transaction_node.call(ListTransactionsRequest(), 2).transaction_states
    assert (one.transactional_id, one.producer_id) == ("tx", producer[0])


def test_what_cannot_be_filtered_by(transaction_node: TransactionNode) -> None:
    """An unknown state is told back and matches nothing; a broken pattern is an error."""
    transaction_node.start_producer()
    answer = transaction_node.call(ListTransactionsRequest(state_filters=["Dreaming"]), 2)
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Dreaming"], [])
    answer = transaction_node.call(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_shard_that_serves_nothing(transaction_node: TransactionNode) -> None:
    """A list with gaps would be believed, so there is none while a shard cannot be read."""
    transaction_node.start_producer()
    transaction_node.broker.transactions.stop()
    answer = transaction_node.call(ListTransactionsRequest(), 2)
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
