"""Fetches that name key ranges: what is read, what is refused, and that the answer says so."""

from typing import Any

import pytest
from handler_calls import NOW_MS, Node

from anabranch.branch.slots import slot_of_key
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import SLOT_COUNT, SlotRange, hashes_of
from anabranch.wire.messages.cooperation import (
    KeyRange,
    RangeCut,
    RangeFetch,
    RangeFetchAnswer,
)
from anabranch.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from anabranch.wire.record_batch import Record, build_batch, iter_headers, iter_records
from support.fake_loop import FakeLoop

BIG = 1 << 30
HALF = SLOT_COUNT // 2
LOW, HIGH = SlotRange(0, HALF), SlotRange(HALF, SLOT_COUNT)
KEYS = [b"key-%d" % number for number in range(40)]


def key_range(slots: SlotRange) -> KeyRange:
    first_hash, last_hash = hashes_of(slots)
    return KeyRange(first_hash=first_hash, last_hash=last_hash)


def wanted(*ranges: SlotRange, **more: Any) -> RangeFetch:
    return RangeFetch(ranges=[key_range(slots) for slots in ranges], **more)


@pytest.fixture
def topic(node: Node, loop: FakeLoop) -> Any:
    made = node.create_topic("orders", range_fetch_enable="true")
    records = [Record(i, NOW_MS, key, b"v", ()) for i, key in enumerate(KEYS)]
    batch = bytearray(build_batch(records, base_offset=0))
    made.partitions[0].log.append(memoryview(batch), now_ms=NOW_MS)
    return made


def fetch(
    node: Node,
    asked: RangeFetch,
    offset: int = 0,
    cut: RangeCut | None = None,
    **more: Any,
) -> PartitionData:
    partition = FetchPartition(
        partition=0,
        fetch_offset=offset,
        partition_max_bytes=BIG,
        range_fetch=asked,
        range_cut=cut,
    )
    more.setdefault("topic", "orders")
    request = FetchRequest(
        max_bytes=BIG, min_bytes=1, topics=[FetchTopic(partitions=[partition], **more)]
    )
    (answered,) = node.call(request, 12).responses
    (data,) = answered.partitions
    return data


def keys_in(data: PartitionData) -> list[bytes | None]:
    found: list[bytes | None] = []
    content = bytes(data.records or b"")
    for position, header in iter_headers(content):
        if not header.is_control:
            batch = content[position : position + header.size_bytes]
            found += [record.key for record in iter_records(batch)]
    return found


@pytest.mark.usefixtures("topic")
def test_ranges_are_read_and_echoed(node: Node) -> None:
    """Each record is in one of the halves, and the answer says which ranges were applied."""
    low, high = fetch(node, wanted(LOW)), fetch(node, wanted(HIGH))
    assert keys_in(low) == [key for key in KEYS if slot_of_key(key) < HALF]
    assert keys_in(high) == [key for key in KEYS if slot_of_key(key) >= HALF]
    assert low.range_fetch == RangeFetchAnswer(covered_offset=40, ranges=[key_range(LOW)])
    both = fetch(node, wanted(SlotRange(10, 20), SlotRange(20, HALF), SlotRange(0, 10)))
    assert keys_in(both) == keys_in(low)
    assert both.range_fetch.ranges == [key_range(LOW)]
    everything = fetch(node, wanted())
    assert keys_in(everything) == KEYS
    assert fetch(node, wanted(LOW), offset=40).range_fetch.covered_offset == 40


@pytest.mark.usefixtures("topic")
def test_who_does_not_ask_gets_no_answer(node: Node) -> None:
    """Stock clients see the topic as it is."""
    data = fetch(node, wanted(LOW))
    assert data.range_fetch is not None
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=BIG)
    request = FetchRequest(
        max_bytes=BIG, topics=[FetchTopic(topic="orders", partitions=[partition])]
    )
    (plain,) = node.call(request, 12).responses[0].partitions
    assert plain.range_fetch is None
    assert keys_in(plain) == KEYS


@pytest.mark.parametrize(
    "ranges",
    [
        [KeyRange(first_hash=1, last_hash=(1 << 47) - 1)],
        [KeyRange(first_hash=0, last_hash=1 << 47)],
        [KeyRange(first_hash=1 << 47, last_hash=(1 << 47) - 1)],
        [KeyRange(first_hash=-(1 << 47), last_hash=(1 << 47) - 1)],
        [key_range(LOW), key_range(SlotRange(HALF - 1, HALF + 1))],
    ],
)
@pytest.mark.usefixtures("topic")
def test_ranges_that_are_none(node: Node, ranges: list[KeyRange]) -> None:
    """They must begin and end at slots, and not overlap."""
    data = fetch(node, RangeFetch(ranges=ranges))
    assert data.error_code == ErrorCode.INVALID_REQUEST
    assert data.range_fetch == RangeFetchAnswer(sub_code=SubCode.NONE)


def test_topics_that_may_not_be_read_by_range(node: Node, topic: Any) -> None:
    """Only where the topic allows it; a branch topic is cut already."""
    node.create_topic("plain")
    node.broker.topics.create_branch_topic("by-key", topic, 2, {})
    for name in ("plain", "by-key"):
        data = fetch(node, wanted(LOW), topic=name)
        assert data.error_code == ErrorCode.INVALID_REQUEST
        assert data.range_fetch.sub_code == SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED


@pytest.mark.usefixtures("topic")
def test_strangers_are_refused(node: Node) -> None:
    """Who names a group has to be a member of it."""
    data = fetch(node, wanted(LOW, group_id="g", member_id="m", member_epoch=1))
    assert data.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert data.range_fetch.sub_code == SubCode.CONSUMER_RANGE_FETCH_NOT_ACCEPTED


def test_tables_are_shared_and_forgotten(node: Node, topic: Any) -> None:
    """Readers of one cut share a table; a topic that goes takes its tables along."""
    tails = node.broker.range_tails
    source = topic.partitions[0]
    one = tails.partition(source, (LOW,), [(LOW,), (HIGH,)])
    other = tails.partition(source, (HIGH,), [(HIGH,), (LOW,)])
    assert one.branch.tail is other.branch.tail
    assert one.branch.range_index != other.branch.range_index
    alone = tails.partition(source, (SlotRange(0, 5),), [(LOW,), (HIGH,)])
    assert alone.branch.tail is not one.branch.tail
    assert len(tails) == len(source.branch_tails) == 2
    node.broker.delete_topic(topic)
    assert (len(tails), source.branch_tails) == (0, [])


def _filled(node: Node, name: str) -> Any:
    made = node.create_topic(name)
    records = [Record(i, NOW_MS, key, b"v", ()) for i, key in enumerate(KEYS)]
    batch = bytearray(build_batch(records, base_offset=0))
    made.partitions[0].log.append(memoryview(batch), now_ms=NOW_MS)
    return made


def cut_of(*ranges: SlotRange) -> RangeCut:
    return RangeCut(ranges=[key_range(slots) for slots in ranges])


def test_readers_without_a_group_who_say_how_they_cut(node: Node, loop: FakeLoop) -> None:
    """They may read every plain topic by range, and share one table."""
    made = _filled(node, "plain")
    halves = cut_of(LOW, HIGH)
    low = fetch(node, wanted(LOW), topic="plain", cut=halves)
    high = fetch(node, wanted(HIGH), topic="plain", cut=halves)
    assert sorted([*keys_in(low), *keys_in(high)]) == sorted(KEYS)
    assert keys_in(low) == [key for key in KEYS if slot_of_key(key) < HALF]
    assert low.range_fetch == RangeFetchAnswer(covered_offset=40, ranges=[key_range(LOW)])
    assert len(node.broker.range_tails) == 1
    odd = fetch(node, wanted(SlotRange(0, 5)), topic="plain", cut=halves)
    assert odd.error_code == 0
    assert len(made.partitions[0].branch_tails) == 2


def test_a_cut_frees_nobody_from_his_group(node: Node, loop: FakeLoop) -> None:
    """Who names a group reads by its rules; branch topics and nonsense are refused as ever."""
    source = _filled(node, "plain")
    halves = cut_of(LOW, HIGH)
    member = wanted(LOW, group_id="g", member_id="m", member_epoch=1)
    data = fetch(node, member, topic="plain", cut=halves)
    assert data.range_fetch.sub_code == SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED
    node.broker.topics.create_branch_topic("by-key", source, 2, {})
    data = fetch(node, wanted(LOW), topic="by-key", cut=halves)
    assert data.range_fetch.sub_code == SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED
    for nonsense in (
        cut_of(LOW, SlotRange(HALF - 1, SLOT_COUNT)),
        cut_of(*(SlotRange(i, i + 1) for i in range(1025))),
    ):
        data = fetch(node, wanted(LOW), topic="plain", cut=nonsense)
        assert data.error_code == ErrorCode.INVALID_REQUEST


def test_cuts_that_keep_moving_are_forgotten(node: Node, loop: FakeLoop) -> None:
    """A partition keeps the tables of its latest cuts only: every append looks at each."""
    made = _filled(node, "plain")
    for middle in range(1, 100):
        low, high = SlotRange(0, middle), SlotRange(middle, SLOT_COUNT)
        data = fetch(node, wanted(low), topic="plain", cut=cut_of(low, high))
        assert data.error_code == 0
    assert len(made.partitions[0].branch_tails) == len(node.broker.range_tails) == 32
