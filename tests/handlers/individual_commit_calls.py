"""Members that share a partition and commit record by record, through the handlers."""

from pathlib import Path
from typing import Any

from consumer_group_calls import GROUP, ConsumerNode
from handler_calls import NOW_MS

from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, hashes_of, slots_between
from anabranch.wire import offset_set
from anabranch.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from anabranch.wire.messages.cooperation import (
    Cooperation,
    FailedRecord,
    HeldPartition,
    IndividualCommit,
    IndividualProgress,
    KeyRange,
    RangeAck,
    RangeFetch,
)
from anabranch.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
)
from anabranch.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
)
from anabranch.wire.record_batch import Record, build_batch
from support.fake_loop import FakeLoop

TOPIC = "orders"
RECORDS = 60
BIG = 1 << 30
HALF = SLOT_COUNT // 2
LOW, HIGH = SlotRange(0, HALF), SlotRange(HALF, SLOT_COUNT)


class SharedNode(ConsumerNode):
    """A broker with a topic of two partitions that may be shared, 60 records in each."""

    partitions = 2

    def __init__(self, folder: Path, loop: FakeLoop, *overrides: str) -> None:
        super().__init__(folder, loop, *overrides)
        if self.broker.topics.get(TOPIC) is None:
            self.create_topic(TOPIC, self.partitions, range_fetch_enable="true")
            for partition in range(self.partitions):
                self.append_keys(RECORDS, partition)
        topic = self.broker.topics.get(TOPIC)
        assert topic is not None
        self.orders = topic

    def append_keys(self, count: int, partition: int = 0) -> None:
        records = [Record(i, NOW_MS, b"key-%d" % i, b"v", ()) for i in range(count)]
        batch = memoryview(bytearray(build_batch(records, base_offset=0)))
        self.broker.topics.partition(TOPIC, partition).log.append(batch, now_ms=NOW_MS)

    def commit_parts(
        self,
        *parts: OffsetCommitRequestPartition,
        member_id: str = "",
        epoch: int = -1,
        topic: str = TOPIC,
        version: int = 9,
        group_id: str = GROUP,
    ) -> list[OffsetCommitResponsePartition]:
        known = self.broker.topics.get(topic)
        request = OffsetCommitRequest(
            group_id=group_id,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=known.topic_id if known is not None else bytes(15) + b"?",
                    partitions=list(parts),
                )
            ],
        )
        answered: list[OffsetCommitResponsePartition] = (
            self.call(request, version).topics[0].partitions
        )
        return answered

    def fetch_offsets(
        self,
        *partitions: int,
        with_individual: bool = True,
        version: int = 9,
        topic: str = TOPIC,
        all_topics: bool = False,
        group_id: str = GROUP,
    ) -> list[OffsetFetchResponsePartitions]:
        known = self.broker.topics.get(topic)
        named = OffsetFetchRequestTopics(
            name=topic,
            topic_id=known.topic_id if known is not None else bytes(15) + b"?",
            partition_indexes=list(partitions or (0,)),
        )
        asked = OffsetFetchRequestGroup(group_id=group_id, topics=None if all_topics else [named])
        request = OffsetFetchRequest(groups=[asked], with_individual=with_individual)
        (group,) = self.call(request, version).groups
        assert group.error_code == ErrorCode.NONE
        return [partition for one in group.topics for partition in one.partitions]

    def known(self, partition: int = 0) -> IndividualProgress:
        (answered,) = self.fetch_offsets(partition)
        assert answered.error_code == ErrorCode.NONE
        assert answered.individual is not None
        return answered.individual

    def ranges(self, partition: int = 0) -> list[tuple[Any, ...]]:
        """What is known of each range: slots, watermark, what is done, owner, epoch."""
        return [
            (
                slots_between(one.first_hash, one.last_hash),
                one.watermark,
                [tuple(pair) for pair in offset_set.decode(one.done)],
                one.owner,
                one.epoch,
            )
            for one in self.known(partition).ranges
        ]


class Sharer:
    """A member that shares: takes what it is given, gives up what it is told to."""

    def __init__(self, node: SharedNode, member_id: str) -> None:
        self.node = node
        self.member_id = member_id
        self.ranges: dict[tuple[int, SlotRange], int] = {}
        answer = node.enter(
            member_id, subscribed_topic_names=[TOPIC], cooperation=Cooperation(held=[])
        )
        self._take(answer)

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        self.epoch = answer.member_epoch
        assert answer.cooperation is not None
        if answer.cooperation.assigned is None:
            return
        self.ranges = {}
        for one in answer.cooperation.assigned:
            for owned in one.ranges:
                slots = slots_between(owned.first_hash, owned.last_hash)
                assert slots is not None
                self.ranges[one.partition, slots] = owned.epoch

    def beat(self) -> None:
        held = [
            HeldPartition(
                topic_id=self.node.orders.topic_id, partition=partition, ranges=[key_range(slots)]
            )
            for partition, slots in self.ranges
        ]
        answer = self.node.beat(self.member_id, self.epoch, cooperation=Cooperation(held=held))
        self._take(answer)

    def leave(self) -> None:
        self.node.beat(self.member_id, -1)

    def slots(self, partition: int = 0) -> SlotRange:
        """The range it has of a partition, which is one."""
        (found,) = (slots for p, slots in self.ranges if p == partition)
        return found

    def fetch(self, offset: int = 0, max_bytes: int = BIG, partition: int = 0) -> int:
        """Read its range; how far that went."""
        asked = FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=max_bytes,
            range_fetch=RangeFetch(
                group_id=GROUP,
                member_id=self.member_id,
                member_epoch=self.epoch,
                ranges=[key_range(self.slots(partition))],
            ),
        )
        request = FetchRequest(
            max_bytes=max_bytes, topics=[FetchTopic(topic=TOPIC, partitions=[asked])]
        )
        (answered,) = self.node.call(request, 12).responses
        (data,) = answered.partitions
        assert data.error_code == ErrorCode.NONE
        covered: int = data.range_fetch.covered_offset
        return covered

    def ack(
        self,
        watermark: int = -1,
        *pairs: tuple[int, int],
        slots: SlotRange | None = None,
        **more: Any,
    ) -> OffsetCommitResponsePartition:
        """Commit of the range that it has, or of another one."""
        if slots is None:
            slots = self.slots()
        epoch = self.ranges.get((0, slots), self.epoch)
        part = individual(ack(slots, epoch, watermark, *pairs), **more)
        (answered,) = self.node.commit_parts(part, member_id=self.member_id, epoch=self.epoch)
        return answered

    def fail(self, *failures: FailedRecord) -> OffsetCommitResponsePartition:
        part = individual(failures=list(failures))
        (answered,) = self.node.commit_parts(part, member_id=self.member_id, epoch=self.epoch)
        return answered


def settle(*members: Sharer) -> None:
    for _ in range(10):
        for member in members:
            member.beat()
        if members[0].node.consumer_group.is_settled:
            return
    raise AssertionError("the group does not settle")


def key_range(slots: SlotRange) -> KeyRange:
    first_hash, last_hash = hashes_of(slots)
    return KeyRange(first_hash=first_hash, last_hash=last_hash)


def ack(
    slots: SlotRange = ALL_SLOTS, epoch: int = -1, watermark: int = -1, *pairs: tuple[int, int]
) -> RangeAck:
    first_hash, last_hash = hashes_of(slots)
    return RangeAck(
        first_hash=first_hash,
        last_hash=last_hash,
        epoch=epoch,
        watermark=watermark,
        done=offset_set.encode(OffsetRanges(pairs)),
    )


def individual(*acks: RangeAck, partition: int = 0, **more: Any) -> OffsetCommitRequestPartition:
    """A partition of an OffsetCommit with our tag."""
    offset = more.pop("committed_offset", -1)
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        individual=IndividualCommit(acks=list(acks), **more),
    )


def plain(offset: int, partition: int = 0) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
