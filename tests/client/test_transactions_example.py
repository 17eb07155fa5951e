"""The example of consume, transform, produce: its processes and its broker are killed."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess, wait_until
from support.raw_client import RawClient
from support.topics import create_topic
from support.transactional_clients import Confluent

EXAMPLE = Path(__file__).parents[2] / "examples" / "transactions" / "invoicing.py"
ORDERS = 1500
CUSTOMERS = 40


def start(broker: BrokerProcess, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), "--name", name, "--work-ms", "2"]
    return subprocess.Popen(
        [*command, "--bootstrap-server", broker.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_example(make_broker: Callable[..., BrokerProcess]) -> None:
    """Whatever is killed, there is one invoice for each order, and customers' are in order."""
    broker = make_broker(
        **{
            "group.consumer.session.timeout.ms": "3000",
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.heartbeat.interval.ms": "500",
            "group.consumer.min.heartbeat.interval.ms": "100",
        }
    )
    create_topic(broker.bootstrap, "orders", 1, {"range.fetch.enable": "true"})
    create_topic(broker.bootstrap, "invoices")
    records = [
        Record(number, 0, b"customer-%d" % (number % CUSTOMERS), b"%d" % (100 * number))
        for number in range(ORDERS)
    ]
    with RawClient(broker.bootstrap) as client:
        batch = build_batch(records, base_offset=0, partition_leader_epoch=-1)
        assert client.produce("orders", 0, batch).error_code == 0
    workers = [start(broker, name) for name in ("a", "b")]
    try:
        for round_number in range(3):
            goal = 200 * (round_number + 1)
            assert wait_until(lambda goal=goal: len(invoices(broker)) >= goal, 60, 0.1)
            workers[0].kill()
            workers[0].communicate()
            if round_number == 1:
                broker.kill()
                broker.start()
            workers[0] = start(broker, "a")
        assert wait_until(lambda: len(invoices(broker)) >= ORDERS, 90, 0.2)
        for worker in workers:
            assert worker.stdout is not None
            assert "to do" in worker.stdout.readline(), "it has begun, and hears signals"
            worker.terminate()
        for worker in workers:
            output, errors = worker.communicate(timeout=60)
            assert worker.returncode == 0, errors
            assert re.search(r"handled \d+ orders", output)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    found = invoices(broker)
    offsets = [int(invoice.split()[1].rstrip(b":")) for invoice in found]
    assert sorted(offsets) == list(range(ORDERS))
    for customer in range(CUSTOMERS):
        of_customer = [offset for offset in offsets if offset % CUSTOMERS == customer]
        assert of_customer == sorted(of_customer)
    assert b"order 7: 833 cents" in found


def invoices(broker: BrokerProcess) -> list[bytes]:
    return Confluent.read(broker.bootstrap, "invoices", "read_committed")
