"""Consume, transform, produce: stock clients that commit offsets with their transactions.

A worker reads a topic, writes what it made of each record, and commits how far it has read, all in
one transaction. However often it is interrupted, the output has everything once.
"""

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition

from support.broker_process import BrokerProcess
from support.topics import create_topic
from support.transactional_clients import Confluent

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    import kafka
    import kafka.structs

RECORDS = 30
ROUND = 10
TIMEOUT_S = 60.0


def fill(bootstrap: str, topic: str) -> list[bytes]:
    producer = Producer({"bootstrap.servers": bootstrap})
    values = [b"%d" % number for number in range(RECORDS)]
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(TIMEOUT_S)
    return values


def is_interrupted(number: int) -> bool:
    """Every second round is aborted, and tried again by the next one."""
    return number % 2 == 0


# Workers ----------------------------------------------------------------------------------------
# Each starts anew for every round, as after a crash: only what is committed says where to go on.


def confluent_round(bootstrap: str, source: str, number: int) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{source}-group",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{source}-worker"})
    try:
        producer.init_transactions(TIMEOUT_S)
        consumer.subscribe([source])
        batch: list[Any] = []
        while len(batch) < ROUND:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None and message.error() is None, message and message.error()
            batch.append(message)
        producer.begin_transaction()
        for message in batch:
            producer.produce(f"{source}-out", b"made of " + message.value(), partition=0)
        ends = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), TIMEOUT_S)
        if is_interrupted(number):
            producer.abort_transaction(TIMEOUT_S)
            return 0
        producer.commit_transaction(TIMEOUT_S)
        return len(batch)
    finally:
        consumer.close()


def kafka_python_round(bootstrap: str, source: str, number: int) -> int:
    place = kafka.TopicPartition(source, 0)
    consumer = kafka.KafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=f"{source}-group",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
        max_poll_records=ROUND,
    )
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{source}-worker")
    try:
        producer.init_transactions()
        batch: list[Any] = []
        while len(batch) < ROUND:
            for records in consumer.poll(timeout_ms=1000).values():
                batch += records
        producer.begin_transaction()
        for record in batch:
            producer.send(f"{source}-out", b"made of " + record.value, partition=0)
        ends = {place: kafka.structs.OffsetAndMetadata(batch[-1].offset + 1, "", -1)}
        producer.send_offsets_to_transaction(ends, f"{source}-group")
        if is_interrupted(number):
            producer.abort_transaction()
            return 0
        producer.commit_transaction()
        return len(batch)
    finally:
        producer.close(timeout=5)
        consumer.close()


def aiokafka_round(bootstrap: str, source: str, number: int) -> int:
    async def work() -> int:
        consumer = AIOKafkaConsumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=f"{source}-group",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
            max_poll_records=ROUND,
        )
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=f"{source}-worker"
        )
        await consumer.start()
        await producer.start()
        try:
            batch: list[Any] = []
            while len(batch) < ROUND:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    batch += records
            await producer.begin_transaction()
            for record in batch:
                await producer.send(f"{source}-out", b"made of " + record.value, partition=0)
            place = AioTopicPartition(source, 0)
            ends = {place: batch[-1].offset + 1}
            await producer.send_offsets_to_transaction(ends, f"{source}-group")
            if is_interrupted(number):
                await producer.abort_transaction()
                return 0
            await producer.commit_transaction()
            return len(batch)
        finally:
            await producer.stop()
            await consumer.stop()

    return asyncio.run(work())


WORKERS: dict[str, Callable[[str, str, int], int]] = {
    "confluent-kafka": confluent_round,
    "kafka-python": kafka_python_round,
    "aiokafka": aiokafka_round,
}


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """One that does not wait for more members: every round is a generation of its own."""
    return make_broker(**{"group.initial.rebalance.delay.ms": "0"})


@pytest.mark.parametrize("name", WORKERS)
def test_everything_is_done_once(broker: BrokerProcess, topic: str, name: str) -> None:
    """Output and offsets come together or not at all: nothing is lost, and nothing comes twice."""
    bootstrap = broker.bootstrap
    create_topic(bootstrap, topic)
    create_topic(bootstrap, f"{topic}-out")
    values = fill(bootstrap, topic)

    done = 0
    for number in range(2 * RECORDS // ROUND):
        done += WORKERS[name](bootstrap, topic, number)

    assert done == RECORDS
    found = Confluent.read(bootstrap, f"{topic}-out", "read_committed")
    assert found == [b"made of " + value for value in values]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-group"})
    try:
        [place] = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        assert place.offset == RECORDS
    finally:
        consumer.close()
