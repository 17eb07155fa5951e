"""Fetches of committed records: where they end, what wakes them, and what all of them see."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from handler_calls import NOW_MS, Call, Node

from anabranch.branch.slots import DEFAULT_RULE, branch_of_slot, slot_of_key
from anabranch.client.record_reader import FetchedRecords
from anabranch.handlers import fetch as fetch_handler
from anabranch.log.markers import append_marker
from anabranch.model.errors import ErrorCode
from anabranch.model.units import SLOT_COUNT, SlotRange, hashes_of
from anabranch.wire.control_records import ABORT, COMMIT
from anabranch.wire.messages.cooperation import KeyRange, RangeFetch
from anabranch.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch, iter_headers
from support.fake_loop import FakeLoop

BIG = 1 << 30
WAIT_MS = 500
RANGES = 4
WAYS = ("plain", "branch", "range")
KEYS = [b"key-%d" % number for number in range(20)]


def range_of(key: bytes) -> int:
    return branch_of_slot(slot_of_key(key), RANGES)


KEY = next(key for key in KEYS if range_of(key) == 1)
OTHER = next(key for key in KEYS if range_of(key) == 2)


class Stage:
    """A topic `orders` of one partition that is read as it is, by branch, and by key range."""

    def __init__(self, node: Node, loop: FakeLoop) -> None:
        self.node = node
        self.loop = loop
        source = node.create_topic("orders", range_fetch_enable="true")
        node.broker.topics.create_branch_topic("by-key", source, RANGES, {})
        self.partition = source.partitions[0]
        self.log = self.partition.log
        self._sequences: dict[int, int] = {}

    # Writing ------------------------------------------------------------------------------------

    def append(
        self, *keys: bytes, producer: int | None = None, codec: int = 0, value: bytes = b"v"
    ) -> int:
        """A batch with a record of each key, in the transaction of a producer; its first offset."""
        records = [Record(i, NOW_MS, key, value, ()) for i, key in enumerate(keys)]
        header: dict[str, int] = {"codec": codec}
        if producer is not None:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + len(keys)
            header |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            header["attributes"] = TRANSACTIONAL_FLAG
        batch = bytearray(build_batch(records, base_offset=0, **header))
        info = self.log.append(
            memoryview(batch), now_ms=NOW_MS, has_transactional_id=producer is not None
        )
        self._appended(len(batch))
        return info.first_offset

    def end(self, producer: int, control_type: int) -> None:
        append_marker(
            self.log,
            control_type,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            now_ms=NOW_MS,
        )
        self._appended(78)

    def _appended(self, size: int) -> None:
        self.node.broker.purgatory.mark(self.partition, size)
        self.node.broker.wake_fetches()
        self.loop.finish_jobs()

    # Reading ------------------------------------------------------------------------------------

    def begin(
        self,
        way: str,
        offset: int = 0,
        *,
        part: int = 1,
        wait_ms: int = WAIT_MS,
        max_bytes: int = BIG,
        isolation_level: int = 1,
        **more: Any,
    ) -> Call:
        width = SLOT_COUNT // RANGES
        first_hash, last_hash = hashes_of(SlotRange(part * width, (part + 1) * width))
        asked = FetchPartition(
            partition=part if way == "branch" else 0,
            fetch_offset=offset,
            partition_max_bytes=max_bytes,
            range_fetch=(
                RangeFetch(ranges=[KeyRange(first_hash=first_hash, last_hash=last_hash)])
                if way == "range"
                else None
            ),
        )
        topic = FetchTopic(topic="by-key" if way == "branch" else "orders", partitions=[asked])
        more.setdefault("min_bytes", 1)
        request = FetchRequest(
            topics=[topic],
            max_wait_ms=wait_ms,
            max_bytes=BIG,
            isolation_level=isolation_level,
            **more,
        )
        call = self.node.begin(request, 12)
        while not call.is_answered and self.loop.finish_jobs():
            pass
        return call

    def walk(self, way: str, part: int = 0, **more: Any) -> list[int]:
        """The offsets that a reader of committed records hands to its application, to the end."""
        found: list[int] = []
        offset = 0
        while True:
            data = data_of(self.begin(way, offset, part=part, wait_ms=0, **more))
            assert data.error_code == 0
            content = bytes(data.records or b"")
            if not content:
                return found
            found += committed(data, offset)
            moved = [header for _, header in iter_headers(content)][-1].next_offset
            assert offset < moved <= self.log.last_stable_offset
            offset = moved


def data_of(call: Call) -> PartitionData:
    ((data,),) = [topic.partitions for topic in call.answer.responses]
    return data


def committed(data: PartitionData, offset: int = 0) -> list[int]:
    """The offsets that a client hands out."""
    aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
    content = memoryview(bytes(data.records or b""))
    records = FetchedRecords(content, DEFAULT_RULE, offset, aborted)
    assert not records.damaged
    return [records.offset(i) for i in range(len(records))]


@pytest.fixture
def make_stage(make_node: Callable[..., Node], loop: FakeLoop) -> Callable[..., Stage]:
    """Start a broker; branches are served at once unless the test says otherwise."""
    return lambda linger_ms=0: Stage(make_node(f"branch.fetch.linger.ms={linger_ms}"), loop)


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    return make_stage()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each time that a fetch was read."""
    noted: list[bool] = []
    read = fetch_handler._Fetch.read

    def note(self: Any, *, is_last: bool = True) -> Any:
        noted.append(is_last)
        return read(self, is_last=is_last)

    monkeypatch.setattr(fetch_handler._Fetch, "read", note)
    return noted


# Waking -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("control_type", [COMMIT, ABORT])
@pytest.mark.parametrize("way", WAYS)
def test_a_marker_answers_and_open_records_do_not(
    stage: Stage, reads: list[bool], way: str, control_type: int
) -> None:
    """A fetch stays where it is while a transaction grows, and is answered when that ends."""
    call = stage.begin(way)
    for _ in range(5):
        stage.append(KEY, producer=7)
    assert not call.is_answered
    assert len(reads) == 1, "nothing has changed for it, so nothing is read"
    stage.end(7, control_type)
    data = data_of(call)
    assert committed(data) == ([0, 1, 2, 3, 4] if control_type == COMMIT else [])
    listed = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
    assert listed == ([] if control_type == COMMIT else [(7, 0)])


@pytest.mark.parametrize("way", WAYS)
def test_uncommitted_readers_are_answered_at_once(stage: Stage, way: str) -> None:
    """Who reads uncommitted records does not wait for anybody's decision."""
    call = stage.begin(way, isolation_level=0)
    stage.append(KEY, producer=7)
    assert committed(data_of(call)) == [0]


@pytest.mark.parametrize("way", WAYS)
def test_bytes_count_when_they_can_be_read(stage: Stage, way: str) -> None:
    """A marker is small, but what it makes readable may be more than a fetch waits for."""
    value = b"x" * 1000
    before = stage.append(KEY, producer=7, value=value)
    call = stage.begin(way, before, min_bytes=2000)
    stage.append(KEY, producer=8, value=value)
    stage.end(7, COMMIT)
    assert not call.is_answered, "one of two"
    stage.append(OTHER)
    assert not call.is_answered
    stage.end(8, COMMIT)
    assert committed(data_of(call))[:2] == [0, 1]


@pytest.mark.parametrize("way", WAYS)
def test_plain_records_answer_when_enough_have_come(
    stage: Stage, reads: list[bool], way: str
) -> None:
    """Without transactions a reader of committed records waits as all others do."""
    value = b"x" * 1000
    call = stage.begin(way, min_bytes=2500)
    stage.append(KEY, value=value)
    stage.append(KEY, value=value)
    assert (call.is_answered, len(reads)) == (False, 1)
    stage.append(KEY, value=value)
    assert committed(data_of(call)) == [0, 1, 2]
    assert len(reads) == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_marker_that_decides_nothing_here(stage: Stage, reads: list[bool], way: str) -> None:
    """While an older transaction is open, the end of a younger one makes nothing readable."""
    stage.append(KEY, producer=7)
    call = stage.begin(way)
    stage.append(KEY, producer=8)
    stage.end(8, COMMIT)
    assert (call.is_answered, len(reads)) == (False, 1)
    stage.end(7, ABORT)
    assert committed(data_of(call)) == [1]


@pytest.mark.parametrize("way", WAYS)
def test_time_is_up_while_a_transaction_is_open(stage: Stage, way: str) -> None:
    """A fetch gets nothing, and no error, when nothing was decided in its time."""
    stage.append(KEY)
    call = stage.begin(way, 1)
    stage.append(KEY, producer=7)
    stage.loop.pass_ms(WAIT_MS - 1)
    assert not call.is_answered
    stage.loop.pass_ms(2)
    data = data_of(call)
    assert (data.error_code, committed(data, 1), data.last_stable_offset) == (0, [], 1)
    assert not stage.partition.parked_fetches


def test_each_partition_of_a_fetch_may_move(stage: Stage) -> None:
    """A fetch of several branches is answered by the one that has something to read."""
    partitions = [
        FetchPartition(partition=part, fetch_offset=0, partition_max_bytes=BIG) for part in (1, 2)
    ]
    request = FetchRequest(
        topics=[FetchTopic(topic="by-key", partitions=partitions)],
        max_wait_ms=WAIT_MS,
        max_bytes=BIG,
        min_bytes=200,
        isolation_level=1,
    )
    call = stage.node.begin(request, 12)
    stage.append(KEY, producer=7)
    stage.append(OTHER, producer=7)
    assert not call.is_answered
    stage.end(7, COMMIT)
    (topic,) = call.answer.responses
    assert [committed(data) for data in topic.partitions] == [[0], [1]]


def test_what_was_left_at_a_busy_tail(make_stage: Callable[..., Stage]) -> None:
    """Records that a fetch left until the branches are served together are read then."""
    stage = make_stage(linger_ms=10)
    stage.begin("branch", part=2)
    stage.append(OTHER)  # served at once, from now on the tail lingers
    stage.append(KEY)
    call = stage.begin("branch", 1)
    assert not call.is_answered
    stage.append(KEY, producer=7)
    stage.loop.pass_ms(11)
    assert committed(data_of(call), 1) == [1]


# Where they end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_beyond_the_last_stable_offset(stage: Stage, way: str) -> None:
    """Who has read what is not decided yet waits; who is beyond the log is told so."""
    stage.append(KEY)
    stage.append(KEY, KEY, producer=7)
    for offset in (1, 2, 3):
        data = data_of(stage.begin(way, offset, wait_ms=0))
        assert (data.error_code, bytes(data.records or b"")) == (0, b"")
    beyond = data_of(stage.begin(way, 4, wait_ms=0))
    assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    call = stage.begin(way, 3)
    stage.end(7, COMMIT)
    data = data_of(call)
    assert (committed(data, 3), [h.base_offset for _, h in iter_headers(data.records)]) == ([], [3])


def test_covered_offsets_stop_there_too(stage: Stage) -> None:
    """A reader of ranges is not told that it has seen what was not decided."""
    stage.append(OTHER, OTHER)
    stage.append(OTHER, producer=7)
    data = data_of(stage.begin("range", wait_ms=0))
    assert data.range_fetch is not None
    assert data.range_fetch.covered_offset == 2


@pytest.mark.parametrize("seed", range(25))
def test_all_readers_see_the_same(stage: Stage, seed: int) -> None:
    """The branches, and the ranges, together are what a plain reader gets: all that is committed.

    Whatever the transactions do to each other, and wherever fetches begin and end.
    """
    chance = random.Random(seed)
    written: list[tuple[int, bytes, int | None]] = []
    fates: dict[int, int] = {}  # by transaction
    running: dict[int, int] = {}  # transactions by producer
    for _ in range(chance.randint(5, 60)):
        producer = chance.choice([None, 1, 2, 3])
        if producer in running and chance.random() < 0.4:
            assert producer is not None
            control_type = chance.choice([COMMIT, ABORT])
            fates[running.pop(producer)] = control_type
            stage.end(producer, control_type)
            continue
        keys = chance.choices(KEYS, k=chance.randint(1, 6))
        first = stage.append(*keys, producer=producer, codec=chance.choice([0, 0, 1, 4]))
        transaction = None if producer is None else running.setdefault(producer, first)
        written += [(first + i, key, transaction) for i, key in enumerate(keys)]
    stable_offset = min(running.values(), default=stage.log.log_end_offset)
    expected = [
        (offset, key)
        for offset, key, transaction in written
        if offset < stable_offset and (transaction is None or fates.get(transaction) == COMMIT)
    ]
    max_bytes = chance.choice([1, 100, 300, 1000, BIG])
    assert stage.walk("plain", max_bytes=max_bytes) == [offset for offset, _ in expected]
    for part in range(RANGES):
        of_part = [offset for offset, key in expected if range_of(key) == part]
        assert stage.walk("branch", part, max_bytes=max_bytes) == of_part
        assert stage.walk("range", part, max_bytes=max_bytes) == of_part
