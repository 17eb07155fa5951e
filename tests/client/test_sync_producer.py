"""Transactions without an event loop of one's own."""

import threading
import time

import pytest

from anabranch.client import (
    ConfigurationError,
    ConsumerClosedError,
    ConsumerRecord,
    Outputs,
    SyncCooperativeConsumer,
    SyncTransactionalProducer,
    TopicPartition,
)
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic
from support.transactional_clients import Confluent


def read(broker: BrokerProcess, topic: str) -> list[bytes]:
    return Confluent.read(broker.bootstrap, topic, "read_committed")


def test_transactions(shared_broker: BrokerProcess) -> None:
    """A block commits when it ends, and aborts when it raises."""
    create_topic(shared_broker.bootstrap, "sync")
    with SyncTransactionalProducer(
        bootstrap_servers=shared_broker.bootstrap, transactional_id="sync", buffer_memory=10_000
    ) as producer:
        with producer.transaction() as transaction:
            for number in range(500):
                transaction.send("sync", b"%d" % number, partition=0)
            transaction.send_offsets({TopicPartition("sync", 0): 5}, "sync-group")
        with pytest.raises(LookupError), producer.transaction() as transaction:
            transaction.send("sync", b"aborted")
            transaction.flush()
            raise LookupError
        with producer.transaction() as transaction:
            transaction.send("sync", b"last")
            transaction.commit()
    assert read(shared_broker, "sync") == [*(b"%d" % number for number in range(500)), b"last"]
    producer.close()
    with pytest.raises(ConsumerClosedError, match="producer"):
        producer.transaction()


def fill(broker: BrokerProcess, topic: str, count: int) -> None:
    create_topic(broker.bootstrap, topic, 1, {"range.fetch.enable": "true"})
    create_topic(broker.bootstrap, f"{topic}-out")
    records = [Record(i, 0, b"k%d" % (i % 7), b"%d" % i) for i in range(count)]
    batch = build_batch(records, base_offset=0, partition_leader_epoch=-1)
    with RawClient(broker.bootstrap) as client:
        assert client.produce(topic, 0, batch).error_code == 0


def test_running(shared_broker: BrokerProcess) -> None:
    """Handlers run in threads, and what they send counts with their records."""
    fill(shared_broker, "sync-run", 100)
    seen: list[int] = []

    def handle(record: ConsumerRecord, outputs: Outputs) -> None:
        outputs.send("sync-run-out", record.value, key=record.key)
        seen.append(record.offset)

    with (
        SyncCooperativeConsumer(
            bootstrap_servers=shared_broker.bootstrap, group_id="sync-run"
        ) as consumer,
        SyncTransactionalProducer(
            bootstrap_servers=shared_broker.bootstrap, transactional_id="sync-run", beside=consumer
        ) as producer,
    ):
        consumer.subscribe("sync-run")

        def stop() -> None:
            while len(seen) < 100:
                time.sleep(0.01)
            consumer.stop()

        stopping = threading.Thread(target=stop)
        stopping.start()
        consumer.run_in_transactions(handle, producer, concurrency=4, interval_ms=20)
        stopping.join()
    assert sorted(map(int, read(shared_broker, "sync-run-out"))) == list(range(100))


def test_polling(shared_broker: BrokerProcess) -> None:
    """Polled records are acknowledged in transactions, and come again after an abort."""
    fill(shared_broker, "sync-poll", 50)
    with (
        SyncCooperativeConsumer(
            bootstrap_servers=shared_broker.bootstrap, group_id="sync-poll"
        ) as consumer,
        SyncTransactionalProducer(
            bootstrap_servers=shared_broker.bootstrap, transactional_id="sync-poll", beside=consumer
        ) as producer,
    ):
        consumer.subscribe("sync-poll")
        done = 0
        is_first = True
        while done < 50:
            records = consumer.poll(5)
            try:
                with producer.transaction() as transaction:
                    acks = consumer.acks_in(transaction)
                    for record in records:
                        transaction.send("sync-poll-out", record.value)
                        acks.ack(record)
                    if is_first:
                        is_first = False
                        raise LookupError
            except LookupError:
                continue
            done += len(records)
    assert read(shared_broker, "sync-poll-out") == [b"%d" % number for number in range(50)]


def test_a_producer_elsewhere(shared_broker: BrokerProcess) -> None:
    """A consumer takes a producer of its own thread only, and says so."""
    with (
        SyncCooperativeConsumer(
            bootstrap_servers=shared_broker.bootstrap, group_id="sync-else"
        ) as consumer,
        SyncTransactionalProducer(
            bootstrap_servers=shared_broker.bootstrap, transactional_id="sync-else"
        ) as producer,
    ):
        consumer.subscribe("sync-else")
        with pytest.raises(ConfigurationError, match="beside=consumer"):
            consumer.run_in_transactions(print, producer)


def test_a_consumer_that_is_closed_first(shared_broker: BrokerProcess) -> None:
    """A producer goes with the consumer that it is beside."""
    consumer = SyncCooperativeConsumer(
        bootstrap_servers=shared_broker.bootstrap, group_id="sync-first"
    )
    producer = SyncTransactionalProducer(
        bootstrap_servers=shared_broker.bootstrap, transactional_id="sync-first", beside=consumer
    )
    producer.start()
    consumer.close()
    producer.close()
    with pytest.raises(ConsumerClosedError):
        producer.start()
