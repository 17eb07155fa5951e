"""Counting requests: errors wherever an answer has them, time at once or later, bytes by topic."""

from typing import Any

import pytest

from anabranch.broker.deferred import Deferred
from anabranch.handlers.registry import ROUTES
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import broker_metrics as b
from anabranch.observe.metrics import Histogram
from anabranch.server.request_metrics import RequestMetrics, error_finder
from anabranch.wire.messages.fetch import (
    FETCH,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from anabranch.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from anabranch.wire.messages.heartbeat import HEARTBEAT, HeartbeatResponse
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)


class Topic:
    def __init__(self, name: str) -> None:
        self.name = name


class Topics:
    """The topic `t`, by its name and its id."""

    def get(self, name: str) -> Topic | None:
        return Topic(name) if name == "t" else None

    def get_by_id(self, topic_id: bytes) -> Topic | None:
        return Topic("t") if topic_id == b"T" * 16 else None


class Holder:
    topics = Topics()


def counted(metrics: RequestMetrics) -> dict[str, Any]:
    return {metric.name: dict(values) for metric, values in metrics.collect(Holder())}  # type: ignore[arg-type, call-overload]


def requests(metrics: RequestMetrics) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = counted(metrics)[b.REQUESTS.name]
    return found


def ask(metrics: RequestMetrics, api: Any, answer: Any) -> Any:
    """A request that is answered so, or with an exception."""

    def handle(broker: Any, context: Any, request: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return metrics.counted(api, handle)(None, None, None)  # type: ignore[arg-type]


# Errors -------------------------------------------------------------------------------------------


def test_errors_are_found_wherever_they_are() -> None:
    """At the top, in arrays, in arrays of arrays; the first one counts."""
    find = error_finder(ProduceResponse)
    parts = [PartitionProduceResponse(), PartitionProduceResponse(error_code=3)]
    assert find(ProduceResponse()) == 0
    topics = [TopicProduceResponse(), TopicProduceResponse(partition_responses=parts)]
    assert find(ProduceResponse(responses=topics)) == 3
    find = error_finder(FindCoordinatorResponse)
    assert find(FindCoordinatorResponse(error_code=15)) == 15
    assert find(FindCoordinatorResponse(coordinators=[Coordinator(error_code=16)])) == 16


@pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: route.api.name)
def test_every_answer_can_be_looked_through(route: Any) -> None:
    """An answer with defaults, of each API that is served, has no error."""
    assert error_finder(route.api.response)(route.api.response()) == 0


def test_requests_by_error() -> None:
    """Without one, with one in the answer, with one that was raised, with a bug."""
    metrics = RequestMetrics()
    ask(metrics, HEARTBEAT, HeartbeatResponse())
    ask(metrics, HEARTBEAT, HeartbeatResponse(error_code=27))
    with pytest.raises(KafkaError):
        ask(metrics, HEARTBEAT, KafkaError(ErrorCode.NOT_COORDINATOR, "elsewhere"))
    with pytest.raises(ZeroDivisionError):
        ask(metrics, HEARTBEAT, ZeroDivisionError())
    assert ask(metrics, PRODUCE, None) is None  # acks=0
    assert requests(metrics) == {
        ("Heartbeat", "NONE"): 1,
        ("Heartbeat", "NOT_COORDINATOR"): 1,
        ("Heartbeat", "REBALANCE_IN_PROGRESS"): 1,
        ("Heartbeat", "UNKNOWN_SERVER_ERROR"): 1,
        ("Produce", "NONE"): 1,
    }


def test_codes_that_are_none_make_no_new_series() -> None:
    """Labels are bounded by Kafka's codes, whatever a handler answers."""
    metrics = RequestMetrics()
    ask(metrics, HEARTBEAT, HeartbeatResponse(error_code=30_000))
    assert requests(metrics)["Heartbeat", "UNKNOWN_SERVER_ERROR"] == 1


def test_apis_that_nobody_uses_are_not_shown() -> None:
    """They would be three series and more for each, of sixty."""
    metrics = RequestMetrics()
    metrics.counted(HEARTBEAT, lambda *_: None)
    assert requests(metrics) == {}


# Time ---------------------------------------------------------------------------------------------


def test_a_parked_request_is_counted_when_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In all it took until then; on the loop only until it was parked."""
    clock = [0.0]
    monkeypatch.setattr("anabranch.server.request_metrics.perf_counter", lambda: clock[0])
    metrics = RequestMetrics()
    parked: Deferred[HeartbeatResponse] = Deferred()

    def handle(broker: Any, context: Any, request: Any) -> Any:
        clock[0] += 0.002
        return parked

    later = metrics.counted(HEARTBEAT, handle)(None, None, None)  # type: ignore[arg-type]
    assert requests(metrics) == {}
    given: list[Any] = []
    later.deliver_to(given.append)
    clock[0] += 3.0
    answer = HeartbeatResponse(error_code=27)
    parked.complete(answer)
    assert given == [answer]
    assert requests(metrics)["Heartbeat", "REBALANCE_IN_PROGRESS"] == 1
    found = counted(metrics)
    whole: Histogram = found[b.REQUEST_DURATION.name]["Heartbeat",]
    local: Histogram = found[b.REQUEST_LOCAL_DURATION.name]["Heartbeat",]
    assert (whole.count, whole.sum_s) == (1, pytest.approx(3.002))
    assert (local.count, local.sum_s) == (1, pytest.approx(0.002))


def test_a_parked_request_may_fail_or_be_given_up() -> None:
    """A failure is counted; one that nobody waits for any more frees what was parked, uncounted."""
    metrics = RequestMetrics()
    failing: Deferred[HeartbeatResponse] = Deferred()
    errors: list[Exception] = []
    ask(metrics, HEARTBEAT, failing).deliver_to(lambda value: None, errors.append)
    failing.fail(KafkaError(ErrorCode.NOT_COORDINATOR, "elsewhere"))
    assert len(errors) == 1 and requests(metrics)["Heartbeat", "NOT_COORDINATOR"] == 1
    given_up: Deferred[HeartbeatResponse] = Deferred()
    cancelled: list[bool] = []
    given_up.on_cancel = lambda: cancelled.append(True)
    ask(metrics, HEARTBEAT, given_up).cancel()
    assert cancelled == [True]
    assert sum(requests(metrics).values()) == 1


# Bytes --------------------------------------------------------------------------------------------


def test_bytes_out_by_topic() -> None:
    """By name and by id, to one series; topics that are none have none, and are forgotten."""
    metrics = RequestMetrics()
    for topic in (
        FetchableTopicResponse(topic="t", partitions=[PartitionData(records=b"12345")]),
        FetchableTopicResponse(topic_id=b"T" * 16, partitions=[PartitionData(records=b"678")]),
        FetchableTopicResponse(topic="gone", partitions=[PartitionData(records=b"9")]),
        FetchableTopicResponse(topic="t", partitions=[PartitionData(error_code=6)]),
    ):
        ask(metrics, FETCH, FetchResponse(responses=[topic]))
    assert counted(metrics)[b.BYTES_OUT.name] == {("t",): 8}
    assert "gone" not in metrics.bytes_out
    assert requests(metrics) == {("Fetch", "NONE"): 3, ("Fetch", "NOT_LEADER_OR_FOLLOWER"): 1}
