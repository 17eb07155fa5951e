"""kcat against the broker: it lists, produces, and consumes from offsets and the tail.

kcat is the client that people reach for in a shell, and it is built on an older librdkafka.
"""

import json
import shutil
import subprocess

import pytest

from support.broker_process import BrokerProcess
from support.confluent_client import ConfluentKafka
from support.stock_clients import CODECS, EARLIEST, ToSend
from support.topics import create_topic

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(broker: BrokerProcess, *arguments: str, stdin: str = "") -> str:
    """Run it to its end and return what it printed."""
    command = [str(KCAT), "-b", broker.bootstrap, *arguments]
    ended = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def consume(broker: BrokerProcess, topic: str, *arguments: str) -> list[str]:
    """Consume partition 0 up to its end; one line for each record."""
    quiet = ("-C", "-t", topic, "-p", "0", "-e", "-q", "-X", "fetch.wait.max.ms=50")
    return kcat(broker, *quiet, *arguments).splitlines()


def test_it_lists_topics(shared_broker: BrokerProcess, topic: str) -> None:
    """-L shows the broker, the topic and its partitions with leader and replicas."""
    create_topic(shared_broker.bootstrap, topic, 3)
    listed = json.loads(kcat(shared_broker, "-L", "-J"))
    assert [broker["name"] for broker in listed["brokers"]] == [shared_broker.bootstrap]
    (found,) = [row for row in listed["topics"] if row["topic"] == topic]
    node = listed["brokers"][0]["id"]
    assert [(p["partition"], p["leader"], p["replicas"]) for p in found["partitions"]] == [
        (i, node, [{"id": node}]) for i in range(3)
    ]
    assert f'topic "{topic}" with 3 partitions' in kcat(shared_broker, "-L", "-t", topic)


@pytest.mark.parametrize("codec", CODECS)
def test_it_produces_and_consumes_with_every_codec(
    shared_broker: BrokerProcess, topic: str, codec: str
) -> None:
    """Keys, headers and values come back, to kcat and to another client."""
    lines = [f"key{i}:value {i} {'x' * 500}" for i in range(100)]
    kcat(
        shared_broker, "-P", "-t", topic, "-p", "0", "-K:", "-z", codec, "-H", "name=some",
        "-X", "enable.idempotence=true",
        stdin="\n".join(lines) + "\n",
    )  # fmt: skip
    assert consume(shared_broker, topic, "-o", "beginning", "-K:") == lines
    with ConfluentKafka().consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
        first = consumer.take(100)[0]
    assert (first.key, first.headers) == (b"key0", (("name", b"some"),))


def test_it_consumes_from_offsets_and_the_tail(shared_broker: BrokerProcess, topic: str) -> None:
    """-o takes the beginning, an offset, a distance from the end, the end, and a time."""
    start_ms = 1_700_000_000_000
    with ConfluentKafka().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, [ToSend(b"%d" % i, timestamp_ms=start_ms + i) for i in range(50)])
    numbers = [str(i) for i in range(50)]
    assert consume(shared_broker, topic, "-o", "beginning") == numbers
    assert consume(shared_broker, topic, "-o", "17") == numbers[17:]
    assert consume(shared_broker, topic, "-o", "-5") == numbers[-5:]
    assert consume(shared_broker, topic, "-o", "end") == []
    assert consume(shared_broker, topic, "-o", f"s@{start_ms + 40}") == numbers[40:]
    until = ("-o", f"s@{start_ms + 10}", "-o", f"e@{start_ms + 20}")
    assert consume(shared_broker, topic, *until) == numbers[10:20]


def test_it_finds_offsets_by_time(shared_broker: BrokerProcess, topic: str) -> None:
    """-Q answers with the first offset at or after a time."""
    start_ms = 1_700_000_000_000
    with ConfluentKafka().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, [ToSend(b"v", timestamp_ms=start_ms + 10 * i) for i in range(10)])
    assert f"{topic} [0] offset 4" in kcat(shared_broker, "-Q", "-t", f"{topic}:0:{start_ms + 35}")


def test_it_tails_while_records_are_written(shared_broker: BrokerProcess, topic: str) -> None:
    """A running kcat prints each record as it is produced."""
    with ConfluentKafka().producer(shared_broker.bootstrap) as producer:
        producer.send(topic, [ToSend(b"old")])
        tail = subprocess.Popen(
            [str(KCAT), "-b", shared_broker.bootstrap, "-C", "-u", "-q", "-t", topic, "-o", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert tail.stdout is not None
            assert tail.stdout.readline() == "old\n"
            for i in range(5):
                producer.send(topic, [ToSend(b"new %d" % i)])
                assert tail.stdout.readline() == f"new {i}\n"
        finally:
            tail.kill()
            tail.communicate()
