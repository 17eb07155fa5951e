"""Fetch sessions (KIP-227): who hears of what, and what ends a session."""

from typing import Any

import pytest
from handler_calls import Node, Timer, make_batch, run_in_loop

from anabranch.broker.fetch_sessions import EVICTION_MS
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

VERSION = 12
BIG = 1 << 30
SIZE = len(make_batch(b"value"))

# (topic, partition, number of batches)
News = list[tuple[str, int, int]]


def wanting(*partitions: tuple[int, int], topic: str = "t") -> FetchTopic:
    """(partition, offset) pairs of a topic."""
    return FetchTopic(
        topic=topic,
        partitions=[
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=BIG)
            for index, offset in partitions
        ],
    )


class Client:
    """What a consumer remembers of its session."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.session_id = 0
        self.epoch = 0

    def request(self, *topics: FetchTopic, **more: Any) -> FetchRequest:
        more.setdefault("max_bytes", BIG)
        return FetchRequest(
            session_id=self.session_id, session_epoch=self.epoch, topics=list(topics), **more
        )

    def fetch(self, *topics: FetchTopic, **more: Any) -> News:
        return self.take(self.node.call(self.request(*topics, **more), VERSION))

    def take(self, response: FetchResponse) -> News:
        assert response.error_code == 0
        if self.epoch == 0:
            self.session_id = response.session_id
        assert response.session_id == self.session_id
        self.epoch += 1
        return [
            (topic.topic, data.partition_index, len(data.records or b"") // SIZE)
            for topic in response.responses
            for data in topic.partitions
        ]

    def error(self, *topics: FetchTopic, version: int = VERSION) -> int:
        response: FetchResponse = self.node.call(self.request(*topics), version)
        assert (response.session_id, response.responses) == (0, [])
        return response.error_code


@pytest.fixture
def client(node: Node) -> Client:
    """A client of a node with topic `t` of three partitions."""
    node.create_topic("t", 3)
    return Client(node)


def test_a_full_fetch_opens_a_session(client: Client) -> None:
    """The first fetch names every partition in the answer, empty or not, and gives a session."""
    assert client.fetch(wanting((0, 0), (1, 0))) == [("t", 0, 0), ("t", 1, 0)]
    assert client.session_id > 0
    assert len(client.node.broker.fetch_sessions) == 1


def test_an_incremental_fetch_names_only_news(client: Client) -> None:
    """Partitions without news are left out; those with records are not, in any order."""
    client.fetch(wanting((0, 0), (1, 0), (2, 0)))
    assert client.fetch() == []
    client.node.append("t", b"value", partition=1)
    assert client.fetch() == [("t", 1, 1)]
    assert client.fetch(wanting((1, 1))) == []


def test_partitions_are_added_and_forgotten(client: Client) -> None:
    """A session grows by what is named and shrinks by what is forgotten."""
    client.fetch(wanting((0, 0)))
    for partition in range(3):
        client.node.append("t", b"value", partition=partition)
    assert client.fetch(wanting((2, 0))) == [("t", 0, 1), ("t", 2, 1)]
    forgotten = [ForgottenTopic(topic="t", partitions=[0, 1])]
    assert client.fetch(forgotten_topics_data=forgotten) == [("t", 2, 1)]


def test_a_changed_high_watermark_is_news_once(client: Client) -> None:
    """A partition that had no room for records still tells its new high watermark, once."""
    client.fetch(wanting((0, 0), (1, 0)))
    client.node.append("t", b"value", partition=0)
    client.node.append("t", b"value", partition=1)
    assert client.fetch(max_bytes=1) == [("t", 0, 1), ("t", 1, 0)]
    # Partition 0 was served, so partition 1 comes first now and is not starved.
    assert client.fetch(max_bytes=1) == [("t", 1, 1)]
    assert client.fetch(max_bytes=1) == [("t", 0, 1)]


def test_a_changed_log_start_is_news(client: Client) -> None:
    """Deleted records are told to a client that waits behind them."""
    client.node.append("t", b"value")
    client.fetch(wanting((0, 1)))
    assert client.fetch() == []
    client.node.broker.topics.partition("t", 0).log.delete_records_before(1)
    assert client.fetch() == [("t", 0, 0)]
    assert client.fetch() == []


def test_an_error_is_news_until_it_is_gone_and_then_once(client: Client) -> None:
    """A failing partition is in every answer, and in the first one after the failure."""
    client.fetch(wanting((0, 0)), wanting((0, 0), topic="later"))
    assert client.fetch() == [("later", 0, 0)]
    assert client.fetch() == [("later", 0, 0)]
    client.node.create_topic("later")
    assert client.fetch() == [("later", 0, 0)]
    assert client.fetch() == []


def test_epochs_count_up(client: Client) -> None:
    """A fetch that is repeated or skipped is INVALID_FETCH_SESSION_EPOCH; the right one works."""
    client.fetch(wanting((0, 0)))
    client.fetch()
    for epoch in (1, 3):
        client.epoch = epoch
        assert client.error() == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    client.epoch = 2
    assert client.fetch() == []


def test_epochs_wrap_to_one(client: Client) -> None:
    """0 means a new session, so the count goes on with 1."""
    client.fetch(wanting((0, 0)))
    sessions = client.node.broker.fetch_sessions
    session = sessions.use(client.session_id, 1, False, client.node.now_ms)
    session.next_epoch = client.epoch = (1 << 31) - 1
    assert client.fetch() == []
    client.epoch = 1
    assert client.fetch() == []


def test_unknown_session(client: Client) -> None:
    """A session that never was, or is gone, makes the client begin anew."""
    client.session_id, client.epoch = 123, 1
    assert client.error() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix(client: Client) -> None:
    """A session that was opened with names cannot be used with ids."""
    client.fetch(wanting((0, 0)))
    assert client.error(version=13) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_by_topic_id(node: Node) -> None:
    """With ids a session works alike: news only, partitions forgotten by id."""
    topic = node.create_topic("t", 2)
    asked = wanting((0, 0), (1, 0))
    asked.topic_id = topic.topic_id
    first = node.call(FetchRequest(session_epoch=0, topics=[asked], max_bytes=BIG), 13)
    assert [len(t.partitions) for t in first.responses] == [2]
    node.append("t", b"value")
    node.append("t", b"value", partition=1)
    forgotten = ForgottenTopic(topic_id=topic.topic_id, partitions=[0])
    second = node.call(
        FetchRequest(
            session_id=first.session_id,
            session_epoch=1,
            forgotten_topics_data=[forgotten],
            max_bytes=BIG,
        ),
        13,
    )
    assert [(t.topic_id, [p.partition_index for p in t.partitions]) for t in second.responses] == [
        (topic.topic_id, [1])
    ]


def test_a_full_fetch_replaces_the_session(client: Client) -> None:
    """Epoch 0 closes the session it names and opens another."""
    client.fetch(wanting((0, 0)))
    old = client.session_id
    client.epoch = 0
    client.fetch(wanting((1, 0)))
    assert client.session_id != old
    assert len(client.node.broker.fetch_sessions) == 1


def test_the_final_fetch_closes_the_session(client: Client) -> None:
    """Epoch -1 is a full fetch that leaves no session behind."""
    client.fetch(wanting((0, 0)))
    client.epoch = -1
    response = client.node.call(client.request(wanting((1, 0))), VERSION)
    assert (response.session_id, len(response.responses)) == (0, 1)
    assert len(client.node.broker.fetch_sessions) == 0


def test_no_room_means_no_session(make_node: Any) -> None:
    """Without a free slot a client fetches in full until another was idle for two minutes."""
    node = make_node("max.incremental.fetch.session.cache.slots=1")
    node.create_topic("t")
    first, second = Client(node), Client(node)
    first.fetch(wanting((0, 0)))
    second.fetch(wanting((0, 0)))
    assert (first.session_id > 0, second.session_id) == (True, 0)

    node.now_ms += EVICTION_MS - 1
    first.fetch()
    node.now_ms += EVICTION_MS - 1
    second.epoch = 0
    second.fetch(wanting((0, 0)))
    assert second.session_id == 0

    node.now_ms += 1
    second.epoch = 0
    second.fetch(wanting((0, 0)))
    assert second.session_id > 0
    assert first.error() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_session_that_was_idle_longest_goes(make_node: Any) -> None:
    """What counts is when a session was last used, not when it was opened."""
    node = make_node("max.incremental.fetch.session.cache.slots=2")
    node.create_topic("t")
    first, second, third = Client(node), Client(node), Client(node)
    first.fetch(wanting((0, 0)))
    second.fetch(wanting((0, 0)))
    node.now_ms += EVICTION_MS
    first.fetch()
    third.fetch(wanting((0, 0)))
    assert third.session_id > 0
    assert first.fetch() == []
    assert second.error() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_sessions_can_be_switched_off(make_node: Any) -> None:
    """With no slots every fetch is a full one."""
    node = make_node("max.incremental.fetch.session.cache.slots=0")
    node.create_topic("t")
    client = Client(node)
    assert client.fetch(wanting((0, 0))) == [("t", 0, 0)]
    assert client.session_id == 0


def test_an_incremental_fetch_waits_like_any_other(client: Client) -> None:
    """Parked, it answers with the partitions that have news when it is woken."""
    client.fetch(wanting((0, 0), (1, 0), (2, 0)))

    def body(timers: list[Timer]) -> None:
        call = client.node.begin(client.request(max_wait_ms=500, min_bytes=1), VERSION)
        assert not call.is_answered
        partition = client.node.broker.topics.partition("t", 1)
        client.node.append("t", b"value", partition=1)
        client.node.broker.purgatory.mark(partition, SIZE)
        client.node.broker.wake_fetches()
        assert client.take(call.answer) == [("t", 1, 1)]

    run_in_loop(body)
    assert client.fetch(wanting((1, 1))) == []


def test_version_7_is_the_first_with_sessions(client: Client) -> None:
    """A session can be opened and used from there on."""
    first = client.node.call(client.request(wanting((0, 0))), 7)
    assert first.session_id > 0
    client.session_id, client.epoch = first.session_id, 1
    assert client.node.call(client.request(), 7).responses == []


def test_versions_before_7_have_no_sessions(client: Client) -> None:
    """An old client is answered in full each time and opens nothing."""
    for _ in range(2):
        response = client.node.call(FetchRequest(topics=[wanting((0, 0))]), 6)
        assert (response.session_id, len(response.responses)) == (0, 1)
    assert len(client.node.broker.fetch_sessions) == 0
