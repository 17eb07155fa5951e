"""TxnOffsetCommit 6: topics by their ids, and errors that speak of epochs (KIP-1319)."""

from typing import Any

import pytest
from transaction_calls import ID, TransactionNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

NOBODYS_ID = b"\x01" * 16


def topic_id(node: TransactionNode, name: str = "t") -> bytes:
    topic = node.broker.topics.get(name)
    assert topic is not None
    return topic.topic_id


def asked(topic_id: bytes, *partitions: int, **names: str) -> TxnOffsetCommitRequestTopic:
    return TxnOffsetCommitRequestTopic(
        topic_id=topic_id,
        partitions=[
            TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=5, committed_metadata=None
            )
            for index in partitions
        ],
        **names,
    )


def answered(topic_id: bytes, *errors: tuple[int, ErrorCode]) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        topic_id=topic_id,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=index, error_code=error)
            for index, error in errors
        ],
    )


def commit(
    node: TransactionNode,
    producer: tuple[int, int],
    *topics: TxnOffsetCommitRequestTopic,
    version: int = 6,
    **who: Any,
) -> TxnOffsetCommitResponse:
    request = TxnOffsetCommitRequest(
        transactional_id=ID,
        group_id="g",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=list(topics),
        **who,
    )
    response = node.call(request, version)
    assert isinstance(response, TxnOffsetCommitResponse)
    return response


def test_topics_are_known_by_their_ids(transaction_node: TransactionNode) -> None:
    """In the answer too; an id that nobody has is refused for itself, and so is a partition."""
    node = transaction_node
    known = topic_id(node)
    producer = node.start_producer()
    response = commit(node, producer, asked(known, 0, 9), asked(NOBODYS_ID, 0))
    none, no_topic = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID
    no_partition = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response == TxnOffsetCommitResponse(
        topics=[
            answered(known, (0, none), (9, no_partition)),
            answered(NOBODYS_ID, (0, no_topic)),
        ]
    )
    assert node.end(producer)[0] == 0
    assert node.broker.groups.offsets("g")["t", 0].offset == 5


def test_a_name_means_nothing(transaction_node: TransactionNode) -> None:
    """Not even that of a topic, without its id."""
    node = transaction_node
    response = commit(node, node.start_producer(), asked(NOBODYS_ID, 0, name="t"))
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("version", "error"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_member_of_no_group(
    transaction_node: TransactionNode, version: int, error: ErrorCode
) -> None:
    """Is told so as its version knows it."""
    node = transaction_node
    topic = asked(topic_id(node), 0, name="t")
    who = {"member_id": "m", "generation_id": 3}
    response = commit(node, node.start_producer(), topic, version=version, **who)
    assert response.topics[0].partitions[0].error_code == error
