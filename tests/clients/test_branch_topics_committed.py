"""Stock clients that read committed records of branch topics: together what the source has."""

import random
from typing import Any

import pytest
from confluent_kafka import Producer

from support.branch_topics import branch_of_key, create_branched
from support.broker_process import BrokerProcess
from support.transactional_clients import CLIENTS, TIMEOUT_S

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
RANGES = 3
KEYS = [b"key-%d" % number for number in range(25)]


def new_producer(bootstrap: str, **more: Any) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0, **more})


def write(bootstrap: str, topic: str) -> tuple[list[bytes], list[bytes]]:
    """Transactions and plain records across each other; the values committed, and all."""
    chance = random.Random(3)
    plain = new_producer(bootstrap)
    writers = [new_producer(bootstrap, **{"transactional.id": f"{topic}-{i}"}) for i in range(3)]
    for writer in writers:
        writer.init_transactions(TIMEOUT_S)
    pending: dict[Producer, list[bytes]] = {}
    fates: dict[bytes, bool] = {}
    everything: list[bytes] = []

    def end(writer: Producer, *, is_commit: bool) -> None:
        fates.update(dict.fromkeys(pending.pop(writer), is_commit))
        (writer.commit_transaction if is_commit else writer.abort_transaction)(TIMEOUT_S)

    for _ in range(150):
        writer = chance.choice([plain, *writers])
        if writer in pending and chance.random() < 0.3:
            end(writer, is_commit=chance.random() < 0.5)
            continue
        if writer is not plain and writer not in pending:
            writer.begin_transaction()
            pending[writer] = []
        for _ in range(chance.randint(1, 6)):
            key = chance.choice(KEYS)
            value = b"%d %s" % (len(everything), key)
            everything.append(value)
            if writer is plain:
                fates[value] = True
            else:
                pending[writer].append(value)
            writer.produce(topic, value, key)
        # What is sent next comes after it in the log.
        assert writer.flush(TIMEOUT_S) == 0
    for number, writer in enumerate(list(pending)):
        end(writer, is_commit=number == 0)
    return [value for value in everything if fates[value]], everything


@pytest.mark.parametrize("client", CLIENTS)
def test_the_branches_together(shared_broker: BrokerProcess, client: str, topic: str) -> None:
    """No aborted record, no committed one missing or twice, each branch in order."""
    bootstrap = shared_broker.bootstrap
    branched = create_branched(bootstrap, topic, RANGES)
    committed, everything = write(bootstrap, topic)
    assert 0 < len(committed) < len(everything)
    read = CLIENTS[client].read
    assert read(bootstrap, topic, COMMITTED, 0) == committed
    for isolation, expected in ((COMMITTED, committed), (UNCOMMITTED, everything)):
        for branch in range(RANGES):
            mine = [v for v in expected if branch_of_key(v.split()[1], RANGES) == branch]
            assert read(bootstrap, branched, isolation, branch) == mine
