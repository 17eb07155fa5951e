"""AddPartitionsToTxn: what clients add, and what brokers add and ask."""

from typing import Any

import pytest
from transaction_calls import ID, TransactionNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)


@pytest.mark.parametrize("version", range(4))
def test_a_client_adds_partitions(transaction_node: TransactionNode, version: int) -> None:
    """The transaction begins with the first, and has all of them."""
    node = transaction_node
    producer = node.start_producer()
    places = [("t", 0), ("t", 1)]
    assert node.add(producer, *places, version=version) == dict.fromkeys(places, 0)
    assert node.described().state == "Ongoing"
    assert node.described().partitions == (("t", 0), ("t", 1))


@pytest.mark.parametrize(
    ("place", "code"),
    [
        (("nowhere", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("t", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("__consumer_offsets", 0), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (("branches", 0), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_all_or_nothing(
    transaction_node: TransactionNode, place: tuple[str, int], code: ErrorCode
) -> None:
    """Where one partition cannot be written to, no other is added, and is told so."""
    node = transaction_node
    node.create_topic("branches", -1, branch_source_topic="t")
    producer = node.start_producer()
    assert node.add(producer, ("t", 0), place) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        place: code,
    }
    assert node.state == "Empty"


@pytest.mark.parametrize(
    ("version", "code"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)],
)
def test_a_zombie(transaction_node: TransactionNode, version: int, code: ErrorCode) -> None:
    """A producer that was fenced adds nothing; every partition says so."""
    node = transaction_node
    zombie = node.start_producer()
    node.start_producer()
    places = [("t", 0), ("t", 1)]
    assert node.add(zombie, *places, version=version) == dict.fromkeys(places, code)


def ask(node: TransactionNode, *transactions: tuple[str, int, int, bool]) -> list[Any]:
    """A broker's request about t-0 and t-1; the errors of each transaction."""
    answer = node.call(
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    verify_only=verify_only,
                    topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
                )
                for transactional_id, producer_id, producer_epoch, verify_only in transactions
            ]
        )
    )
    assert answer.error_code == 0
    return [
        [
            code.partition_error_code
            for topic in one.topic_results
            for code in topic.results_by_partition
        ]
        for one in answer.results_by_transaction
    ]


def test_brokers_add_and_ask(transaction_node: TransactionNode) -> None:
    """Each transaction of a broker's request has an answer of its own; asking adds nothing."""
    node = transaction_node
    producer = node.start_producer()
    aborted = [ErrorCode.TRANSACTION_ABORTABLE] * 2
    assert ask(node, (ID, *producer, True)) == [aborted]
    assert node.state == "Empty"
    unknown = [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert ask(node, (ID, *producer, False), ("?", 5, 0, True)) == [[0, 0], unknown]
    assert node.state == "Ongoing"
    assert ask(node, (ID, *producer, True)) == [[0, 0]]


def test_half_of_it(transaction_node: TransactionNode) -> None:
    """Asked about several partitions, each is answered for itself."""
    node = transaction_node
    producer = node.start_producer()
    node.add(producer, ("t", 1))
    assert ask(node, (ID, *producer, True)) == [[ErrorCode.TRANSACTION_ABORTABLE, 0]]
