"""Every client reads what every client wrote, with every codec."""

import random

import pytest

from anabranch.wire.compression import codec_number
from anabranch.wire.record_batch import read_header
from support.aiokafka_client import Aiokafka
from support.broker_process import BrokerProcess
from support.confluent_client import ConfluentKafka
from support.kafka_python_client import KafkaPython
from support.stock_clients import CODECS, EARLIEST, StockClient, ToSend

CLIENTS: tuple[StockClient, ...] = (ConfluentKafka(), KafkaPython(), Aiokafka())


def _records() -> list[ToSend]:
    """Records that compress well and records that do not, enough for several batches."""
    rng = random.Random(2)
    records = [
        ToSend(b"the same text over and over " * rng.randrange(1, 30), b"key-%d" % (i % 7))
        for i in range(200)
    ]
    records += [ToSend(rng.randbytes(rng.randrange(2000)), rng.randbytes(8)) for _ in range(100)]
    records += [ToSend(None, b"gone"), ToSend(b"", b""), ToSend(b"h", headers=(("a", b"b"),))]
    return records


RECORDS = _records()


@pytest.fixture(scope="module")
def written() -> set[str]:
    """The topics that were written already: each is read by all clients."""
    return set()


def _write(broker: BrokerProcess, client: StockClient, codec: str, topic: str) -> None:
    with client.producer(broker.bootstrap, codec=codec, idempotent=True) as producer:
        deliveries = producer.send(topic, RECORDS)
    assert {delivery.error_code for delivery in deliveries} == {0}
    segment = broker.data_dir / f"{topic}-0" / f"{0:020d}.log"
    assert read_header(segment.read_bytes()).codec == codec_number(codec)


@pytest.mark.parametrize("reader", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)
def test_what_one_client_wrote_another_reads(
    shared_broker: BrokerProcess,
    written: set[str],
    writer: StockClient,
    codec: str,
    reader: StockClient,
) -> None:
    """Records, headers and order survive the way through the broker under each codec."""
    for client in (writer, reader):
        if not client.has_codec(codec):
            pytest.skip(f"{client.name} needs a package for {codec} that is not installed")
    topic = f"{writer.name}.{codec}"
    if topic not in written:
        _write(shared_broker, writer, codec, topic)
        written.add(topic)
    with reader.consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
        received = consumer.take(len(RECORDS))
    assert [ToSend(r.value, r.key, r.headers) for r in received] == RECORDS
    assert [r.offset for r in received] == list(range(len(RECORDS)))
