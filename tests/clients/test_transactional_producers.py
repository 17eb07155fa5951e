"""Transactional producers of stock clients: commit, abort, fencing, timeouts, crashes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.broker_process import BrokerProcess
from support.topics import create_topic
from support.transactional_clients import CLIENTS, TransactionError

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

Make = Callable[..., Any]


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> Any:
    return CLIENTS[request.param]


@pytest.fixture
def make(client: Any) -> Iterator[Make]:
    """Make producers that are closed in the end, whatever has become of them."""
    made: list[Any] = []

    def make(*args: Any, **how: Any) -> Any:
        made.append(client(*args, **how))
        return made[-1]

    yield make
    for producer in made:
        with contextlib.suppress(Exception):
            producer.close()


def wait_for(what: Callable[[], bool], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.05)


def test_commit_and_abort(
    shared_broker: BrokerProcess, client: Any, make: Make, topic: str
) -> None:
    """Readers of committed records see what was committed, in order; others see everything."""
    create_topic(shared_broker.bootstrap, topic, 2)
    producer = make(shared_broker.bootstrap, topic)
    committed: dict[int, list[bytes]] = {0: [], 1: []}
    everything: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(8):
        producer.begin()
        for partition in (0, 1):
            values = [b"%d-%d-%d" % (number, partition, i) for i in range(3)]
            producer.send(topic, *values, partition=partition)
            everything[partition] += values
            if number % 3:
                committed[partition] += values
        if number % 3:
            producer.commit()
        else:
            producer.abort()
    for partition in (0, 1):
        read = client.read(shared_broker.bootstrap, topic, COMMITTED, partition)
        assert read == committed[partition]
        read = client.read(shared_broker.bootstrap, topic, UNCOMMITTED, partition)
        assert read == everything[partition]


def test_an_open_transaction_is_not_read(
    shared_broker: BrokerProcess, client: Any, make: Make, topic: str
) -> None:
    """Readers of committed records stop before it, also at what others wrote after it."""
    create_topic(shared_broker.bootstrap, topic, 1)
    slow = make(shared_broker.bootstrap, f"{topic}-slow")
    fast = make(shared_broker.bootstrap, f"{topic}-fast")
    slow.begin()
    slow.send(topic, b"slow")
    fast.begin()
    fast.send(topic, b"fast")
    fast.commit()
    assert client.read(shared_broker.bootstrap, topic, COMMITTED) == []
    slow.commit()
    assert client.read(shared_broker.bootstrap, topic, COMMITTED) == [b"slow", b"fast"]


def test_a_zombie_is_fenced(
    shared_broker: BrokerProcess, client: Any, make: Make, topic: str
) -> None:
    """A second producer of the id aborts what the first has open, and the first commits nothing."""
    create_topic(shared_broker.bootstrap, topic, 1)
    zombie = make(shared_broker.bootstrap, topic)
    zombie.begin()
    zombie.send(topic, b"zombie")
    successor = make(shared_broker.bootstrap, topic)
    with pytest.raises(TransactionError):
        zombie.send(topic, b"late")
        zombie.commit()
    successor.begin()
    successor.send(topic, b"successor")
    successor.commit()
    assert client.read(shared_broker.bootstrap, topic, COMMITTED) == [b"successor"]


def test_time_is_up(shared_broker: BrokerProcess, client: Any, make: Make, topic: str) -> None:
    """A transaction that is left open is aborted by the broker, and does not hold up readers."""
    create_topic(shared_broker.bootstrap, topic, 1)
    slow = make(shared_broker.bootstrap, f"{topic}-slow", timeout_ms=1_000)
    slow.begin()
    slow.send(topic, b"slow")
    fast = make(shared_broker.bootstrap, f"{topic}-fast")
    fast.begin()
    fast.send(topic, b"fast")
    fast.commit()
    wait_for(lambda: client.read(shared_broker.bootstrap, topic, COMMITTED) == [b"fast"])
    with pytest.raises(TransactionError):
        slow.commit()


def test_kill_9(make_broker: Callable[..., BrokerProcess], client: Any, make: Make) -> None:
    """A broker that is killed in the middle of transactions goes on where they were."""
    broker = make_broker()
    create_topic(broker.bootstrap, "t", 1)
    producer = make(broker.bootstrap, "tx")
    expected: list[bytes] = []
    for number in range(2):
        producer.begin()
        producer.send("t", b"%d-before" % number)
        broker.kill()
        broker.start()
        producer.send("t", b"%d-after" % number)
        if number % 2:
            producer.abort()
        else:
            producer.commit()
            expected += [b"%d-before" % number, b"%d-after" % number]
    broker.kill()
    broker.start()
    assert client.read(broker.bootstrap, "t", COMMITTED) == expected
