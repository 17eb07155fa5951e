"""AddOffsetsToTxn: the group's partition of the offsets belongs to the transaction."""

import pytest
from transaction_calls import TransactionNode

from anabranch.model.errors import ErrorCode


@pytest.mark.parametrize("version", range(5))
def test_a_group_is_added(transaction_node: TransactionNode, version: int) -> None:
    """The journal of groups is made if need be, and its partition is in the transaction."""
    node = transaction_node
    producer = node.start_producer()
    assert node.broker.topics.get("__consumer_offsets") is None
    assert node.add_offsets(producer, version=version) == 0
    assert node.described().state == "Ongoing"
    assert node.described().partitions == (("__consumer_offsets", 0),)


def test_its_end(transaction_node: TransactionNode) -> None:
    """The marker goes to the journal of groups too, which can be read after a restart."""
    node = transaction_node
    producer = node.start_producer()
    node.add_offsets(producer)
    assert node.end(producer, version=3)[0] == 0
    assert node.markers("__consumer_offsets") == [(1, *producer)]


@pytest.mark.parametrize(
    ("version", "code"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)],
)
def test_a_zombie(transaction_node: TransactionNode, version: int, code: ErrorCode) -> None:
    """A producer that was fenced adds nothing."""
    node = transaction_node
    zombie = node.start_producer()
    node.start_producer()
    assert node.add_offsets(zombie, version=version) == code
    assert node.state == "Empty"


def test_nobody(transaction_node: TransactionNode) -> None:
    """Who has never been initialized has no transaction."""
    assert transaction_node.add_offsets((3, 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
