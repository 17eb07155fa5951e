"""Loads of groups that share, measured by a broker without sockets: what is counted and moved."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from anabranch.branch.slots import DEFAULT_RULE, SlotRule, slot_of_key
from anabranch.broker import slot_loads
from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.range_loads import RangeReport
from anabranch.broker.slot_loads import most_common_key
from anabranch.broker.slot_scans import SlotScans
from anabranch.config.load import load_settings
from anabranch.coordinator.cooperative.acks import Ack, LogFacts
from anabranch.coordinator.cooperative.commands import PartitionAcks, TakeAcks
from anabranch.coordinator.group.commands import CommitOffsets, OffsetToCommit
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit
from anabranch.observe import metrics as m
from anabranch.wire.record_batch import Record, build_batch

GROUP = "g"
NOW_MS = 1_700_000_000_000
TICK_MS = 1_000
HALF = SLOT_COUNT // 2
_NUMBERS = [b"k%d" % number for number in range(20_000)]
LOW = [key for key in _NUMBERS if slot_of_key(key) < HALF]
HIGH = [key for key in _NUMBERS if slot_of_key(key) >= HALF]


class Desk:
    """A broker, a topic that may be shared, members, and a clock."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.now_ms = NOW_MS
        settings = load_settings(
            environ={},
            overrides=[
                f"log.dirs={folder}",
                "offsets.topic.num.partitions=1",
                f"coop.resplit.interval.ms={TICK_MS}",
                *overrides,
            ],
        )
        self.broker = Broker(settings, now_ms=lambda: self.now_ms, steady_ms=lambda: self.now_ms)
        self.broker.create_topic("t", 1, {"range.fetch.enable": "true"})
        self.members: dict[str, dict[Unit, int]] = {}
        self.epochs: dict[str, int] = {}
        self.assignor: str | None = None

    @property
    def loads(self) -> Any:
        return self.broker.groups.range_loads

    @property
    def group(self) -> ConsumerGroup:
        group = self.broker.groups.group(GROUP)
        assert isinstance(group, ConsumerGroup)
        return group

    @property
    def topic_id(self) -> bytes:
        topic = self.broker.topics.get("t")
        assert topic is not None
        return topic.topic_id

    def produce(self, keys: Iterable[bytes]) -> None:
        records = [Record(i, NOW_MS, key, b"v") for i, key in enumerate(keys)]
        log = self.broker.topics.partition("t", 0).log
        log.append(memoryview(bytearray(build_batch(records, base_offset=0))), now_ms=NOW_MS)

    def beat(self, member_id: str, **fields: Any) -> None:
        epoch = self.epochs.get(member_id, 0)
        fields = {"shares": True} | fields
        if not epoch:
            fields |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("t",)}
            fields |= {"server_assignor": self.assignor}
        command = ConsumerHeartbeat(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            owned=tuple(self.members.get(member_id, ())),
            **fields,
        )
        answer = self.broker.groups.submit(GROUP, command)
        assert answer.error is ErrorCode.NONE, answer
        self.epochs[member_id] = answer.member_epoch
        if answer.assignment is not None:
            epochs = answer.epochs or [0] * len(answer.assignment)
            self.members[member_id] = dict(zip(answer.assignment, epochs, strict=True))

    def settle(self) -> None:
        for _ in range(8):
            self.now_ms += 60
            for driver in self.broker.groups._drivers:
                driver._clock.turn()
            for member_id in self.epochs:
                self.beat(member_id)
        assert self.group.is_settled

    def join(self, *member_ids: str, **fields: Any) -> None:
        for member_id in member_ids:
            self.beat(member_id, **fields)
            self.settle()

    def report(self, member_id: str, records: int = 1, busy_us: int = 1_000) -> None:
        reports = [RangeReport(unit, records, busy_us) for unit in self.members[member_id]]
        self.loads.take(GROUP, member_id, reports)

    async def look(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += TICK_MS
            await self.loads.look()

    def slots_of(self, member_id: str) -> int:
        return sum(unit.slots.end - unit.slots.first for unit in self.group.target(member_id))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario with a desk, in a loop."""

    def go(scenario: Callable[[Desk], Coroutine[Any, Any, None]], *overrides: str) -> None:
        async def bounded() -> None:
            desk = Desk(tmp_path / "data", *overrides)
            try:
                async with asyncio.timeout(60):
                    await scenario(desk)
            finally:
                desk.broker.groups.stop()
                desk.broker.close()

        asyncio.run(bounded())

    return go


def busy(desk: Desk) -> None:
    for member_id in desk.epochs:
        desk.report(member_id)


# Arrivals and backlog -----------------------------------------------------------------------------


def test_ranges_move_to_where_there_is_less_to_do(run: Callable[..., None]) -> None:
    """Nine of ten records are in one member's half: after three looks some of it moves."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        before = {member_id: desk.slots_of(member_id) for member_id in "ab"}
        assert before == {"a": HALF, "b": HALF}
        owner = {u.slots.first: name for name in "ab" for u in desk.group.target(name)}
        busy(desk)
        chance = random.Random(1)
        for tick in range(5):
            assert desk.group.group_epoch == 3 or tick > 2
            desk.produce(chance.choices(LOW, k=900) + chance.choices(HIGH, k=100))
            busy(desk)
            await desk.look()
        assert desk.group.group_epoch == 4
        assert desk.slots_of(owner[0]) < HALF < desk.slots_of(owner[HALF])
        assert desk.loads.rounds == 1
        desk.settle()
        assert desk.loads.weights_of(GROUP)[desk.topic_id, 0].total > 0

    run(scenario)


def test_an_even_load_moves_nothing(run: Callable[..., None]) -> None:
    """Whatever its rate."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        busy(desk)
        chance = random.Random(2)
        for _ in range(8):
            desk.produce(chance.choices(LOW, k=500) + chance.choices(HIGH, k=500))
            busy(desk)
            await desk.look()
        assert desk.group.group_epoch == 3
        assert desk.loads.weights_of(GROUP) == {}

    run(scenario)


def test_a_backlog_counts(run: Callable[..., None]) -> None:
    """Nothing arrives any more; what waits is all in one half."""

    async def scenario(desk: Desk) -> None:
        chance = random.Random(3)
        for _ in range(5):
            desk.produce(chance.choices(LOW, k=1000))
        desk.join("a", "b")
        commit(desk, 0)
        busy(desk)
        await desk.look(5)
        assert desk.loads.rounds == 1
        assert max(map(desk.slots_of, "ab")) > HALF

    run(scenario)


def commit(desk: Desk, watermark: int, slots: SlotRange = ALL_SLOTS) -> None:
    """Members have done everything of some slots below an offset."""
    end = desk.broker.topics.partition("t", 0).log.log_end_offset
    for member_id, held in desk.members.items():
        acks = [
            Ack(one, epoch, watermark)
            for (_, _, unit), epoch in held.items()
            if (one := SlotRange(max(unit.first, slots.first), min(unit.end, slots.end))).first
            < one.end
        ]
        part = PartitionAcks(
            topic="t",
            topic_id=desk.topic_id,
            partition=0,
            facts=LogFacts(0, end, end, end),
            leader_epoch=0,
            acks=tuple(acks),
            failures=(),
        )
        command = TakeAcks(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=desk.epochs[member_id],
            partitions=(part,),
        )
        answer = desk.broker.groups.submit(GROUP, command)
        assert answer.error is ErrorCode.NONE, answer


def test_what_is_done_is_no_backlog(run: Callable[..., None]) -> None:
    """The same records, done already in the half that has them."""

    async def scenario(desk: Desk) -> None:
        for _ in range(5):
            desk.produce(LOW[:1000])
        desk.join("a", "b")
        commit(desk, 5000, SlotRange(0, HALF))
        commit(desk, 0, SlotRange(HALF, SLOT_COUNT))
        busy(desk)
        await desk.look(6)
        assert desk.loads.rounds == 0

    run(scenario)


def test_very_many_records_are_counted_by_a_sample(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate is that of all, the slots are those of the newest."""
    monkeypatch.setattr(slot_loads, "SAMPLE_RECORDS", 200)

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        busy(desk)
        await desk.look()
        desk.produce(HIGH[:800] + [LOW[0]] * 200)
        desk.now_ms += TICK_MS
        rates = await desk.loads._slots.arrivals((desk.topic_id, 0))
        assert rates.keys() == {slot_of_key(LOW[0])}
        assert sum(rates.values()) == pytest.approx(1000, rel=0.01)

    run(scenario)


def test_a_partition_that_cannot_be_read_stops_nobody(
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    lines: list[tuple[str, dict[str, Any]]],
) -> None:
    """It counts as one in which nothing happens."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        busy(desk)
        await desk.look()
        desk.produce(LOW[:10])
        commit(desk, 0)
        failed: Deferred[Any] = Deferred()
        failed.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk"))
        monkeypatch.setattr(SlotScans, "scan", lambda *_: failed)
        await desk.look(2)
        told = [fields["reason"] for name, fields in lines if name == "group.load.failed"]
        assert told == ["no disk"] * 3, "what arrived once, what waits twice"

    run(scenario)


def test_partitions_that_are_gone(run: Callable[..., None]) -> None:
    """Nothing arrives at them, nothing waits, and no key of theirs is hot."""

    async def scenario(desk: Desk) -> None:
        slots = desk.loads._slots
        for place in ((b"x" * 16, 0), (desk.topic_id, 9)):
            assert await slots.arrivals(place) == {}
            assert await slots.backlog(GROUP, place) is None
            assert await slots.hot_key(place, 5) is None
        assert await slots.hot_key((desk.topic_id, 0), 5) is None, "it is empty"

    run(scenario)


def plain_commit(topic_id: bytes, offset: int) -> CommitOffsets:
    committed = OffsetToCommit(
        topic="t", topic_id=topic_id, partition=0, offset=offset, leader_epoch=-1, metadata=None
    )
    return CommitOffsets(
        group_id="plain",
        member_id="",
        group_instance_id=None,
        generation_id=-1,
        retention_ms=-1,
        knows_group_id_not_found=True,
        offsets=(committed,),
    )


def test_what_was_committed_the_plain_way_is_done(run: Callable[..., None]) -> None:
    """A group that has not begun to commit record by record waits from its committed offset on."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        desk.produce(LOW[:100])
        place = (desk.topic_id, 0)
        assert await desk.loads._slots.backlog(GROUP, place) is None, "nobody knows from where"
        desk.broker.groups.submit("plain", plain_commit(desk.topic_id, 60))
        found = await desk.loads._slots.backlog("plain", place)
        assert sum(found.found.counts(found.watermarks).values()) == 40
        assert found.scale == 1.0

    run(scenario)


def test_keys_in_headers_are_not_named(run: Callable[..., None]) -> None:
    """The order goes by a header there, and the record's key says nothing."""

    async def scenario(desk: Desk) -> None:
        desk.produce([LOW[0]] * 10)
        place, slot = (desk.topic_id, 0), slot_of_key(LOW[0])
        assert await desk.loads._slots.hot_key(place, slot) == LOW[0]
        partition = desk.broker.topics.partition("t", 0)
        partition.slot_rule = SlotRule(False, b"order")
        assert await desk.loads._slots.hot_key(place, slot) is None

    run(scenario)


# Who is judged ------------------------------------------------------------------------------------


def test_what_members_report_counts(run: Callable[..., None]) -> None:
    """As many records everywhere, but those of one half take twenty times as long."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        chance = random.Random(4)
        for _ in range(5):
            desk.produce(chance.choices(LOW, k=500) + chance.choices(HIGH, k=500))
            desk.report("a", 500, 500 * 20_000)
            desk.report("b", 500, 500 * 1_000)
            await desk.look()
        assert desk.loads.rounds == 1
        assert desk.slots_of("a") < HALF

    run(scenario)


def test_members_that_do_not_measure(run: Callable[..., None]) -> None:
    """Then every record counts alike."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        chance = random.Random(1)
        for _ in range(5):
            desk.produce(chance.choices(LOW, k=900) + chance.choices(HIGH, k=100))
            for member_id in desk.epochs:
                desk.report(member_id, 500, 0)
            await desk.look()
        assert desk.loads.rounds == 1

    run(scenario)


def test_reports_about_what_others_have_do_not_count(run: Callable[..., None]) -> None:
    """Nor those of strangers, of members that do not share, or of more ranges than make sense."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        whole = Unit(desk.topic_id, 0)
        mine = [unit.slots for unit in desk.members["a"]]
        desk.loads.take("nobody", "a", [RangeReport(whole, 5, 5)])
        desk.loads.take(GROUP, "stranger", [RangeReport(whole, 5, 5)])
        assert not desk.loads._watched
        desk.loads.take(GROUP, "a", [RangeReport(whole, 5, 7), RangeReport(whole, -5, 7)])
        desk.loads.take(GROUP, "a", [RangeReport(whole, 5, 0), RangeReport(whole, 5, -7)])
        other = Unit(b"x" * 16, 0)
        desk.loads.take(GROUP, "a", [RangeReport(other, 5, 7)] * 5)
        reports = desk.loads._watched[GROUP].reports
        assert reports == {((desk.topic_id, 0), slots): (5, 7_000) for slots in mine}

    run(scenario)


def test_kip_x_assignors_are_left_alone(run: Callable[..., None]) -> None:
    """Their ranges are equally wide, whatever the load."""

    async def scenario(desk: Desk) -> None:
        desk.assignor = "key-range-range"
        desk.join("a", "b")
        await skewed_looks(desk)
        assert desk.loads.rounds == 0

    run(scenario)


async def skewed_looks(desk: Desk) -> None:
    chance = random.Random(1)
    for _ in range(5):
        desk.produce(chance.choices(LOW, k=900) + chance.choices(HIGH, k=100))
        busy(desk)
        await desk.look()


def test_it_can_be_turned_off(run: Callable[..., None]) -> None:
    """Then nothing is measured, and later targets go by width again."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        await skewed_looks(desk)
        desk.settle()
        assert desk.loads.rounds == 1 and desk.loads.weights_of(GROUP)
        desk.broker.set_broker_configs("", {"coop.resplit.enable": "false"})
        assert desk.loads.weights_of(GROUP) == {}
        await skewed_looks(desk)
        assert desk.loads.rounds == 1
        assert not desk.loads._watched and not desk.loads._slots._arrivals
        busy(desk)
        assert not desk.loads._watched

    run(scenario)


def test_groups_that_are_gone_are_forgotten(run: Callable[..., None]) -> None:
    """With what was measured of their partitions."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        busy(desk)
        await desk.look()
        assert desk.loads._slots._arrivals
        for member_id in ("a", "b"):
            desk.epochs[member_id] = -1
            command = ConsumerHeartbeat(group_id=GROUP, member_id=member_id, member_epoch=-1)
            desk.broker.groups.submit(GROUP, command)
        desk.loads._watched["never was"] = desk.loads._watched[GROUP]
        await desk.look()
        assert not desk.loads._watched and not desk.loads._slots._arrivals

    run(scenario)


def test_topics_that_are_no_longer_shared(run: Callable[..., None]) -> None:
    """Their groups are forgotten too, whatever they vote for."""

    async def scenario(desk: Desk) -> None:
        desk.assignor = "line-cut"
        desk.join("a", "b")
        busy(desk)
        await desk.look()
        topic = desk.broker.topics.get("t")
        assert topic is not None and desk.loads._watched
        desk.broker.topics.set_configs(topic, {})
        await desk.look()
        assert not desk.loads._watched

    run(scenario)


def test_looks_that_take_long_are_in_a_row_too(run: Callable[..., None]) -> None:
    """The rest after them is longer than the interval, and so are the ticks."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        busy(desk)
        chance = random.Random(1)
        for _ in range(5):
            desk.produce(chance.choices(LOW, k=4500) + chance.choices(HIGH, k=500))
            busy(desk)
            desk.loads._delay_ms = 5 * TICK_MS
            desk.now_ms += 4 * TICK_MS
            await desk.look()
        assert desk.loads.rounds == 1

    run(scenario)


def test_stopping_ends_what_waits_and_what_runs(run: Callable[..., None]) -> None:
    """Nobody looks after the broker stopped."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        busy(desk)
        timer = desk.loads._timer
        desk.loads.stop()
        assert timer.cancelled()
        desk.loads._begin()
        task = desk.loads._task
        desk.loads.stop()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario)


def test_another_interval_measures_anew(run: Callable[..., None]) -> None:
    """All times are so many looks."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        busy(desk)
        await desk.look()
        before = desk.loads._watched[GROUP].balance
        desk.broker.set_broker_configs("", {"coop.resplit.interval.ms": "2000"})
        await desk.look()
        assert desk.loads._watched[GROUP].balance is not before
        assert desk.loads._slots.half_life_ms == 12_000

    run(scenario)


def test_it_looks_by_itself_while_somebody_shares(run: Callable[..., None]) -> None:
    """A timer of the loop, from the first heartbeat on, until nobody is left."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        assert desk.loads._timer is None
        busy(desk)
        assert desk.loads._timer is not None
        while not desk.loads._slots._arrivals:
            await asyncio.sleep(0.01)
        desk.broker.set_broker_configs("", {"coop.resplit.enable": "false"})
        while desk.loads._watched or desk.loads._task:
            await asyncio.sleep(0.01)
        assert desk.loads._timer is None

    run(scenario, "coop.resplit.interval.ms=100")


# Hot slots ----------------------------------------------------------------------------------------


def test_hot_keys_are_named(
    run: Callable[..., None], lines: list[tuple[str, dict[str, Any]]]
) -> None:
    """Once in the log, as long as it is hot in the metric, and to whoever asks."""

    async def scenario(desk: Desk) -> None:
        desk.join("a", "b")
        busy(desk)
        for _ in range(4):
            desk.produce([LOW[0]] * 800 + HIGH[:200])
            busy(desk)
            await desk.look()
        (hot,) = desk.loads.hot_keys(GROUP, desk.topic_id, 0)
        assert hot.key == LOW[0] and hot.slot.slot == slot_of_key(LOW[0])
        assert hot.slot.share == pytest.approx(0.8, abs=0.05)
        assert desk.loads.hot_keys(GROUP, desk.topic_id, 1) == []
        assert desk.loads.hot_keys("other", desk.topic_id, 0) == []
        told = [fields for name, fields in lines if name == "group.slot.hot"]
        assert len(told) == 1 and told[0]["key"] == LOW[0].decode()
        values = dict(desk.loads.collect_metrics())
        assert values[m.GROUP_HOT_SLOTS] == {(GROUP, "t", "0"): 1}
        desk.loads._watched[GROUP].hot[(b"gone" * 4, 0), 5] = hot
        assert dict(desk.loads.collect_metrics()) == values, "a topic that is gone is not told"
        assert values[m.GROUP_LOAD_IMBALANCE][(GROUP,)] > 1.5
        for _ in range(60):
            desk.settle()
            desk.produce(LOW[:500] + HIGH[:500])
            busy(desk)
            await desk.look()
        assert desk.loads.hot_keys(GROUP, desk.topic_id, 0) == []

    run(scenario)


def test_a_slot_of_many_keys_has_no_hot_one() -> None:
    """No key is named that is less than half of it."""
    keys = [b"a", b"b", b"c"] * 4 + [b"d"]
    records = [Record(i, 0, key, b"") for i, key in enumerate(keys)]
    batch = build_batch(records, base_offset=0)
    for key in (b"a", b"d"):
        assert most_common_key(batch, DEFAULT_RULE, slot_of_key(key)) == key
    assert most_common_key(batch, DEFAULT_RULE, 1) is None
