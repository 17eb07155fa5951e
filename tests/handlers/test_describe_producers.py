"""DescribeProducers: who wrote to a partition with a producer id."""

from branch_topic_calls import asking, create
from handler_calls import NOW_MS, Node, make_batch
from transaction_calls import TransactionNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)


def test_producers_of_a_partition(node: Node) -> None:
    """Id, epoch, last sequence and timestamp of each idempotent producer; others leave no trace."""
    topic = node.create_topic("t", 2)
    log = topic.partitions[0].log
    for producer_id, sequence in ((9, 0), (4, 5)):
        batch = make_batch(
            b"x", b"y", producer_id=producer_id, producer_epoch=1, base_sequence=sequence
        )
        log.append(memoryview(bytearray(batch)), now_ms=node.now_ms)
    node.append("t", b"plain")
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[1, 0])])
    assert node.call(request).topics == [
        TopicResponse(
            name="t",
            partitions=[
                PartitionResponse(partition_index=1),
                PartitionResponse(
                    partition_index=0,
                    active_producers=[
                        ProducerState(
                            producer_id=producer_id,
                            producer_epoch=1,
                            last_sequence=last_sequence,
                            last_timestamp=NOW_MS,
                            coordinator_epoch=-1,
                        )
                        for producer_id, last_sequence in ((4, 6), (9, 1))
                    ],
                ),
            ],
        )
    ]


def test_unknown_and_illegal_names(node: Node) -> None:
    """Each partition carries its own error."""
    node.create_topic("t")
    topics = [
        TopicRequest(name="t", partition_indexes=[1]),
        TopicRequest(name="absent", partition_indexes=[0]),
        TopicRequest(name="a b", partition_indexes=[0]),
    ]
    answers = node.call(DescribeProducersRequest(topics=topics)).topics
    assert [(t.name, p.error_code, p.error_message) for t in answers for p in t.partitions] == [
        ("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no partition t-1."),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no partition absent-0."),
        (
            "a b",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            (
                "Topic name 'a b' is illegal: only ASCII letters, digits, '.', '_' and '-' are "
                "possible."
            ),
        ),
    ]


def test_open_transactions_of_a_branch(transaction_node: TransactionNode) -> None:
    """They are told of the source, where they can be ended, and not of its branches."""
    node = transaction_node
    create(node, asking("cut", source="t"))
    assert node.produce(node.start_producer()) == [0]
    topics = [TopicRequest(name=name, partition_indexes=[0]) for name in ("t", "cut")]
    answers = node.call(DescribeProducersRequest(topics=topics)).topics
    starts = [
        [one.current_txn_start_offset for one in topic.partitions[0].active_producers]
        for topic in answers
    ]
    assert starts == [[0], [-1]]
