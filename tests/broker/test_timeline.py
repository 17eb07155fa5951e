"""What happened to groups, as the timeline tells it: real decisions, and a clock by hand."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from group_kit import DELAY_MS, GROUP, NOW_MS, SESSION_MS, TOPIC, Groups
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker import timeline
from anabranch.broker import timeline_events as e
from anabranch.broker.timeline import MERGED_MS, Timeline
from anabranch.broker.timeline_looks import SeenGroup, classic_changes
from anabranch.broker.timeline_rebalance import UnderWay, uncovered
from anabranch.coordinator.cooperative.acks import Ack, LogFacts
from anabranch.coordinator.cooperative.commands import (
    NO_RETRY,
    Action,
    CountStuck,
    Decision,
    Failure,
    PartitionAcks,
    TakeAcks,
    TakeDecisions,
)
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.coordinator.group.consumer_protocol import (
    Subscription,
    encode_assignment,
    encode_subscription,
)
from anabranch.coordinator.group.consumer_state import ConsumerGroup, ConsumerMember
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

PARTITIONS = 4
E = TypeVar("E", bound=e.TimelineEvent)
AT_ONCE = (
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.min.assignment.interval.ms=0",
)


@pytest.fixture
def desk(make_groups: Callable[..., Groups]) -> Groups:
    """A broker with a topic of four partitions, whose targets are made at once."""
    groups = make_groups(*AT_ONCE)
    groups.broker.create_topic(TOPIC, PARTITIONS)
    return groups


def events(desk: Groups, kind: type[E] = e.TimelineEvent, group: str = GROUP) -> list[E]:  # type: ignore[assignment]
    return [one for one in desk.broker.timeline.of(group) if isinstance(one, kind)]


def kinds(desk: Groups) -> list[str]:
    return [one.kind for one in events(desk)]


def beat(desk: Groups, member_id: str, epoch: int, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "group_id": GROUP,
        "member_id": member_id,
        "member_epoch": epoch,
        "client_id": f"client-{member_id}",
        "client_host": "/10.0.0.1",
    }
    if epoch == 0:
        values |= {"rebalance_timeout_ms": 5_000, "subscribed_topic_names": (TOPIC,), "owned": ()}
    return desk.submit(ConsumerHeartbeat(**values | changes)).answer


def settle(desk: Groups, *member_ids: str) -> None:
    """Let members say what they have until nothing moves."""
    group: Any = desk.broker.groups.group(GROUP)
    for _ in range(10):
        if group.is_settled:
            return
        for member_id in member_ids:
            member = group.members[member_id]
            beat(desk, member_id, member.member_epoch, owned=tuple(member.assigned))
    raise AssertionError("the group does not settle")


# Consumer groups --------------------------------------------------------------------------------


def test_a_member_that_joins_and_leaves(desk: Groups) -> None:
    """Join, rebalance from begin to end with all that moved, and the leave are told in order."""
    beat(desk, "a", 0)
    assert kinds(desk) == ["join", "rebalance-begin", "assignment", "rebalance"]
    (joined,) = events(desk, e.MemberJoined)
    assert joined.who == e.Who(member_id="a", client_id="client-a", host="/10.0.0.1")
    assert (joined.protocol, joined.at_ms) == ("consumer", NOW_MS)
    (ended,) = events(desk, e.RebalanceEnded)
    assert (ended.moved, ended.members, ended.causes) == (PARTITIONS, 1, (Cause.JOIN,))
    assert ended == desk.broker.timeline.last_rebalance(GROUP)
    desk.pass_ms(1_000)
    beat(desk, "a", -1)
    (left,) = events(desk, e.MemberLeft)
    assert (left.who, left.reason, left.held) == (joined.who, e.LeaveReason.LEFT, PARTITIONS)
    assert left.at_ms == NOW_MS + 1_000
    assert desk.broker.timeline.under_way(GROUP) is None


def test_who_waited_for_whom(desk: Groups) -> None:
    """A rebalance lasts until its last hand-over, and the taker waited for the giver."""
    beat(desk, "a", 0)
    beat(desk, "b", 0)
    under_way = desk.broker.timeline.under_way(GROUP)
    assert under_way is not None and under_way.at_ms == NOW_MS
    member: Any = desk.broker.groups.group(GROUP).members["a"]  # type: ignore[union-attr]
    beat(desk, "a", member.member_epoch)  # it is told to give half of them up
    desk.pass_ms(700)
    settle(desk, "a", "b")
    ended = events(desk, e.RebalanceEnded)[-1]
    assert (ended.duration_ms, ended.moved, ended.members) == (700, PARTITIONS // 2, 2)
    (wait,) = ended.waits
    assert (wait.waiting, wait.awaited) == (
        "client-b\N{HORIZONTAL ELLIPSIS}b",
        "client-a\N{HORIZONTAL ELLIPSIS}a",
    )
    assert wait.duration_ms == 700
    assert "2 partitions" in str(wait)
    assert desk.broker.timeline.under_way(GROUP) is None
    assert events(desk, e.Assigned)[-1].moving == PARTITIONS // 2


def test_members_that_are_put_out(desk: Groups) -> None:
    """Slowness and silence are told apart, and what follows is one rebalance with its causes."""
    beat(desk, "slow", 0)
    beat(desk, "b", 0)
    member: Any = desk.broker.groups.group(GROUP).members["slow"]  # type: ignore[union-attr]
    beat(desk, "slow", member.member_epoch)
    desk.pass_ms(5_001)
    (left,) = events(desk, e.MemberLeft)
    assert (left.who.member_id, left.reason) == ("slow", e.LeaveReason.REBALANCE_TIMEOUT)
    settle(desk, "b")
    assert events(desk, e.RebalanceEnded)[-1].causes == (Cause.JOIN, Cause.REBALANCE_TIMEOUT)
    desk.pass_ms(60_000)
    left = events(desk, e.MemberLeft)[-1]
    assert (left.who.member_id, left.reason) == ("b", e.LeaveReason.SESSION_EXPIRED)


def test_static_members(desk: Groups) -> None:
    """One that goes for a while is away, and its next self takes its place."""
    beat(desk, "a", 0, instance_id="i")
    beat(desk, "a", -2, instance_id="i")
    (away,) = events(desk, e.MemberLeft)
    assert (away.reason, away.held, str(away.who)) == (e.LeaveReason.AWAY, PARTITIONS, "i")
    beat(desk, "a2", 0, instance_id="i")
    left, joined = events(desk, e.MemberLeft)[-1], events(desk, e.MemberJoined)[-1]
    assert (left.who.member_id, left.reason) == ("a", e.LeaveReason.REPLACED)
    assert (joined.who.member_id, joined.replaces) == ("a2", "a")


def test_refusals_are_told_once_a_minute(desk: Groups) -> None:
    """The same refusal again and again is one event that counts; another one is its own."""
    epoch = beat(desk, "a", 0).member_epoch
    for _ in range(5):
        beat(desk, "zombie", 3)
        beat(desk, "a", epoch + 7)
        desk.pass_ms(10)
    refused = {one.member_id: one for one in events(desk, e.MemberRefused)}
    assert len(events(desk, e.MemberRefused)) == 2
    assert (refused["zombie"].error, refused["zombie"].count) == ("UNKNOWN_MEMBER_ID", 5)
    assert refused["a"].error == "FENCED_MEMBER_EPOCH"
    assert refused["a"].last_ms == refused["a"].at_ms + 40
    for _ in range(MERGED_MS // 4_000 + 1):
        desk.pass_ms(4_000)
        beat(desk, "a", epoch)
    beat(desk, "zombie", 3)
    assert [one.count for one in events(desk, e.MemberRefused)] == [5, 5, 1]


def test_groups_that_never_were(desk: Groups) -> None:
    """Requests for them leave nothing: anybody could fill the timeline with names."""
    desk.heartbeat("x", 1, group_id="nowhere")
    assert events(desk, group="nowhere") == []
    assert desk.broker.timeline.latest(10) == []


def test_plain_heartbeats_and_commits_are_not_looked_at(
    desk: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What members do all the time reaches the timeline not even as a call."""
    epoch = beat(desk, "a", 0).member_epoch

    def called(*_: object) -> None:
        raise AssertionError("it costs nothing")

    monkeypatch.setattr(desk.broker.timeline, "before_replay", called)
    monkeypatch.setattr(desk.broker.timeline, "after_replay", called)
    beat(desk, "a", epoch)
    assert desk.commit(1, 0, member_id="a", generation_id=epoch).answer.errors == (0,)


def test_a_group_that_migrates(desk: Groups) -> None:
    """From classic to consumer with a member that stays: neither a leave nor a second join."""
    metadata = encode_subscription(Subscription(version=1, topics=(TOPIC,)))
    first = desk.join("one", protocols=(("range", metadata),))
    desk.pass_ms(DELAY_MS)
    member_id = first.answer.member_id
    given = ((member_id, encode_assignment(1, [(TOPIC, [0, 1, 2, 3])])),)
    desk.sync(member_id, 1, assignments=given)
    beat(desk, "new", 0)
    (changed,) = events(desk, e.ProtocolChanged)
    assert (changed.before, changed.after, changed.members) == ("classic", "consumer", 2)
    assert events(desk, e.MemberLeft) == []
    assert [one.who.member_id for one in events(desk, e.MemberJoined)] == [member_id, "new"]


# Classic groups ---------------------------------------------------------------------------------


def test_a_classic_group(desk: Groups) -> None:
    """The last to join and the leader are who the others waited for; partitions are counted."""
    metadata = encode_subscription(Subscription(version=1, topics=(TOPIC,)))
    joins = [desk.join(name, protocols=(("range", metadata),)) for name in ("one", "two")]
    desk.pass_ms(2 * DELAY_MS)
    one, two = (join.answer.member_id for join in joins)
    desk.sync(two, 1)
    desk.pass_ms(300)
    halves = [encode_assignment(1, [(TOPIC, numbers)]) for numbers in ([0, 1], [2, 3])]
    desk.sync(one, 1, assignments=tuple(zip((one, two), halves, strict=True)))
    (ended,) = events(desk, e.RebalanceEnded)
    assert (ended.moved, ended.members, ended.epoch) == (PARTITIONS, 2, 1)
    assert ended.causes == (Cause.JOIN,)
    assert ended.duration_ms == 2 * DELAY_MS + 300
    wait = ended.waits[-1]
    assert (wait.awaited, wait.what) == (
        f"one\N{HORIZONTAL ELLIPSIS}{one[-4:]}",
        "to assign the partitions",
    )
    assert wait.duration_ms == 300
    for _ in range(3):
        desk.pass_ms(SESSION_MS // 2)
        desk.heartbeat(one, 1)
    (left,) = events(desk, e.MemberLeft)
    assert (left.who.client_id, left.reason) == ("two", e.LeaveReason.SESSION_EXPIRED)
    began = events(desk, e.RebalanceBegan)[-1]
    assert (began.cause, began.member) == (Cause.SESSION_EXPIRED, str(left.who))
    desk.join("one", one, protocols=(("range", metadata),))
    everything = encode_assignment(1, [(TOPIC, [0, 1, 2, 3])])
    desk.sync(one, 2, assignments=((one, everything),))
    assert events(desk, e.RebalanceEnded)[-1].moved == 2
    leave = c.LeavingMember(member_id=one, group_instance_id=None)
    desk.submit(c.LeaveGroup(group_id=GROUP, members=(leave,)))
    assert events(desk, e.MemberLeft)[-1].reason is e.LeaveReason.LEFT


def test_a_classic_member_that_does_not_rejoin(desk: Groups) -> None:
    """Who is not back when the others have waited long enough is removed for that."""
    joins = [desk.join(name, rebalance_timeout_ms=4_000) for name in ("one", "two")]
    desk.pass_ms(2 * DELAY_MS)
    one, two = (join.answer.member_id for join in joins)
    desk.sync(two, 1)
    desk.sync(one, 1, assignments=((one, b"x"), (two, b"y")))
    desk.join("three", rebalance_timeout_ms=4_000)
    desk.join("one", one, rebalance_timeout_ms=4_000)
    desk.pass_ms(4_001)
    (left,) = events(desk, e.MemberLeft)
    assert (left.who.client_id, left.reason) == ("two", e.LeaveReason.REBALANCE_TIMEOUT)


# Offsets and records ----------------------------------------------------------------------------


def test_offsets_from_outside(desk: Groups) -> None:
    """A reset shows what it moved; a reader that just goes on is one event."""
    desk.commit(10, 0, 1)
    for offset in (11, 12, 13):
        desk.commit(offset, 0)
    (reads,) = events(desk, e.OffsetsChanged)
    assert (reads.change, reads.count, reads.partitions) == (e.OffsetChange.SET, 4, 2)
    assert (reads.moved[0].before, reads.moved[0].after) == (None, 13)
    desk.commit(3, 0)
    reset = events(desk, e.OffsetsChanged)[-1]
    assert reset.moved == (e.OffsetMoved(topic=TOPIC, partition=0, before=13, after=3),)
    assert "13 to 3" in reset.sentence


def test_offsets_that_go(desk: Groups) -> None:
    """Deleted, gone with their topic, and the whole group: each says which."""
    desk.commit(10, 0, 1, 2)
    desk.submit(c.DeleteOffsets(group_id=GROUP, partitions=((TOPIC, 0),)))
    deleted = events(desk, e.OffsetsChanged)[-1]
    assert (deleted.change, deleted.partitions) == (e.OffsetChange.DELETED, 1)
    topic = desk.broker.topics.get(TOPIC)
    assert topic is not None
    desk.broker.delete_topic(topic)
    gone = events(desk, e.OffsetsChanged)[-1]
    assert (gone.change, gone.partitions) == (e.OffsetChange.TOPIC_DELETED, 2)
    desk.commit(10, 0, group_id="other", topic="t2")
    desk.submit(c.DeleteGroup(group_id="other"))
    assert events(desk, group="other")[-1].kind == "deletion"


def acks(desk: Groups, *failures: Failure, watermark: int = 0) -> TakeAcks:
    topic = desk.broker.topics.get(TOPIC)
    assert topic is not None
    return TakeAcks(
        group_id=GROUP,
        member_id="",
        member_epoch=-1,
        partitions=(
            PartitionAcks(
                topic=TOPIC,
                topic_id=topic.topic_id,
                partition=0,
                facts=LogFacts(0, 10, 10, 10),
                leader_epoch=0,
                acks=(Ack(ALL_SLOTS, -1, watermark),),
                failures=failures,
            ),
        ),
    )


def test_records_that_fail(desk: Groups) -> None:
    """One that is tried again is no event; stuck, blocked, skipped and released ones are."""
    topic = desk.broker.topics.get(TOPIC)
    assert topic is not None
    key_hash = 1 << 40
    desk.submit(acks(desk, Failure(1, key_hash, 0, "try again")))
    assert events(desk, e.RecordFated) == []
    desk.submit(
        acks(desk, Failure(2, key_hash, NO_RETRY, "no use"), Failure(3, key_hash, NO_RETRY))
    )
    stuck = CountStuck(
        group_id=GROUP,
        topic_id=topic.topic_id,
        partition=0,
        offset=4,
        key_hash=key_hash,
        reason="not finished",
    )
    desk.broker.groups.do(stuck)
    for decisions in (
        (Decision(Action.SKIP, 2), Decision(Action.SKIP, 9)),  # 9 does not wait, and is refused
        (Decision(Action.RELEASE, 3),),
    ):
        desk.submit(
            TakeDecisions(
                group_id=GROUP,
                topic=TOPIC,
                topic_id=topic.topic_id,
                partition=0,
                log_start_offset=0,
                decisions=decisions,
            )
        )
    told = [(one.fate.value, one.offset, one.reason) for one in events(desk, e.RecordFated)]
    assert told == [
        ("blocked", 2, "no use"),
        ("blocked", 3, ""),
        ("stuck", 4, "not finished"),
        ("skipped", 2, ""),
        ("released", 3, ""),
    ]


def test_plain_acks_are_not_looked_at(desk: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record by record that something is done is no event."""

    def called(*_: object) -> None:
        raise AssertionError("it costs nothing")

    monkeypatch.setattr(desk.broker.timeline, "after_replay", called)
    answer = desk.submit(acks(desk, watermark=5)).answer
    assert answer.partitions[0].stable_offset == 5


# Hand-overs of key ranges -----------------------------------------------------------------------


def member(member_id: str, *slots: tuple[int, int], giving: tuple[int, int] | None = None) -> Any:
    units = {Unit(b"t" * 16, 0, SlotRange(*pair)): 1 for pair in slots}
    pending = {Unit(b"t" * 16, 0, SlotRange(*giving)): 1} if giving else {}
    return ConsumerMember(member_id=member_id, assigned=units, pending_revocation=pending)


def test_ranges_that_are_cut_anew_on_their_way() -> None:
    """Givers and takers are brought together by slots, whatever the units are cut into."""
    way = UnderWay(at_ms=0, began_ms=0, phase_ms=0)
    one, two, three = (e.Who(member_id=name) for name in ("one", "two", "three"))
    whole = member("one", (0, 100))
    cut = member("one", (0, 40), giving=(40, 100))
    way.gave(one, whole, cut, 1_000)
    assert way.took(one, whole, cut, 1_000) == []  # the same slots in other units are no gain
    first = way.took(two, None, member("two", (40, 60)), 1_500)
    assert [(t.unit.slots, t.giver, t.duration_ms) for t in first] == [((40, 60), one, 500)]
    second = way.took(three, None, member("three", (50, 70), (70, 100)), 3_000)
    assert [(t.unit.slots, t.duration_ms) for t in second] == [
        ((60, 70), 2_000),
        ((70, 100), 2_000),
    ]
    back = way.took(one, cut, member("one", (0, 40), (40, 45)), 3_500)
    assert back == []  # nobody waits for itself
    waits = way.all_waits()
    assert [(w.waiting, w.awaited, w.duration_ms) for w in waits] == [
        ("three", "one", 2_000),
        ("two", "one", 500),
    ]
    assert way.moved == 3


def test_everybody_is_compared_when_a_group_migrates() -> None:
    """Who is new is found wherever the new kind of group has put them."""
    known = ClassicMember(
        member_id="old",
        group_instance_id=None,
        client_id="",
        client_host="",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        protocols=(),
    )
    before = ClassicGroup(group_id=GROUP, members={"old": known, "gone": known})
    after = ConsumerGroup(GROUP, ClusterImage())
    for name in ("new", "old"):
        after.replay_member(name, ConsumerMember(member_id=name))
    changes = classic_changes(SeenGroup(before, True, 2), after, None)
    assert changes == {"new": None, "old": known, "gone": known}


SLOTS = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(
    lambda p: SlotRange(p[0], p[0] + p[1])
)
UNITS = st.lists(st.builds(Unit, st.just(b"t" * 16), st.integers(0, 1), SLOTS), max_size=6)


@given(UNITS, UNITS)
def test_uncovered_is_a_difference_of_slots(units: list[Unit], by: list[Unit]) -> None:
    """Slot by slot, what is left of units without others is what neither of these has."""

    def slots(some: list[Unit]) -> set[tuple[int, int]]:
        return {(unit.partition, slot) for unit in some for slot in range(*unit.slots)}

    assert slots(uncovered(units, by)) == slots(units) - slots(by)


def test_key_ranges_read_as_shares() -> None:
    """A range is told by its share of the keys, a whole partition by its name."""
    half = SlotRange(0, SLOT_COUNT // 2)
    assert str(e.KeyRange(topic="t", partition=3, slots=half)) == "t-3 0-50%"
    assert str(e.KeyRange(topic="t", partition=3, slots=ALL_SLOTS)) == "t-3"


# Who only looks does no harm ---------------------------------------------------------------------


def test_a_bug_in_it_harms_no_group(
    desk: Groups, monkeypatch: pytest.MonkeyPatch, lines: list[tuple[str, dict[str, Any]]]
) -> None:
    """A decision counts whatever becomes of its telling; the log has the reason."""

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(desk.broker.timeline, "add", fails)
    epoch = beat(desk, "a", 0).member_epoch
    assert epoch > 0
    monkeypatch.setattr(timeline, "look", fails)
    beat(desk, "b", 0)
    assert desk.broker.groups.group(GROUP).members.keys() == {"a", "b"}  # type: ignore[union-attr]
    assert [name for name, _ in lines].count("timeline.failed") == 2
    assert "coordinator.shard.failed" not in [name for name, _ in lines]


def test_no_event_fails_in_these_tests(
    desk: Groups, lines: list[tuple[str, dict[str, Any]]]
) -> None:
    """A whole life of a group leaves nothing about the timeline in the log."""
    for name in ("a", "b"):
        beat(desk, name, 0)
    settle(desk, "a", "b")
    beat(desk, "a", -1)
    desk.pass_ms(100_000)
    desk.commit(1, 0)
    desk.submit(c.DeleteGroup(group_id=GROUP))
    assert "timeline.failed" not in [name for name, _ in lines]
    assert kinds(desk)[-1] == "deletion"


# Bounds -----------------------------------------------------------------------------------------


def deleted(group_id: str, at_ms: int = 0) -> e.GroupDeleted:
    return e.GroupDeleted(at_ms=at_ms, group_id=group_id)


def test_a_group_keeps_its_last_events() -> None:
    """A ring for each group: who never rests forgets its own past, not that of others."""
    kept = Timeline(lambda: 0, lambda: 0, group_events_max=3, events_max=100)
    kept.add(deleted("quiet"))
    for number in range(10):
        kept.add(deleted("loud", number))
    assert [one.at_ms for one in kept.of("loud")] == [7, 8, 9]
    assert len(kept.of("quiet")) == 1
    assert [one.at_ms for one in kept.latest(2)] == [9, 8]
    assert len(kept.latest(100)) == 4


def test_there_is_a_bound_over_all_groups() -> None:
    """However many groups there are: the oldest events go first, and groups without any."""
    kept = Timeline(lambda: 0, lambda: 0, group_events_max=3, events_max=5)
    for number in range(50):
        kept.add(deleted(f"g{number}", number))
    assert [one.group_id for one in kept.latest(100)] == ["g49", "g48", "g47", "g46", "g45"]
    assert kept.of("g3") == []
    assert len(kept._lines) == 5


def test_every_event_has_a_sentence(desk: Groups) -> None:
    """Whatever happens can be read; the words end like sentences."""
    beat(desk, "a", 0)
    beat(desk, "z", 4)
    beat(desk, "a", -1)
    desk.commit(5, 0)
    for event in events(desk):
        assert event.sentence.endswith("."), event
    assert len({event.kind for event in events(desk)}) >= 6
