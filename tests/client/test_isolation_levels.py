"""Committed records and others: what the client hands out, and how far its group gets."""

import asyncio
import random
from typing import Any

from loop_kit import ORDERS, in_loop, polled

from anabranch.branch.slots import DEFAULT_RULE
from anabranch.client import ConsumerRecord, CooperativeConsumer
from anabranch.client.record_reader import FetchedRecords
from anabranch.wire.messages.end_txn import END_TXN, EndTxnRequest
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic

SHARED = {"range.fetch.enable": "true"}
KEYS = [b"k%d" % number for number in range(30)]


class Writer:
    """A producer with a transactional id."""

    def __init__(self, client: RawClient, name: str) -> None:
        self._client = client
        self._name = name
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        answer = client.send(INIT_PRODUCER_ID, 5, request)
        assert answer.error_code == 0
        self._take(answer)

    def _take(self, answer: Any) -> None:
        self._producer = {
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
        }
        self._sequence = 0

    def write(self, *keys: bytes) -> list[int]:
        """A batch of the transaction, which begins with it; the offsets."""
        records = [Record(i, 0, key, b"v") for i, key in enumerate(keys)]
        batch = build_batch(
            records,
            base_offset=0,
            attributes=TRANSACTIONAL_FLAG,
            base_sequence=self._sequence,
            **self._producer,
        )
        self._sequence += len(keys)
        data = [PartitionProduceData(index=0, records=batch)]
        topic = TopicProduceData(name="orders", partition_data=data)
        request = ProduceRequest(transactional_id=self._name, acks=-1, topic_data=[topic])
        (answer,) = self._client.send(PRODUCE, 12, request).responses[0].partition_responses
        assert answer.error_code == 0
        return list(range(answer.base_offset, answer.base_offset + len(keys)))

    def end(self, *, is_commit: bool) -> None:
        request = EndTxnRequest(transactional_id=self._name, committed=is_commit, **self._producer)
        answer = self._client.send(END_TXN, 5, request)
        assert answer.error_code == 0
        self._take(answer)  # every transaction has an epoch of its own


def stored_offset(broker: BrokerProcess) -> int:
    """How far the group is, as every client sees it."""
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id="workers", topics=topics)
    with RawClient(broker.bootstrap) as client:
        answer = client.send(OFFSET_FETCH, 9, OffsetFetchRequest(groups=[asked]))
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


async def until_stored(broker: BrokerProcess, offset: int) -> None:
    while await asyncio.to_thread(stored_offset, broker) != offset:
        await asyncio.sleep(0.02)


def new_member(broker: BrokerProcess, **options: Any) -> CooperativeConsumer:
    consumer = CooperativeConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id="workers",
        auto_commit_interval_ms=50,
        fetch_max_wait_ms=2000,
        isolation_level="read_committed",
        **options,
    )
    consumer.subscribe("orders")
    return consumer


async def all_uncommitted(broker: BrokerProcess, count: int) -> list[int]:
    """What a consumer gets that asks for nothing special."""
    found: list[int] = []
    consumer = CooperativeConsumer(bootstrap_servers=broker.bootstrap)
    consumer.assign({ORDERS: []})
    while len(found) < count:
        for record in await consumer.poll(5):
            found.append(record.offset)
            consumer.ack(record)
    await consumer.close()
    return found


def write_mixed(client: RawClient, seed: int) -> tuple[list[int], list[int], int]:
    """Transactions and plain records across each other; committed offsets, all, and the end."""
    chance = random.Random(seed)
    writers = [Writer(client, f"writer-{number}") for number in range(3)]
    pending: dict[Writer, list[int]] = {}
    committed: list[int] = []
    everything: list[int] = []
    end = 0

    def finish(writer: Writer, *, is_commit: bool) -> None:
        nonlocal end
        offsets = pending.pop(writer)
        if is_commit:
            committed.extend(offsets)
        writer.end(is_commit=is_commit)
        end += 1

    for _ in range(60):
        writer = chance.choice(writers)
        keys = chance.choices(KEYS, k=chance.randint(1, 5))
        if chance.random() < 0.2:
            batch = build_batch(
                [Record(i, 0, key, b"v") for i, key in enumerate(keys)], base_offset=0
            )
            offset = client.produce("orders", 0, batch).base_offset
            offsets = list(range(offset, offset + len(keys)))
            committed.extend(offsets)
        elif writer in pending and chance.random() < 0.4:
            finish(writer, is_commit=chance.random() < 0.5)
            continue
        else:
            offsets = writer.write(*keys)
            pending.setdefault(writer, []).extend(offsets)
        everything.extend(offsets)
        end += len(offsets)
    for writer in list(pending):
        finish(writer, is_commit=False)
    return sorted(committed), everything, end


def test_aborted_records_are_done(broker: BrokerProcess) -> None:
    """Nobody is given them, and they do not hold back how far the group is, not even at the end."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    with RawClient(broker.bootstrap) as client:
        committed, everything, end = write_mixed(client, 5)
    assert len(committed) < len(everything) < end

    @in_loop
    async def scenario() -> None:
        found: list[int] = []

        async def handle(record: ConsumerRecord) -> None:
            found.append(record.offset)

        members = [new_member(broker), new_member(broker)]
        tasks = [
            asyncio.ensure_future(member.run(handle, handle_signals=False)) for member in members
        ]
        await until_stored(broker, end)
        for member in members:
            await member.close()
        await asyncio.gather(*tasks)
        assert sorted(found) == committed
        assert sorted(await all_uncommitted(broker, len(everything))) == everything

    scenario()


def test_open_transactions_are_waited_for(broker: BrokerProcess) -> None:
    """Records behind an open transaction come when it ends, and the group is as far as that."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)

    @in_loop
    async def scenario() -> None:
        with RawClient(broker.bootstrap) as client:
            first, second = Writer(client, "first"), Writer(client, "second")

            plain = build_batch([Record(0, 0, b"a", b"v")], base_offset=0)
            client.produce("orders", 0, plain)
            first.write(b"a", b"b")
            second.write(b"c")
            client.produce("orders", 0, plain)
            consumer = new_member(broker)
            records = await polled(consumer, 1)
            assert [one.offset for one in records] == [0]
            consumer.ack(records[0])
            await until_stored(broker, 1)
            second.end(is_commit=True)
            assert await consumer.poll(0.1) == []
            first.end(is_commit=False)
            more = await polled(consumer, 2)
            assert [one.offset for one in more] == [3, 4]
            for one in more:
                consumer.ack(one)
            await until_stored(broker, 7)
            await consumer.close()

    scenario()


def test_latest_is_where_nothing_is_decided(broker: BrokerProcess) -> None:
    """A new group that begins at the end gets what is in a transaction that is open then."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)

    @in_loop
    async def scenario() -> None:
        with RawClient(broker.bootstrap) as client:
            client.produce("orders", 0, build_batch([Record(0, 0, b"a", b"v")], base_offset=0))
            writer = Writer(client, "writer")
            writer.write(b"a")
            consumer = new_member(broker, auto_offset_reset="latest")
            assert await consumer.poll(0.3) == []
            await until_stored(broker, 1)
            writer.end(is_commit=True)
            assert [one.offset for one in await polled(consumer, 1)] == [1]
            await consumer.close()

    scenario()


def test_what_is_left_keeps_its_columns_together() -> None:
    """Each record that is not aborted has its own key, value, headers and slot."""
    records = [
        Record(i, 1000 + i, b"k%d" % i, b"v%d" % i, (("h", b"%d" % i),) if i % 2 else ())
        for i in range(6)
    ]
    flags = {"attributes": TRANSACTIONAL_FLAG, "producer_epoch": 0}
    content = b"".join(
        build_batch(records[first : first + 2], base_offset=first, producer_id=producer, **flags)
        for first, producer in ((0, 1), (2, 2), (4, 3))
    )
    everything = FetchedRecords(memoryview(content), DEFAULT_RULE, 0)
    left = FetchedRecords(memoryview(content), DEFAULT_RULE, 0, [(2, 2)])
    rows = list(everything.rows(0, 6))
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert list(left.rows(0, 10)) == [rows[i] for i in (0, 1, 4, 5)]
    assert list(left.rows(1, 3)) == [rows[1], rows[4]]
    assert (len(left), left.offset(2), left.next_offset) == (4, 4, 6)
