"""A consumer whose branch has nothing, beside a busy one: it follows, and hears of no error."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from support.branch_topics import create_branched, keys_of_branch
from support.broker_process import BrokerProcess

RANGES = 4
FILLERS = 30


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("idle"))
    broker.start()
    yield broker
    broker.stop()


def test_an_idle_branch_is_no_error(broker: BrokerProcess) -> None:
    """librdkafka reports answers with bytes and no message as too large, from the tenth on.

    Its error would be the end of most programs. The fillers that move it on must not count.
    """
    servers = broker.bootstrap
    branches = create_branched(servers, "orders", RANGES)
    idle, busy = 1, 2
    key = next(keys_of_branch(busy, RANGES))
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "idle",
            "fetch.wait.max.ms": 10,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    ends: list[int] = []
    try:
        consumer.assign([TopicPartition(branches, idle, 0)])
        for _ in range(FILLERS):
            producer.produce("orders", key=key, value=b"for another branch")
            assert producer.flush(10) == 0
            # Reaching the new end takes an answer that moves the position: a filler.
            message = consumer.poll(10)
            assert message is not None and message.error() is not None
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ends.append(message.offset())
    finally:
        consumer.close()
    assert ends == sorted(ends)
    assert len(set(ends)) > FILLERS // 2
