"""How far a group is, asked by somebody who is not in it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
from fake_broker import FakeBroker
from loop_kit import in_loop, polled

from anabranch.branch.slots import DEFAULT_RULE, branch_of_slot, slot_of_key
from anabranch.client import (
    BrokerConnectionError,
    ConfigurationError,
    CooperationNotSupportedError,
    CooperativeConsumer,
    GroupProgress,
    GroupRange,
    KeyRange,
    PartitionProgress,
    TopicPartition,
    explain_stable_offset,
    group_progress,
    group_progress_sync,
)
from anabranch.client.errors import ProtocolError
from anabranch.client.group_progress import find_oldest
from anabranch.client.group_view import read_partition
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.wire.messages.cooperation import IndividualProgress, OffsetSet, RangeProgress
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import alter_topic, create_topic

SHARED = {"range.fetch.enable": "true"}
WHOLE = KeyRange.whole()
_numbers = count(1)


class Scene:
    """A topic and a group of their own at one broker."""

    def __init__(self, broker: BrokerProcess, partitions: int = 1) -> None:
        self.broker = broker
        number = next(_numbers)
        self.topic, self.group = f"watched-{number}", f"watchers-{number}"
        self.place = TopicPartition(self.topic, 0)
        create_topic(broker.bootstrap, self.topic, partitions, SHARED)

    def produce(self, *keys: bytes, partition: int = 0) -> None:
        now_ms = round(time.time() * 1000)
        records = [Record(i, now_ms, key, b"v") for i, key in enumerate(keys)]
        batch = build_batch(records, base_offset=0, partition_leader_epoch=-1)
        with RawClient(self.broker.bootstrap) as client:
            assert client.produce(self.topic, partition, batch).error_code == 0

    def member(self, name: str = "worker", **options: Any) -> CooperativeConsumer:
        consumer = CooperativeConsumer(
            bootstrap_servers=self.broker.bootstrap,
            group_id=self.group,
            client_id=name,
            auto_commit_interval_ms=None,
            **options,
        )
        consumer.subscribe(self.topic)
        return consumer

    async def ask(self, **options: Any) -> GroupProgress:
        return await group_progress(self.broker.bootstrap, self.group, **options)

    async def until(
        self,
        condition: Callable[[PartitionProgress], bool],
        meanwhile: Callable[[], Awaitable[Any]] | None = None,
    ) -> PartitionProgress:
        """The one partition, when something is true of it."""
        while True:
            found = await self.ask()
            if found.partitions and condition(found.partitions[0]):
                return found.partitions[0]
            if meanwhile is not None:
                await meanwhile()
            await asyncio.sleep(0.02)


def key_of(half: int) -> bytes:
    keys = (b"%d" % number for number in count())
    return next(key for key in keys if branch_of_slot(slot_of_key(key), 2) == half)


@in_loop
async def test_a_member_at_work(shared_broker: BrokerProcess) -> None:
    """What it has done and was shown, what it works on, and since when."""
    scene = Scene(shared_broker)
    scene.produce(b"a", b"b", b"a", b"c", b"d")
    async with scene.member() as member:
        records = {record.offset: record for record in await polled(member, 5)}
        for offset in (0, 2, 3):
            member.ack(records[offset])
        await member.commit()
        progress = await scene.ask()
        assert (progress.group_id, progress.state) == (scene.group, "Stable")
        assert progress.is_enabled
        found = await scene.until(lambda one: one.stalled_ms is not None)
        assert (found.place, found.stable_offset, found.high_watermark) == (scene.place, 1, 5)
        assert found.is_shareable and found.is_searched
        own = member.progress()
        assert found.ranges == (
            GroupRange(
                key_range=WHOLE,
                watermark=1,
                done=OffsetRanges([(2, 3)]),
                owner=own.member_id,
                client_id="worker",
                epoch=own.ranges[0].epoch,
                delivered_offset=5,
            ),
        )
        assert (found.window, found.in_flight) == (3, 2)
        assert found.oldest is not None
        assert (found.oldest.offset, found.oldest.key) == (1, b"b")
        assert found.oldest_age_ms is not None and 0 <= found.oldest_age_ms < 60_000
        assert f"worker ({own.member_id}) works on offset 1 (key b, " in (
            explain_stable_offset(found)
        )


@in_loop
async def test_a_hand_over_that_waits(shared_broker: BrokerProcess) -> None:
    """Who is to give up keys and still works on one of them is named with its heir."""
    scene = Scene(shared_broker)
    keys = [key_of(0), key_of(1)]
    scene.produce(*keys)
    async with scene.member("old") as old, scene.member("new") as new:
        await polled(old, 2)

        async def both() -> None:
            await old.poll(0.01)
            await new.poll(0.01)

        found = await scene.until(lambda one: bool(one.handovers), both)
        handover = found.handovers[0]
        assert handover.from_member == old.progress().member_id
        assert handover.to_member == new.progress().member_id
        assert abs(handover.since_ms / 1000 - time.time()) < 60
        assert handover.key_range != WHOLE


@in_loop
async def test_partitions_that_are_asked_for(shared_broker: BrokerProcess) -> None:
    """Those named, of topics that exist; else what was committed, and what members own."""
    scene = Scene(shared_broker, partitions=3)
    scene.produce(b"a", partition=2)
    places = [TopicPartition(scene.topic, number) for number in range(3)]
    assert (await scene.ask()).partitions == ()
    named = await scene.ask(partitions=[places[1], TopicPartition("nowhere", 0)])
    assert [one.place for one in named.partitions] == [places[1]]
    assert named.state is None
    async with scene.member() as member:
        (record,) = await polled(member, 1)
        found = await scene.ask(with_oldest=False)
        assert [one.place for one in found.partitions] == places
        assert {one.oldest for one in found.partitions} == {None}
        member.ack(record)
        await member.commit()
    found = await scene.ask()
    assert [(one.place, one.stable_offset) for one in found.partitions] == [
        (places[0], 0),
        (places[1], 0),
        (places[2], 1),
    ]
    assert all(one.is_searched and one.oldest is None for one in found.partitions)
    assert {row.owner for one in found.partitions for row in one.ranges} == {None}
    assert found.state == "Empty"


@in_loop
async def test_progress_without_a_committed_offset(shared_broker: BrokerProcess) -> None:
    """What somebody did of some keys is shown, when nobody has spoken of the others."""
    scene = Scene(shared_broker, partitions=2)
    low, high = KeyRange.equal(2)
    scene.produce(key_of(0), key_of(0))
    async with CooperativeConsumer(
        bootstrap_servers=shared_broker.bootstrap, group_id=scene.group
    ) as by_hand:
        by_hand.assign({scene.place: [low]})
        for record in await polled(by_hand, 2):
            by_hand.ack(record)
        await by_hand.commit()
    (found,) = (await scene.ask()).partitions
    assert (found.place, found.stable_offset) == (scene.place, None)
    assert [(row.key_range, row.watermark) for row in found.ranges] == [(low, 2), (high, -1)]
    assert explain_stable_offset(found).endswith(
        "nothing was committed yet for slots 32768-65535 (which nobody owns)."
    )


def test_without_an_event_loop(shared_broker: BrokerProcess) -> None:
    """The same, for programs that have none."""
    scene = Scene(shared_broker)
    found = group_progress_sync(
        [shared_broker.bootstrap], scene.group, partitions=[scene.place], request_timeout_ms=20_000
    )
    (partition,) = found.partitions
    assert (partition.stable_offset, partition.high_watermark) == (None, 0)
    assert explain_stable_offset(partition).endswith("nothing was committed yet.")


def test_switches_are_told(make_broker: Callable[..., BrokerProcess]) -> None:
    """Reading needs none of them, and says what they are."""
    broker = make_broker(**{"group.individual.commit.enable": "false"})
    scene = Scene(broker)
    alter_topic(broker.bootstrap, scene.topic, {"range.fetch.enable": "false"})
    found = group_progress_sync(broker.bootstrap, scene.group, partitions=[scene.place])
    assert not found.is_enabled
    assert found.partitions[0].is_shareable is False


@in_loop
async def test_who_cannot_be_asked() -> None:
    """A broker that is not there, or is another one."""
    with pytest.raises(BrokerConnectionError, match="cannot connect"):
        await group_progress("127.0.0.1:1", "g")
    with pytest.raises(ConfigurationError, match="group_id"):
        await group_progress("127.0.0.1:1", "")
    async with FakeBroker() as broker:
        broker.without_tags.add("ApiVersions")
        with pytest.raises(CooperationNotSupportedError, match="feature"):
            await group_progress(broker.bootstrap, "g")


# Reading ------------------------------------------------------------------------------------------


def partition_of(*rows: GroupRange) -> PartitionProgress:
    return PartitionProgress(
        topic="t", partition=0, stable_offset=0, high_watermark=100, ranges=rows
    )


def test_the_oldest_record() -> None:
    """What is done of its own range is passed over, wherever others are."""
    keys = [key_of(0), key_of(1)]
    records = [Record(i, 5000 + i, keys[i % 2], b"") for i in range(6)]
    content = memoryview(build_batch(records, base_offset=0))
    low, high = KeyRange.equal(2)

    def find(low_watermark: int, high_watermark: int, done: OffsetRanges) -> Any:
        partition = partition_of(
            GroupRange(key_range=low, watermark=low_watermark, done=done),
            GroupRange(key_range=high, watermark=high_watermark),
        )
        return find_oldest(partition, content, DEFAULT_RULE, 0, 6000)

    oldest, _ = find(2, 1, OffsetRanges())
    assert (oldest.offset, oldest.key, oldest.age_ms) == (1, keys[1], 999)
    oldest, _ = find(0, 6, OffsetRanges([(2, 2)]))
    assert (oldest.offset, oldest.slot) == (0, slot_of_key(keys[0]))
    oldest, _ = find(2, 6, OffsetRanges([(2, 3)]))
    assert oldest.offset == 4
    assert find(6, 6, OffsetRanges()) == (None, 6)


@pytest.mark.parametrize(
    "strange",
    [
        RangeProgress(first_hash=1, last_hash=2, watermark=0),
        RangeProgress(
            first_hash=WHOLE.first_hash,
            last_hash=WHOLE.last_hash,
            watermark=0,
            done=OffsetSet(codec=9, content=b"x"),
        ),
    ],
    ids=["range", "offsets"],
)
def test_nonsense(strange: RangeProgress) -> None:
    """An answer that makes no sense is one that is not understood."""
    with pytest.raises(ProtocolError):
        read_partition(TopicPartition("t", 0), IndividualProgress(ranges=[strange]))
