"""kill -9 under load, again and again: nothing acknowledged is lost, doubled or out of order."""

import contextlib
import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

from support.broker_process import BrokerProcess, wait_until
from support.confluent_client import ConfluentKafka
from support.log_walker import check_partition
from support.producer_load import (
    AiokafkaLoad,
    ConfluentLoad,
    KafkaPythonLoad,
    ProducerLoad,
    read_value,
    running,
    value_of,
)
from support.raw_client import RawClient, batch_of
from support.stock_clients import EARLIEST
from support.topics import create_topic

PARTITIONS = 3
ROUNDS = 20


def wait_for_answers(loads: Sequence[ProducerLoad], more: Sequence[int]) -> None:
    """Wait until every producer had so many more of its records acknowledged."""
    wanted = [load.acked_count + count for load, count in zip(loads, more, strict=True)]

    def is_over() -> bool:
        return any(load.failures for load in loads) or all(
            load.acked_count >= count for load, count in zip(loads, wanted, strict=True)
        )

    is_in_time = wait_until(is_over, timeout_s=60, period_s=0.001)
    assert [load.failures for load in loads] == [[]] * len(loads)
    assert is_in_time, [(load.number, load.sent, load.acked_count) for load in loads]


def check_log(broker: BrokerProcess, topic: str, loads: Sequence[ProducerLoad]) -> None:
    """Everything the producers sent is in the log once, in order, where the answers said."""
    assert [load.failures for load in loads] == [[]] * len(loads)
    assert [load.acked_count for load in loads] == [load.sent for load in loads]
    ends = {
        partition: max(max(load.acked[partition], default=-1) for load in loads) + 1
        for partition in range(PARTITIONS)
    }
    with ConfluentKafka().consumer(
        broker.bootstrap, topic, dict.fromkeys(range(PARTITIONS), EARLIEST)
    ) as consumer:
        for partition in range(PARTITIONS):
            assert consumer.offset_range(partition) == (0, ends[partition])
        received = consumer.take(sum(ends.values()), timeout_s=60)
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    next_offsets = dict.fromkeys(range(PARTITIONS), 0)
    acked_by = {load.number: load.acked for load in loads}
    for record in received:
        assert record.offset == next_offsets[record.partition]
        next_offsets[record.partition] += 1
        producer, number = read_value(record.value or b"")
        assert record.value == value_of(producer, number)
        assert acked_by[producer][record.partition].get(record.offset) == number
        found[producer, record.partition].append(number)
    for load in loads:
        for partition in range(PARTITIONS):
            assert found[load.number, partition] == list(range(partition, load.sent, PARTITIONS))


@pytest.mark.slow
def test_twenty_kills_lose_and_double_nothing(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    """Idempotent producers of three clients go on by themselves through 20 crashes."""
    plain = {"log.segment.bytes": "1048576"}
    # Every other start flushes and checkpoints often, so that recovery begins inside the log.
    flushing = {
        **plain,
        "log.flush.interval.messages": "5000",
        "log.flush.offset.checkpoint.interval.ms": "50",
    }
    broker = make_broker(**plain)
    topic = "load"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    target = (broker.bootstrap, topic, PARTITIONS)
    loads: list[ProducerLoad] = [
        ConfluentLoad(0, *target),
        ConfluentLoad(1, *target, **{"compression.type": "lz4"}),
        # As users have it: after losing all brokers, librdkafka bootstraps again.
        ConfluentLoad(2, *target, **{"metadata.recovery.strategy": "rebootstrap"}),
        KafkaPythonLoad(3, *target),
        AiokafkaLoad(4, *target),
    ]
    rng = random.Random(20)  # the same crashes in every run, as far as clients allow
    with running(loads):
        for number in range(ROUNDS):
            wait_for_answers(loads, [rng.randrange(1, 300) for _ in loads])
            broker.kill()
            broker.overrides = plain if number % 2 else flushing
            broker.start()
    check_log(broker, topic, loads)
    assert broker.stop() == 0
    for partition in range(PARTITIONS):
        check_partition(broker.data_dir / f"{topic}-{partition}")


@pytest.mark.slow
def test_a_stop_under_load_is_quick_and_loses_nothing(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    """SIGTERM while producers write ends with exit code 0, and they go on after a restart.

    A connection that held the stop up until its time was over would be in the log as a warning.
    """
    broker = make_broker()
    create_topic(broker.bootstrap, "load", PARTITIONS)
    target = (broker.bootstrap, "load", PARTITIONS)
    loads: list[ProducerLoad] = [
        ConfluentLoad(0, *target),
        KafkaPythonLoad(1, *target),
        AiokafkaLoad(2, *target),
    ]
    with running(loads):
        for _ in range(3):
            wait_for_answers(loads, [100] * 3)
            assert broker.stop() == 0
            assert (broker.data_dir / ".kafka_cleanshutdown").exists()
            for partition in range(PARTITIONS):
                check_partition(broker.data_dir / f"load-{partition}")
            broker.start()
    check_log(broker, "load", loads)
    assert "WARN" not in broker.log_text and "ERROR" not in broker.log_text


def test_a_broker_killed_while_it_starts_starts_the_next_time(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    """Recovery can be interrupted anywhere and begun again."""
    broker = make_broker(**{"log.segment.bytes": "1048576"})
    values = [b"%d" % i + b"." * 60_000 for i in range(100)]
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", auto_create=True)
        for value in values:
            assert client.produce("t", 0, batch_of([value])).error_code == 0
    broker.kill()
    rng = random.Random(5)
    for _ in range(6):
        _kill_while_starting(broker, rng.uniform(0.1, 0.4))
    broker.start()
    with ConfluentKafka().consumer(broker.bootstrap, "t", {0: EARLIEST}) as consumer:
        assert [record.value for record in consumer.take(100)] == values
    assert broker.stop() == 0
    assert len(check_partition(broker.data_dir / "t-0")) > 3


def _kill_while_starting(broker: BrokerProcess, after_s: float) -> None:
    def start() -> None:
        with contextlib.suppress(AssertionError):  # killed before it listened
            broker.start()

    starter = threading.Thread(target=start)
    starter.start()
    assert wait_until(lambda: broker.is_running, period_s=0.001)
    starter.join(after_s)
    os.kill(broker.pid, signal.SIGKILL)
    starter.join()
    broker.kill()
