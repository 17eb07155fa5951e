"""A topic that may be shared is one like any other for everybody who does not share it: the same
bytes on the wire, before, while and after a group shares it."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anabranch.client import SyncCooperativeConsumer
from anabranch.wire.api import Api
from anabranch.wire.compression import CODEC_NAMES
from anabranch.wire.messages.describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from anabranch.wire.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from anabranch.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from anabranch.wire.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.wire.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import alter_brokers, create_topic

# Of the same length, so that answers differ in nothing but the name and the id.
PLAIN, SHARED = "orders-plain", "orders-share"
BATCH_RECORDS = 50
TOTAL = BATCH_RECORDS * len(CODEC_NAMES)
# Any id of this length takes the place of the topic's own in answers.
NO_ID = bytes(16)


class Topics:
    """Two topics with the same records, of which one may be shared."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.ids = {
            PLAIN: create_topic(broker.bootstrap, PLAIN),
            SHARED: create_topic(broker.bootstrap, SHARED, 1, {"range.fetch.enable": "true"}),
        }
        for codec in range(len(CODEC_NAMES)):
            records = [
                Record(i, 1_000_000 + 100 * codec + i, b"k%d" % (i % 7), b"v%d" % i)
                for i in range(BATCH_RECORDS)
            ]
            batch = build_batch(records, base_offset=0, partition_leader_epoch=-1, codec=codec)
            for topic in self.ids:
                with RawClient(broker.bootstrap) as client:
                    assert client.produce(topic, 0, batch).error_code == 0

    def answer(
        self, api: Api, version: int, request: Callable[[str, bytes], Any], of: str
    ) -> bytes:
        """The bytes of an answer about a topic, without what names it."""
        with RawClient(self.broker.bootstrap) as client:
            client.post(api, version, request(of, self.ids[of]))
            frame = bytes(client.receive_bytes())
        return frame.replace(self.ids[of], NO_ID).replace(of.encode(), b"-" * len(of))


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    broker = BrokerProcess(tmp_path_factory.mktemp("plain") / "data", {})
    broker.start()
    yield Topics(broker)
    broker.kill()


def fetch(offset: int) -> Callable[[str, bytes], FetchRequest]:
    def request(name: str, topic_id: bytes) -> FetchRequest:
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        return FetchRequest(
            max_bytes=1 << 20,
            topics=[FetchTopic(topic=name, topic_id=topic_id, partitions=[asked])],
        )

    return request


def list_offsets(timestamp: int) -> Callable[[str, bytes], ListOffsetsRequest]:
    def request(name: str, _: bytes) -> ListOffsetsRequest:
        asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        return ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=[asked])])

    return request


def metadata(name: str, _: bytes) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


def leader_epoch(name: str, _: bytes) -> OffsetForLeaderEpochRequest:
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])]
    )


def describe(name: str, _: bytes) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name)])


def offsets_of_others(name: str, topic_id: bytes) -> OffsetFetchRequest:
    asked = OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[0])
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="others", topics=[asked])])


QUESTIONS: list[tuple[Api, int, Callable[[str, bytes], Any]]] = [
    *((FETCH, version, fetch(0)) for version in range(4, 19)),
    *((FETCH, 17, fetch(offset)) for offset in (1, BATCH_RECORDS, TOTAL - 1, TOTAL)),
    *((LIST_OFFSETS, version, list_offsets(-1)) for version in (1, 7, 11)),
    *((LIST_OFFSETS, 11, list_offsets(time)) for time in (-2, -3, -4, 1_000_150)),
    *((METADATA, version, metadata) for version in (1, 9, 12, 13)),
    *((OFFSET_FOR_LEADER_EPOCH, version, leader_epoch) for version in (2, 3, 4)),
    (DESCRIBE_TOPIC_PARTITIONS, 0, describe),
    *((OFFSET_FETCH, version, offsets_of_others) for version in (8, 9, 10)),
]


def check(topics: Topics) -> None:
    for api, version, request in QUESTIONS:
        answers = [topics.answer(api, version, request, of) for of in (PLAIN, SHARED)]
        assert answers[0] == answers[1], f"{api.name} {version}"
    stored = topics.answer(FETCH, 17, fetch(0), SHARED)
    assert len(stored) > 1000, "the records are in it"


def test_answers_about_a_topic_that_may_be_shared(topics: Topics) -> None:
    """They are those about any other topic, byte by byte."""
    check(topics)


def test_answers_while_a_group_shares_it(topics: Topics) -> None:
    """Records that members have done are withheld from nobody else."""
    half_way, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def work(record: Any) -> None:
        seen.append(record.offset)
        if len(seen) == TOTAL // 2:
            half_way.set()
        if len(seen) == TOTAL:
            done.set()

    with SyncCooperativeConsumer(
        bootstrap_servers=topics.broker.bootstrap, group_id="sharing", auto_commit_interval_ms=20
    ) as consumer:
        consumer.subscribe(SHARED)
        running = threading.Thread(target=lambda: consumer.run(work, concurrency=4))
        running.start()
        assert half_way.wait(60)
        check(topics)
        assert done.wait(60)
        consumer.stop()
        running.join(20)
    check(topics)
    assert sorted(seen) == list(range(TOTAL))


def test_answers_where_it_is_turned_off(topics: Topics) -> None:
    """The broker's switch changes no answer either."""
    before = [topics.answer(*question, of=SHARED) for question in QUESTIONS]
    alter_brokers(topics.broker.bootstrap, {"group.individual.commit.enable": "false"})
    try:
        assert [topics.answer(*question, of=SHARED) for question in QUESTIONS] == before
    finally:
        alter_brokers(topics.broker.bootstrap, {"group.individual.commit.enable": "true"})
