"""The blocking producer: every batch once and in order, whatever happens on the way."""

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from anabranch.model.errors import ErrorCode
from anabranch.spark import producing
from anabranch.spark.encode import Encoded, Identity
from anabranch.spark.errors import (
    BrokerRefusal,
    LinkBrokenError,
    LinkError,
    LinkTimeoutError,
)
from anabranch.spark.link import TopicView
from anabranch.spark.link_settings import LinkSettings
from anabranch.spark.producing import Producer, topic_to_write
from anabranch.spark.sink_options import ProducerSettings
from anabranch.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from anabranch.wire.record_batch import check_batch

TOPICS = {"orders": 3, "audit": 1}
seeds = st.integers(0, 2**32)


class Cluster:
    """Brokers that check sequences as Kafka does, and fail as a script says."""

    def __init__(self) -> None:
        self.logs: dict[Any, list[int]] = {}
        """First sequences of the batches of each partition, in order of arrival."""
        self.counts: dict[Any, list[int]] = {}
        self.next_sequences: dict[Any, int] = {}
        self.fate = lambda: "good"
        self.leaders = {
            topic: TopicView(topic, bytes(16), {p: p % 2 for p in range(count)})
            for topic, count in TOPICS.items()
        }
        self.requests: list[Any] = []
        self.in_flight_max = 0
        self.now_s = 0.0

    # What a link does

    settings = LinkSettings((("nowhere", 1),))

    def topic(self, name: str) -> TopicView | None:
        if self.fate() == "no broker":
            raise LinkBrokenError("nobody answers")
        return self.leaders.get(name)

    def address_of(self, node_id: int) -> tuple[str, int]:
        return "node", node_id

    def forget(self) -> None:
        pass

    def backoff_s(self, failures: int) -> float:
        return 0.1

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def connect(self, host: str, port: int, settings: LinkSettings) -> "FakeConnection":
        if self.fate() == "refused":
            raise LinkBrokenError("connection refused")
        return FakeConnection(self)

    # What a broker does

    def produce(self, message: Any) -> Any:
        assert message.acks == -1
        parts = [one for topic in message.topic_data for one in topic.partition_data]
        assert sum(len(one.records) for one in parts) <= 1000
        topics = []
        for topic in message.topic_data:
            results = []
            for one in topic.partition_data:
                results.append(self._append((topic.name, one.index), one))
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=topics)

    def _append(self, place: Any, data: Any) -> PartitionProduceResponse:
        header = check_batch(memoryview(bytes(data.records)))
        code, base_offset = ErrorCode.NONE, -1
        expected = self.next_sequences.get(place, 0)
        fate = self.fate()
        log = self.logs.setdefault(place, [])
        if fate == "not leader":
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif header.base_sequence in log[-5:]:
            code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER if fate == "duplicate" else ErrorCode.NONE
            base_offset = header.base_sequence
        elif header.base_sequence != expected:
            code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            log.append(header.base_sequence)
            self.counts.setdefault(place, []).append(header.records_count)
            self.next_sequences[place] = expected + header.records_count
            base_offset = expected
            if fate == "timed out":
                code = ErrorCode.REQUEST_TIMED_OUT
        return PartitionProduceResponse(
            index=place[1], error_code=code, base_offset=base_offset, record_errors=[]
        )


class FakeConnection:
    """Answers come when they are asked for; it breaks before or after the broker has acted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._answers: deque[Any] = deque()
        self.is_closed = False

    def send(self, api: Any, message: Any, **versions: int) -> int:
        if self.is_closed:
            raise LinkBrokenError("closed")
        fate = self._cluster.fate()
        if fate == "breaks before":
            self.close()
            raise LinkBrokenError("broken pipe")
        self._cluster.requests.append(message)
        self._answers.append(self._cluster.produce(message))
        self._cluster.in_flight_max = max(self._cluster.in_flight_max, len(self._answers))
        if fate == "breaks after":
            self.close()
        return len(self._cluster.requests)

    def receive(self, ticket: int, *, extra_s: float = 0.0) -> Any:
        if self.is_closed or self._cluster.fate() == "breaks while waiting":
            self.close()
            raise LinkBrokenError("connection reset")
        return self._answers.popleft()

    def close(self) -> None:
        self.is_closed = True

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(producing, "Connection", made.connect)
    monkeypatch.setattr(
        producing.select, "select", lambda r, w, x, t: (r[-1:] if t else [], [], [])
    )
    return made


def producer_of(cluster: Cluster, **changes: Any) -> Producer:
    made = ProducerSettings(**{"request_bytes": 1000, **changes})
    link: Any = cluster
    return Producer(link, made, Identity(5, 0), clock=lambda: cluster.now_s, sleep=cluster.sleep)


def encoded(topic: str, partition: int, count: int = 3) -> Encoded:
    record = bytes([12, 0, 0, 0, 1, 0, 0])
    return Encoded((topic, partition), count, bytearray(61) + record * count)


def sent_all(cluster: Cluster, producer: Producer, rng: random.Random, batches: int) -> None:
    expected: dict[Any, list[int]] = {}
    for _ in range(batches):
        topic = rng.choice(list(TOPICS))
        partition = rng.randrange(TOPICS[topic])
        count = rng.choice((1, 2, 40))
        expected.setdefault((topic, partition), []).append(count)
        producer.send(encoded(topic, partition, count))
        if rng.randrange(10) == 0:
            producer.flush()
    producer.flush()
    cluster.fate = lambda: "good"
    assert cluster.counts == expected
    assert producer.records_count == sum(map(sum, expected.values()))
    assert producer.end_offsets == {place: sum(counts) for place, counts in expected.items()}


def test_batches_go_out_together_and_in_order(cluster: Cluster) -> None:
    """A request has a batch of each partition, and more requests follow before the first answer."""
    producer = producer_of(cluster)
    sent_all(cluster, producer, random.Random(1), 60)
    assert cluster.in_flight_max == 5


@settings(max_examples=150)
@given(seeds, st.floats(0.01, 0.35), st.integers(1, 5))
def test_every_batch_once(seed: int, failure_rate: float, in_flight_max: int) -> None:
    """Whatever breaks, and how often, each batch is in its log once, in the order of sending."""
    rng = random.Random(seed)
    cluster = Cluster()
    fates = (
        "no broker",
        "refused",
        "not leader",
        "duplicate",
        "timed out",
        "breaks before",
        "breaks after",
        "breaks while waiting",
    )
    cluster.fate = lambda: rng.choice(fates) if rng.random() < failure_rate else "good"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producing, "Connection", cluster.connect)
        is_ready = lambda t: t or rng.randrange(3) == 0  # noqa: E731
        patch.setattr(
            producing.select, "select", lambda r, w, x, t: (r[:1] if is_ready(t) else [], [], [])
        )
        producer = producer_of(
            cluster, in_flight_max=in_flight_max, delivery_timeout_ms=10_000_000_000
        )
        sent_all(cluster, producer, rng, 40)


def test_time_is_up(cluster: Cluster) -> None:
    """What cannot be delivered is an error with partition, offset and option."""
    producer = producer_of(cluster, delivery_timeout_ms=2000)
    producer.send(encoded("orders", 1))
    producer.flush()
    cluster.fate = lambda: "not leader"
    with pytest.raises(LinkTimeoutError) as raised:
        producer.send(encoded("orders", 1))
        producer.flush()
    assert str(raised.value).startswith(
        "writing 3 records to orders-1, behind offset 2, was tried for 2000 ms"
        " ('kafka.delivery.timeout.ms'): "
    )
    assert "NOT_LEADER_OR_FOLLOWER" in str(raised.value)
    assert 1.7 < cluster.now_s <= 2


def test_no_broker_for_too_long(cluster: Cluster) -> None:
    """The same when there is nobody to send to."""
    producer = producer_of(cluster, delivery_timeout_ms=2000)
    cluster.fate = lambda: "no broker"
    with pytest.raises(LinkTimeoutError, match=r"to orders-0 was tried .* nobody answers"):
        producer.send(encoded("orders", 0))
        producer.flush()


def test_retries_are_counted(cluster: Cluster) -> None:
    """`retries` ends it before the time is up."""
    producer = producer_of(cluster, retries=3)
    cluster.fate = lambda: "timed out"
    cluster.next_sequences["orders", 0] = 7  # so that the sequence never fits
    cluster.fate = lambda: "not leader"
    with pytest.raises(LinkTimeoutError, match=r"was tried 4 times \('kafka.retries'\)"):
        producer.send(encoded("orders", 0))
        producer.flush()
    assert len(cluster.requests) == 4


def test_out_of_order_without_a_reason_is_fatal(cluster: Cluster) -> None:
    """A broker that lost what it acknowledged is not asked until time is up."""
    producer = producer_of(cluster)
    cluster.next_sequences["orders", 0] = 7
    with pytest.raises(BrokerRefusal) as raised:
        producer.send(encoded("orders", 0))
        producer.flush()
    assert raised.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(cluster.requests) == 1


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, "lower kafka.batch.size"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "too bad; record 2 is bad"),
    ],
)
def test_refusals_are_told(cluster: Cluster, code: ErrorCode, hint: str) -> None:
    """What does not pass by itself is an error at once, with all that the broker said."""
    result = PartitionProduceResponse(
        index=2,
        error_code=code,
        base_offset=-1,
        error_message="too bad",
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="record 2 is bad")
        ],
    )
    cluster._append = lambda place, data: result  # type: ignore[method-assign]
    producer = producer_of(cluster)
    with pytest.raises(BrokerRefusal, match=rf"to orders-2 failed with {code.name}: .*{hint}"):
        producer.send(encoded("orders", 2))
        producer.flush()


def test_a_record_that_is_too_large(cluster: Cluster) -> None:
    """The error names the partition and the option; nothing is sent."""
    producer = producer_of(cluster)
    with pytest.raises(LinkError, match=r"for audit-0 has 1461 bytes; .*'kafka.max.request.size'"):
        producer.send(encoded("audit", 0, 200))
    assert cluster.requests == []


def test_without_idempotence_one_request_is_in_flight(cluster: Cluster) -> None:
    """Batches have no sequences then, so a second could overtake the first."""
    link: Any = cluster
    made = ProducerSettings(is_idempotent=False, in_flight_max=1, request_bytes=1000)
    producer = Producer(link, made, Identity(), sleep=cluster.sleep)
    cluster._append = lambda place, data: PartitionProduceResponse(  # type: ignore[method-assign]
        index=place[1],
        error_code=0,
        base_offset=check_batch(memoryview(data.records)).base_sequence,
        record_errors=[],
    )
    for _ in range(10):
        producer.send(encoded("orders", 0))
    producer.flush()
    assert cluster.in_flight_max == 1
    assert producer.end_offsets == {}


# --- Topics ---------------------------------------------------------------------------------------


class TopicLink:
    """A link to a broker that creates topics after some questions, or never."""

    def __init__(self, after: int | None, code: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> None:
        self._after = after
        self._code = code
        self._asked = 0

    def topics(self, names: list[str]) -> dict[str, TopicView]:
        if self._after is None or self._asked < self._after:
            return {}
        return {names[0]: TopicView(names[0], bytes(16), {0: 0})}

    def ask_any(self, api: Any, request: Any, *, least_version: int) -> Any:
        assert request.allow_auto_topic_creation
        self._asked += 1
        topic = type("Topic", (), {"error_code": self._code})
        return type("Answer", (), {"topics": [topic]})

    def retrying(self, what: str, work: Any, **limits: Any) -> Any:
        assert limits == {"limit_ms": 60_000, "option": "kafka.max.block.ms"}
        while True:
            try:
                return work()
            except BrokerRefusal as error:
                if not error.code.retriable:
                    raise


@pytest.mark.parametrize("after", [0, 1, 3])
def test_topics_that_the_broker_creates(after: int) -> None:
    """A topic is there, or appears because somebody wants to write to it."""
    link: Any = TopicLink(after)
    assert topic_to_write(link, "new", ProducerSettings()).name == "new"


def test_topics_that_nobody_creates() -> None:
    """A topic that stays away is an error in words, and so is one that is forbidden."""
    link: Any = TopicLink(None)
    with pytest.raises(LinkError, match=r"topic new does not exist, .* create it first"):
        topic_to_write(link, "new", ProducerSettings())
    forbidden: Any = TopicLink(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerRefusal, match="TOPIC_AUTHORIZATION_FAILED"):
        topic_to_write(forbidden, "new", ProducerSettings())
