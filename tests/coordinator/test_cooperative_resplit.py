"""Re-splitting by load: when it acts, how much at once, and that it comes to rest."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.branch.slots import slot_of_key
from anabranch.coordinator.cooperative.cuts import (
    Partition,
    RangeMember,
    RangeTopic,
    equal_cuts,
    target_fault,
)
from anabranch.coordinator.cooperative.line_cut import line_cut
from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.cooperative.resplit import (
    Decision,
    Move,
    ResplitRules,
    ResplitState,
    Verdict,
    decide,
    moved,
)
from anabranch.coordinator.cooperative.unit_cuts import covered
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

TICK_MS = 5_000
SECOND = 1_000_000_000
T = RangeTopic("t", b"t".ljust(16, b"."), 1)
HALF = SLOT_COUNT // 2


def crew(count: int, topics: str = "t") -> list[RangeMember]:
    names = frozenset(topics.split())
    return [RangeMember(member_id=f"m{number:02}", topics=names) for number in range(count)]


def equal_owners(count: int) -> dict[str, frozenset[Unit]]:
    cuts = equal_cuts(count)
    return {f"m{n:02}": frozenset([Unit(T.topic_id, 0, cut)]) for n, cut in enumerate(cuts)}


def lopsided(load: int = SECOND, share: float = 0.8) -> dict[Partition, SlotWeights]:
    """Most of the load in the lower half of the slots, in a hundred of them alike."""
    low = {n * 300: int(load * share / 100) for n in range(100)}
    high = {HALF + n * 300: int(load * (1 - share) / 100) for n in range(100)}
    return {(T.topic_id, 0): SlotWeights(low | high)}


@dataclass
class Group:
    """Members that have what they should at once, tick by tick."""

    members: list[RangeMember]
    owners: Mapping[str, frozenset[Unit]]
    weights: Mapping[Partition, SlotWeights]
    topics: list[RangeTopic] = field(default_factory=lambda: [T])
    rules: ResplitRules = field(default_factory=ResplitRules)
    state: ResplitState = field(default_factory=ResplitState)
    now_ms: int = 1_000_000

    def tick(self, after_ms: int = TICK_MS, is_settled: bool = True) -> Decision:
        self.now_ms += after_ms
        decision = decide(
            self.state,
            self.members,
            self.topics,
            self.owners,
            self.weights,
            self.now_ms,
            is_settled=is_settled,
            rules=self.rules,
        )
        self.state = decision.state
        self.check(decision.moves)
        self.owners = moved(self.owners, decision.moves)
        assert target_fault(self.members, self.topics, self.owners) is None
        return decision

    def ticks(self, count: int) -> list[str]:
        return [self.tick().verdict.value for _ in range(count)]

    def load(self, units: Iterable[Unit]) -> int:
        return sum(self.weights[u[:2]].of(*u.slots) for u in units if u[:2] in self.weights)

    def check(self, moves: tuple[Move, ...]) -> None:
        """What holds for every round."""
        given = dict.fromkeys(self.owners, 0)
        for move in moves:
            assert covered([move.unit], self.owners[move.source]) == [move.unit]
            assert move.load == self.load([move.unit])
            given[move.source] += move.load
        alone = len(moves) == 1 and _width(moves[0]) == 1
        sharing = [m for m in self.members if m.is_sharing]
        total = sum(self.load(self.owners[m.member_id]) for m in sharing)
        assert alone or sum(given.values()) <= self.rules.moved_max * total
        for name, load in given.items():
            assert alone or load <= self.rules.given_max * self.load(self.owners[name])
            assert not load or self.load(self.owners[name]) > load
        # The mean is that of members who could take something.
        names = {topic.name for topic in self.topics if topic.is_shareable}
        sharers = [m.member_id for m in sharing if names & m.topics]
        for move in moves:
            mean = sum(self.load(self.owners[name]) for name in sharers) / len(sharers)
            assert move.load <= self.rules.interval_max * mean or _width(move) == 1


def _width(move: Move) -> int:
    return move.unit.slots.end - move.unit.slots.first


# When ---------------------------------------------------------------------------------------------


def test_acts_after_three_uneven_ticks() -> None:
    """Two ticks are watched, the third one moves; then it is even."""
    group = Group(crew(2), equal_owners(2), lopsided())
    assert group.ticks(4) == ["watching", "watching", "moving", "even"]
    assert group.tick().imbalance == pytest.approx(1.2, abs=0.01)


def test_one_round_moves_a_fifth() -> None:
    """What is more than a fifth of the load waits for the next round, 30 s later."""
    group = Group(crew(2), equal_owners(2), lopsided(share=1.0))
    rounds = [group.tick() for _ in range(9)]
    assert [bool(one.moves) for one in rounds] == [False, False, True] + 5 * [False] + [True]
    assert [one.verdict.value for one in rounds[3:8]] == ["watching"] * 2 + ["pausing"] * 3
    shares = [sum(m.load for m in one.moves) / SECOND for one in rounds if one.moves]
    assert shares == pytest.approx([0.2, 0.2], abs=0.02)


def test_even_loads_stay() -> None:
    """Up to 1.25 times the mean nothing happens, however long."""
    group = Group(crew(2), equal_owners(2), lopsided(share=0.62))
    assert set(group.ticks(50)) == {"even"}


def test_a_short_peak_is_waited_for() -> None:
    """Two uneven ticks and an even one: it starts over."""
    group = Group(crew(2), equal_owners(2), lopsided())
    for _ in range(5):
        group.weights = lopsided()
        assert group.ticks(2) == ["watching", "watching"]
        group.weights = lopsided(share=0.5)
        assert group.ticks(1) == ["even"]


def test_calls_between_ticks_do_not_count() -> None:
    """Whoever calls every second gets no faster decision."""
    group = Group(crew(2), equal_owners(2), lopsided())
    verdicts = [group.tick(1_000).verdict.value for _ in range(11)]
    assert verdicts == [
        "watching", *["early"] * 4, "watching", *["early"] * 4, "moving",
    ]  # fmt: skip


def test_a_gap_between_ticks_starts_over() -> None:
    """After a silence what was before does not count; a clock set back does no harm."""
    group = Group(crew(2), equal_owners(2), lopsided())
    assert group.ticks(2) == ["watching", "watching"]
    assert group.tick(60_000).verdict is Verdict.WATCHING
    assert group.tick(-3_600_000).verdict is Verdict.WATCHING
    assert group.ticks(2) == ["watching", "moving"]


def test_nothing_is_decided_while_something_moves() -> None:
    """Loads measured during a hand-over say nothing."""
    group = Group(crew(2), equal_owners(2), lopsided())
    assert group.ticks(2) == ["watching", "watching"]
    assert group.tick(is_settled=False).verdict is Verdict.UNSETTLED
    assert group.ticks(3) == ["watching", "watching", "moving"]


@pytest.mark.parametrize(("share", "pause_ms"), [(1.5, 30_000), (1.0, 30_000), (0.7, 300_000)])
def test_pause_after_a_round(share: float, pause_ms: int) -> None:
    """30 s if the load grew or stayed, 5 min if it shrank."""
    group = Group(crew(2), equal_owners(2), lopsided(share=1.0))
    assert group.ticks(3)[-1] == "moving"
    acted_ms = group.now_ms
    group.weights = lopsided(int(SECOND * share), share=1.0)
    while not group.tick().moves:
        assert group.now_ms < acted_ms + 600_000
    assert group.now_ms == acted_ms + pause_ms


def test_idle_groups_are_left_alone() -> None:
    """With a few records a second nobody is overloaded, whatever the proportions."""
    group = Group(crew(2), equal_owners(2), lopsided(10_000_000, share=1.0))
    assert set(group.ticks(10)) == {"even"}


# What ---------------------------------------------------------------------------------------------


def test_hot_slot_is_left_alone_and_named() -> None:
    """Its owner gives everything else away, and keeps it; no more moves afterwards."""
    loads = {n * 600: SECOND // 200 for n in range(100)} | {777: SECOND}
    group = Group(crew(4), equal_owners(4), {(T.topic_id, 0): SlotWeights(loads)})
    verdicts = group.ticks(40)
    assert verdicts.count("moving") >= 1 and set(verdicts[-10:]) == {"even"}
    (hot,) = group.tick().hot
    assert (hot.slot, hot.member_id, round(hot.share, 2)) == (777, "m00", 0.67)
    assert group.load(group.owners["m00"]) < SECOND * 1.05


def test_two_hot_slots_of_one_member_are_parted() -> None:
    """A slot that is too heavy for a round moves as the only one of a round."""
    loads = {100: SECOND, 200: SECOND + 1, 40_000: SECOND // 10}
    group = Group(crew(3), equal_owners(3), {(T.topic_id, 0): SlotWeights(loads)})
    group.ticks(60)
    homes = [{name for name, units in group.owners.items() for u in units
              if u.slots.first <= slot < u.slots.end} for slot in (100, 200)]  # fmt: skip
    assert homes[0] != homes[1]
    assert group.ticks(10) == ["even"] * 10


def test_members_and_topics_that_do_not_share_are_left_alone() -> None:
    """Neither members with whole partitions nor topics that are not cut give or take."""
    topics = [T, RangeTopic("u", b"u".ljust(16, b"."), 1, False), RangeTopic("v", b"v" * 16, 1)]
    names = frozenset("tuv")
    members = [*crew(2, "t u v"), RangeMember(member_id="x", topics=names, is_sharing=False)]
    owners = {
        "m00": frozenset([Unit(T.topic_id, 0)]),
        "m01": frozenset([Unit(topics[1].topic_id, 0)]),
        "x": frozenset([Unit(topics[2].topic_id, 0)]),
    }
    weights = {
        **lopsided(4 * SECOND),
        (topics[1].topic_id, 0): SlotWeights(base=10_000),
        (topics[2].topic_id, 0): SlotWeights(base=100_000),
    }
    group = Group(members, owners, weights, topics)
    group.ticks(60)
    assert group.owners["x"] == owners["x"]
    assert Unit(topics[1].topic_id, 0) in group.owners["m01"]
    loads = [group.load(group.owners[name]) for name in ("m00", "m01")]
    assert max(loads) < 1.25 * sum(loads) / 2


def test_only_subscribers_take() -> None:
    """Who does not subscribe to a topic gets nothing of it, also if it is idle."""
    members = [*crew(2), RangeMember(member_id="m02", topics=frozenset({"u"}))]
    owners = {**equal_owners(2), "m02": frozenset()}
    group = Group(members, owners, lopsided(share=0.9))
    group.ticks(60)
    assert group.owners["m02"] == frozenset()
    loads = [group.load(group.owners[name]) for name in ("m00", "m01")]
    assert max(loads) < 1.25 * sum(loads) / 2 and group.tick().verdict is Verdict.EVEN


def test_a_whole_partition_is_parted_in_small_steps() -> None:
    """One member has everything: the others get their shares round by round."""
    owners = {"m00": frozenset([Unit(T.topic_id, 0)]), "m01": frozenset(), "m02": frozenset()}
    group = Group(crew(3), owners, lopsided(share=0.5))
    verdicts = group.ticks(60)
    assert verdicts.count("moving") >= 3
    loads = [group.load(units) for units in group.owners.values()]
    assert max(loads) < 1.25 * sum(loads) / 3


def test_nobody_gives_more_than_half_at_once() -> None:
    """One of sixteen has 30 % of the load: it gives half of that, then the rest."""
    loads = dict.fromkeys(range(0, SLOT_COUNT, 200), SECOND // 10)
    loads |= dict.fromkeys(range(0, SLOT_COUNT // 16, 13), SECOND // 2)
    group = Group(crew(16), equal_owners(16), {(T.topic_id, 0): SlotWeights(loads)})
    rounds = [one for one in (group.tick() for _ in range(40)) if one.moves]
    assert len(rounds) >= 2 and rounds[0].imbalance > 4
    assert group.tick().verdict is Verdict.EVEN


def test_skewed_keys_settle_at_the_bound() -> None:
    """16 equal ranges under Zipf 1.0: from twice the mean to the hottest key's bound, and rest."""
    draw = random.Random(3)
    loads: dict[int, int] = {}
    for rank in range(1, 100_001):
        slot = slot_of_key(draw.randbytes(12))
        loads[slot] = loads.get(slot, 0) + SECOND // rank
    group = Group(crew(16), equal_owners(16), {(T.topic_id, 0): SlotWeights(loads, 1_000)})
    first = group.tick()
    assert first.imbalance > 1.8
    group.ticks(40)
    last = group.tick()
    assert last.imbalance <= 1.4 and last.verdict is Verdict.EVEN
    assert [hot.slot for hot in last.hot] == [max(loads, key=lambda slot: loads[slot])]
    assert all(len(units) <= 8 for units in group.owners.values())


def test_partitions_of_unknown_load_stay_where_they_are() -> None:
    """Only measured slots move."""
    owners = {"m00": frozenset([Unit(T.topic_id, 0), Unit(T.topic_id, 1)]), "m01": frozenset()}
    topics = [RangeTopic("t", T.topic_id, 2)]
    group = Group(crew(2), owners, lopsided(share=0.5), topics)
    group.ticks(60)
    assert Unit(T.topic_id, 1) in group.owners["m00"]
    assert group.owners["m01"]


# Always -------------------------------------------------------------------------------------------

SLOT = st.one_of(st.integers(0, 9), st.integers(0, SLOT_COUNT - 1))
LOADS = st.builds(
    SlotWeights,
    st.dictionaries(SLOT, st.integers(0, 10).map(lambda n: 10_000_000 * 2**n), max_size=15),
    st.sampled_from([1, 1_000]),
)


@given(
    kinds=st.lists(
        st.tuples(st.sampled_from(["t u", "t", "u"]), st.sampled_from([True, True, True, False])),
        min_size=1,
        max_size=7,
    ),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    shareable=st.tuples(st.booleans(), st.booleans()),
    loads=st.lists(LOADS, min_size=6, max_size=6),
)
@example(
    # A heavy slot that is more than half of its owner's load, and others who have to give too.
    kinds=[("t u", True)] * 5 + [("u", True)],
    sizes=(2, 1),
    shareable=(True, False),
    loads=[
        SlotWeights(base=1_000),
        SlotWeights(
            dict(enumerate(10_000_000 * n for n in (1024, 64, 128, 32, 128, 512, 512, 1024)))
        ),
        *(SlotWeights() for _ in range(4)),
    ],
)
@settings(max_examples=150)
def test_comes_to_rest(
    kinds: list[tuple[str, bool]],
    sizes: tuple[int, int],
    shareable: tuple[bool, bool],
    loads: list[SlotWeights],
) -> None:
    """Under a constant load the moves end, every round keeps the rules, and loads get no worse."""
    members = [
        RangeMember(member_id=f"m{n}", topics=frozenset(names.split()), is_sharing=shares)
        for n, (names, shares) in enumerate(kinds)
    ]
    topics = [
        RangeTopic(name, name.encode() * 16, size, is_shareable)
        for name, size, is_shareable in zip("tu", sizes, shareable, strict=True)
    ]
    weights = {
        (topic.topic_id, partition): loads[3 * at + partition]
        for at, topic in enumerate(topics)
        for partition in range(topic.partitions)
    }
    topics = [topic for topic in topics if any(topic.name in m.topics for m in members)]
    group = Group(members, line_cut(members, topics, {}).targets, weights, topics)
    squares = None
    ends = []
    for _ in range(150):
        decision = group.tick()
        ends.append(decision.verdict)
        now = sum(group.load(group.owners[m.member_id]) ** 2 for m in members if m.is_sharing)
        if decision.moves:
            assert squares is not None and now < squares
        squares = now
    assert Verdict.MOVING not in ends[-10:]
    again = [group.tick() for _ in range(2)]
    assert again[0].hot == again[1].hot


def test_moved_puts_together_what_is_one_members() -> None:
    """Neighbours of one owner are one unit, and a whole partition is one too."""
    owners = {"a": [Unit(T.topic_id, 0, SlotRange(0, 10))],
              "b": [Unit(T.topic_id, 0, SlotRange(10, SLOT_COUNT))]}  # fmt: skip
    move = Move(Unit(T.topic_id, 0, SlotRange(0, 10)), "a", "b", 1)
    assert moved(owners, [move]) == {"a": frozenset(), "b": {Unit(T.topic_id, 0, ALL_SLOTS)}}
