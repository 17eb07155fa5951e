"""The `line-cut` assignor: rules that always hold, balance, few moves, and what it does to people.

Oracles: for small groups all ways to share out a few heavy slots are tried.
"""

import itertools
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from anabranch.branch.slots import slot_of_key
from anabranch.coordinator.cooperative.cuts import (
    Partition,
    RangeMember,
    RangeTopic,
    common,
    equal_cuts,
    target_fault,
)
from anabranch.coordinator.cooperative.line_cut import (
    Assignment,
    LineCutRules,
    Way,
    line_cut,
)
from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

STRICT = LineCutRules(tolerance=0.0, cut_cost=0.0, range_cost=0.0, ranges_max=1_000)
Weights = Mapping[Partition, SlotWeights]


def member(name: str, topics: str = "t", shares: bool = True) -> RangeMember:
    return RangeMember(member_id=name, topics=frozenset(topics.split()), is_sharing=shares)


def crew(count: int, topics: str = "t") -> list[RangeMember]:
    return [member(f"m{number:04}", topics) for number in range(count)]


def topic(name: str, partitions: int, shareable: bool = True) -> RangeTopic:
    return RangeTopic(name, name.encode().ljust(16, b"."), partitions, shareable)


T = topic("t", 1)


def checked(
    members: Sequence[RangeMember],
    topics: Sequence[RangeTopic],
    held: Mapping[str, Iterable[Unit]],
    weights: Weights | None = None,
    rules: LineCutRules | None = None,
) -> Assignment:
    """An assignment that keeps the rules, is the same in any order, and stays when asked again."""
    rules = rules or LineCutRules()
    some = {name: frozenset(units) for name, units in held.items()}
    found = line_cut(members, topics, some, weights, rules)
    assert target_fault(members, topics, found.targets) is None
    assert found.targets.keys() == found.loads.keys() == {m.member_id for m in members}
    assert line_cut(members[::-1], topics[::-1], some, weights, rules) == found
    again = line_cut(members, topics, found.targets, weights, rules)
    assert again == replace(found, way=Way.KEPT, moved=0)
    return found


def partials(assignment: Assignment, name: str) -> int:
    """Of how many partitions a member has a part."""
    return len({unit[:2] for unit in assignment.targets[name] if unit.slots != ALL_SLOTS})


# Zipf ---------------------------------------------------------------------------------------------


def zipf_slots(seed: int, keys: int = 100_000) -> dict[int, int]:
    """The load of each slot if keys come by Zipf's law with exponent 1, hashed as in the broker."""
    draw = random.Random(seed)
    found: dict[int, int] = {}
    for rank in range(1, keys + 1):
        slot = slot_of_key(draw.randbytes(12))
        found[slot] = found.get(slot, 0) + 1_000_000_000_000 // rank
    return found


@pytest.fixture(scope="module")
def zipfs() -> list[dict[int, int]]:
    return [zipf_slots(seed) for seed in range(4)]


def max_over_mean(loads: Mapping[int, int], targets: Iterable[Iterable[SlotRange]]) -> float:
    """The imbalance of the real loads, without what the assignor added to them."""
    before = [0] * (SLOT_COUNT + 1)
    for slot in range(SLOT_COUNT):
        before[slot + 1] = before[slot] + loads.get(slot, 0)
    pieces = [sum(before[end] - before[first] for first, end in ranges) for ranges in targets]
    return max(pieces) * len(pieces) / sum(pieces)


@pytest.mark.parametrize(
    ("members", "goal", "equal"), [(4, 1.03, 1.2), (8, 1.07, 1.5), (16, 1.33, 2.0)]
)
def test_skewed_keys(zipfs: list[dict[int, int]], members: int, goal: float, equal: float) -> None:
    """100,000 keys by Zipf 1.0 on one partition: far more even than ranges of equal width.

    With 16 members the hottest key alone is 1.32 of a fair load, and nothing can be below that.
    """
    cut, wide = [], []
    for zipf in zipfs:
        weights = {(T.topic_id, 0): SlotWeights(zipf, sum(zipf.values()) // 100 // SLOT_COUNT)}
        found = checked(crew(members), [T], {}, weights)
        ranges = [[unit.slots for unit in units] for units in found.targets.values()]
        cut.append(max_over_mean(zipf, ranges))
        wide.append(max_over_mean(zipf, [[slots] for slots in equal_cuts(members)]))
    assert mean(cut) <= goal and max(cut) <= goal + 0.05
    assert mean(wide) > equal


def test_hot_slot_is_alone_and_named(zipfs: list[dict[int, int]]) -> None:
    """Whoever has a slot that is more than a fair load has nothing else; its share is told."""
    for members, count in ((8, 0), (16, 1), (32, 2)):
        weights = {(T.topic_id, 0): SlotWeights(zipfs[0], 1)}
        found = checked(crew(members), [T], {}, weights)
        hottest = sorted(zipfs[0], key=lambda slot: -zipfs[0][slot])[:count]
        assert [(hot.topic_id, hot.partition, hot.slot) for hot in found.hot] == [
            (T.topic_id, 0, slot) for slot in hottest
        ]
        for hot in found.hot:
            assert hot.share > 1 / members
            alone = Unit(T.topic_id, 0, SlotRange(hot.slot, hot.slot + 1))
            assert found.targets[hot.member_id] == {alone}
        assert len({hot.member_id for hot in found.hot}) == count


# Whole partitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [1, 2, 3, 4, 6, 12])
def test_nothing_is_cut_that_divides(members: int) -> None:
    """Where partitions can be shared out evenly as they are, they are."""
    found = checked(crew(members), [topic("t", 12)], {})
    assert {unit.slots for units in found.targets.values() for unit in units} == {ALL_SLOTS}
    assert {len(units) for units in found.targets.values()} == {12 // members}


def test_whole_partitions_first() -> None:
    """Three members on four partitions have one each, and share the fourth."""
    found = checked(crew(3), [topic("t", 4)], {})
    for units in found.targets.values():
        assert sorted(unit.slots == ALL_SLOTS for unit in units) == [False, True]
    assert len({load // 3 for load in found.loads.values()}) == 1


def test_five_on_four() -> None:
    """Five members on four partitions have four fifths each, where KIP-X helps nobody."""
    found = checked(crew(5), [topic("t", 4)], {})
    assert {round(load / SLOT_COUNT, 3) for load in found.loads.values()} == {0.8}
    assert all(partials(found, name) <= 2 for name in found.targets)


def test_a_partition_left_over_does_not_go_to_everybody() -> None:
    """Of 101 partitions for 100 members one is left: a few take it, within the tolerance."""
    found = checked(crew(100), [topic("t", 101)], {})
    takers = [name for name in found.targets if partials(found, name)]
    assert 5 <= len(takers) <= 20
    assert max(found.loads.values()) <= 1.1 * 1.01 * SLOT_COUNT + 1


def test_nobody_is_idle_beside_whole_partitions() -> None:
    """With one member more than partitions some are shared: everybody has about the same."""
    found = checked(crew(17), [topic("t", 16)], {})
    assert min(found.loads.values()) >= 0.9 * max(found.loads.values()) * 16 / 17
    wholes = [unit for units in found.targets.values() for unit in units if unit.slots == ALL_SLOTS]
    assert len(wholes) >= 8


def test_members_that_do_not_share() -> None:
    """They have whole partitions before anybody else; the others level out what is left."""
    members = [member("a"), member("b"), member("c"), member("x", shares=False)]
    found = checked(members, [topic("t", 3)], {})
    assert [unit.slots for unit in found.targets["x"]] == [ALL_SLOTS]
    assert {round(found.loads[name] / SLOT_COUNT, 2) for name in "abc"} == {0.67}


@pytest.mark.parametrize(
    ("partitions", "owners", "sharers", "expected"),
    [(10, 1, 3, [2]), (10, 3, 1, [2, 2, 3]), (4, 1, 1, [2]), (1, 1, 5, [1]), (2, 3, 2, [0, 1, 1])],
)
def test_how_much_goes_to_members_that_do_not_share(
    partitions: int, owners: int, sharers: int, expected: list[int]
) -> None:
    """At least one partition while there are any, and more as long as it relieves the others."""
    members = [member(f"x{n}", shares=False) for n in range(owners)]
    members += [member(f"s{n}") for n in range(sharers)]
    found = checked(members, [topic("t", partitions)], {})
    assert sorted(len(found.targets[f"x{n}"]) for n in range(owners)) == expected


def test_only_members_that_do_not_share() -> None:
    """Then it is whole partitions for all, spread evenly by load."""
    members = [member(f"x{n}", shares=False) for n in range(3)]
    topics = [topic("t", 6)]
    weights = {(topics[0].topic_id, p): SlotWeights(base=1 + 4 * (p == 0)) for p in range(6)}
    found = checked(members, topics, {}, weights)
    assert sorted(found.loads.values()) == [2 * SLOT_COUNT, 3 * SLOT_COUNT, 5 * SLOT_COUNT]


def test_topics_that_do_not_allow_sharing() -> None:
    """They are never cut, also if that leaves members with less."""
    topics = [topic("t", 1, shareable=False), topic("u", 1)]
    found = checked(crew(4, "t u"), topics, {})
    (owner,) = (n for n, units in found.targets.items() if Unit(topics[0].topic_id, 0) in units)
    # Who has all of `t` has nothing of `u`, which the others share.
    assert len(found.targets[owner]) == 1
    assert sum(len(units) for units in found.targets.values()) == 4


def test_a_topic_that_does_not_allow_sharing_any_more() -> None:
    """Its parts become one again, with the member that had most of it."""
    before = checked(crew(3), [T], {})
    held = {"m0000": [Unit(T.topic_id, 0, SlotRange(0, 10_000))],
            "m0001": [Unit(T.topic_id, 0, SlotRange(10_000, SLOT_COUNT))]}  # fmt: skip
    found = checked(crew(3), [topic("t", 1, shareable=False)], held)
    assert found.targets["m0001"] == {Unit(T.topic_id, 0)}
    assert before.way is Way.CUT


def test_a_member_that_does_not_share_any_more() -> None:
    """A stock client under the id of one that shared: it gives its parts up for a whole one."""
    topics = [topic("t", 2)]
    before = checked(crew(4), topics, {})
    members = [member("m0000", shares=False), *crew(4)[1:]]
    found = checked(members, topics, before.targets)
    assert [unit.slots for unit in found.targets["m0000"]] == [ALL_SLOTS]


# Several subscriptions ----------------------------------------------------------------------------


def test_subscriptions_that_overlap() -> None:
    """Topics of one weight for members 1-2 and 2-3: everybody ends up with two thirds."""
    topics = [topic("t", 1), topic("u", 1)]
    members = [member("a", "t"), member("b", "t u"), member("c", "u")]
    found = checked(members, topics, {}, rules=STRICT)
    assert {round(load / SLOT_COUNT, 3) for load in found.loads.values()} == {0.667}


def test_topics_nobody_subscribes_to() -> None:
    """They are nobody's, and members without topics have nothing."""
    found = checked([member("a", ""), member("b", "u")], [topic("t", 1), topic("u", 1)], {})
    assert found.targets["a"] == frozenset()
    assert len(found.targets["b"]) == 1


def test_co_partitioned_topics_share_boundaries() -> None:
    """With the same cuts in both topics one key of both meets one member."""
    topics = [topic("t", 2), topic("u", 2), topic("v", 3)]
    loads = {slot: slot for slot in range(0, SLOT_COUNT, 777)}
    weights = {(topics[0].topic_id, 1): SlotWeights(loads)}
    rules = LineCutRules(co_partitioned=(frozenset("tu"),))
    found = checked(crew(5, "t u v"), topics, {}, weights, rules)
    for units in found.targets.values():
        by_topic = [{u[1:] for u in units if u.topic_id == t.topic_id} for t in topics]
        assert by_topic[0] == by_topic[1]
    apart = line_cut(crew(5, "t u v"), topics, {}, weights)
    assert any(
        {u[1:] for u in units if u.topic_id == topics[0].topic_id}
        != {u[1:] for u in units if u.topic_id == topics[1].topic_id}
        for units in apart.targets.values()
    )


def test_partitions_of_unknown_load_count_like_the_others() -> None:
    """Where loads are known of some partitions only, the others are taken for average ones."""
    topics = [topic("t", 3)]
    weights = {(topics[0].topic_id, p): SlotWeights(base=4) for p in range(2)}
    found = checked(crew(3), topics, {}, weights)
    assert set(found.loads.values()) == {4 * SLOT_COUNT}


# Few moves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 5, 16, 40])
def test_join_moves_a_fair_share(members: int) -> None:
    """A member more takes its share of the partition and nothing else moves."""
    before = checked(crew(members), [T], {})
    found = checked(crew(members + 1), [T], before.targets, rules=LineCutRules(ranges_max=99))
    assert found.way is Way.LEVELED
    assert found.moved <= SLOT_COUNT / (members + 1) + members
    assert found.loads[f"m{members:04}"] >= 0.9 * SLOT_COUNT / (members + 1)


@pytest.mark.parametrize("gone", [0, 7, 15])
def test_leave_moves_only_what_was_left(gone: int) -> None:
    """What the others have stays theirs."""
    before = checked(crew(16), [T], {})
    members = [one for one in crew(16) if one.member_id != f"m{gone:04}"]
    found = checked(members, [T], before.targets)
    assert found.moved == 0 and max(found.loads.values()) <= 1.1 * SLOT_COUNT / 15 + 1


def test_within_tolerance_nothing_moves() -> None:
    """Loads that drift a little leave everything where it is; too much, and it is leveled."""
    held = checked(crew(4), [T], {}).targets
    for more, way in ((1.05, Way.KEPT), (1.2, Way.LEVELED)):
        quarter = range(SLOT_COUNT // 4)
        drifted = {(T.topic_id, 0): SlotWeights({s: round(100 * more) - 100 for s in quarter}, 100)}
        found = checked(crew(4), [T], held, drifted)
        assert found.way is way
        assert (found.targets == held) is (way is Way.KEPT)
    exact = LineCutRules(tolerance=0.0)
    drifted = {(T.topic_id, 0): SlotWeights(dict.fromkeys(quarter, 5), 100)}
    assert checked(crew(4), [T], held, drifted, exact).way is not Way.KEPT


def test_cuts_heal() -> None:
    """When a member more makes whole partitions possible, they become whole again."""
    topics = [topic("t", 4)]
    held = checked(crew(4), topics, {}).targets
    three = checked(crew(3), topics, held)
    assert any(unit.slots != ALL_SLOTS for units in three.targets.values() for unit in units)
    four = checked(crew(4), topics, three.targets)
    assert {unit.slots for units in four.targets.values() for unit in units} == {ALL_SLOTS}


def test_cuts_heal_at_the_price_of_a_little_more() -> None:
    """One member after the other joins on four partitions: at four everybody has a whole one."""
    topics = [topic("t", 4)]
    held: Mapping[str, frozenset[Unit]] = {}
    for members in range(1, 5):
        found = checked(crew(members), topics, held)
        held = found.targets
    assert {unit.slots for units in held.values() for unit in units} == {ALL_SLOTS}
    free = LineCutRules(cut_cost=0.0, range_cost=0.0)
    three = line_cut(crew(3), topics, line_cut(crew(2), topics, {}).targets, rules=free)
    four = line_cut(crew(4), topics, three.targets, rules=free)
    assert found.moved > four.moved and four.way is Way.LEVELED


def test_what_is_free_is_taken_before_others_are_asked() -> None:
    """Two members with two partitions each give a third of all to a third one, and no more."""
    topics = [topic("t", 4)]
    rules = LineCutRules(cut_cost=0.0, range_cost=0.0)
    found = checked(crew(3), topics, checked(crew(2), topics, {}).targets, rules=rules)
    assert found.way is Way.LEVELED
    assert found.moved == pytest.approx(4 * SLOT_COUNT / 3, abs=3)


def test_members_that_do_not_share_keep_what_they_have() -> None:
    """Others come and go around them."""
    topics = [topic("t", 4)]
    members = [member(f"x{n}", shares=False) for n in range(2)] + crew(1)
    held = {f"x{n}": [Unit(topics[0].topic_id, 3 - n)] for n in range(2)}
    for count in (1, 2, 5, 3):
        found = checked([*members, *crew(count)[1:]], topics, held)
        held = dict(found.targets)
        assert [held["x0"], held["x1"]] == [
            {Unit(topics[0].topic_id, 3)},
            {Unit(topics[0].topic_id, 2)},
        ]


def test_hot_slot_stays_with_its_owner() -> None:
    """Who has a slot that turns out to be hot keeps it and gives everything else away."""
    held = checked(crew(5), [T], {}).targets
    slot = next(iter(held["m0003"])).slots.first + 5_000
    weights = {(T.topic_id, 0): SlotWeights({slot: SLOT_COUNT}, 1)}
    found = checked(crew(5), [T], held, weights)
    assert found.targets["m0003"] == {Unit(T.topic_id, 0, SlotRange(slot, slot + 1))}


def slivers(before: Mapping[str, Iterable[Unit]], after: Assignment) -> list[SlotRange]:
    """What goes from one member to another in less than a hundredth of a fair share."""
    found = []
    for name, units in before.items():
        for other, taken in after.targets.items():
            if name != other and name in after.targets:
                ranges = common([u.slots for u in units], [u.slots for u in taken])
                found += [
                    s for s in ranges if (s.end - s.first) * len(after.loads) * 100 < SLOT_COUNT
                ]
    return found


def test_rounding_moves_nothing() -> None:
    """Sixths and thirds differ by a slot: it stays where its edge is."""
    held = checked(crew(3), [T], {}).targets
    found = checked(crew(6), [T], held)
    assert slivers(held, found) == []
    edges = {unit.slots.end for units in held.values() for unit in units}
    assert edges <= {unit.slots.end for units in found.targets.values() for unit in units}


@pytest.mark.parametrize("seed", range(8))
def test_no_slivers_whoever_comes_and_goes(seed: int) -> None:
    """No hand-over is for a few slots only, and no range is left over that small."""
    draw = random.Random(seed)
    names = [f"m{number:02}" for number in range(20)]
    here: set[str] = set(names[:2])
    held: Mapping[str, frozenset[Unit]] = {}
    for _ in range(10):
        here ^= set(draw.sample(names, draw.choice([1, 2, 3])))
        if not here:
            continue
        found = checked([member(name) for name in sorted(here)], [T], held)
        assert slivers(held, found) == []
        held = found.targets


@pytest.mark.parametrize("partitions", [2, 3, 7, 16])
def test_parts_of_two_partitions_at_most(partitions: int) -> None:
    """Whoever comes and goes, nobody ends up with parts of many partitions."""
    draw = random.Random(partitions)
    topics = [topic("t", partitions)]
    here = set(range(8))
    held: Mapping[str, frozenset[Unit]] = {}
    for _ in range(30):
        found = checked([member(f"m{n:02}") for n in sorted(here)], topics, held)
        assert max(partials(found, name) for name in found.targets) <= 2
        held = found.targets
        if len(here) > 4 and draw.random() < 0.5:
            here.remove(draw.choice(sorted(here)))
        else:
            here.add(draw.randrange(40))


def test_too_many_ranges_are_cut_anew() -> None:
    """Parts of partitions do not crumble: with too many ranges the line is cut anew."""
    rules = LineCutRules(ranges_max=3)
    held: Mapping[str, frozenset[Unit]] = {}
    ways = set()
    for members in range(1, 13):
        found = checked(crew(members), [T], held, rules=rules)
        assert all(len(units) <= 3 for units in found.targets.values())
        ways.add(found.way)
        held = found.targets
    assert ways == {Way.LEVELED, Way.CUT}


def test_pieces_of_a_new_cut_go_to_who_has_most_of_them() -> None:
    """Members that come back under other orders keep what they had."""
    held = {"m0001": [Unit(T.topic_id, 0, SlotRange(0, SLOT_COUNT // 2))],
            "m0000": [Unit(T.topic_id, 0, SlotRange(SLOT_COUNT // 2, SLOT_COUNT))]}  # fmt: skip
    found = checked(crew(2), [T], held, rules=STRICT)
    assert found.moved == 0 and found.way is Way.KEPT
    third = checked(crew(3), [T], held, rules=replace(STRICT, ranges_max=1))
    assert third.moved <= SLOT_COUNT / 3 + 1


# Properties ---------------------------------------------------------------------------------------

HEAVY = 1_000_000_000
MEMBERS = st.lists(
    st.tuples(st.sampled_from(["t u", "t u", "t", "u", ""]), st.sampled_from([True, True, False])),
    min_size=1,
    max_size=7,
)
SIZES = st.tuples(st.integers(0, 4), st.integers(0, 4))
SLOT = st.one_of(st.integers(0, 9), st.integers(0, SLOT_COUNT - 1))
LOADS = st.dictionaries(
    st.tuples(st.sampled_from("tu"), st.integers(0, 3)),
    st.builds(SlotWeights, st.dictionaries(SLOT, st.integers(1, 200_000)), st.integers(1, 3)),
    max_size=4,
)


@given(
    before=MEMBERS,
    after=MEMBERS,
    sizes=SIZES,
    shareable=st.tuples(st.booleans(), st.booleans()),
    loads=LOADS,
    tolerance=st.sampled_from([0.0, 0.1, 0.3]),
)
@settings(max_examples=300)
def test_every_assignment_keeps_the_rules(
    before: list[tuple[str, bool]],
    after: list[tuple[str, bool]],
    sizes: tuple[int, int],
    shareable: tuple[bool, bool],
    loads: dict[tuple[str, int], SlotWeights],
    tolerance: float,
) -> None:
    """Disjoint, covering, whole where it has to be, deterministic, idempotent: also after changes.

    First a group under other switches, whose assignment is what the second one holds.
    """
    rules = LineCutRules(tolerance=tolerance)
    weights = {(topic(name, 1).topic_id, number): some for (name, number), some in loads.items()}
    old = [member(f"m{n}", names, shares) for n, (names, shares) in enumerate(before)]
    new = [member(f"m{n + 2}", names, shares) for n, (names, shares) in enumerate(after)]
    held = checked(old, [topic("t", sizes[0]), topic("u", sizes[1])], {}, None, rules).targets
    topics = [topic("t", sizes[0], shareable[0]), topic("u", sizes[1], shareable[1])]
    checked(new, topics, held, weights, rules)


@given(
    st.integers(1, 9),
    st.integers(1, 3),
    st.dictionaries(SLOT, st.integers(1, 3 * SLOT_COUNT), max_size=12),
    st.lists(st.tuples(st.integers(0, 8), SLOT), max_size=9),
)
@settings(max_examples=200)
def test_balance_is_within_one_slot_of_the_bound(
    members: int, partitions: int, loads: dict[int, int], owners: list[tuple[int, int]]
) -> None:
    """Nobody has more than a fair load, or the heaviest slot, and one slot more."""
    topics = [topic("t", partitions)]
    weights = {(topics[0].topic_id, 0): SlotWeights(loads)}
    held = held_by(owners)
    for rules in (STRICT, LineCutRules()):
        found = checked(crew(members), topics, held, weights, rules)
        heaviest = weights[topics[0].topic_id, 0].heaviest
        fair = sum(found.loads.values()) / members
        bound = max(fair, heaviest) + heaviest
        assert max(found.loads.values()) <= (1 + rules.tolerance) * bound + 1


def held_by(owners: Iterable[tuple[int, int]]) -> dict[str, list[Unit]]:
    """A cover of one partition in which each member has the slots up to the next one's."""
    starts = sorted({slot: number for number, slot in owners}.items())
    held: dict[str, list[Unit]] = {}
    for (first, number), (end, _) in itertools.pairwise([*starts, (SLOT_COUNT, 0)]):
        held.setdefault(f"m{number:04}", []).append(Unit(T.topic_id, 0, SlotRange(first, end)))
    return held


ATOMS = st.lists(st.integers(-1, 3), min_size=1, max_size=7)


@given(ATOMS, st.integers(1, 3))
@example([0, 1, 0, 1, 0, 1, 0], 3)
@example([1, 0, 0, 0, 1, 0, 1, 0], 3)
@settings(max_examples=200)
def test_no_assignment_as_even_moves_less(owners: list[int], members: int) -> None:
    """Heavy slots of one weight, each with an owner or without: all other ways move as many.

    Owners beyond the members have left. Every way to share the heavy slots out that is as even is
    tried.
    """
    assume(members <= len(owners))
    weights = {(T.topic_id, 0): SlotWeights({n * 100: HEAVY for n in range(len(owners))})}
    held: dict[str, list[Unit]] = {}
    for number, owner in enumerate(owners):
        end = (number + 1) * 100 if number + 1 < len(owners) else SLOT_COUNT
        if owner >= 0:
            unit = Unit(T.topic_id, 0, SlotRange(number * 100, end))
            held.setdefault(f"m{owner:04}", []).append(unit)
    found = checked(crew(members), [T], held, weights, STRICT)
    after = [
        next(
            number
            for number in range(members)
            for unit in found.targets[f"m{number:04}"]
            if unit.slots.first <= atom * 100 < unit.slots.end
        )
        for atom in range(len(owners))
    ]
    profile = sorted(map(after.count, range(members)))
    assert profile[-1] - profile[0] <= 1
    assert _moves(owners, after, members) == min(
        _moves(owners, other, members)
        for other in itertools.product(range(members), repeat=len(owners))
        if sorted(map(other.count, range(members))) == profile
    )


def _moves(before: Sequence[int], after: Sequence[int], members: int) -> int:
    return sum(old != new and 0 <= old < members for old, new in zip(before, after, strict=True))


# Cost ---------------------------------------------------------------------------------------------


def calls(action: Callable[[], object]) -> int:
    """How many functions are called, in Python or C."""
    count = 0

    def count_one(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_cost_grows_with_the_group() -> None:
    """Ten times the members and partitions cost ten to twenty times as much, not a hundred."""
    costs: list[tuple[int, int, int]] = []
    for size in (100, 1_000):
        topics = [topic("t", size)]
        held = line_cut(crew(size), topics, {}).targets
        costs.append((
            calls(lambda topics=topics, size=size: line_cut(crew(size), topics, {})),
            calls(lambda topics=topics, size=size, held=held: line_cut(
                crew(size + 1), topics, held
            )),
            calls(lambda topics=topics, size=size, held=held: line_cut(
                crew(size)[1:], topics, held
            )),
        ))  # fmt: skip
    assert all(large < 25 * small for small, large in zip(*costs, strict=True)), costs


def test_weights_of_all_slots_cost_little(zipfs: list[dict[int, int]]) -> None:
    """Loads of 50,000 slots are looked up, not walked through, for each of 64 members."""
    weights = {(T.topic_id, 0): SlotWeights(zipfs[0])}
    held = line_cut(crew(64), [T], {}, weights).targets
    for members in (64, 65):
        cost = calls(lambda members=members: line_cut(crew(members), [T], held, weights))
        assert cost < 500_000
