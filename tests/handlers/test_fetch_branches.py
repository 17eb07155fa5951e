"""Fetches of branches: what is filtered out, how positions move, and who is woken by what."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from handler_calls import NOW_MS, Call, Node

from anabranch.branch.slots import branch_of_slot, slot_of_key, slot_of_offset
from anabranch.branch.split import SplitChunk
from anabranch.broker import branch_reader
from anabranch.broker.branch_cache import ChunkKey
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from anabranch.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.wire.record_batch import Record, build_batch, crc_ok, iter_headers, iter_records
from support.fake_loop import FakeLoop

BIG = 1 << 30
WAIT_MS = 500
RANGES = 4


@pytest.fixture
def make_stage(make_node: Callable[..., Node], loop: FakeLoop) -> Callable[..., "Stage"]:
    """Start a broker; branches are served at once unless the test says otherwise."""
    return lambda *overrides: Stage(make_node("branch.fetch.linger.ms=0", *overrides), loop)


@pytest.fixture
def stage(make_stage: Callable[..., "Stage"]) -> "Stage":
    return make_stage()


class Stage:
    """A topic `orders` of one partition and a branch topic over it."""

    def __init__(self, node: Node, loop: FakeLoop) -> None:
        self.node = node
        self.loop = loop
        source = node.create_topic("orders")
        self.topic = node.broker.topics.create_branch_topic("by-key", source, RANGES, {})
        self.log = source.partitions[0].log

    def produce(self, *keys: bytes | None, codec: int = 0, value: bytes = b"v") -> None:
        """One batch with a record of each key, as a producer sends it."""
        records = [Record(i, NOW_MS, key, value, ()) for i, key in enumerate(keys)]
        batch = build_batch(records, base_offset=0, codec=codec)
        data = [PartitionProduceData(index=0, records=batch)]
        topic = TopicProduceData(name="orders", partition_data=data)
        answer = self.node.call(ProduceRequest(acks=1, topic_data=[topic]), 12)
        assert answer.responses[0].partition_responses[0].error_code == 0
        self.node.broker.wake_fetches()

    def begin(
        self, *ranges: int, offset: int = 0, max_bytes: int = BIG, wait_ms: int = 0, **more: Any
    ) -> Call:
        partitions = [
            FetchPartition(partition=r, fetch_offset=offset, partition_max_bytes=max_bytes)
            for r in ranges
        ]
        more.setdefault("max_bytes", BIG)
        more.setdefault("min_bytes", 1)
        request = FetchRequest(
            topics=[FetchTopic(topic="by-key", partitions=partitions)], max_wait_ms=wait_ms, **more
        )
        return self.node.begin(request, 12)

    def fetch(self, *ranges: int, **more: Any) -> list[PartitionData]:
        call = self.begin(*ranges, **more)
        while not call.is_answered:
            assert self.loop.finish_jobs(), "it waits for nothing"
        return answers(call.answer)

    def walk(self, range_index: int, **more: Any) -> list[Record]:
        """All records of a branch, as a client reads them: on from where its last fetch ended."""
        found: list[Record] = []
        offset = 0
        while True:
            (data,) = self.fetch(range_index, offset=offset, **more)
            assert data.error_code == 0
            records = bytes(data.records or b"")
            if not records:
                assert offset == self.log.log_end_offset
                return found
            moved = next_offset(records)
            assert moved > offset, "the position did not move"
            found += [r for r in all_records(records) if r.offset >= offset]
            offset = moved


def cached_chunks(stage: Stage) -> list[SplitChunk]:
    """What is sorted of the source so far."""
    cache = stage.node.broker.branches.cache
    key = ChunkKey(stage.log, RANGES)
    found: list[SplitChunk] = []
    while (cached := cache.find(key, found[-1].next_offset if found else 0)) is not None:
        found.append(cached.chunk)
    return found


def answers(response: FetchResponse) -> list[PartitionData]:
    return [data for topic in response.responses for data in topic.partitions]


def all_records(records: bytes) -> list[Record]:
    found: list[Record] = []
    for position, header in iter_headers(records):
        assert crc_ok(records, position, header.size_bytes)
        if header.is_control:
            continue
        found += iter_records(records[position : position + header.size_bytes])
    return found


def next_offset(records: bytes) -> int:
    return [header for _, header in iter_headers(records)][-1].next_offset


def keys_of(range_index: int) -> Iterator[bytes]:
    """Keys that belong to a range."""
    number = 0
    while True:
        key = b"key-%d" % number
        if branch_of_slot(slot_of_key(key), RANGES) == range_index:
            yield key
        number += 1


KEYS = [next(keys_of(r)) for r in range(RANGES)]


# What is read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_every_record_is_in_its_branch(stage: Stage, codec: int) -> None:
    """The branches together are the log: each record once, in the branch of its key, in order."""
    chance = random.Random(7)
    for _ in range(30):
        keys = [chance.choice([None, b"", b"a", *KEYS]) for _ in range(chance.randint(1, 20))]
        stage.produce(*keys, codec=codec)
    everything = all_records(bytes(stage.log.read(0, BIG)))
    branches = [stage.walk(r) for r in range(RANGES)]
    for range_index, found in enumerate(branches):
        wanted = [record for record in everything if branch_of(record) == range_index]
        assert found == wanted
    assert sum(map(len, branches)) == len(everything)


def branch_of(record: Record) -> int:
    slot = slot_of_offset(record.offset) if record.key is None else slot_of_key(record.key)
    return branch_of_slot(slot, RANGES)


def test_a_batch_that_survives_whole_is_sent_as_it_is(stage: Stage) -> None:
    """Compression included: nothing was dropped, so nothing is made again."""
    stage.produce(KEYS[2], KEYS[2], codec=3)
    (data,) = stage.fetch(2)
    assert data.records == bytes(stage.log.read(0, BIG))


def test_foreign_records_at_the_end_become_a_filler(stage: Stage) -> None:
    """Without it the client would ask for the same offset for ever."""
    stage.produce(KEYS[0])
    stage.produce(KEYS[1], KEYS[2])
    stage.produce(KEYS[1])
    (data,) = stage.fetch(0)
    headers = [header for _, header in iter_headers(data.records or b"")]
    assert [(h.next_offset, h.is_control) for h in headers] == [(1, False), (4, True)]
    (data,) = stage.fetch(3)
    headers = [header for _, header in iter_headers(data.records or b"")]
    assert [(h.next_offset, h.is_control) for h in headers] == [(4, True)]
    assert headers[0].partition_leader_epoch == stage.log.leader_epoch


def test_foreign_batches_between_leave_a_gap(stage: Stage) -> None:
    """As after compaction: the next batch moves the client over it, an empty one is not needed."""
    stage.produce(KEYS[0])
    stage.produce(KEYS[1])
    stage.produce(KEYS[0])
    (data,) = stage.fetch(0)
    assert [header.base_offset for _, header in iter_headers(data.records or b"")] == [0, 2]


def test_offsets_and_watermarks_are_those_of_the_source(stage: Stage) -> None:
    """A branch has the source's offsets, so lag and positions can be compared."""
    stage.produce(*KEYS)
    stage.produce(*KEYS)
    stage.log.delete_records_before(4)
    (data,) = stage.fetch(1, offset=4)
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (8, 8, 4)
    assert [record.offset for record in all_records(bytes(data.records or b""))] == [5]
    for offset in (3, 9, -1):
        (data,) = stage.fetch(1, offset=offset)
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("isolation", [0, 1])
def test_both_isolation_levels(stage: Stage, isolation: int) -> None:
    """Without open transactions they read the same; the stable one names aborted ones too."""
    stage.produce(*KEYS)
    (data,) = stage.fetch(1, isolation_level=isolation)
    assert [record.key for record in all_records(bytes(data.records or b""))] == [KEYS[1]]
    assert data.aborted_transactions == ([] if isolation else None)


def test_limits_are_kept_at_whole_batches(stage: Stage) -> None:
    """A first batch leaves whole however small the limit; the rest waits for the next fetch."""
    for _ in range(5):
        stage.produce(*KEYS, value=bytes(100))
    (data,) = stage.fetch(0, max_bytes=1)
    (one,) = [header for _, header in iter_headers(data.records or b"")]
    assert (one.base_offset, one.next_offset, one.records_count) == (0, 4, 1)
    (data,) = stage.fetch(0, max_bytes=2 * one.size_bytes)
    assert [header.base_offset for _, header in iter_headers(data.records or b"")] == [0, 4]
    first, second = stage.fetch(0, 1, max_bytes=1)
    assert first.records and not second.records
    assert [r.offset for r in stage.walk(3, max_bytes=1)] == [3, 7, 11, 15, 19]


# Sorting off the loop -----------------------------------------------------------------------------


def test_large_chunks_are_sorted_by_a_thread(stage: Stage) -> None:
    """All branches of a fetch share one job, and the answer waits for it even without a wait."""
    for _ in range(5):
        stage.produce(*KEYS, value=bytes(50_000))
    call = stage.begin(0, 1, 2, 3)
    assert not call.is_answered
    assert stage.loop.finish_jobs() == 1
    counts = [len(all_records(bytes(data.records or b""))) for data in answers(call.answer)]
    assert counts == [5, 5, 5, 5]
    assert stage.begin(0).is_answered, "it was sorted already"


def test_what_a_tail_collects_is_sorted_where_it_is_needed(stage: Stage) -> None:
    """Some hundred kilobytes take less time than handing them to a thread."""
    stage.produce(*KEYS, value=bytes(150_000))
    assert stage.begin(0).is_answered
    calls = [stage.begin(r, offset=4, wait_ms=WAIT_MS) for r in range(RANGES)]
    stage.produce(*KEYS, value=bytes(150_000))
    assert all(call.is_answered for call in calls)
    assert stage.loop.finish_jobs() == 0


def test_one_turn_sorts_one_large_chunk(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search does not keep the loop with chunk after chunk: the next one is for a thread."""
    monkeypatch.setattr(branch_reader, "CHUNK_BYTES", 600_000)
    for _ in range(3):
        stage.produce(KEYS[0], value=bytes(500_000))
    call = stage.begin(1)
    assert not call.is_answered, "nothing in the first chunk, and the second is large"
    assert [chunk.next_offset for chunk in cached_chunks(stage)] == [1]
    assert stage.loop.finish_jobs() == 1


def test_a_branch_is_searched_to_the_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch without records so far goes from chunk to chunk until it has one."""
    monkeypatch.setattr(branch_reader, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(branch_reader, "_INLINE_BYTES", 0)
    monkeypatch.setattr(branch_reader, "_INLINE_NEXT_BYTES", 0)
    monkeypatch.setattr(branch_reader, "_INLINE_COMPRESSED_BYTES", 0)
    for _ in range(20):
        stage.produce(KEYS[0], value=bytes(50_000))
    stage.produce(KEYS[1])
    call = stage.begin(1)
    jobs = 0
    while not call.is_answered:
        jobs += stage.loop.finish_jobs()
    (data,) = answers(call.answer)
    assert [record.offset for record in all_records(bytes(data.records or b""))] == [20]
    assert jobs > 5


def test_a_search_ends_with_its_budget(make_stage: Callable[..., Stage]) -> None:
    """After so many bytes without a record the client is moved on and may do something else."""
    stage = make_stage("branch.scan.max.bytes=100000")
    for _ in range(200):
        stage.produce(KEYS[0], value=bytes(50_000))
    call = stage.begin(1, wait_ms=WAIT_MS)
    while not call.is_answered:
        stage.loop.finish_jobs()
    (data,) = answers(call.answer)
    (filler,) = [header for _, header in iter_headers(data.records or b"")]
    assert filler.is_control
    assert 10 <= filler.next_offset < 200
    assert stage.walk(1) == []


def test_a_cache_without_room_still_serves(make_stage: Callable[..., Stage]) -> None:
    """A chunk that a fetch waited for is read even if the cache could not keep it."""
    stage = make_stage("branch.cache.max.bytes=0")
    for _ in range(30):
        stage.produce(*KEYS, value=bytes(100_000))
    for range_index in range(RANGES):
        assert len(stage.walk(range_index)) == 30
    assert len(stage.node.broker.branches.cache) <= 1


def test_settings_follow_while_the_broker_runs(stage: Stage) -> None:
    """A smaller cache is smaller at once, and so is what one fetch searches."""
    stage.produce(*KEYS)
    assert len(stage.walk(0)) == 1
    stage.produce(*KEYS)
    assert len(stage.fetch(0, offset=4)) == 1
    cache = stage.node.broker.branches.cache
    assert len(cache) == 2
    stage.node.broker.set_broker_configs(
        "", {"branch.cache.max.bytes": "1", "branch.scan.max.bytes": "100"}
    )
    assert len(cache) == 1
    for _ in range(5):
        stage.produce(KEYS[1])
        stage.fetch(1, offset=stage.log.log_end_offset - 1)
    call = stage.begin(0, offset=8, wait_ms=WAIT_MS)
    (data,) = answers(call.answer)
    assert next_offset(bytes(data.records or b"")) > 8


def test_what_cannot_be_sorted_is_an_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that fails is told to the client once, not tried for ever."""

    def fail(*args: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(branch_reader, "split_batches", fail)
    for _ in range(10):
        stage.produce(*KEYS, value=bytes(50_000))
    (data,) = stage.fetch(0, wait_ms=WAIT_MS)
    assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_reader_that_hung_up_is_forgotten(stage: Stage) -> None:
    """The job goes on for others; nobody answers into a closed connection."""
    for _ in range(10):
        stage.produce(*KEYS, value=bytes(50_000))
    call = stage.begin(0)
    assert call.deferred is not None
    call.deferred.cancel()
    stage.loop.finish_jobs()
    assert not call.is_answered
    assert len(stage.node.broker.branches.cache) == 1


# Waiting ------------------------------------------------------------------------------------------


def test_woken_by_records_of_its_range_only(stage: Stage) -> None:
    """Foreign records neither wake nor count; what matches is answered at once."""
    stage.produce(*KEYS)
    calls = [stage.begin(r, offset=4, wait_ms=WAIT_MS) for r in range(RANGES)]
    stage.produce(KEYS[2])
    assert [call.is_answered for call in calls] == [False, False, True, False]
    stage.produce(KEYS[0], KEYS[3])
    assert [call.is_answered for call in calls] == [True, False, True, True]
    (data,) = answers(calls[3].answer)
    assert [record.offset for record in all_records(bytes(data.records or b""))] == [6]


def test_woken_after_sorting_off_the_loop(stage: Stage) -> None:
    """A large append is sorted by a thread first; one job for all who wait."""
    calls = [stage.begin(r, wait_ms=WAIT_MS) for r in range(RANGES)]
    stage.produce(KEYS[1], KEYS[2], value=bytes(450_000))
    assert not any(call.is_answered for call in calls)
    stage.produce(KEYS[3])
    assert stage.loop.finish_jobs() == 1
    assert [call.is_answered for call in calls] == [False, True, True, True]


def test_matching_bytes_add_up_to_min_bytes(stage: Stage) -> None:
    """Only records of the range count towards what a fetch waits for."""
    call = stage.begin(0, wait_ms=WAIT_MS, min_bytes=250)
    for _ in range(2):
        stage.produce(KEYS[0], KEYS[1])
        stage.produce(KEYS[1], KEYS[1])
    assert not call.is_answered
    for _ in range(2):
        stage.produce(KEYS[0])
    assert call.is_answered
    (data,) = answers(call.answer)
    assert len(all_records(bytes(data.records or b""))) == 4


def test_the_position_moves_when_the_wait_is_over(stage: Stage) -> None:
    """An idle branch of a busy topic follows it, so that its lag does not grow."""
    call = stage.begin(0, wait_ms=WAIT_MS)
    for _ in range(5):
        stage.produce(KEYS[1])
    stage.loop.pass_ms(WAIT_MS - 1)
    assert not call.is_answered
    stage.loop.pass_ms(1)
    (data,) = answers(call.answer)
    (filler,) = [header for _, header in iter_headers(data.records or b"")]
    assert (filler.is_control, filler.next_offset) == (True, 5)


def test_a_reader_of_both_topics_waits_for_either(stage: Stage) -> None:
    """A fetch of the source and of a branch is woken by whatever has something."""
    request = FetchRequest(
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=BIG)],
            )
            for topic in ("by-key", "orders")
        ],
        max_bytes=BIG,
        min_bytes=1,
        max_wait_ms=WAIT_MS,
    )
    call = stage.node.begin(request, 12)
    assert not call.is_answered
    stage.produce(KEYS[1])
    branch, plain = answers(call.answer)
    assert all_records(bytes(branch.records or b"")) == []
    assert len(all_records(bytes(plain.records or b""))) == 1


def test_deletion_answers_who_waits(stage: Stage) -> None:
    """A branch topic that goes takes its fetches with it and leaves the source alone."""
    call = stage.begin(0, wait_ms=WAIT_MS)
    stage.node.broker.delete_topic(stage.topic)
    (data,) = answers(call.answer)
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stage.produce(KEYS[0])
    assert stage.log.log_end_offset == 1


def test_an_append_and_a_fetch_in_one_go(stage: Stage) -> None:
    """A fetch parked between an append and its wake-up loses nothing, nor do the others."""
    early = stage.begin(0, wait_ms=WAIT_MS)
    log = stage.log
    batch = bytearray(build_batch([Record(0, NOW_MS, KEYS[0], b"v", ())], base_offset=0))
    source = stage.node.broker.topics.partition("orders", 0)
    log.append(memoryview(batch), now_ms=NOW_MS)
    stage.node.broker.purgatory.mark(source, len(batch))
    late = stage.begin(1, offset=1, wait_ms=WAIT_MS)
    stage.node.broker.wake_fetches()
    assert early.is_answered
    assert not late.is_answered
    stage.produce(KEYS[1])
    assert late.is_answered


def test_nobody_waits_nothing_is_sorted(stage: Stage) -> None:
    """Producers pay for branches only while somebody waits on them."""
    stage.produce(*KEYS)
    assert len(stage.node.broker.branches.cache) == 0
    call = stage.begin(0, offset=4, wait_ms=WAIT_MS)
    assert call.deferred is not None
    call.deferred.cancel()
    stage.produce(*KEYS)
    assert len(stage.node.broker.branches.cache) == 0


# Lingering ----------------------------------------------------------------------------------------

LINGER_MS = 20


@pytest.fixture
def lingering(make_stage: Callable[..., Stage]) -> Stage:
    return make_stage(f"branch.fetch.linger.ms={LINGER_MS}")


def found(call: Call) -> list[int]:
    (data,) = answers(call.answer)
    return [record.offset for record in all_records(bytes(data.records or b""))]


def test_a_pause_and_then_a_record(lingering: Stage) -> None:
    """After a pause nothing is held back."""
    lingering.loop.pass_ms(1000)
    call = lingering.begin(0, wait_ms=WAIT_MS)
    lingering.produce(KEYS[0])
    assert found(call) == [0]


def test_a_busy_tail_is_served_together(lingering: Stage) -> None:
    """What follows within the time leaves at its end, for all branches at once."""
    stage = lingering
    stage.loop.pass_ms(1000)
    first = stage.begin(0, wait_ms=WAIT_MS)
    stage.produce(KEYS[0])
    assert first.is_answered
    calls = [stage.begin(r, offset=1, wait_ms=WAIT_MS) for r in range(3)]
    for key in (KEYS[0], KEYS[1], KEYS[0]):
        stage.loop.pass_ms(5)
        stage.produce(key)
    assert not any(call.is_answered for call in calls)
    stage.loop.pass_ms(4)
    assert not any(call.is_answered for call in calls)
    stage.loop.pass_ms(1.001)
    assert [call.is_answered for call in calls] == [True, True, False]
    assert (found(calls[0]), found(calls[1])) == ([1, 3], [2])


def test_a_fetch_that_finds_a_little_waits_too(lingering: Stage) -> None:
    """It would be one more answer for few records; nothing of them is lost by the wait."""
    stage = lingering
    stage.loop.pass_ms(1000)
    first = stage.begin(0, wait_ms=WAIT_MS)
    stage.produce(KEYS[0])
    assert first.is_answered
    stage.produce(KEYS[0], KEYS[1])
    late = stage.begin(0, offset=1, wait_ms=WAIT_MS)
    other = stage.begin(1, offset=1, wait_ms=WAIT_MS)
    assert not late.is_answered and not other.is_answered
    stage.loop.pass_ms(LINGER_MS + 0.001)
    assert (found(late), found(other)) == ([1], [2])


def test_who_is_behind_is_not_held_back(lingering: Stage) -> None:
    """Nor is who does not want to wait: only what is new at the tail is served together."""
    stage = lingering
    for _ in range(3):
        stage.produce(KEYS[0])
    stage.loop.pass_ms(1000)
    first = stage.begin(0, offset=3, wait_ms=WAIT_MS)
    stage.produce(KEYS[0])
    assert first.is_answered
    stage.produce(KEYS[0])
    assert found(stage.begin(0, offset=1, wait_ms=WAIT_MS)) == [1, 2, 3, 4]
    assert found(stage.begin(0, offset=4, wait_ms=0)) == [4]
    assert not stage.begin(0, offset=4, wait_ms=WAIT_MS).is_answered


def test_the_end_of_the_wait_comes_first(lingering: Stage) -> None:
    """A fetch with little patience is answered when it said, with what there is."""
    stage = lingering
    stage.loop.pass_ms(1000)
    first = stage.begin(0, wait_ms=WAIT_MS)
    stage.produce(KEYS[0])
    assert first.is_answered
    call = stage.begin(0, offset=1, wait_ms=3)
    stage.produce(KEYS[0])
    stage.loop.pass_ms(3)
    assert found(call) == [1]
