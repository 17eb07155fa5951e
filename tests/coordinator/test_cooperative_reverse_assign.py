"""KIP-X's assignors: both of its tables, and what its sketch leaves out."""

from collections.abc import Callable, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.cooperative.cuts import RangeMember, RangeTopic, target_fault
from anabranch.coordinator.cooperative.reverse_assign import (
    Targets,
    key_range_range,
    key_range_round_robin,
)
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

ASSIGNORS = [key_range_round_robin, key_range_range]
Assign = Callable[[Iterable[RangeMember], Iterable[RangeTopic]], Targets]


def member(name: str, topics: str = "t", shares: bool = True) -> RangeMember:
    return RangeMember(member_id=name, topics=frozenset(topics.split()), is_sharing=shares)


def topic(name: str, partitions: int, shareable: bool = True) -> RangeTopic:
    return RangeTopic(name, name.encode().ljust(16, b"."), partitions, shareable)


def table(topics: Iterable[RangeTopic], targets: Mapping[str, Iterable[Unit]]) -> dict[str, str]:
    """Who has what of each partition, in the order of slots, as KIP-X writes it."""
    found = {}
    for one in topics:
        for partition in range(one.partitions):
            owners = sorted(
                (unit.slots, name)
                for name, units in targets.items()
                for unit in units
                if unit[:2] == (one.topic_id, partition)
            )
            found[f"{one.name}p{partition}"] = " ".join(name for _, name in owners)
    return found


def test_five_members_on_three_partitions() -> None:
    """KIP-X's first table, ranges included: the first halves, then the second halves."""
    topics = [topic("t", 3)]
    targets = key_range_round_robin([member(f"M{n}") for n in range(1, 6)], topics)
    low, high = SlotRange(0, SLOT_COUNT // 2), SlotRange(SLOT_COUNT // 2, SLOT_COUNT)
    topic_id = topics[0].topic_id
    assert targets == {
        "M1": {Unit(topic_id, 0, low)},
        "M2": {Unit(topic_id, 1, low)},
        "M3": {Unit(topic_id, 2, ALL_SLOTS)},
        "M4": {Unit(topic_id, 0, high)},
        "M5": {Unit(topic_id, 1, high)},
    }
    assert table(topics, targets) == {"tp0": "M1 M4", "tp1": "M2 M5", "tp2": "M3"}


def test_five_members_on_topics_with_two_and_three_partitions() -> None:
    """KIP-X's second table: members in a row for each partition, the first ones one more."""
    topics = [topic("t1", 2), topic("t2", 3)]
    targets = key_range_range([member(f"c{n}", "t1 t2") for n in range(1, 6)], topics)
    assert table(topics, targets) == {
        "t1p0": "c1 c2 c3",
        "t1p1": "c4 c5",
        "t2p0": "c1 c2",
        "t2p1": "c3 c4",
        "t2p2": "c5",
    }
    thirds = {unit.slots for name in ("c1", "c2", "c3") for unit in targets[name]}
    assert {SlotRange(0, 21845), SlotRange(21845, 43690), SlotRange(43690, SLOT_COUNT)} <= thirds


def test_ranges_on_the_wire_are_those_of_equal_cuts() -> None:
    """Halves meet at hash 2^62; KIP-X's N/2 with N = Long.MAX is one less."""
    (half,) = key_range_round_robin([member("a"), member("b")], [topic("t", 1)])["b"]
    assert half.slots.first << 47 == 2**63 // 2 == (2**63 - 1) // 2 + 1


@pytest.mark.parametrize("assign", ASSIGNORS)
def test_members_that_do_not_share_come_first(assign: Assign) -> None:
    """Who does not share keeps a whole partition when others begin to share."""
    members = [member("a"), member("b", shares=False), member("c"), member("d"), member("e")]
    topics = [topic("t", 3)]
    targets = assign(members, topics)
    assert targets["b"] == {Unit(topics[0].topic_id, 0)}
    assert target_fault(members, topics, targets) is None
    assert all(len(targets[name]) == 1 for name in "acde")


@pytest.mark.parametrize("assign", ASSIGNORS)
def test_nobody_is_left_out_because_of_those_who_do_not_share(assign: Assign) -> None:
    """Two who do not share have two of three partitions, and the others share the third."""
    members = [member("a"), member("b"), member("c", shares=False), member("d", shares=False)]
    targets = assign(members, [topic("t", 3)])
    assert all(targets.values())
    assert {unit.slots for unit in targets["a"] | targets["b"]} == {(0, 32768), (32768, 65536)}


@pytest.mark.parametrize("assign", ASSIGNORS)
def test_more_who_do_not_share_than_partitions(assign: Assign) -> None:
    """Then they have all of them, as in Kafka, and nobody shares."""
    members = [member(f"x{n}", shares=False) for n in range(3)] + [member("a")]
    targets = assign(members, [topic("t", 2)])
    assert [len(targets[name]) for name in ("x0", "x1", "x2", "a")] == [1, 1, 0, 0]


def test_range_without_sharing_is_kafkas() -> None:
    """With enough partitions, or on a topic that does not allow it, nothing is cut."""
    topics = [topic("t", 5), topic("u", 1, shareable=False)]
    targets = key_range_range([member("a", "t u"), member("b", "t u")], topics)
    assert table(topics, targets) == {
        "tp0": "a", "tp1": "a", "tp2": "a", "tp3": "b", "tp4": "b", "up0": "a",
    }  # fmt: skip


def test_round_robin_without_sharing_is_kafkas() -> None:
    """One circle over all topics, past those who do not subscribe."""
    topics = [topic("t", 3), topic("u", 3)]
    members = [member("a", "t u"), member("b", "u"), member("c", "t u")]
    assert table(topics, key_range_round_robin(members, topics)) == {
        "tp0": "a", "tp1": "c", "tp2": "a", "up0": "b", "up1": "c", "up2": "a",
    }  # fmt: skip


MEMBERS = st.lists(
    st.tuples(st.sampled_from(["t", "u", "t u", ""]), st.booleans()), min_size=0, max_size=9
)
TOPICS = st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.booleans())


@pytest.mark.parametrize("assign", ASSIGNORS)
@given(kinds=MEMBERS, sizes=TOPICS)
def test_every_assignment_keeps_the_rules(
    assign: Assign,
    kinds: list[tuple[str, bool]],
    sizes: tuple[int, int, bool, bool],
) -> None:
    """Disjoint, covering, whole partitions where they have to be, in whatever order they come."""
    members = [member(f"m{n}", names, shares) for n, (names, shares) in enumerate(kinds)]
    topics = [topic("t", sizes[0], sizes[2]), topic("u", sizes[1], sizes[3])]
    targets = assign(members, topics)
    assert target_fault(members, topics, targets) is None
    assert assign(members[::-1], topics[::-1]) == targets
