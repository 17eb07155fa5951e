"""Records that a member does not finish: others go on, wait, and get what is stuck."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumer_group_calls import ConsumerNode
from group_calls import GROUP
from handler_calls import Call
from individual_commit_calls import BIG, RECORDS, TOPIC, SharedNode, Sharer, key_range, settle

from anabranch.branch._kernels import xxh64
from anabranch.branch.slots import slot_of_key
from anabranch.broker import stuck_ranges
from anabranch.coordinator.cooperative.retries import NEVER_MS
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import SlotRange
from anabranch.observe.logs import LOGGER
from anabranch.wire.messages.cooperation import FailedRecord, RangeFetch
from anabranch.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.fake_loop import FakeLoop

STUCK_MS = 1_000
LOOK_MS = STUCK_MS // 8


class OneNode(SharedNode):
    """A broker with a topic of one partition, which may be shared, and a loop that runs."""

    def __init__(self, folder: Path, loop: FakeLoop, *overrides: str) -> None:
        defaults = (f"coop.stuck.ms={STUCK_MS}", "coop.retry.backoff.ms=10000")
        ConsumerNode.__init__(self, folder, loop, *defaults, *overrides)
        if self.broker.topics.get(TOPIC) is None:
            self.create_topic(TOPIC, 1, range_fetch_enable="true")
            self.append_keys(RECORDS)
        topic = self.broker.topics.get(TOPIC)
        assert topic is not None
        self.orders = topic
        groups: Any = self.broker.groups
        # Load is another reason for which ranges move.
        groups.range_loads.take = lambda *report: None
        groups.stuck_ranges.start()

    def wait(self, delay_ms: int) -> None:
        """Let time pass, and threads do what they are given."""
        for _ in range(delay_ms):
            self.pass_ms(1)
            while self.loop.finish_jobs():
                pass

    @property
    def attempts(self) -> dict[int, int]:
        return {one.offset: one.attempts for one in self.known().retried}

    def begin_fetch(self, member: Sharer, offset: int, max_wait_ms: int = 500) -> Call:
        ranges = [key_range(slots) for _, slots in sorted(member.ranges)]
        asked = FetchPartition(
            partition=0,
            fetch_offset=offset,
            partition_max_bytes=BIG,
            range_fetch=RangeFetch(
                group_id=GROUP,
                member_id=member.member_id,
                member_epoch=member.epoch,
                ranges=ranges,
            ),
        )
        topics = [FetchTopic(topic=TOPIC, partitions=[asked])]
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=BIG, topics=topics)
        return self.begin(request, 12)


MakeNode = Callable[..., OneNode]


@pytest.fixture
def make(tmp_path: Path, loop: FakeLoop) -> Iterator[MakeNode]:
    nodes: list[OneNode] = []

    def start(*overrides: str) -> OneNode:
        nodes.append(OneNode(tmp_path / "data", loop, *overrides))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()


@pytest.fixture
def node(make: MakeNode) -> OneNode:
    return make()


def pair_of(node: OneNode) -> tuple[Sharer, Sharer]:
    """Two members that have half of the partition each."""
    one, other = Sharer(node, "a"), Sharer(node, "b")
    settle(one, other)
    return one, other


def offset_of(member: Sharer, number: int = 0) -> int:
    """One of the first records that a member has."""
    slots = range(*member.slots())
    return [i for i in range(RECORDS) if slot_of_key(b"key-%d" % i) in slots][number]


def covered(call: Call) -> int:
    (data,) = call.answer.responses[0].partitions
    assert data.error_code == ErrorCode.NONE
    offset: int = data.range_fetch.covered_offset
    return offset


# Standing still -----------------------------------------------------------------------------------


def test_how_long_a_stable_offset_stands_still(node: OneNode) -> None:
    """From when there is something to finish, until it moves or there is nothing left."""
    member = Sharer(node, "a")
    member.ack(0)
    node.wait(50)
    assert node.known().stalled_ms == -1
    member.fetch()
    node.wait(30)
    assert node.known().stalled_ms == 30
    member.ack(-1, (3, 4))
    node.wait(10)
    assert node.known().stalled_ms == 40
    member.ack(3)
    node.wait(5)
    assert node.known().stalled_ms == 5
    member.ack(RECORDS)
    assert node.known().stalled_ms == -1
    node.append_keys(10)
    node.wait(20)
    member.fetch(RECORDS)
    assert node.known().stalled_ms == 0


def test_how_far_owners_were_shown(node: OneNode) -> None:
    """Each for itself; who was shown nothing yet, or is not there, is not known."""
    one, _ = pair_of(node)
    one.ack(0)
    one.fetch()
    found = {each.owner: each.delivered_offset for each in node.known().ranges}
    assert found == {"a": RECORDS, "b": -1}


def test_nothing_polls_while_nothing_waits(node: OneNode) -> None:
    """A timer is there only while a stable offset stands still."""
    member = Sharer(node, "a")
    idle = len(node.loop.armed)
    member.fetch()
    member.ack(5)
    assert len(node.loop.armed) == idle + 1
    member.ack(RECORDS)
    node.wait(2 * LOOK_MS)
    assert len(node.loop.armed) == idle
    assert not node.loop.jobs


# Holding ------------------------------------------------------------------------------------------


@pytest.fixture
def held(make: MakeNode) -> tuple[OneNode, Sharer, Sharer]:
    """Both were shown 60 offsets, of 120, with a window of 80; nobody has finished the first."""
    node = make("coop.max.window.offsets=80", "coop.stuck.ms=100000")
    one, other = pair_of(node)
    one.ack(0)
    other.ack(0)
    assert (one.fetch(), other.fetch()) == (RECORDS, RECORDS)
    node.append_keys(RECORDS)
    return node, one, other


def test_a_full_window_holds_everybody(held: tuple[OneNode, Sharer, Sharer]) -> None:
    """Nobody is shown offsets that nobody was shown; a little more room and they flow."""
    _, one, other = held
    assert (one.fetch(RECORDS), other.fetch(RECORDS)) == (RECORDS, RECORDS)
    other.ack(RECORDS)
    assert other.fetch(RECORDS) == RECORDS
    one.ack(1)
    assert other.fetch(RECORDS) == 2 * RECORDS


def test_what_was_shown_flows_on(held: tuple[OneNode, Sharer, Sharer]) -> None:
    """Up to the highest offset that anybody was shown, who is behind catches up."""
    node, one, other = held
    one.ack(20)
    other.ack(20)
    assert one.fetch(RECORDS) == 2 * RECORDS
    node.append_keys(RECORDS)
    assert one.fetch(2 * RECORDS) == 2 * RECORDS
    assert other.fetch(20) == 2 * RECORDS
    assert other.fetch(2 * RECORDS) == 2 * RECORDS


def test_who_waits_is_woken_when_the_stable_offset_moves(
    held: tuple[OneNode, Sharer, Sharer],
) -> None:
    """Not before: new records say nothing to somebody who may not have them."""
    node, one, other = held
    waiting = node.begin_fetch(other, RECORDS)
    other.ack(RECORDS)
    node.wait(1)
    assert not waiting.is_answered
    one.ack(30)
    assert not waiting.is_answered
    node.wait(1)
    assert covered(waiting) == 2 * RECORDS


def test_who_waits_is_woken_when_progress_is_forgotten(
    held: tuple[OneNode, Sharer, Sharer],
) -> None:
    """A group without progress is held by nothing."""
    node, _, other = held
    waiting = node.begin_fetch(other, RECORDS)
    node.broker.groups.topic_deleted(TOPIC)
    node.wait(1)
    assert covered(waiting) == 2 * RECORDS


def test_the_topic_goes_while_somebody_is_held(held: tuple[OneNode, Sharer, Sharer]) -> None:
    """Who waits learns of it, and nobody looks for it later."""
    node, _, other = held
    waiting = node.begin_fetch(other, RECORDS)
    node.broker.delete_topic(node.orders)
    node.wait(1)
    (data,) = waiting.answer.responses[0].partitions
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_that_is_held_ends_at_its_time(held: tuple[OneNode, Sharer, Sharer]) -> None:
    """With nothing, and where it was."""
    node, one, _ = held
    waiting = node.begin_fetch(one, RECORDS, max_wait_ms=40)
    node.wait(39)
    assert not waiting.is_answered
    node.wait(1)
    assert covered(waiting) == RECORDS


def test_others_are_not_held(held: tuple[OneNode, Sharer, Sharer]) -> None:
    """Neither readers without a group, nor other groups, nor readers of all."""
    node, one, _ = held
    asked = RangeFetch(ranges=[key_range(one.slots())])
    partition = FetchPartition(
        partition=0, fetch_offset=RECORDS, partition_max_bytes=BIG, range_fetch=asked
    )
    topics = [FetchTopic(topic=TOPIC, partitions=[partition])]
    request = FetchRequest(max_bytes=BIG, min_bytes=1, topics=topics)
    assert covered(node.begin(request, 12)) == 2 * RECORDS


def test_many_ranges_hold_too(make: MakeNode) -> None:
    """Three quarters of the ranges that are kept are as bad as three quarters of the offsets."""
    node = make("coop.max.ranges=4")
    member = Sharer(node, "a")
    member.fetch()
    node.append_keys(RECORDS)
    member.ack(0, (2, 2), (4, 4))
    member.ack(-1, (6, 6))
    assert member.fetch(RECORDS) == RECORDS
    member.ack(-1, (3, 3))
    assert member.fetch(RECORDS) == 2 * RECORDS


# Stuck --------------------------------------------------------------------------------------------


def test_a_stuck_record_changes_hands(node: OneNode) -> None:
    """After its time its slot, and no other, goes to the other member; the attempt has failed."""
    one, other = pair_of(node)
    first = offset_of(one)
    kept = one.slots()
    one.fetch(), other.fetch()
    other.ack(RECORDS)
    one.ack(first, (first + 1, RECORDS - 1))
    node.wait(STUCK_MS)
    assert node.attempts == {}
    node.wait(2 * LOOK_MS)
    assert node.attempts == {first: 1}
    (retried,) = node.known().retried
    assert retried.reason == "stuck for 1 s at a"
    assert retried.key_hash == xxh64(b"key-%d" % first) >> 1
    settle(one, other)
    slot = slot_of_key(b"key-%d" % first)
    moved = SlotRange(slot, slot + 1)
    assert any(_is_within(moved, slots) for _, slots in other.ranges)
    assert sum(slots.end - slots.first for _, slots in one.ranges) == kept.end - kept.first - 1
    # The others of its range have nothing there; whoever has the record now finishes it.
    for _, slots in one.ranges:
        one.ack(RECORDS, slots=slots)
    assert node.known().stable_offset == first
    node.wait(10_000)
    assert covered(node.begin_fetch(other, first)) == RECORDS
    epoch = max(other.ranges.values())
    other.ranges = {(0, moved): epoch}
    assert other.ack(RECORDS).individual.stable_offset == RECORDS
    assert node.attempts == {}


def _is_within(one: SlotRange, other: SlotRange) -> bool:
    return other.first <= one.first and one.end <= other.end


def test_who_is_about_to_give_it_back_is_left_alone(node: OneNode) -> None:
    """It may take its time to do that; nothing is counted while the record is on its way."""
    one, other = pair_of(node)
    one.fetch(), other.fetch()
    other.ack(RECORDS)
    one.ack(0, (1, RECORDS - 1))
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert node.attempts == {0: 1}
    node.wait(12_000)  # it has not been heard of
    assert node.attempts == {0: 1}
    one.beat()  # it is told, and does not give it back yet
    node.wait(3_000)
    assert node.attempts == {0: 1}
    settle(one, other)
    node.begin_fetch(other, 0)
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert node.attempts == {0: 2}


def test_everybody_waits_for_it(make: MakeNode) -> None:
    """A group that is held and has done nearly all else does not wait until the time is up."""
    node = make("coop.max.window.offsets=80")
    one, other = pair_of(node)
    first = offset_of(one)
    one.fetch(), other.fetch()
    node.append_keys(RECORDS)
    other.ack(RECORDS)
    one.ack(first, (first + 1, RECORDS - 1))
    assert (first, other.fetch(RECORDS)) == (0, RECORDS)
    assert node.attempts == {}
    node.wait(2 * LOOK_MS)
    assert node.attempts == {first: 1}
    # Not again before its time is up: it would have no time at all.
    settle(one, other)
    node.wait(10_000)
    assert covered(node.begin_fetch(other, first)) == RECORDS
    node.wait(STUCK_MS - LOOK_MS)
    assert node.attempts == {first: 1}
    node.wait(3 * LOOK_MS)
    assert node.attempts == {first: 2}


def test_the_only_member(make: MakeNode) -> None:
    """There is nobody else to give it to; its attempts are counted, until none is left."""
    node = make("coop.delivery.limit=3", "coop.retry.backoff.ms=100")
    member = Sharer(node, "a")
    member.fetch()
    member.ack(0, (1, RECORDS - 1))
    epoch = node.consumer_group.group_epoch
    seen = []
    for _ in range(4):
        node.wait(STUCK_MS + 4 * LOOK_MS)
        member.beat()
        seen.append(node.attempts[0])
    assert seen == [1, 2, 3, 3]
    assert node.known().retried[0].not_before_ms == NEVER_MS
    assert node.consumer_group.group_epoch == epoch
    assert member.ranges == {(0, SlotRange(0, 65_536)): member.epoch}


def test_the_only_member_has_all_its_time(make: MakeNode) -> None:
    """Also when it is held and waits for nothing else: it has nobody to give the record to."""
    node = make("coop.max.window.offsets=80")
    member = Sharer(node, "a")
    member.fetch()
    node.append_keys(RECORDS)
    member.ack(0, (1, RECORDS - 1))
    assert member.fetch(RECORDS) == RECORDS
    node.wait(STUCK_MS - LOOK_MS)
    assert node.attempts == {}
    node.wait(3 * LOOK_MS)
    assert node.attempts == {0: 1}


def test_a_record_that_rests_is_not_stuck(node: OneNode) -> None:
    """Its time counts from when somebody may try it again."""
    member = Sharer(node, "a")
    member.fetch()
    key_hash = xxh64(b"key-0") >> 1
    member.ack(0, (1, RECORDS - 1))
    failed = FailedRecord(offset=0, key_hash=key_hash, retry_after_ms=12_000, reason="broken")
    member.fail(failed)
    node.wait(12_000)
    assert node.attempts == {0: 1}
    node.wait(STUCK_MS - LOOK_MS)
    assert node.attempts == {0: 1}
    node.wait(3 * LOOK_MS)
    assert node.attempts == {0: 2}


def test_a_new_owner_has_all_the_time(node: OneNode) -> None:
    """The clock starts when it is shown the record, not when somebody else was."""
    member = Sharer(node, "a")
    member.fetch()
    member.ack(0, (1, RECORDS - 1))
    node.wait(STUCK_MS - 2 * LOOK_MS)
    member.leave()
    heir = Sharer(node, "b")
    node.wait(3 * STUCK_MS)
    assert node.attempts == {}
    heir.fetch()
    node.wait(STUCK_MS - LOOK_MS)
    assert node.attempts == {}
    node.wait(4 * LOOK_MS)
    assert node.attempts == {0: 1}


def test_a_group_without_members_is_not_stuck(node: OneNode) -> None:
    """Nobody works on anything."""
    member = Sharer(node, "a")
    member.fetch()
    member.ack(0, (1, RECORDS - 1))
    member.leave()
    node.wait(3 * STUCK_MS)
    assert node.attempts == {}


def test_who_has_nothing_to_do_is_not_stuck(node: OneNode) -> None:
    """A watermark that is behind, with no record that is open, is only not told yet."""
    member = Sharer(node, "a")
    member.fetch()
    first = slot_of_key(b"key-0")
    member.ack(RECORDS, slots=SlotRange(0, first))
    member.ack(RECORDS, slots=SlotRange(first, first + 1))
    empty = _empty_slots()
    for slots in (SlotRange(first + 1, empty.first), SlotRange(empty.end, 65_536)):
        member.ack(RECORDS, slots=slots)
    member.ack(0, slots=empty)
    assert node.known().stable_offset == 0
    node.wait(3 * STUCK_MS)
    assert node.attempts == {}
    assert node.known().stalled_ms > 2 * STUCK_MS


def _empty_slots() -> SlotRange:
    """Slots that no key has, after that of the first key."""
    taken = sorted({slot_of_key(b"key-%d" % i) for i in range(RECORDS)})
    first = taken.index(slot_of_key(b"key-0"))
    return SlotRange(taken[first] + 1, taken[first + 1])


def test_a_record_far_from_the_stable_offset(node: OneNode) -> None:
    """It is found behind any number of records that are done; a member whose records move on has
    not been stuck."""
    member = Sharer(node, "a")
    member.fetch()
    slots = _empty_slots()
    last = RECORDS - 1
    member.ack(0, slots=slots)
    member.ack(last, slots=SlotRange(0, slots.first))
    member.ack(last, slots=SlotRange(slots.end, 65_536))
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert node.attempts == {last: 1}


def test_after_a_restart(make: MakeNode, node: OneNode) -> None:
    """What is stuck is watched again when it is shown again."""
    member = Sharer(node, "a")
    member.fetch()
    member.ack(0, (1, RECORDS - 1))
    node.close()
    node = make()
    member.node = node
    node.wait(2 * STUCK_MS)
    assert (node.attempts, node.known().stalled_ms) == ({}, -1)
    member.fetch()
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert node.attempts == {0: 1}


# Things that happen meanwhile ---------------------------------------------------------------------


@pytest.fixture
def searching(node: OneNode) -> tuple[OneNode, Sharer]:
    """The first record of the only member is open, and a thread looks for it."""
    member = Sharer(node, "a")
    member.fetch()
    member.ack(0, (2, RECORDS - 1))
    node.pass_ms(2 * LOOK_MS)
    assert len(node.loop.jobs) == 1
    return node, member


def stuck_count(node: OneNode) -> int:
    return node.broker.groups.stuck_ranges.revocations


def test_it_is_finished_while_it_is_looked_for(searching: tuple[OneNode, Sharer]) -> None:
    """What a thread finds is of no use when the stable offset has moved."""
    node, member = searching
    member.ack(1)
    node.wait(STUCK_MS - 2 * LOOK_MS)
    assert node.attempts == {}
    node.wait(4 * LOOK_MS)
    assert node.attempts == {1: 1}


def test_progress_is_forgotten_while_it_is_looked_for(searching: tuple[OneNode, Sharer]) -> None:
    """And begins again: the old search says nothing about it."""
    node, member = searching
    node.broker.groups.topic_deleted(TOPIC)
    member.ack(0, (1, RECORDS - 1))
    node.loop.finish_jobs()
    node.wait(STUCK_MS - LOOK_MS)
    assert stuck_count(node) == 0
    node.wait(3 * LOOK_MS)
    assert node.attempts == {0: 1}


def test_the_broker_stops_while_it_is_looked_for(searching: tuple[OneNode, Sharer]) -> None:
    """Nobody asks for more work, and nothing is left to go off."""
    node, _ = searching
    armed = len(node.loop.armed)
    node.broker.groups.stuck_ranges.stop()
    assert len(node.loop.armed) == armed - 1
    node.loop.finish_jobs()
    node.wait(2 * STUCK_MS)
    assert (len(node.loop.jobs), stuck_count(node)) == (0, 0)


def test_the_topic_goes(searching: tuple[OneNode, Sharer], told: Any) -> None:
    """With all that was known of it."""
    node, _ = searching
    node.broker.delete_topic(node.orders)
    node.wait(2 * STUCK_MS)
    assert (told(), stuck_count(node)) == ([], 0)


def test_it_is_done_and_the_stable_offset_stands(node: OneNode) -> None:
    """Where somebody else has yet to say that there was nothing to do, nobody is stuck."""
    member = Sharer(node, "a")
    member.fetch()
    slots = _empty_slots()
    last = RECORDS - 1
    member.ack(0, slots=slots)
    for others in (SlotRange(0, slots.first), SlotRange(slots.end, 65_536)):
        member.ack(last, slots=others)
    node.wait(STUCK_MS - LOOK_MS)
    for others in (SlotRange(0, slots.first), SlotRange(slots.end, 65_536)):
        member.ack(RECORDS, slots=others)
    node.wait(2 * STUCK_MS)
    assert node.known().stable_offset == 0
    assert stuck_count(node) == 0


def test_records_that_cannot_be_read(node: OneNode, told: Any) -> None:
    """It is said, and tried again: the group goes on as it can."""
    member = Sharer(node, "a")
    member.fetch()
    member.ack(0, (1, RECORDS - 1))
    log: Any = node.orders.partitions[0].log
    read = log.read

    def fail(*where: Any, **options: Any) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no such file")

    log.read = fail
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert {name for name, _ in told()} == {"group.window.failed"}
    log.read = read
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert node.attempts == {0: 1}


def test_a_search_that_gets_nowhere(
    searching: tuple[OneNode, Sharer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is not begun again at once: what cannot be read now may be later."""
    node, member = searching
    node.loop.jobs.clear()
    node.broker.groups.topic_deleted(TOPIC)
    member.ack(0, (2, RECORDS - 1))
    monkeypatch.setattr(stuck_ranges, "find_open", lambda *where: (None, 0))
    node.pass_ms(2 * LOOK_MS)
    assert [node.loop.finish_jobs(), node.loop.finish_jobs()] == [1, 0]


def test_a_search_that_fails(node: OneNode, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is told of, and tried again."""

    def fail(*where: Any) -> None:
        raise ValueError("what is this?")

    member = Sharer(node, "a")
    member.fetch()
    member.ack(0, (1, RECORDS - 1))
    with monkeypatch.context() as patch:
        patch.setattr(stuck_ranges, "find_open", fail)
        node.wait(STUCK_MS)
    assert told()[0][1]["reason"] == "ValueError('what is this?')"
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert node.attempts == {0: 1}


# What is told -------------------------------------------------------------------------------------


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, dict[str, Any]]]]:
    caplog.set_level(logging.WARNING, LOGGER.name)

    def read() -> list[tuple[str, dict[str, Any]]]:
        found = [(one.getMessage(), one.__dict__["fields"]) for one in caplog.records]
        return [one for one in found if one[0].startswith(("group.window", "group.record"))]

    return read


def test_stages_are_told_once(node: OneNode, told: Any) -> None:
    """With the group, the partition, who has it, which record it is, and for how long."""
    member = Sharer(node, "a")
    member.fetch()
    member.ack(0, (1, RECORDS - 1))
    node.wait(STUCK_MS // 2 + LOOK_MS)
    facts = {
        "group": GROUP,
        "partition": "orders-0",
        "slots": "0-65535",
        "owner": "a",
        "offset": 0,
    }
    (name, warned) = told()[0]
    assert name == "group.window.filling"
    assert warned == {"stage": "warn", "window": RECORDS, "ranges": 1, "age_s": 0, **facts}
    node.wait(STUCK_MS)
    assert [name for name, _ in told()] == [
        "group.window.filling",
        "group.window.filling",
        "group.record.stuck",
    ]
    assert told()[-1][1] == {"age_s": 1, "slot": slot_of_key(b"key-0"), **facts}


def test_a_window_that_fills_again_is_told_again(node: OneNode, told: Any) -> None:
    """But not all the time."""
    member = Sharer(node, "a")

    def stand(offset: int) -> int:
        member.fetch(offset)
        member.ack(offset)
        node.wait(STUCK_MS - LOOK_MS)
        node.append_keys(1)
        member.ack(offset + 1 if offset else RECORDS)
        return len(told())

    assert stand(0) == 1
    assert stand(RECORDS) == 1
    for _ in range(3):
        member.beat()
        node.wait(20_000)
    assert stand(RECORDS + 1) == 2


def test_metrics(node: OneNode) -> None:
    """Only of partitions that are committed record by record."""

    def series() -> dict[tuple[str, ...], float]:
        return {
            (metric.name.removeprefix("anabranch_"), *labels): value
            for metric, values in node.broker.groups.collect_metrics()
            for labels, value in values.items()
            if "window" in metric.name or "stuck" in metric.name or "stalled" in metric.name
        }

    assert series() == {("group_stuck_records_total",): 0}
    member = Sharer(node, "a")
    member.fetch()
    member.ack(10, (15, 16), (20, 20))
    node.wait(STUCK_MS + 2 * LOOK_MS)
    where = (GROUP, "orders", "0")
    found = series()
    assert found == {
        ("group_window_offsets", *where): RECORDS - 10,
        ("group_window_ranges", *where): 2,
        ("group_stalled_seconds", *where): (STUCK_MS + 2 * LOOK_MS) / 1000,
        ("group_window_stage", *where): 3,
        ("group_stuck_records_total",): 1,
    }
    (used,) = (
        values[()]
        for metric, values in node.broker.groups.collect_metrics()
        if metric.name == "anabranch_individual_commit_bytes"
    )
    assert 500 < used < 5_000
