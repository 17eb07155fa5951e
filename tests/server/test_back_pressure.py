"""Clients that send much, read little, or leave: order is kept, memory is bounded, others go on."""

import os
import struct
from collections.abc import Iterator

import pytest
from victim import Victim, api_versions, fetch_request, request

from anabranch.wire.messages.fetch import FETCH, FetchResponse
from anabranch.wire.messages.metadata import METADATA, MetadataRequest
from support.broker_process import BrokerProcess
from support.raw_client import batch_of

MB = 1024 * 1024

# Topics whose metadata is 15 KB for a request of 40 bytes.
LONG_NAMES = [f"{i:03d}-{'x' * 200}" for i in range(60)]
# Without uvloop a response is copied before it is sent, so an unread one is in memory once.
MEMORY_MAX_BYTES = {"uvloop": 16 * MB, "asyncio": 100 * MB}


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def loop_name(request: pytest.FixtureRequest) -> str:
    """Both event loops that the broker runs on."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def attacked_broker(
    loop_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """One broker for all tests of the module and each event loop."""
    folder = tmp_path_factory.mktemp(loop_name)
    with pytest.MonkeyPatch.context() as patch:
        if loop_name == "asyncio":
            (folder / "uvloop.py").write_text("raise ImportError('not installed')")
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        broker = BrokerProcess(folder / "data", {"socket.request.max.bytes": str(2 * MB)})
        broker.start()
        yield broker
        assert broker.stop() == 0


def _fill_topic(victim: Victim, topic: str, size_bytes: int) -> None:
    """Write batches of half a megabyte."""
    batch = batch_of([bytes(64 * 1024)] * 8)
    with victim.client() as client:
        client.metadata(topic, auto_create=True)
        for _ in range(size_bytes // len(batch) + 1):
            assert client.produce(topic, 0, batch).error_code == 0


def _records_of(response: memoryview) -> bytes:
    decoded: FetchResponse = FETCH.decode_response(11)(response, 4)[0]
    return bytes(decoded.responses[0].partitions[0].records or b"")


def _wake(victim: Victim, topic: str) -> None:
    with victim.client() as client:
        assert client.produce(topic, 0, batch_of([b"wake up"])).error_code == 0


def _make_topic(victim: Victim, topic: str) -> None:
    with victim.client() as client:
        client.metadata(topic, auto_create=True)


# Order


def test_thousands_of_requests_at_once(victim: Victim) -> None:
    """Five thousand requests in one send are all answered, in order."""
    attacker = victim.connect()
    attacker.send(b"".join(api_versions(i) for i in range(5000)))
    assert [attacker.receive_id() for _ in range(5000)] == list(range(5000))


def test_parked_fetch_in_the_middle(victim: Victim) -> None:
    """Requests behind a parked fetch are answered after it, however many there are."""
    _make_topic(victim, "middle")
    attacker = victim.connect()
    parked = fetch_request("middle", max_wait_ms=60_000, correlation_id=100)
    before = b"".join(api_versions(i) for i in range(100))
    after = b"".join(api_versions(i) for i in range(101, 3000))
    attacker.send(before + parked + after)
    assert [attacker.receive_id() for _ in range(100)] == list(range(100))
    attacker.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        attacker.receive_id()
    attacker.socket.settimeout(60)
    _wake(victim, "middle")
    response = attacker.receive()
    assert struct.unpack_from(">i", response) == (100,)
    assert b"wake up" in _records_of(response)
    assert [attacker.receive_id() for _ in range(2899)] == list(range(101, 3000))


def test_many_parked_fetches(victim: Victim) -> None:
    """More parked fetches than one connection may have wait their turn; all are answered."""
    _make_topic(victim, "parked")
    attacker = victim.connect()
    parked = [
        fetch_request("parked", max_wait_ms=60_000, correlation_id=i, offset=0) for i in range(2500)
    ]
    attacker.send(b"".join(parked))
    _wake(victim, "parked")
    assert [attacker.receive_id() for _ in range(2500)] == list(range(2500))


def test_fetches_answered_out_of_order(victim: Victim) -> None:
    """A fetch that is ready before an older one waits for it."""
    _make_topic(victim, "first")
    _make_topic(victim, "second")
    attacker = victim.connect()
    attacker.send(
        fetch_request("first", max_wait_ms=60_000, correlation_id=1)
        + fetch_request("second", max_wait_ms=60_000, correlation_id=2)
    )
    _wake(victim, "second")
    attacker.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        attacker.receive_id()
    attacker.socket.settimeout(60)
    _wake(victim, "first")
    assert [attacker.receive_id(), attacker.receive_id()] == [1, 2]


# Slow and absent readers


def test_client_that_never_reads(victim: Victim, loop_name: str) -> None:
    """Fetches of 200 MB that nobody reads cost no memory, and others are served meanwhile."""
    _fill_topic(victim, "large", 8 * MB)
    victim.check_serves()
    before = victim.rss_bytes()
    attackers = [victim.connect(receive_buffer_bytes=4096) for _ in range(5)]
    for attacker in attackers:
        attacker.send(b"".join(fetch_request("large", correlation_id=i) for i in range(200)))
    for _ in range(5):
        victim.check_serves()
    assert victim.rss_bytes() - before < MEMORY_MAX_BYTES[loop_name]
    for i in range(3):  # it was not the client that was given up
        assert attackers[0].receive_id() == i


def test_large_answers_that_nobody_reads(victim: Victim) -> None:
    """The same for answers that the broker has to build: 2000 times the metadata of all topics."""
    with victim.client() as client:
        client.metadata(*LONG_NAMES, auto_create=True)
    victim.check_serves()
    before = victim.rss_bytes()
    attackers = [victim.connect(receive_buffer_bytes=4096) for _ in range(4)]
    everything = b"".join(
        request(METADATA, 12, MetadataRequest(topics=None), i) for i in range(2000)
    )
    for attacker in attackers:
        attacker.send(everything)
    victim.check_serves()
    assert victim.rss_bytes() - before < 32 * MB


def test_large_answers_behind_a_parked_fetch(victim: Victim) -> None:
    """Answers that have to wait for an older one are not piled up without bound either."""
    _make_topic(victim, "dam")
    with victim.client() as client:
        client.metadata(*LONG_NAMES, auto_create=True)
    victim.check_serves()
    before = victim.rss_bytes()
    attackers = [victim.connect() for _ in range(4)]
    parked = fetch_request("dam", max_wait_ms=60_000, correlation_id=0)
    many = b"".join(request(METADATA, 12, MetadataRequest(topics=None), i) for i in range(1, 900))
    for attacker in attackers:
        attacker.send(parked + many)
    victim.check_serves()
    assert victim.rss_bytes() - before < 32 * MB
    _wake(victim, "dam")
    assert [attackers[0].receive_id() for _ in range(900)] == list(range(900))


# Clients that leave


def test_half_closed_socket(victim: Victim) -> None:
    """A client that shut its writing side still gets the answer to its parked fetch."""
    _make_topic(victim, "half")
    attacker = victim.connect()
    attacker.send(fetch_request("half", max_wait_ms=60_000) + api_versions(2))
    attacker.shut_writing()
    _wake(victim, "half")
    assert b"wake up" in _records_of(attacker.receive())
    assert attacker.receive_id() == 2
    assert attacker.is_closed_by_broker()


def test_half_closed_with_unread_answers(victim: Victim) -> None:
    """What was asked before the client shut its writing side is sent, however long it reads."""
    _fill_topic(victim, "half-large", 4 * MB)
    attacker = victim.connect(receive_buffer_bytes=4096)
    attacker.send(b"".join(fetch_request("half-large", correlation_id=i) for i in range(20)))
    attacker.shut_writing()
    victim.check_serves()
    assert [attacker.receive_id() for _ in range(20)] == list(range(20))
    assert attacker.is_closed_by_broker()


def test_half_closed_in_a_request(victim: Victim) -> None:
    """Half a request after a parked fetch is noted, and the fetch is answered nevertheless."""
    _make_topic(victim, "half-cut")
    attacker = victim.connect()
    attacker.send(fetch_request("half-cut", max_wait_ms=60_000) + api_versions()[:7])
    attacker.shut_writing()
    victim.expect_closed("the client left in the middle of a request")
    _wake(victim, "half-cut")
    assert attacker.receive_id() == 1
    assert attacker.is_closed_by_broker()


def test_reset_while_responses_are_sent(victim: Victim) -> None:
    """A connection reset under a large response hurts nobody."""
    _fill_topic(victim, "reset", 4 * MB)
    for _ in range(20):
        attacker = victim.connect(receive_buffer_bytes=4096)
        attacker.send(b"".join(fetch_request("reset", correlation_id=i) for i in range(10)))
        attacker.socket.recv(1000)
        attacker.reset()
    victim.check_serves()


def test_leaving_with_a_parked_fetch(victim: Victim) -> None:
    """Parked fetches of clients that left are forgotten, and their partitions are not hurt."""
    _make_topic(victim, "left")
    for i in range(50):
        attacker = victim.connect()
        attacker.send(fetch_request("left", max_wait_ms=60_000))
        if i % 2:
            attacker.close()
        else:
            attacker.reset()
    _wake(victim, "left")
    victim.check_serves("left")


def test_stop_answers_parked_fetches(victim: Victim) -> None:
    """SIGTERM answers who waits, in order, and the broker exits with 0."""
    _make_topic(victim, "stopping")
    waiting = victim.connect()
    waiting.send(fetch_request("stopping", max_wait_ms=60_000, correlation_id=7) + api_versions(8))
    idle = victim.connect()
    victim.check_serves()
    assert victim.broker.stop() == 0
    assert [waiting.receive_id(), waiting.receive_id()] == [7, 8]
    assert waiting.is_closed_by_broker()
    assert idle.is_closed_by_broker()
    assert [e["event"] for e in victim.events] == ["broker.stopping", "broker.stopped"]
    victim.restart()
