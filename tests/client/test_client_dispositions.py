"""Records that fail for good, with real members and a real broker."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from loop_kit import in_loop

from anabranch.branch._kernels import xxh64
from anabranch.client import ConsumerRecord, CooperativeConsumer, RejectRecord
from anabranch.wire.messages.cooperation import (
    Decisions,
    DecisionsAnswer,
    IndividualProgress,
    RecordDecision,
)
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.wire.record_batch import Record, build_batch, iter_headers, iter_records
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic

MakeBroker = Callable[..., BrokerProcess]

SHARED = {"range.fetch.enable": "true"}
RELEASE, SKIP, DLQ = range(3)
KEYS = 5


def produce(broker: BrokerProcess, count: int, first: int = 0) -> None:
    """Records with the keys k0 to k4 in turn, and their numbers as values."""
    with RawClient(broker.bootstrap) as client:
        records = [
            Record(i, 0, b"k%d" % ((first + i) % KEYS), b"%d" % (first + i)) for i in range(count)
        ]
        batch = build_batch(records, base_offset=0, partition_leader_epoch=-1)
        assert client.produce("orders", 0, batch).error_code == 0


def letters(broker: BrokerProcess, topic: str = "orders.dlq") -> list[Record]:
    with RawClient(broker.bootstrap) as client:
        found: list[Record] = []
        offset = 0
        while True:
            answer = client.fetch(topic, 0, offset)
            if answer.error_code or not answer.records:
                return found
            for pos, header in iter_headers(answer.records):
                found += iter_records(answer.records[pos : pos + header.size_bytes])
                offset = header.next_offset


def known(broker: BrokerProcess) -> IndividualProgress:
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id="workers", topics=topics)
    with RawClient(broker.bootstrap) as client:
        request = OffsetFetchRequest(groups=[asked], with_individual=True)
        answer = client.send(OFFSET_FETCH, 9, request)
    found: IndividualProgress = answer.groups[0].topics[0].partitions[0].individual
    return found


def decide(broker: BrokerProcess, *decisions: RecordDecision) -> DecisionsAnswer:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=-1, decisions=Decisions(decisions=list(decisions))
    )
    topic = OffsetCommitRequestTopic(name="orders", partitions=[partition])
    with RawClient(broker.bootstrap) as client:
        request = OffsetCommitRequest(group_id="workers", topics=[topic])
        answer = client.send(OFFSET_COMMIT, 9, request)
    answered = answer.topics[0].partitions[0]
    assert answered.error_code == 0
    found: DecisionsAnswer = answered.decisions
    return found


class Worker:
    """A member whose handler rejects some records."""

    def __init__(self, broker: BrokerProcess, rejected: set[int]) -> None:
        self.broker = broker
        self.rejected = rejected
        self.seen: list[int] = []
        self.member = CooperativeConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id="workers",
            auto_commit_interval_ms=50,
            fetch_max_wait_ms=100,
            retry_backoff_ms=20,
        )
        self.member.subscribe("orders")
        work = self.member.run(self.handle, concurrency=4, handle_signals=False)
        self.task = asyncio.ensure_future(work)

    async def handle(self, record: ConsumerRecord) -> None:
        self.seen.append(record.offset)
        if record.offset in self.rejected:
            raise RejectRecord(f"no {record.offset}")

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_stable(self, offset: int) -> None:
        async with asyncio.timeout(30):
            while (await asyncio.to_thread(known, self.broker)).stable_offset < offset:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        await self.member.close()
        await self.task


def texts(records: list[Record]) -> list[int]:
    return [int(one.value or b"") for one in records]


def test_dlq(make_broker: MakeBroker) -> None:
    """A record that is rejected goes to the dead-letter topic, and its key goes on."""
    broker = make_broker(**{"coop.disposition": "dlq"})
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 50)

    @in_loop
    async def scenario() -> None:
        worker = Worker(broker, {7})
        await worker.until_stable(50)
        assert sorted(worker.seen) == list(range(50))
        (letter,) = letters(broker)
        assert (letter.key, letter.value) == (b"k2", b"7")
        assert dict(letter.headers)["__dlq.errors.message"] == b"RejectRecord: no 7"
        await worker.stop()

    scenario()


def test_dlq_key(make_broker: MakeBroker) -> None:
    """Later records of the key follow it without a try, in order, until the key is released; so do
    those of a new owner, and those that come later."""
    broker = make_broker(**{"coop.disposition": "dlq-key"})
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 50)

    @in_loop
    async def scenario() -> None:
        worker = Worker(broker, {7})
        await worker.until_stable(50)
        diverted = [offset for offset in range(50) if offset % KEYS == 2 and offset >= 7]
        assert texts(letters(broker)) == diverted
        assert not set(worker.seen) & set(diverted[1:])
        await worker.stop()
        other = Worker(broker, set())
        produce(broker, 50, first=50)
        await other.until_stable(100)
        diverted += [offset for offset in range(50, 100) if offset % KEYS == 2]
        assert texts(letters(broker)) == diverted
        (key,) = known(broker).diverted
        assert key.key_hash == xxh64(b"k2") >> 1
        answer = decide(broker, RecordDecision(key_hash=key.key_hash, action=RELEASE))
        assert [one.error_code for one in answer.outcomes] == [0]
        produce(broker, 50, first=100)
        await other.until_stable(150)
        assert texts(letters(broker)) == diverted
        assert {one for one in other.seen if one >= 100} == set(range(100, 150))
        await other.stop()

    scenario()


@pytest.mark.parametrize("action", [RELEASE, SKIP, DLQ])
def test_decisions_while_members_work(broker: BrokerProcess, action: int) -> None:
    """A blocked record is tried again, skipped or sent away, and its key goes on within seconds."""
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 50)

    @in_loop
    async def scenario() -> None:
        worker = Worker(broker, {7})
        blocked = {one for one in range(50) if one % KEYS == 2 and one > 7}
        await worker.until(lambda: set(worker.seen) == set(range(50)) - blocked)
        while not known(broker).retried:
            await asyncio.sleep(0.01)
        (waiting,) = known(broker).retried
        assert (waiting.offset, waiting.attempts, waiting.not_before_ms) == (7, 1, 2**63 - 1)
        assert known(broker).stable_offset == 7
        assert not blocked & set(worker.seen)
        worker.rejected.clear()
        answer = decide(broker, RecordDecision(offset=7, action=action))
        assert [one.error_code for one in answer.outcomes] == [0]
        await worker.until_stable(50)
        assert worker.seen.count(7) == (2 if action == RELEASE else 1)
        of_key = [one for one in worker.seen if one in blocked]
        assert of_key == sorted(blocked)
        assert texts(letters(broker)) == ([7] if action == DLQ else [])
        await worker.stop()

    scenario()


def test_kill_9_keeps_what_is_diverted(make_broker: MakeBroker) -> None:
    """The broker is killed while records go to the dead-letter topic: none is missing there, and
    each is there first in the order of its key."""
    broker = make_broker(**{"coop.disposition": "dlq-key"})
    create_topic(broker.bootstrap, "orders", 1, SHARED)
    produce(broker, 500)

    @in_loop
    async def scenario() -> None:
        worker = Worker(broker, {2})
        async with asyncio.timeout(30):
            while not letters(broker):
                await asyncio.sleep(0.001)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await worker.until_stable(500)
        found = list(dict.fromkeys(texts(letters(broker))))
        tried = set(worker.seen)
        assert found == [one for one in range(500) if one % KEYS == 2]
        assert tried >= {one for one in range(500) if one % KEYS != 2}
        assert not tried & set(found[1:])
        await worker.stop()

    scenario()
