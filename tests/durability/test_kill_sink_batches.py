"""kill -9 at every step of a sink's batch: committed whole, once, and read so by other clients."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.wire.messages.end_txn import END_TXN, EndTxnRequest
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from anabranch.wire.messages.sink_batches import PrepareTxn, SinkBatch, SinkTransaction
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch
from support.broker_process import wait_until
from support.confluent_client import ConfluentKafka
from support.dying_broker import DyingBroker
from support.raw_client import RawClient
from support.stock_clients import EARLIEST
from support.topics import create_topic

SINK, TOPIC = "orders-to-parquet", "t"
PARTITIONS = 2
TASKS = 3
ROUNDS = 20
# The batch; then for each task its decision, two markers and its completion, and as much for the
# attempt that nobody lists; then the batch without its list.
APPENDS = 1 + 4 * (TASKS + 1) + 1
CONCURRENT_TRANSACTIONS = 51


@pytest.fixture
def dying_broker(tmp_path: Path) -> Iterator[DyingBroker]:
    broker = DyingBroker(tmp_path / "data", {"transaction.state.log.num.partitions": "5"})
    broker.start()
    yield broker
    if broker.is_running:
        broker.kill()


def init(client: RawClient, name: str) -> SinkTransaction:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    answers: list[Any] = []

    def is_over() -> bool:
        answers.append(client.send(INIT_PRODUCER_ID, 5, request))
        return bool(answers[-1].error_code != CONCURRENT_TRANSACTIONS)

    assert wait_until(is_over, timeout_s=60)
    assert answers[-1].error_code == 0
    return SinkTransaction(
        transactional_id=name,
        producer_id=answers[-1].producer_id,
        producer_epoch=answers[-1].producer_epoch,
    )


def write(client: RawClient, name: str, batch_id: int, value: bytes) -> SinkTransaction:
    """A task: its value in both partitions, prepared."""
    one = init(client, name)
    records = build_batch(
        [Record(0, 1_700_000_000_000, None, value)],
        base_offset=0,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL_FLAG,
    )
    data = [PartitionProduceData(index=i, records=memoryview(records)) for i in range(PARTITIONS)]
    request = ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
    )
    (answer,) = client.send(PRODUCE, 12, request).responses
    assert [partition.error_code for partition in answer.partition_responses] == [0] * PARTITIONS
    prepared = client.send(
        END_TXN,
        5,
        EndTxnRequest(
            transactional_id=name,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            committed=False,
            prepare=PrepareTxn(sink_id=SINK, batch_id=batch_id),
        ),
    )
    assert prepared.error_code == 0 and prepared.prepare.last_batch_id < batch_id
    return one


def commit(batch_id: int, batch: list[SinkTransaction]) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=SINK,
        producer_id=-1,
        producer_epoch=-1,
        committed=True,
        batch=SinkBatch(batch_id=batch_id, transactions=batch),
    )


@pytest.mark.slow
def test_killed_twenty_times_in_the_middle_of_a_batch(dying_broker: DyingBroker) -> None:
    """Once before the batch is decided, then after each append, then after the answer."""
    broker = dying_broker
    create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    answered = 0
    for batch_id in range(ROUNDS):
        with RawClient(broker.bootstrap) as client:
            values = [f"{batch_id}/{task}".encode() for task in range(TASKS)]
            batch = [
                write(client, f"{SINK}/{task}/0", batch_id, value)
                for task, value in enumerate(values)
            ]
            write(client, f"{SINK}/0/1", batch_id, b"an attempt that nobody lists")
            broker.die_after(batch_id)
            request = commit(batch_id, batch)
            with contextlib.suppress(EOFError, ConnectionError):
                answer = client.send(END_TXN, 5, request)
                assert (answer.error_code, answer.batch.is_replay) == (0, False)
                answered += 1
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            answer = client.send(END_TXN, 5, request)
            assert answer.error_code == 0, answer
            assert answer.batch.is_replay == (batch_id > 0)
            assert answer.batch.last_batch_id == batch_id
    assert answered == ROUNDS - APPENDS
    wanted = sorted(f"{n}/{task}".encode() for n in range(ROUNDS) for task in range(TASKS))
    places = dict.fromkeys(range(PARTITIONS), EARLIEST)
    with ConfluentKafka().consumer(broker.bootstrap, TOPIC, places) as consumer:
        received = consumer.take(len(wanted) * PARTITIONS, timeout_s=60)
    for partition in range(PARTITIONS):
        found = [record.value for record in received if record.partition == partition]
        assert sorted(found) == wanted
    assert broker.stop() == 0
