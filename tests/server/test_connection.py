"""A connection by itself: turns, holding, failures of handlers, and how it ends."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_wire import LIMITS, FakeWire, open_broker, run
from victim import api_versions, fetch_request, request

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.handlers.registry import ROUTES
from anabranch.handlers.route import Handler, Route, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.server import connection as connection_module
from anabranch.server.dispatch import Dispatch
from anabranch.server.listener import Listener
from anabranch.wire.messages.api_versions import API_VERSIONS
from anabranch.wire.messages.describe_cluster import DESCRIBE_CLUSTER, DescribeClusterRequest
from anabranch.wire.messages.fetch import FETCH, FetchResponse
from anabranch.wire.messages.metadata import METADATA, MetadataRequest
from anabranch.wire.messages.produce import PRODUCE
from anabranch.wire.primitives import DecodeError
from support.raw_client import batch_of, produce_request

IDLE_MAX_S = 600.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with open_broker(tmp_path) as broker:
        broker.create_topic("topic", 1)
        yield broker


def _wire(broker: Broker, *routes: Route, listener: Listener | None = None) -> FakeWire:
    """A connection to a broker, some of whose routes are replaced."""
    served = ROUTES | {route.api.key: route for route in routes}
    dispatch = Dispatch(broker, served)
    return FakeWire(listener or Listener("PLAINTEXT", dispatch, LIMITS), dispatch)


def _raises(error: Exception) -> Handler:
    def handle(broker: Broker, context: Any, request: Any) -> Any:
        raise error

    return handle


def _cluster_request(correlation_id: int = 1) -> bytes:
    return request(DESCRIBE_CLUSTER, 0, DescribeClusterRequest(), correlation_id)


# Turns and pauses


def test_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run of requests is handled in turns, so that other connections come in between."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(connection_module.time, "monotonic", lambda: next(ticks) / 1000)

    async def work() -> None:
        wire = _wire(broker)
        wire.feed(b"".join(api_versions(i) for i in range(1000)))
        assert 1 < len(wire.ids()) < 50
        await wire.settle()
        assert wire.ids() == list(range(1000))

    run(work)


def test_unread_answers_pause_reading(broker: Broker) -> None:
    """Nothing is handled while the client does not read; all of it is when it does."""

    async def work() -> None:
        wire = _wire(broker)
        wire.transport.keeps_back = True
        wire.feed(b"".join(api_versions(i) for i in range(20_000)))
        await wire.settle()
        assert not wire.transport.reads
        assert 1024 * 1024 < wire.transport.unsent_bytes < 3 * 1024 * 1024
        wire.transport.take_all()
        await wire.settle()
        assert wire.ids() == list(range(20_000))
        assert wire.transport.reads

    run(work)


def test_hold_outlasts_a_pause(broker: Broker) -> None:
    """Reading that the listener holds stays held when the client reads again."""

    async def work() -> None:
        wire = _wire(broker)
        wire.transport.keeps_back = True
        wire.feed(b"".join(api_versions(i) for i in range(20_000)))
        await wire.settle()
        wire.connection.hold_reading(True)
        wire.transport.take_all()
        await wire.settle()
        assert not wire.transport.reads
        wire.connection.hold_reading(False)
        await wire.settle()
        assert wire.ids() == list(range(20_000))

    run(work)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 1000])
def test_pieces(broker: Broker, piece_bytes: int) -> None:
    """Requests are put together whatever pieces they come in."""

    async def work() -> None:
        wire = _wire(broker)
        wire.feed(b"".join(api_versions(i) for i in range(50)), piece_bytes)
        assert wire.ids() == list(range(50))

    run(work)


# Handlers that fail


def test_failing_handler(broker: Broker, events: Any) -> None:
    """A handler that breaks is answered with UNKNOWN_SERVER_ERROR, and the log says where."""

    async def work() -> None:
        wire = _wire(broker, route(DESCRIBE_CLUSTER, "0-2", _raises(ZeroDivisionError("oops"))))
        wire.feed(_cluster_request(5) + api_versions(6))
        answer = DESCRIBE_CLUSTER.decode_response(0)(memoryview(wire.responses()[0]), 5)[0]
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert wire.ids() == [5, 6]

    run(work)
    ((name, fields),) = events.all
    assert name == "handler.failed"
    assert "oops" in fields["error"]
    assert "test_connection.py" in fields["calls"]


def test_handler_with_a_kafka_error(broker: Broker, events: Any) -> None:
    """An error that a handler let through keeps its code and is no failure of the broker."""
    error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "full")

    async def work() -> None:
        wire = _wire(broker, route(DESCRIBE_CLUSTER, "0-2", _raises(error)))
        wire.feed(_cluster_request())
        answer = DESCRIBE_CLUSTER.decode_response(0)(memoryview(wire.responses()[0]), 5)[0]
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    run(work)
    assert events.all == []


@pytest.mark.parametrize("version", [4, 6, 7])
def test_failing_handler_that_cannot_say_so(broker: Broker, events: Any, version: int) -> None:
    """A version whose answer has no error code ends the connection, not in an empty success."""

    async def work() -> None:
        wire = _wire(broker, route(FETCH, "4-18", _raises(ZeroDivisionError("oops"))))
        message = FETCH.decode_request(11)(memoryview(fetch_request("topic"))[4 + 8 + 9 :], 0)[0]
        wire.feed(request(FETCH, version, message))
        if version < 7:
            assert not wire.responses()
            assert not wire.transport.is_open
        else:
            answer = FETCH.decode_response(version)(memoryview(wire.responses()[0]), 4)[0]
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    run(work)
    assert events.names[0] == "handler.failed"
    assert events.reasons == (["Fetch failed: oops"] if version < 7 else [])


def test_deferred_that_fails(broker: Broker, events: Any) -> None:
    """A parked request that cannot be answered gets an error, and those behind it their answers."""
    deferred: Deferred[FetchResponse] = Deferred()

    async def work() -> None:
        wire = _wire(broker, route(FETCH, "4-18", lambda *_: deferred))
        wire.feed(fetch_request("topic", correlation_id=1) + api_versions(2))
        assert wire.ids() == []
        deferred.fail(ZeroDivisionError("oops"))
        assert wire.ids() == [1, 2]
        answer = FETCH.decode_response(11)(memoryview(wire.responses()[0]), 4)[0]
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    run(work)
    assert events.names == ["handler.failed"]


def test_unreadable_log_under_a_parked_fetch(
    broker: Broker, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails under a parked fetch costs neither the producer nor the other fetches."""

    async def work() -> None:
        first, second, producer = _wire(broker), _wire(broker), _wire(broker)
        for wire in (first, second):
            wire.feed(fetch_request("topic", max_wait_ms=60_000))
        log = broker.topics.partition("topic", 0).log
        good_read = log.read
        answers = iter([OSError("the disk is gone")])

        def read(*args: Any, **keywords: Any) -> memoryview:
            for error in answers:
                raise error
            return good_read(*args, **keywords)

        monkeypatch.setattr(log, "read", read)
        _append(broker, producer)
        assert producer.ids() == [9]
        assert first.ids() == second.ids() == [1]
        answer = FETCH.decode_response(11)(memoryview(first.responses()[0]), 4)[0]
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        for wire in (first, second, producer):
            wire.lose()

    run(work)
    assert events.names == ["handler.failed"]


def _append(broker: Broker, wire: FakeWire) -> None:

    wire.feed(request(PRODUCE, 9, produce_request("topic", 0, batch_of([b"value"])), 9))


def test_unencodable_answer(broker: Broker, events: Any) -> None:
    """An answer that its version cannot carry ends the connection and is reported."""

    async def work() -> None:
        wire = _wire(broker, route(DESCRIBE_CLUSTER, "0-2", lambda *_: FetchResponse()))
        wire.feed(_cluster_request())
        assert not wire.responses()
        assert not wire.transport.is_open

    run(work)
    assert events.names == ["response.unencodable", "connection.closed"]


def test_bug_in_a_codec(broker: Broker, events: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw ends its connection with a line, and nothing else."""

    def decode(buf: memoryview, pos: int) -> Any:
        raise TypeError("a bug")

    monkeypatch.setattr(type(DESCRIBE_CLUSTER), "decode_request", lambda self, version: decode)

    async def work() -> None:
        wire = _wire(broker)
        wire.feed(_cluster_request() + _cluster_request())
        assert not wire.transport.is_open

    run(work)
    assert events.names == ["connection.failed", "connection.closed"]
    assert events.reasons == ["the broker failed while handling its requests"]


def test_decode_error(broker: Broker, events: Any) -> None:
    """Bytes that are not the request they claim to be end the connection; the rest is ignored."""

    async def work() -> None:
        wire = _wire(broker)
        bad = request(METADATA, 12, MetadataRequest(topics=None))[:-3]
        bad = struct.pack(">i", len(bad) - 4) + bad[4:]
        wire.feed(api_versions(1) + bad + api_versions(2))
        assert wire.ids() == [1]
        assert not wire.transport.is_open

    run(work)
    assert len(events.reasons) == 1
    assert DecodeError.__name__ not in events.reasons[0]


# The end


def test_idle(broker: Broker, events: Any) -> None:
    """Silence beyond the limit ends a connection; a limit of 0 is none."""

    async def work() -> None:
        wire = _wire(broker)
        start_s = wire.connection.last_active_s
        wire.connection.sweep(start_s + 10**6, 0)
        wire.connection.sweep(start_s + IDLE_MAX_S - 1, IDLE_MAX_S)
        assert wire.transport.is_open
        wire.connection.sweep(start_s + IDLE_MAX_S + 1, IDLE_MAX_S)
        assert not wire.transport.is_open

    run(work)
    assert events.reasons == ["it was silent for 601 s (connections.max.idle.ms)"]


def test_parked_is_not_idle(broker: Broker, events: Any) -> None:
    """A parked fetch keeps its connection, and the answer counts as a sign of life."""

    async def work() -> None:
        wire = _wire(broker)
        listener = wire.connection._listener
        wire.feed(fetch_request("topic", max_wait_ms=2**31 - 1))
        listener.clock_s += 10**6
        wire.connection.sweep(listener.clock_s, IDLE_MAX_S)
        assert wire.transport.is_open
        broker.purgatory.finish_all(broker.topics.get("topic").partitions)
        wire.connection.sweep(listener.clock_s + 1, IDLE_MAX_S)
        assert wire.transport.is_open

    run(work)
    assert events.reasons == []


def test_half_closed_and_gone(broker: Broker, events: Any) -> None:
    """A half-closed connection whose answer never comes is not kept for ever."""

    async def work() -> None:
        wire = _wire(broker)
        wire.feed(fetch_request("topic", max_wait_ms=2**31 - 1))
        assert wire.connection.eof_received()
        wire.connection.sweep(wire.connection.last_active_s + IDLE_MAX_S + 1, IDLE_MAX_S)
        assert not wire.transport.is_open
        wire.lose()
        assert not broker.topics.partition("topic", 0).parked_fetches

    run(work)
    assert len(events.reasons) == 1


def test_closing_does_not_wait_for_ever(broker: Broker) -> None:
    """A client that never reads its last answers is dropped; one that reads slowly is not."""

    async def work() -> None:
        wire = _wire(broker)
        wire.transport.keeps_back = True
        wire.feed(api_versions() + struct.pack(">i", -1))
        assert not wire.transport.is_open
        now_s = wire.connection.last_active_s
        for _ in range(10):
            now_s += 3
            wire.transport.unsent_bytes -= 1
            wire.connection.sweep(now_s, IDLE_MAX_S)
        assert not wire.transport.was_aborted
        wire.connection.sweep(now_s + 4, IDLE_MAX_S)
        assert not wire.transport.was_aborted
        wire.connection.sweep(now_s + 6, IDLE_MAX_S)
        assert wire.transport.was_aborted

    run(work)


def test_slow_reader_is_not_idle(broker: Broker, events: Any) -> None:
    """A client that takes long to read a large answer is not closed for its silence."""

    async def work() -> None:
        wire = _wire(broker)
        wire.transport.keeps_back = True
        wire.feed(api_versions())
        now_s = wire.connection.last_active_s
        for _ in range(10):
            now_s += IDLE_MAX_S * 0.9
            wire.transport.unsent_bytes -= 1
            wire.connection.sweep(now_s, IDLE_MAX_S)
        assert wire.transport.is_open

    run(work)
    assert events.reasons == []


def test_finish(broker: Broker) -> None:
    """An orderly end reads no more, but answers what waits before it closes."""

    async def work() -> None:
        wire, idle = _wire(broker), _wire(broker)
        wire.feed(fetch_request("topic", max_wait_ms=60_000) + api_versions(2))
        for each in (wire, idle):
            each.connection.finish()
        assert not idle.transport.is_open
        assert wire.transport.is_open and not wire.transport.reads
        broker.purgatory.finish_all(broker.topics.get("topic").partitions)
        assert wire.ids() == [1, 2]
        assert not wire.transport.is_open

    run(work)


def test_lost_with_parked_requests(broker: Broker) -> None:
    """A connection that is lost takes its parked requests with it; late answers go nowhere."""
    late: Deferred[FetchResponse] = Deferred()

    async def work() -> None:
        wire = _wire(broker, route(FETCH, "4-18", lambda *_: late))
        cancelled = []
        late.on_cancel = lambda: cancelled.append(True)
        wire.feed(fetch_request("topic"))
        wire.lose()
        assert cancelled == [True]
        late.complete(FetchResponse())
        assert wire.transport.sent == b""

    run(work)


# Dispatch and listener


def test_newer_clients_share_one_answer(broker: Broker) -> None:
    """Unknown versions of ApiVersions leave nothing behind in the dispatch table."""
    dispatch = Dispatch(broker)
    made = {id(dispatch.prepare(API_VERSIONS.key, version)) for version in range(6, 32768)}
    assert len(made) == 1
    assert not dispatch._prepared


def test_listener_gives_up_deaf_clients(broker: Broker, events: Any) -> None:
    """A listener that closes drops connections that do not take their answers in time."""

    async def work() -> None:
        dispatch = Dispatch(broker)
        listener = Listener("PLAINTEXT", dispatch, LIMITS)
        deaf = FakeWire(listener, dispatch)
        deaf.feed(fetch_request("topic", max_wait_ms=60_000))
        listener.close()
        await listener.wait_closed(0.02)
        assert deaf.transport.was_aborted
        deaf.lose()
        assert listener.connection_count == 0

    run(work)
    assert events.names == ["listener.abandoned"]
