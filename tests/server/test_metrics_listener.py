"""Metrics over HTTP, from a broker that runs."""

import asyncio
import http.client
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from anabranch.broker.broker import Broker
from anabranch.broker.health import health, readiness
from anabranch.config.load import load_settings
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe.table import ALL_METRICS
from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
)
from support.raw_client import RawClient, batch_of
from support.topics import create_topic


class Scraped:
    """A broker with metrics, started as users start it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "anabranch.cli", "serve"),
                *("--override", f"log.dirs={folder}"),
                *("--override", "listeners=PLAINTEXT://127.0.0.1:0"),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.banner = ""
        while "settings" not in self.banner:
            line = self.process.stdout.readline().decode()  # type: ignore[union-attr]
            assert line, self.process.stderr.read()  # type: ignore[union-attr]
            self.banner += line

    @property
    def bootstrap(self) -> str:
        return re.search(r"PLAINTEXT://(\S+)", self.banner)[1]  # type: ignore[index]

    @property
    def address(self) -> tuple[str, int]:
        host, port = re.search(r"http://(\S+):(\d+)/metrics", self.banner).groups()  # type: ignore[union-attr]
        return host, int(port)

    def ask(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def samples(self) -> dict[tuple[str, ...], float]:
        """All series, by name and the values of their labels."""
        _, _, body = self.ask("GET", "/metrics")
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }

    def close(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("metrics") / "data"
    broker = Scraped(folder, "--override", "metrics.listeners=127.0.0.1:0")
    yield broker
    assert broker.close() == 0


def test_what_is_served(scraped: Scraped) -> None:
    """Every metric of the table and no other, in the text format, with what has happened."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    with RawClient(scraped.bootstrap) as client:
        assert client.send(CONSUMER_GROUP_HEARTBEAT, 1, request).error_code == 0
        status, headers, body = scraped.ask("GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert int(headers["Content-Length"]) == len(body)
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert set(families) == {metric.name.removesuffix("_total") for metric in ALL_METRICS}
    for metric in ALL_METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind.value, metric.documentation)
        # Those of groups and topics come with them.
        comes_later = {"group", "consumergroup", "topic"} & set(metric.labels)
        assert family.samples or comes_later, f"{metric.name} is there from the start"
    samples = families["anabranch_group_rebalances"].samples
    began = [sample.labels for sample in samples if sample.value]
    assert began == [{"protocol": "consumer", "cause": "join"}]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics?name=x", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("POST", "/", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
        ("GET", "/health", 200),
        ("GET", "/ready", 200),
        ("POST", "/ready", 405),
    ],
)
def test_paths_and_methods(scraped: Scraped, method: str, path: str, status: int) -> None:
    """Other paths are not found, other methods not allowed."""
    found, headers, body = scraped.ask(method, path)
    assert found == status
    assert headers["Connection"] == "close"
    if status == 405:
        assert headers["Allow"] == "GET"
    if status != 200:
        assert b"/metrics" in body


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"hello\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /metrics SPDY/3\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 200_000, b"HTTP/1.1 431 "),
    ],
)
def test_what_is_no_request(scraped: Scraped, sent: bytes, answer: bytes) -> None:
    """Bytes of any kind are answered or dropped, and the next scrape is served."""
    with socket.create_connection(scraped.address, 10) as client:
        client.settimeout(60)
        received = b""
        try:
            client.sendall(sent)
            received = client.recv(1000)
        except ConnectionError:
            pass  # it was closed while more was being sent
    assert received.startswith(answer) or not received
    assert scraped.ask("GET", "/metrics")[0] == 200


def test_openmetrics_for_those_who_ask(scraped: Scraped) -> None:
    """Prometheus asks for it."""
    host, port = scraped.address
    request = urllib.request.Request(
        f"http://{host}:{port}/metrics",
        headers={"Accept": "application/openmetrics-text;version=1.0.0"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert "openmetrics" in answer.headers["Content-Type"]
        assert answer.read().endswith(b"# EOF\n")


def test_a_stop_does_not_wait_for_a_silent_scraper(tmp_path: Path) -> None:
    """Who connects and says nothing holds nobody up."""
    broker = Scraped(tmp_path / "data", "--override", "metrics.listeners=127.0.0.1:0")
    with socket.create_connection(broker.address, 10):
        assert broker.close() == 0


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    """The broker does not start without the metrics that it was told to serve."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "anabranch.cli", "serve"),
                *("--override", f"log.dirs={tmp_path / 'data'}"),
                *("--override", "listeners=PLAINTEXT://127.0.0.1:0"),
                *("--override", f"metrics.listeners=127.0.0.1:{port}"),
            ],
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert str(port).encode() in ended.stderr


def test_counts_of_requests(scraped: Scraped) -> None:
    """By API and error, with the time that they took; bytes by topic, gone with the topic."""
    topic = f"counted-{uuid.uuid4().hex}"
    before = scraped.samples()
    batch = batch_of([b"v" * 100])
    create_topic(scraped.bootstrap, topic)
    with RawClient(scraped.bootstrap) as client:
        client.produce(topic, 0, batch)
        client.produce("no-such-topic", 7, batch)
        client.fetch(topic, 0, 0)
        after = scraped.samples()
        client.delete_topic(topic)
    gone = scraped.samples()

    def grown(*key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    assert grown("anabranch_requests_total", "Produce", "NONE") == 1
    assert grown("anabranch_requests_total", "Produce", "UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert grown("anabranch_request_duration_seconds_count", "Produce") == 2
    assert grown("anabranch_request_local_duration_seconds_count", "Fetch") == 1
    assert after["anabranch_bytes_in_total", topic] == len(batch)
    assert after["anabranch_bytes_out_total", topic] == len(batch)
    assert after["anabranch_messages_in_total", topic] == 1
    assert after["anabranch_connections", "PLAINTEXT"] >= 1
    assert not [key for key in after if "no-such-topic" in key]
    assert not [key for key in gone if topic in key]


def test_not_ready_while_a_disk_is_full_or_a_coordinator_is_down(tmp_path: Path) -> None:
    """`/ready` says why, `/health` stays well: a restart would not help."""

    async def ask() -> None:
        broker = Broker(load_settings(environ={}, overrides=[f"log.dirs={tmp_path / 'data'}"]))
        try:
            assert (await readiness(broker)).text == "No listener is bound yet.\n"
            broker.set_endpoint("PLAINTEXT", "localhost", 9092)
            assert (await readiness(broker)).is_ok
            assert not list((tmp_path / "data").glob("tmp*"))
            topic = broker.create_topic("t", 1)
            topic.partitions[0].log.failed = "syncing to disk failed (no)"
            broker.groups.offsets_partition("g")
            broker.groups._drivers[0].refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "it broke.")
            (tmp_path / "data").rename(tmp_path / "elsewhere")
            problems = (await readiness(broker)).problems
            assert [problem.partition(":")[0] for problem in problems] == [
                "A coordinator cannot serve",
                "The log t-0 takes no records",
                f"{tmp_path / 'data'} cannot be written to",
            ]
            assert health(broker).is_ok
            topic.partitions[0].log.failed = None
            (tmp_path / "elsewhere").rename(tmp_path / "data")
        finally:
            broker.groups.stop()
            broker.close()
        assert not health(broker).is_ok and not (await readiness(broker)).is_ok

    asyncio.run(ask())


def test_lag_and_members_are_those_of_the_clients(scraped: Scraped) -> None:
    """Ends, commits, lag and members, beside a stock consumer that commits and goes."""
    topic, group = f"read-{uuid.uuid4().hex}", f"readers-{uuid.uuid4().hex}"
    create_topic(scraped.bootstrap, topic, 2)
    producer = Producer({"bootstrap.servers": scraped.bootstrap})
    for number in range(30):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    assert producer.flush(120) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": scraped.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    messages: list[Message] = []
    while len(messages) < 30:
        messages += consumer.consume(30, 1.0)
    committed = [TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 15)]
    consumer.commit(offsets=committed, asynchronous=False)
    found = scraped.samples()
    for place in committed:
        number = str(place.partition)
        _, end = consumer.get_watermark_offsets(place, cached=False, timeout=120)
        assert found["kafka_topic_partition_current_offset", topic, number] == end == 15
        assert found["kafka_consumergroup_current_offset", group, topic, number] == place.offset
        assert found["kafka_consumergroup_lag", group, topic, number] == end - place.offset
    assert found["kafka_consumergroup_lag_sum", group, topic] == 5
    assert found["kafka_consumergroup_members", group] == 1
    assert found["anabranch_group_lag_seconds", group] > 0
    assert found["anabranch_messages_in_total", topic] == 30
    assert found["anabranch_bytes_out_total", topic] > sum(len(m.value()) for m in messages)
    consumer.close()
    after = scraped.samples()
    assert after["kafka_consumergroup_members", group] == 0
    assert after["kafka_consumergroup_lag_sum", group, topic] == 5
    assert after["anabranch_group_lag_seconds", group] > found["anabranch_group_lag_seconds", group]
