"""Members that share partitions: our tag on ConsumerGroupHeartbeat, and their ranged fetches."""

from typing import Any

import pytest
from consumer_group_calls import GROUP, ConsumerNode, partitions
from handler_calls import NOW_MS

from anabranch.branch.slots import slot_of_key
from anabranch.broker.range_loads import HotKey
from anabranch.coordinator.cooperative.line_group import HotSlot
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_commands import MoveRanges, RangeMove
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit, hashes_of, slots_between
from anabranch.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from anabranch.wire.messages.cooperation import (
    Cooperation,
    HeldPartition,
    HotRange,
    KeyRange,
    RangeFetch,
    RangeLoad,
)
from anabranch.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from anabranch.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.wire.record_batch import Record, build_batch, iter_headers, iter_records

BIG = 1 << 30
SESSION_MS = 45_000
KEYS = [b"key-%d" % number for number in range(60)]


@pytest.fixture
def node(make_consumer_node: Any) -> ConsumerNode:
    node: ConsumerNode = make_consumer_node()
    topic = node.create_topic("orders", 1, range_fetch_enable="true")
    records = [Record(i, NOW_MS, key, b"v", ()) for i, key in enumerate(KEYS)]
    topic.partitions[0].log.append(
        memoryview(bytearray(build_batch(records, base_offset=0))), now_ms=NOW_MS
    )
    node.topic_id = topic.topic_id
    return node


class Sharer:
    """A member that shares: takes what it is given, gives up what it is told to."""

    def __init__(self, node: ConsumerNode, member_id: str) -> None:
        self.node = node
        self.member_id = member_id
        self.ranges: dict[SlotRange, int] = {}
        answer = node.enter(
            member_id,
            subscribed_topic_names=["orders"],
            cooperation=Cooperation(held=[]),
        )
        self.take(answer)

    def take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        self.epoch = answer.member_epoch
        assert answer.cooperation is not None, "the broker did not understand"
        assert answer.cooperation.lease_ms == SESSION_MS
        if answer.cooperation.assigned is None:
            return
        self.ranges = {}
        for one in answer.cooperation.assigned:
            assert (one.topic_id, one.partition) == (self.node.topic_id, 0)
            for owned in one.ranges:
                slots = slots_between(owned.first_hash, owned.last_hash)
                assert slots is not None
                self.ranges[slots] = owned.epoch

    def beat(self) -> None:
        held = [
            HeldPartition(
                topic_id=self.node.topic_id,
                partition=0,
                ranges=[key_range(slots) for slots in self.ranges],
            )
        ]
        cooperation = Cooperation(held=held if self.ranges else [])
        self.take(self.node.beat(self.member_id, self.epoch, cooperation=cooperation))

    def fetch(self, ranges: Any = None, **more: Any) -> PartitionData:
        wanted = self.ranges if ranges is None else ranges
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "ranges": [key_range(slots) for slots in wanted],
        }
        partition = FetchPartition(
            partition=0,
            fetch_offset=0,
            partition_max_bytes=BIG,
            range_fetch=RangeFetch(**values | more),
        )
        request = FetchRequest(
            max_bytes=BIG, topics=[FetchTopic(topic="orders", partitions=[partition])]
        )
        (answered,) = self.node.call(request, 12).responses
        (data,) = answered.partitions
        return data


def key_range(slots: SlotRange) -> KeyRange:
    first_hash, last_hash = hashes_of(slots)
    return KeyRange(first_hash=first_hash, last_hash=last_hash)


def keys_in(data: PartitionData) -> list[bytes | None]:
    found: list[bytes | None] = []
    content = bytes(data.records or b"")
    for position, header in iter_headers(content):
        if not header.is_control:
            batch = content[position : position + header.size_bytes]
            found += [record.key for record in iter_records(batch)]
    return found


def settle(*members: Sharer) -> None:
    for _ in range(10):
        for member in members:
            member.beat()
        if members[0].node.consumer_group.is_settled:
            return
    raise AssertionError("the group does not settle")


def test_three_members_share_one_partition(node: ConsumerNode) -> None:
    """Every record goes to one of them, by one table that serves all three."""
    members = [Sharer(node, name) for name in "abc"]
    settle(*members)
    slots = sorted(slots for member in members for slots in member.ranges)
    assert slots[0].first == 0 and slots[-1].end == SLOT_COUNT
    found = []
    for member in members:
        keys = keys_in(member.fetch())
        assert all(
            any(r.first <= slot_of_key(key or b"") < r.end for r in member.ranges) for key in keys
        )
        found += keys
    assert sorted(found) == sorted(KEYS)
    assert len(node.broker.range_tails) == 1


def test_a_first_member_has_it_whole(node: ConsumerNode) -> None:
    """Also in Kafka's own field: it is all of the partition."""
    member = Sharer(node, "a")
    assert list(member.ranges) == [ALL_SLOTS]
    assert keys_in(member.fetch()) == KEYS


def test_stock_members_get_no_tag(node: ConsumerNode) -> None:
    """Nor ranges: a partition is theirs, or it is not."""
    answer = node.enter("stock", subscribed_topic_names=["orders"])
    assert answer.cooperation is None
    assert partitions(answer) == [0]
    sharer = Sharer(node, "a")
    assert sharer.ranges == {}
    refused = sharer.fetch([ALL_SLOTS])
    assert refused.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_nothing_new_is_said_in_nothing(node: ConsumerNode) -> None:
    """The tag is always answered, the assignment only when it is news."""
    member = Sharer(node, "a")
    answer = node.beat("a", member.epoch, cooperation=Cooperation())
    assert answer.cooperation is not None
    assert answer.cooperation.assigned is None


def test_ranges_that_are_none(node: ConsumerNode) -> None:
    """A range that does not begin at a slot is refused with a sentence."""
    member = Sharer(node, "a")
    held = [
        HeldPartition(
            topic_id=node.topic_id, partition=0, ranges=[KeyRange(first_hash=1, last_hash=5)]
        )
    ]
    answer = node.beat("a", member.epoch, cooperation=Cooperation(held=held))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "2^47" in (answer.error_message or "")


def test_fetches_are_fenced(node: ConsumerNode) -> None:
    """By membership, epoch and ranges; what is being given up may still be read."""
    one = Sharer(node, "a")
    other = Sharer(node, "b")
    one.beat()  # told to give up a half, which it still has
    assert list(one.ranges) != [ALL_SLOTS]
    assert keys_in(one.fetch([ALL_SLOTS])) == KEYS
    settle(one, other)
    for refused in (
        one.fetch([ALL_SLOTS]),
        one.fetch(other.ranges),
        one.fetch(member_epoch=one.epoch + 1),
        one.fetch(member_epoch=0),
        one.fetch(member_id="c"),
        one.fetch(group_id="another"),
    ):
        assert refused.error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert refused.range_fetch is not None
        assert refused.range_fetch.sub_code == SubCode.CONSUMER_RANGE_FETCH_NOT_ACCEPTED
        assert not refused.records
    assert one.fetch(member_epoch=one.epoch - 1).error_code == ErrorCode.NONE
    part = next(iter(one.ranges))
    smaller = one.fetch([SlotRange(part.first, part.first + 10)])
    assert smaller.error_code == ErrorCode.NONE


# Loads and assignors ------------------------------------------------------------------------------


def load(node: ConsumerNode, slots: SlotRange, records: int = 3, busy_us: int = 4_000) -> RangeLoad:
    first_hash, last_hash = hashes_of(slots)
    return RangeLoad(
        topic_id=node.topic_id,
        partition=0,
        first_hash=first_hash,
        last_hash=last_hash,
        records=records,
        busy_us=busy_us,
    )


def test_loads_are_taken(node: ConsumerNode) -> None:
    """What a member was busy with is what the broker goes by, once it has what it speaks of."""
    members = [Sharer(node, name) for name in "ab"]
    settle(*members)
    (slots,) = members[0].ranges
    loads = [load(node, ALL_SLOTS), load(node, ALL_SLOTS, 1, 1_000)]
    node.beat("a", members[0].epoch, cooperation=Cooperation(loads=loads))
    watched = node.broker.groups.range_loads._watched[GROUP]
    assert watched.reports == {((node.topic_id, 0), slots): (4, 5_000_000)}


def test_loads_of_what_is_no_range(node: ConsumerNode) -> None:
    """Ranges begin and end at slots, wherever they are written."""
    members = [Sharer(node, name) for name in "ab"]
    settle(*members)
    odd = RangeLoad(topic_id=node.topic_id, partition=0, first_hash=5, last_hash=9, records=1)
    answer = node.beat("a", members[0].epoch, cooperation=Cooperation(loads=[odd]))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_describe_tells_the_assignor_that_shares(node: ConsumerNode) -> None:
    """And each partition once, however many ranges of it a member has."""
    members = [Sharer(node, name) for name in "ab"]
    settle(*members)
    moves = (RangeMove(Unit(node.topic_id, 0, SlotRange(10, 20)), None),)
    group = node.consumer_group
    command = MoveRanges(
        group_id=GROUP, group_epoch=group.group_epoch, moves=moves, cause=Cause.STUCK
    )
    node.broker.groups.submit(GROUP, command)
    settle(*members)
    (described,) = node.call(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1).groups
    assert described.assignor_name == "line-cut"
    for member in described.members:
        (topic,) = member.assignment.topic_partitions
        assert topic.partitions == [0]
    assert sorted(len(member.ranges) for member in members) == [2, 2]


def test_hot_slots_are_told_to_who_asks(node: ConsumerNode) -> None:
    """With the key that is most of it, if there is one."""
    member = Sharer(node, "a")
    settle(member)
    node.broker.groups.range_loads.take(GROUP, "a", [])
    watched = node.broker.groups.range_loads._watched[GROUP]
    slot = HotSlot(node.topic_id, 0, 77, "a", 0.4321)
    watched.hot[(node.topic_id, 0), 77] = HotKey(slot, b"k")
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
    asked = OffsetFetchRequest(groups=[group], with_individual=True)
    answer = node.call(asked, 9).groups[0].topics[0].partitions[0].individual
    first_hash, last_hash = hashes_of(SlotRange(77, 78))
    assert answer.hot == [
        HotRange(first_hash=first_hash, last_hash=last_hash, share_permille=432, key=b"k")
    ]
