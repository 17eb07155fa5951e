"""The command line's own connection: brokers that are older, odd, or gone."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from anabranch.cli.errors import CliError
from anabranch.cli.raw_client import RawClient
from anabranch.wire.messages.api_versions import API_VERSIONS, ApiVersion, ApiVersionsResponse
from anabranch.wire.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from support.broker_process import BrokerProcess

Reply = Callable[[int, bytes], bytes]


@pytest.fixture
def answering() -> Iterator[Callable[[Reply], tuple[str, int]]]:
    """A broker that answers its requests, in their order, with what a function makes of them."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(reply: Reply) -> tuple[str, int]:
        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(ConnectionError):
                number = 0
                while size := connection.recv(4, socket.MSG_WAITALL):
                    frame = connection.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL)
                    answer = reply(number, frame[4:8])
                    if not answer:
                        return
                    connection.sendall(answer)
                    number += 1

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return listening.getsockname()

    yield start
    listening.close()
    for thread in threads:
        thread.join(10)


def framed(correlation_id: bytes, body: bytes) -> bytes:
    return struct.pack(">i", len(body) + 4) + correlation_id + body


def versions(*ranges: tuple[int, int, int]) -> bytes:
    served = [ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in ranges]
    return b"".join(API_VERSIONS.encode_response(0)(ApiVersionsResponse(api_keys=served)))


def test_the_newest_version_that_both_know(shared_broker: BrokerProcess) -> None:
    """A question that the broker can answer is answered."""
    host, _, port = shared_broker.bootstrap.rpartition(":")
    with RawClient(host, int(port), 10) as client:
        assert client.send(LIST_GROUPS, ListGroupsRequest()).groups == []


@pytest.mark.parametrize("served", [[], [(16, 0, 3)], [(16, 6, 9)]])
def test_a_broker_without_that_version(
    answering: Callable, served: list[tuple[int, int, int]]
) -> None:
    """There is no answer where no version is both served and good enough."""
    address = answering(lambda number, correlation_id: framed(correlation_id, versions(*served)))
    with RawClient(*address, 10) as client:
        assert client.send(LIST_GROUPS, ListGroupsRequest(), 4) is None


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (lambda number, correlation_id: b"", "ended in the middle"),
        (lambda number, correlation_id: b"HTTP/1.1 400 Bad Request\r\n", "none of Kafka's"),
        (lambda number, correlation_id: framed(b"\0\0\0\x63", versions()), "another request"),
        (lambda number, correlation_id: framed(correlation_id, b"\0"), "."),
    ],
)
def test_answers_that_make_no_sense(answering: Callable, reply: Reply, why: str) -> None:
    """They end in one sentence that names the place."""
    host, port = answering(reply)
    with pytest.raises(CliError, match=why) as error:
        RawClient(host, port, 10)
    assert f"Cannot ask the broker at {host}:{port} - " in str(error.value)


def test_a_broker_that_goes(answering: Callable) -> None:
    """A connection that ends between two questions is told too."""

    def once(number: int, correlation_id: bytes) -> bytes:
        return b"" if number else framed(correlation_id, versions((16, 0, 5)))

    with RawClient(*answering(once), 10) as client, pytest.raises(CliError, match="ended"):
        client.send(LIST_GROUPS, ListGroupsRequest())


def test_nobody_listens() -> None:
    """A port without a broker is a sentence, not a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(CliError, match="refused"):
        RawClient("127.0.0.1", port, 5)
