"""Produce: what is appended, what is refused, and when the answer leaves."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from handler_calls import NOW_MS, Node, make_batch

from anabranch.engine.log_directory import DirectoryError
from anabranch.handlers import produce as produce_handler
from anabranch.model.errors import ErrorCode
from anabranch.wire.compression import ZSTD
from anabranch.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    Record,
    build_batch,
    iter_records,
)

BATCH = make_batch(b"one", b"two")
TRANSACTIONAL = make_batch(b"one", attributes=TRANSACTIONAL_FLAG)


def data(index: int = 0, records: bytes | None = BATCH) -> PartitionProduceData:
    return PartitionProduceData(index=index, records=records)


def asking(
    *partitions: PartitionProduceData, topic: str = "t", acks: int = -1, **more: Any
) -> ProduceRequest:
    topic_data = TopicProduceData(name=topic, partition_data=list(partitions))
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic_data], **more)


def answers(response: ProduceResponse) -> list[PartitionProduceResponse]:
    return [answer for topic in response.responses for answer in topic.partition_responses]


def produce(node: Node, *batches: bytes, version: int = 12, **more: Any) -> list[tuple[int, int]]:
    """Produce batches one after the other to partition 0: (error, base offset) of each."""
    outcomes = []
    for batch in batches:
        (answer,) = answers(node.call(asking(data(records=batch), **more), version))
        outcomes.append((answer.error_code, answer.base_offset))
    return outcomes


def values(node: Node, partition: int = 0) -> list[bytes | None]:
    log = node.broker.topics.partition("t", partition).log
    records = log.read(0, 1 << 30)
    found: list[bytes | None] = []
    while records:
        size = 12 + int.from_bytes(records[8:12])
        found += [record.value for record in iter_records(records[:size])]
        records = records[size:]
    return found


# What is appended -----------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", range(3, 13))
def test_a_batch_is_appended_and_answered(node: Node, version: int, acks: int) -> None:
    """The answer has the offset of the first record; the records are in the log."""
    node.create_topic("t")
    node.append("t", b"zero")
    assert node.call(asking(data(), acks=acks), version) == ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="t",
                partition_responses=[
                    PartitionProduceResponse(
                        base_offset=1, log_start_offset=0 if version >= 5 else -1
                    )
                ],
            )
        ]
    )
    assert values(node) == [b"zero", b"one", b"two"]


def test_by_topic_id(node: Node) -> None:
    """Version 13 names topics by id, and an unknown id is its own error."""
    topic = node.create_topic("t")
    unknown = b"\x09" * 16
    request = ProduceRequest(
        acks=1,
        topic_data=[
            TopicProduceData(topic_id=topic.topic_id, partition_data=[data(0), data(5)]),
            TopicProduceData(topic_id=unknown, partition_data=[data(0)]),
        ],
    )
    response = node.call(request, 13)
    assert [t.topic_id for t in response.responses] == [topic.topic_id, unknown]
    assert [a.error_code for a in answers(response)] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]


def test_each_partition_for_itself(node: Node) -> None:
    """A batch that is refused does not keep the others from being appended."""
    node.create_topic("t", 2)
    broken = bytes([*BATCH[:-1], BATCH[-1] ^ 1])
    response = node.call(asking(data(0, broken), data(1), data(9), data(0)), 12)
    assert [(a.index, a.error_code, a.base_offset) for a in answers(response)] == [
        (0, ErrorCode.CORRUPT_MESSAGE, -1),
        (1, 0, 0),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (0, 0, 0),
    ]


def test_unknown_topic_is_not_created(node: Node) -> None:
    """Producing does not create topics; clients ask for metadata first."""
    assert produce(node, BATCH, topic="absent") == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert len(node.broker.topics) == 0


def test_log_append_time_is_told(node: Node) -> None:
    """With message.timestamp.type=LogAppendTime the answer has the broker's time, else -1."""
    node.create_topic("t", message_timestamp_type="LogAppendTime")
    node.now_ms = NOW_MS + 77
    (answer,) = answers(node.call(asking(data()), 12))
    assert answer.log_append_time_ms == NOW_MS + 77


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_old_message_formats(node: Node, version: int) -> None:
    """Versions 0-2 can be sent and are refused in their own schema."""
    node.create_topic("t")
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert produce(node, BATCH, version=version) == [(code, -1)]
    assert values(node) == []


@pytest.mark.parametrize(
    ("more", "records", "code"),
    [
        ({"acks": 2}, BATCH, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"acks": -2}, BATCH, ErrorCode.INVALID_REQUIRED_ACKS),
        ({}, None, ErrorCode.INVALID_RECORD),
        ({}, b"", ErrorCode.INVALID_RECORD),
        ({}, BATCH[:40], ErrorCode.INVALID_RECORD),
        ({}, BATCH + BATCH, ErrorCode.INVALID_RECORD),
        ({}, BATCH[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
        ({}, make_batch(b"x" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
        ({}, TRANSACTIONAL, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_what_is_wrong_is_refused(
    node: Node, more: dict[str, Any], records: bytes | None, code: ErrorCode
) -> None:
    """Each mistake has Kafka's code, a sentence from version 8 on, and leaves the log alone."""
    node.create_topic("t")
    (answer,) = answers(node.call(asking(data(records=records), **more), 12))
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert answer.error_message
    assert (answer.log_append_time_ms, answer.log_start_offset) == (-1, -1)
    assert values(node) == []


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (make_batch(b"x", timestamp=NOW_MS + 7_200_000), ErrorCode.INVALID_TIMESTAMP),
        (make_batch(b"x", attributes=CONTROL_FLAG), ErrorCode.INVALID_RECORD),
        (bytes(7) + b"\x01" + BATCH[8:], ErrorCode.INVALID_RECORD),
        (
            make_batch(b"x", producer_id=4, producer_epoch=-1, base_sequence=0),
            ErrorCode.INVALID_PRODUCER_EPOCH,
        ),
    ],
)
def test_what_is_wrong_inside_a_batch(node: Node, batch: bytes, code: ErrorCode) -> None:
    """Where Kafka has looked into the batch it also says where the log begins."""
    topic = node.create_topic("t")
    node.append("t", b"zero")
    topic.partitions[0].log.delete_records_before(1)
    (answer,) = answers(node.call(asking(data(records=batch)), 12))
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert answer.error_message
    assert (answer.log_append_time_ms, answer.log_start_offset) == (-1, 1)


def keyed(*keys: bytes | None) -> bytes:
    return build_batch([Record(i, NOW_MS, key, b"v") for i, key in enumerate(keys)], base_offset=0)


@pytest.mark.parametrize("version", [7, 8, 9, 12])
def test_wrong_records_are_named(node: Node, version: int) -> None:
    """From version 8 on the answer says which records were wrong, and why (KIP-467)."""
    node.create_topic("t", cleanup_policy="compact")
    (answer,) = answers(node.call(asking(data(records=keyed(None, b"k", None))), version))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    named = [(e.batch_index, e.batch_index_error_message[:24]) for e in answer.record_errors]
    expected = [(0, "the topic is compacted, "), (2, "the topic is compacted, ")]
    assert named == (expected if version >= 8 else [])


def test_an_answer_names_only_so_many_records(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit batches are refused without naming records, so that the answer ends."""
    node.create_topic("t", cleanup_policy="compact")
    monkeypatch.setattr(produce_handler, "_RECORD_ERRORS_MAX", 5)
    wrong = keyed(None, None)
    refused = answers(node.call(asking(*(data(records=wrong) for _ in range(4))), 12))
    assert [len(answer.record_errors) for answer in refused] == [2, 2, 0, 0]
    assert {answer.error_code for answer in refused} == {ErrorCode.INVALID_RECORD}


def test_zstd_needs_version_7(node: Node) -> None:
    """Old clients that claim zstd are refused (KIP-110)."""
    node.create_topic("t")
    batch = make_batch(b"one", codec=ZSTD)
    assert produce(node, batch, version=6) == [(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1)]
    assert produce(node, batch, version=7) == [(0, 0)]


def test_a_compacted_topic_needs_keys(node: Node) -> None:
    """Records without keys are INVALID_RECORD where cleanup.policy is compact."""
    node.create_topic("t", cleanup_policy="compact")
    assert produce(node, BATCH) == [(ErrorCode.INVALID_RECORD, -1)]


def test_more_replicas_than_there_are(node: Node) -> None:
    """min.insync.replicas counts only up to the number of replicas, which is 1, as in Kafka."""
    node.create_topic("t", min_insync_replicas="2")
    assert produce(node, BATCH, acks=-1) == [(0, 0)]


# Idempotent producers -------------------------------------------------------------------------


def numbered(sequence: int, *values_: bytes, epoch: int = 0, producer_id: int = 7) -> bytes:
    return make_batch(
        *(values_ or (b"v",)),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def test_a_repeated_batch_gets_its_first_answer(node: Node) -> None:
    """Any of the last five batches sent again is answered with its offset and not appended."""
    node.create_topic("t")
    batches = [numbered(sequence) for sequence in range(6)]
    assert produce(node, *batches) == [(0, offset) for offset in range(6)]
    assert produce(node, batches[5], batches[1]) == [(0, 5), (0, 1)]
    assert len(values(node)) == 6
    assert produce(node, batches[0]) == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]


def test_a_gap_is_refused(node: Node) -> None:
    """A missing batch must be sent before those behind it."""
    node.create_topic("t")
    assert produce(node, numbered(0, b"a", b"b"), numbered(3), numbered(2)) == [
        (0, 0),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (0, 2),
    ]


def test_epochs_of_a_producer(node: Node) -> None:
    """An older epoch is fenced, a newer one begins at 0."""
    node.create_topic("t")
    assert produce(
        node, numbered(0, epoch=1), numbered(1), numbered(4, epoch=2), numbered(0, epoch=2)
    ) == [
        (0, 0),
        (ErrorCode.INVALID_PRODUCER_EPOCH, -1),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (0, 1),
    ]


def test_sequences_are_kept_over_a_restart(make_node: Callable[..., Node]) -> None:
    """A batch sent again after the broker came back is still a duplicate."""
    first = make_node()
    first.create_topic("t")
    assert produce(first, numbered(0), numbered(1)) == [(0, 0), (0, 1)]
    first.close()
    node = make_node()
    assert produce(node, numbered(1), numbered(0), numbered(2)) == [(0, 1), (0, 0), (0, 2)]


# When the answer leaves -----------------------------------------------------------------------


def test_acks_0_has_no_answer(node: Node) -> None:
    """The records are appended and nothing is sent back."""
    node.create_topic("t")
    assert node.call(asking(data(), acks=0), 12) is None
    assert values(node) == [b"one", b"two"]
    assert node.closed_because == []


def test_acks_0_that_fails_closes_the_connection(node: Node) -> None:
    """The only way to tell such a producer of an error is to hang up."""
    assert node.call(asking(data(), topic="absent", acks=0), 12) is None
    assert node.closed_because == [
        "a produce with acks=0 failed: UNKNOWN_TOPIC_OR_PARTITION: There is no partition absent-0."
    ]


@pytest.mark.parametrize("acks", [-1, 1])
def test_acks_all_can_wait_for_the_disk(node: Node, acks: int) -> None:
    """With flush.on.acks.all the answer to acks=-1 leaves when the log is synced."""
    log = node.create_topic("t", 2, flush_on_acks_all="true").partitions[0].log

    async def body() -> None:
        call = node.begin(asking(data(0), data(1), acks=acks), 12)
        if acks == 1:
            assert call.is_answered
            return
        assert not call.is_answered
        answered = asyncio.Event()
        assert call.deferred is not None
        call.deferred.deliver_to(lambda value: answered.set())
        await answered.wait()
        assert log.recovery_point == log.log_end_offset == 2

    asyncio.run(body())


def test_flush_messages_waits_whatever_the_acks(node: Node) -> None:
    """flush.messages=1 syncs every produce, as in Kafka."""
    log = node.create_topic("t", flush_messages="1").partitions[0].log

    async def body() -> None:
        call = node.begin(asking(data(), acks=1), 12)
        answered = asyncio.Event()
        assert call.deferred is not None
        call.deferred.deliver_to(lambda value: answered.set())
        await answered.wait()
        assert log.recovery_point == 2

    asyncio.run(body())


def test_a_sync_that_fails_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is acknowledged that the disk did not take: KAFKA_STORAGE_ERROR, also afterwards."""
    node.create_topic("t", flush_on_acks_all="true")

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fdatasync", broken)

    async def body() -> None:
        call = node.begin(asking(data()), 12)
        found: list[ProduceResponse] = []
        answered = asyncio.Event()

        def take(value: ProduceResponse) -> None:
            found.append(value)
            answered.set()

        assert call.deferred is not None
        call.deferred.deliver_to(take)
        await answered.wait()
        (answer,) = answers(found[0])
        assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)

    asyncio.run(body())
    assert produce(node, BATCH, acks=1) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    with pytest.raises(DirectoryError, match="t-0 failed"):
        node.close()
