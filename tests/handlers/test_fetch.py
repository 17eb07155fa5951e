"""Fetch: what is read, how much of it, and how long a fetch waits for more."""

from typing import Any

import pytest
from handler_calls import Node, Timer, make_batch, run_in_loop

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from anabranch.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from anabranch.wire.record_batch import iter_headers, iter_records

BIG = 1 << 30
RECORD = make_batch(b"value")
SIZE = len(RECORD)


def wanting(partition: int = 0, offset: int = 0, **more: Any) -> FetchPartition:
    more.setdefault("partition_max_bytes", BIG)
    return FetchPartition(partition=partition, fetch_offset=offset, **more)


def asking(*partitions: FetchPartition, topic: str = "t", **more: Any) -> FetchRequest:
    """A fetch by topic name, without a session, that does not wait unless told."""
    more.setdefault("max_bytes", BIG)
    return FetchRequest(topics=[FetchTopic(topic=topic, partitions=list(partitions))], **more)


def produce(node: Node, *partitions: int, topic: str = "t") -> None:
    """Produce a record of SIZE bytes to each partition, as a connection does: wake at the end."""
    data = [PartitionProduceData(index=index, records=RECORD) for index in partitions]
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    answer = node.call(request, 12)
    assert [p.error_code for p in answer.responses[0].partition_responses] == [0] * len(data)
    node.broker.wake_fetches()


def answers(response: FetchResponse) -> list[PartitionData]:
    return [data for topic in response.responses for data in topic.partitions]


def sizes(response: FetchResponse) -> list[int]:
    return [len(data.records or b"") // SIZE for data in answers(response)]


# What is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 13))
def test_records_by_topic_name(node: Node, version: int) -> None:
    """Bytes leave as they lie in the log, with what the client must know of the partition."""
    log = node.create_topic("t").partitions[0].log
    node.append("t", b"value")
    node.append("t", b"value")
    response = node.call(asking(wanting()), version)
    records = bytes(log.read(0, BIG))
    assert response == FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t",
                partitions=[
                    PartitionData(
                        high_watermark=2,
                        last_stable_offset=2,
                        log_start_offset=0 if version >= 5 else -1,
                        records=records,
                    )
                ],
            )
        ]
    )
    assert [header.base_offset for _, header in iter_headers(records)] == [0, 1]


@pytest.mark.parametrize("version", range(13, 19))
def test_records_by_topic_id(node: Node, version: int) -> None:
    """From version 13 on topics are their ids, in the request and in the answer."""
    topic = node.create_topic("t", 2)
    node.append("t", b"value", partition=1)
    unknown = b"\x05" * 16
    request = FetchRequest(
        max_bytes=BIG,
        topics=[
            FetchTopic(topic_id=topic.topic_id, partitions=[wanting(1), wanting(7)]),
            FetchTopic(topic_id=unknown, partitions=[wanting(0)]),
        ],
    )
    response = node.call(request, version)
    assert [t.topic_id for t in response.responses] == [topic.topic_id, unknown]
    found, missing, nowhere = answers(response)
    assert (found.error_code, found.high_watermark, len(found.records or b"")) == (0, 1, SIZE)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_batch_that_straddles_the_offset_is_sent_whole(node: Node) -> None:
    """Clients skip what lies before their position, as they do with Kafka."""
    node.create_topic("t")
    node.append("t", b"a", b"b", b"c")
    (data,) = answers(node.call(asking(wanting(offset=2)), 12))
    assert [record.offset for record in iter_records(data.records or b"")] == [0, 1, 2]


def test_at_the_end_there_is_nothing(node: Node) -> None:
    """The log's end is a valid place to ask for; it has no records yet."""
    node.create_topic("t")
    node.append("t", b"a")
    (data,) = answers(node.call(asking(wanting(offset=1)), 12))
    assert (data.error_code, data.high_watermark, data.records) == (0, 1, b"")


@pytest.mark.parametrize(
    ("partition", "code"),
    [
        (wanting(offset=3), ErrorCode.OFFSET_OUT_OF_RANGE),
        (wanting(offset=0), ErrorCode.OFFSET_OUT_OF_RANGE),
        (wanting(offset=-1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (wanting(4, offset=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (wanting(-1, offset=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (wanting(offset=1, current_leader_epoch=5), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_what_cannot_be_read(node: Node, partition: FetchPartition, code: ErrorCode) -> None:
    """An error says -1 for everything it does not know and is answered without waiting."""
    node.create_topic("t")
    node.append("t", b"a")
    node.append("t", b"b")
    node.broker.topics.partition("t", 0).log.delete_records_before(1)
    response = node.call(asking(partition, max_wait_ms=60_000, min_bytes=1), 12)
    assert answers(response) == [
        PartitionData(
            partition_index=partition.partition, error_code=code, high_watermark=-1, records=b""
        )
    ]


def test_an_older_leader_is_fenced(make_node: Any) -> None:
    """After a restart a client that knows the leader before it is told to refresh."""
    first = make_node()
    first.create_topic("t")
    first.close()
    node = make_node()
    (data,) = answers(node.call(asking(wanting(current_leader_epoch=0)), 12))
    assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
    (data,) = answers(node.call(asking(wanting(current_leader_epoch=1)), 12))
    assert data.error_code == 0


def test_unknown_topic_by_name(node: Node) -> None:
    """A topic that does not exist is an error of each of its partitions, not of the fetch."""
    response = node.call(asking(wanting(0), wanting(1), topic="absent"), 12)
    assert response.error_code == 0
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [data.error_code for data in answers(response)] == [unknown, unknown]


def test_isolation_level(node: Node) -> None:
    """Readers of committed records get a list of aborted transactions; there are none yet."""
    node.create_topic("t")
    node.append("t", b"a")
    (committed,) = answers(node.call(asking(wanting(), isolation_level=1), 12))
    (uncommitted,) = answers(node.call(asking(wanting()), 12))
    assert committed.aborted_transactions == []
    assert uncommitted.aborted_transactions is None
    assert committed.records == uncommitted.records != b""


# How much -------------------------------------------------------------------------------------


def filled(node: Node, partitions: int, records: int) -> None:
    node.create_topic("t", partitions)
    for partition in range(partitions):
        for _ in range(records):
            node.append("t", b"value", partition=partition)


def test_a_partition_gives_whole_batches_up_to_its_limit(node: Node) -> None:
    """`partition_max_bytes` cuts between batches."""
    filled(node, 1, 4)
    limit = wanting(partition_max_bytes=3 * SIZE - 1)
    assert sizes(node.call(asking(limit), 12)) == [2]


def test_the_first_batch_is_sent_however_large(node: Node) -> None:
    """A consumer whose limit is below one batch still moves on, but only in its first partition."""
    filled(node, 2, 2)
    tiny = [wanting(index, partition_max_bytes=1) for index in (0, 1)]
    assert sizes(node.call(asking(*tiny), 12)) == [1, 0]
    assert sizes(node.call(asking(*tiny, max_bytes=1), 12)) == [1, 0]


def test_an_empty_partition_does_not_use_up_the_first_batch(node: Node) -> None:
    """The oversized batch comes from the first partition that has one."""
    filled(node, 2, 1)
    request = asking(wanting(0, offset=1), wanting(1, partition_max_bytes=1))
    assert sizes(node.call(request, 12)) == [0, 1]


def test_max_bytes_counts_over_all_partitions(node: Node) -> None:
    """What earlier partitions took is not there for later ones."""
    filled(node, 3, 2)
    three = [wanting(index) for index in range(3)]
    assert sizes(node.call(asking(*three, max_bytes=3 * SIZE), 12)) == [2, 1, 0]
    assert sizes(node.call(asking(*three, max_bytes=4 * SIZE + 1), 12)) == [2, 2, 0]


def test_the_broker_has_a_limit_of_its_own(make_node: Any) -> None:
    """`fetch.max.bytes` counts when the client allows more."""
    node = make_node("fetch.max.bytes=1024")
    filled(node, 1, 1024 // SIZE + 2)
    assert sizes(node.call(asking(wanting()), 12)) == [1024 // SIZE]


# Waiting --------------------------------------------------------------------------------------


def waiting(*partitions: FetchPartition, min_bytes: int = 1, **more: Any) -> FetchRequest:
    return asking(*partitions, max_wait_ms=500, min_bytes=min_bytes, **more)


def parked(node: Node, index: int = 0) -> int:
    return len(node.broker.topics.partition("t", index).parked_fetches)


def test_enough_bytes_are_answered_at_once(node: Node) -> None:
    """A fetch waits only when less than `min_bytes` is there, over all its partitions."""
    filled(node, 2, 1)
    assert sizes(node.call(waiting(wanting(0), wanting(1), min_bytes=2 * SIZE), 12)) == [1, 1]


@pytest.mark.parametrize("version", [4, 11, 18])
def test_an_append_wakes_a_fetch(node: Node, version: int) -> None:
    """The append that brings `min_bytes` together answers the fetch; its timer is stopped."""
    topic = node.create_topic("t")

    def body(timers: list[Timer]) -> None:
        request = waiting(wanting())
        request.topics[0].topic_id = topic.topic_id
        call = node.begin(request, version)
        assert not call.is_answered
        assert [timer.delay_s for timer in timers] == [0.5]
        produce(node, 0)
        assert sizes(call.answer) == [1]
        assert timers[0].is_cancelled
        assert parked(node) == 0

    run_in_loop(body)


def test_a_fetch_waits_for_all_its_min_bytes(node: Node) -> None:
    """Appends to any of its partitions add up, also to what was there when it came."""
    node.create_topic("t", 3)
    node.append("t", b"value", partition=2)

    def body(timers: list[Timer]) -> None:
        partitions = [wanting(index) for index in range(3)]
        call = node.begin(waiting(*partitions, min_bytes=4 * SIZE), 12)
        produce(node, 0)
        produce(node, 1)
        assert not call.is_answered
        produce(node, 0)
        assert sizes(call.answer) == [2, 1, 1]
        assert [parked(node, index) for index in range(3)] == [0, 0, 0]

    run_in_loop(body)


def test_appends_elsewhere_do_not_wake(node: Node) -> None:
    """A partition that the fetch does not ask for leaves it alone."""
    node.create_topic("t", 2)

    def body(timers: list[Timer]) -> None:
        call = node.begin(waiting(wanting(0)), 12)
        produce(node, 1)
        assert not call.is_answered

    run_in_loop(body)


def test_the_timer_answers_with_what_there_is(node: Node) -> None:
    """When `max_wait_ms` is over, fewer bytes than `min_bytes` are sent, down to none."""
    node.create_topic("t", 2)

    def body(timers: list[Timer]) -> None:
        call = node.begin(waiting(wanting(0), wanting(1), min_bytes=10 * SIZE), 12)
        produce(node, 1)
        timers[0].go_off()
        assert sizes(call.answer) == [0, 1]
        assert (parked(node, 0), parked(node, 1)) == (0, 0)

    run_in_loop(body)


def test_several_fetches_wake_together(node: Node) -> None:
    """One append answers everybody whom it satisfies, and only them."""
    node.create_topic("t")

    def body(timers: list[Timer]) -> None:
        first = node.begin(waiting(wanting()), 12)
        hungry = node.begin(waiting(wanting(), min_bytes=2 * SIZE), 12)
        second = node.begin(waiting(wanting()), 12)
        produce(node, 0)
        assert [call.is_answered for call in (first, hungry, second)] == [True, False, True]
        produce(node, 0)
        assert sizes(hungry.answer) == [2]

    run_in_loop(body)


def test_deleting_a_topic_answers_who_waits(node: Node) -> None:
    """Nobody waits for a topic that is gone."""
    topic = node.create_topic("t")

    def body(timers: list[Timer]) -> None:
        call = node.begin(waiting(wanting()), 12)
        node.broker.delete_topic(topic)
        assert [data.error_code for data in answers(call.answer)] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]

    run_in_loop(body)


def test_a_lost_connection_frees_what_waited(node: Node) -> None:
    """A cancelled fetch leaves its partitions and stops its timer."""
    node.create_topic("t")

    def body(timers: list[Timer]) -> None:
        call = node.begin(waiting(wanting()), 12)
        assert call.deferred is not None
        call.deferred.cancel()
        assert (parked(node), timers[0].is_cancelled) == (0, True)
        produce(node, 0)
        assert not call.is_answered

    run_in_loop(body)


@pytest.mark.parametrize("request_", [waiting(), asking(wanting(), min_bytes=1)])
def test_nothing_to_wait_for(node: Node, request_: FetchRequest) -> None:
    """No partitions, or no time to wait, is answered at once."""
    node.create_topic("t")
    assert node.begin(request_, 12).is_answered


def test_min_bytes_is_cut_to_max_bytes(node: Node) -> None:
    """A fetch that may carry less than it waits for is answered when it is full, as in Kafka."""
    filled(node, 1, 3)

    def body(timers: list[Timer]) -> None:
        call = node.begin(waiting(wanting(), min_bytes=3 * SIZE, max_bytes=2 * SIZE), 12)
        assert call.is_answered
        assert sizes(call.answer) == [2]

    run_in_loop(body)
