"""Rows written to a real broker by the sink's producer, and read by another client."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from anabranch.spark import link as links  # noqa: E402
from anabranch.spark import producing  # noqa: E402
from anabranch.spark.errors import BrokerRefusal, LinkError  # noqa: E402
from anabranch.spark.link import link_of  # noqa: E402
from anabranch.spark.producing import (  # noqa: E402
    Producer,
    borrow_producer,
    new_identity,
    return_producer,
)
from anabranch.spark.sink import write_rows  # noqa: E402
from anabranch.spark.sink_options import SinkOptions, parse_sink_options  # noqa: E402
from support.broker_process import BrokerProcess  # noqa: E402
from support.confluent_client import ConfluentKafka  # noqa: E402
from support.raw_client import RawClient  # noqa: E402
from support.stock_clients import EARLIEST, Received  # noqa: E402
from support.topics import create_topic  # noqa: E402

COLUMNS = frozenset({"key", "value", "headers", "partition", "topic"})
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(autouse=True)
def closed_links() -> Iterator[None]:
    """Tasks leave their links and producers to the next task of their process; tests do not."""
    yield
    for left in links._links.values():
        left.close()
    links._links.clear()
    producing._idle.clear()


def options_of(broker: BrokerProcess, **options: str) -> SinkOptions:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return parse_sink_options(
        {"kafka.bootstrap.servers": broker.bootstrap, **named}, is_streaming=True
    )


def producer_of(options: SinkOptions) -> Producer:
    link = link_of(options.link)
    return Producer(link, options.producer, new_identity(link, options.producer))


def rows_of(first: int, count: int) -> Any:
    """Rows whose values are numbers, with ten keys."""
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "key": pa.array([b"key-%d" % (n % 10) for n in numbers], pa.binary()),
            "value": pa.array([b"%d" % n for n in numbers], pa.binary()),
        }
    )


def read(broker: BrokerProcess, topic: str, partitions: int, count: int) -> list[Received]:
    starts = dict.fromkeys(range(partitions), EARLIEST)
    with ConfluentKafka().consumer(broker.bootstrap, topic, starts) as consumer:
        found = consumer.take(count)
        ends = [consumer.offset_range(partition)[1] for partition in range(partitions)]
    assert sum(ends) == count, "there is more than was written"
    return found


def check_numbers(found: list[Received], count: int) -> None:
    """Each number once, and those of a key in order."""
    numbers = [int(one.value or b"") for one in found]
    assert sorted(numbers) == list(range(count))
    for key in range(10):
        of_key = [n for n, one in zip(numbers, found, strict=True) if one.key == b"key-%d" % key]
        assert of_key == sorted(of_key)
        assert len({one.partition for one in found if one.key == b"key-%d" % key}) == 1


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_are_read_by_others(make_broker: Callable[..., BrokerProcess], codec: str) -> None:
    """librdkafka finds each row once, by key in one partition and in order, whatever the codec."""
    broker = make_broker()
    create_topic(broker.bootstrap, "orders", 3)
    options = options_of(
        broker, topic="orders", kafka_compression_type=codec, kafka_batch_size="2000"
    )
    producer = producer_of(options)
    batches = (rows_of(first, 1000) for first in range(0, 5000, 1000))
    assert write_rows(options, COLUMNS - {"headers", "partition"}, producer, batches) == 5000
    assert producer.records_count == 5000
    check_numbers(read(broker, "orders", 3, 5000), 5000)
    assert sum(producer.end_offsets.values()) == 5000
    producer.close()


def test_all_columns(make_broker: Callable[..., BrokerProcess]) -> None:
    """Topic, partition, key, value and headers of a row are those of its record."""
    broker = make_broker()
    create_topic(broker.bootstrap, "a", 2)
    create_topic(broker.bootstrap, "b", 1)
    rows = pa.record_batch(
        {
            "topic": pa.array(["a", "b", "a", "a"]),
            "partition": pa.array([1, None, None, 0], pa.int32()),
            "key": pa.array(["k1", None, "k3", "k4"]),
            "value": pa.array(["v1", "v2", None, ""]),
            "headers": pa.array(
                [
                    [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
                    None,
                    [],
                    [{"key": "x", "value": b""}],
                ],
                HEADERS,
            ),
        }
    )
    options = options_of(broker)
    producer = producer_of(options)
    assert write_rows(options, COLUMNS, producer, [rows]) == 4
    found = {(one.key, one.value): one for one in read(broker, "a", 2, 3)}
    assert set(found) == {(b"k1", b"v1"), (b"k3", None), (b"k4", b"")}
    assert found[b"k1", b"v1"].partition == 1
    assert found[b"k1", b"v1"].headers == (("h", b"1"), ("h", None))
    assert found[b"k3", None].headers == ()
    assert found[b"k4", b""].partition == 0
    assert found[b"k4", b""].headers == (("x", b""),)
    (record,) = read(broker, "b", 1, 1)
    assert (record.key, record.value) == (None, b"v2")
    producer.close()


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_a_broker_that_goes_away(make_broker: Callable[..., BrokerProcess], ending: str) -> None:
    """With requests in flight the broker ends and returns: each row is there once, in order."""
    broker = make_broker()
    create_topic(broker.bootstrap, "orders", 3)
    options = options_of(broker, topic="orders", kafka_batch_size="1000", kafka_linger_ms="0")
    producer = producer_of(options)

    def batches() -> Iterator[Any]:
        for number in range(20):
            if number in (5, 12):
                getattr(broker, ending)()
                broker.start()
            yield rows_of(number * 500, 500)

    columns = frozenset({"key", "value"})
    assert write_rows(options, columns, producer, batches()) == 10_000
    check_numbers(read(broker, "orders", 3, 10_000), 10_000)
    producer.close()


def test_a_producer_is_used_again(make_broker: Callable[..., BrokerProcess]) -> None:
    """The next task of a process goes on with the producer id and the sequences of the last."""
    broker = make_broker()
    create_topic(broker.bootstrap, "orders", 1)
    options = options_of(broker, topic="orders")
    ids = set()
    for first in (0, 100, 200):
        producer = borrow_producer(options.link, options.producer)
        write_rows(options, frozenset({"key", "value"}), producer, [rows_of(first, 100)])
        ids.add(producer.identity)
        return_producer(producer, options.link, options.producer)
    assert len(ids) == 1
    check_numbers(read(broker, "orders", 1, 300), 300)
    producer.close()


def test_a_topic_that_is_made_again(make_broker: Callable[..., BrokerProcess]) -> None:
    """A producer goes on with its sequences, also with more partitions than there were."""
    broker = make_broker()
    options = options_of(broker, topic="orders")
    producer = producer_of(options)
    for partitions in (1, 3):
        create_topic(broker.bootstrap, "orders", partitions)
        write_rows(options, frozenset({"key", "value"}), producer, [rows_of(0, 100)])
        check_numbers(read(broker, "orders", partitions, 100), 100)
        with RawClient(broker.bootstrap) as client:
            client.delete_topic("orders")
    producer.close()


def test_topics_that_are_not_there(make_broker: Callable[..., BrokerProcess]) -> None:
    """A broker that may create topics does; otherwise the error says what to do."""
    broker = make_broker()
    options = options_of(broker, topic="new")
    producer = producer_of(options)
    assert write_rows(options, frozenset({"value"}), producer, [rows_of(0, 10)]) == 10
    with RawClient(broker.bootstrap) as client:
        assert len(client.read_all("new", 0)) == 10
    producer.close()
    broker = make_broker(**{"auto.create.topics.enable": "false"})
    options = options_of(broker, topic="new", kafka_retry_backoff_ms="1")
    producer = producer_of(options)
    with pytest.raises(LinkError, match="topic new does not exist"):
        write_rows(options, frozenset({"value"}), producer, [rows_of(0, 10)])
    producer.close()


def test_a_batch_that_the_topic_does_not_take(make_broker: Callable[..., BrokerProcess]) -> None:
    """The broker's refusal says what to change."""
    broker = make_broker()
    create_topic(broker.bootstrap, "small", 1, {"max.message.bytes": "500"})
    options = options_of(broker, topic="small")
    producer = producer_of(options)
    with pytest.raises(BrokerRefusal, match=r"to small-0 .*TOO_LARGE: .*batch.size"):
        write_rows(options, frozenset({"value"}), producer, [rows_of(0, 100)])
    producer.close()


def test_acks_of_one(make_broker: Callable[..., BrokerProcess]) -> None:
    """Without idempotence rows are written just as well."""
    broker = make_broker()
    create_topic(broker.bootstrap, "orders", 3)
    options = options_of(broker, topic="orders", kafka_acks="1", kafka_batch_size="1000")
    producer = producer_of(options)
    assert producer.identity.producer_id == -1
    assert write_rows(options, frozenset({"key", "value"}), producer, [rows_of(0, 1000)]) == 1000
    check_numbers(read(broker, "orders", 3, 1000), 1000)
    producer.close()
