"""The algebra of slot ranges, and units that are held and targeted by other cuts."""

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.cooperative.cuts import (
    Piece,
    RangeMember,
    RangeTopic,
    best_matching,
    common,
    equal_cuts,
    first_fault,
    joined,
    merge,
    overlay,
    split,
    target_fault,
)
from anabranch.coordinator.cooperative.unit_cuts import (
    Holding,
    covered,
    joined_units,
    recut,
    uncovered,
)
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

T = b"t".ljust(16, b".")
U = b"u".ljust(16, b".")
SLOTS = st.integers(1, SLOT_COUNT - 1)


def ranges(*bounds: int) -> list[SlotRange]:
    return list(map(SlotRange, bounds, bounds[1:]))


def slots_of(some: Sequence[SlotRange]) -> set[int]:
    return {slot for first, end in some for slot in range(first, end)}


# Ranges


@given(st.integers(1, 1024))
def test_equal_cuts_cover(count: int) -> None:
    """Equal cuts are disjoint and covering, and equally wide to within a slot."""
    cuts = equal_cuts(count)
    assert first_fault(cuts) is None
    widths = {end - first for first, end in cuts}
    assert max(widths) - min(widths) <= 1 and len(cuts) == count


@given(st.sets(SLOTS, max_size=6), st.sets(SLOTS, max_size=6))
def test_splitting_cuts_where_it_is_told(one: set[int], other: set[int]) -> None:
    """Ranges that are split are cut exactly where either was, whichever comes first."""
    left, right = split([ALL_SLOTS], one), split([ALL_SLOTS], other)
    assert left == ranges(0, *sorted(one), SLOT_COUNT)
    both = split(left, other)
    assert both == split(right, one) == ranges(0, *sorted(one | other), SLOT_COUNT)
    assert joined(both) == [ALL_SLOTS]


RANGES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda p: SlotRange(p[0], p[0] + p[1])),
    max_size=6,
)


@given(RANGES, RANGES)
def test_joining_and_common_slots(one: list[SlotRange], other: list[SlotRange]) -> None:
    """Ranges as sets of slots, written with as few ranges as can be."""
    assert slots_of(joined(one)) == slots_of(one)
    assert slots_of(common(one, other)) == slots_of(one) & slots_of(other)
    for found in (joined(one), common(one, other)):
        assert all(a.end < b.first for a, b in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("some", "fault"),
    [
        ([ALL_SLOTS], None),
        (ranges(0, 5, SLOT_COUNT), None),
        (ranges(5, SLOT_COUNT), "slots [0, 5) are in no range"),
        (ranges(0, 5), "slots [5, 65536) are in no range"),
        ([SlotRange(0, 6), SlotRange(5, SLOT_COUNT)], "slot 5 is in two ranges"),
        ([SlotRange(0, 4), SlotRange(5, SLOT_COUNT)], "slots [4, 5) are in no range"),
        ([SlotRange(0, 0), ALL_SLOTS], "[0, 0) is not a range of slots"),
        ([SlotRange(0, SLOT_COUNT + 1)], "[0, 65537) is not a range of slots"),
        ([], "slots [0, 65536) are in no range"),
    ],
)
def test_faults_of_a_cover(some: list[SlotRange], fault: str | None) -> None:
    """What keeps ranges from being disjoint and covering is told."""
    assert first_fault(some) == fault


@given(st.lists(st.tuples(SLOTS, SLOTS, st.sampled_from("abc")), max_size=8))
def test_overlaid_covers_stay_covers(steps: list[tuple[int, int, str]]) -> None:
    """Whatever is handed over, every slot has one owner, and neighbours differ."""
    cover = [Piece(0, SLOT_COUNT, "a")]
    owner_at = dict.fromkeys({0, SLOT_COUNT - 1, *(s for step in steps for s in step[:2])}, "a")
    for one, other, owner in steps:
        first, end = min(one, other), max(one, other) + 1
        cover = overlay(cover, first, end, owner)
        owner_at.update({slot: owner for slot in owner_at if first <= slot < end})
        assert first_fault([SlotRange(*piece[:2]) for piece in cover]) is None
        assert all(a.owner != b.owner for a, b in itertools.pairwise(cover))
    for slot, owner in owner_at.items():
        assert [p.owner for p in cover if p.first <= slot < p.end] == [owner]


def test_merging_keeps_gaps_and_owners_apart() -> None:
    """Only neighbours that touch and have the same owner become one."""
    pieces = [Piece(0, 2, "a"), Piece(2, 5, "a"), Piece(6, 7, "a"), Piece(7, 9, "b")]
    assert merge(pieces) == [Piece(0, 5, "a"), Piece(6, 7, "a"), Piece(7, 9, "b")]


# Common cuts


def unit(first: int, end: int, partition: int = 0) -> Unit:
    return Unit(T, partition, SlotRange(first, end))


def test_a_held_unit_is_rewritten_as_several() -> None:
    """A new member gets a piece out of the middle: the holder's unit becomes three, same epoch."""
    found = recut(
        {"a": Holding({unit(0, SLOT_COUNT): 7})},
        {"a": [unit(0, 100), unit(200, SLOT_COUNT)], "b": [unit(100, 200)]},
    )
    pieces = {unit(0, 100): 7, unit(100, 200): 7, unit(200, SLOT_COUNT): 7}
    assert found.holdings == {"a": Holding(pieces)}
    assert found.targets == {
        "a": {unit(0, 100), unit(200, SLOT_COUNT)},
        "b": {unit(100, 200)},
    }


def test_cuts_that_nobody_needs_vanish() -> None:
    """Neighbours of one holder that go to one member are one unit again."""
    found = recut(
        {"a": Holding({unit(0, 100): 7, unit(100, SLOT_COUNT): 7})}, {"b": [unit(0, SLOT_COUNT)]}
    )
    assert found.holdings == {"a": Holding({unit(0, SLOT_COUNT): 7})}
    assert found.targets == {"b": {unit(0, SLOT_COUNT)}}


def test_epochs_and_states_stay_apart() -> None:
    """Slots assigned at another epoch, or to be given back, are other units."""
    holding = Holding({unit(0, 100): 7, unit(100, 200): 8}, {unit(200, SLOT_COUNT): 8})
    found = recut({"a": holding}, {"b": [unit(0, SLOT_COUNT)]})
    assert found.holdings == {}
    assert found.targets == {
        "b": {unit(0, 100), unit(100, 200), unit(200, SLOT_COUNT)},
    }


def test_whole_partitions_are_left_alone() -> None:
    """Without cuts there is nothing to rewrite."""
    whole = [Unit(T, 0), Unit(U, 3)]
    found = recut({"a": Holding(dict.fromkeys(whole, 1))}, {"b": whole})
    assert found.holdings == {} and found.targets == {"b": frozenset(whole)}


def test_two_holders_of_a_slot_are_an_error() -> None:
    """A cover that is not one is not made worse."""
    with pytest.raises(ValueError, match="two members"):
        recut({"a": Holding({unit(0, 10): 1}), "b": Holding({unit(9, 20): 1})}, {})


OWNERS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=12, max_size=12)
WIDTH = 5_000


def _units(owners: Sequence[str | None], name: str) -> list[Unit]:
    """The units of one member, a unit for each block of slots it owns."""
    return [unit(n * WIDTH, (n + 1) * WIDTH) for n, owner in enumerate(owners) if owner == name]


def _slots(units: Mapping[Unit, int]) -> set[tuple[int, int]]:
    """Blocks with epochs: which slots, in blocks, a member holds since when."""
    return {
        (block, epoch)
        for one, epoch in units.items()
        for block in range(one.slots.first // WIDTH, one.slots.end // WIDTH)
    }


@given(OWNERS, OWNERS, OWNERS)
def test_recut_units_are_equal_or_disjoint(
    assigned: list[str | None], pending: list[str | None], wanted: list[str | None]
) -> None:
    """Afterwards all units are pairwise equal or disjoint, and nobody's slots have changed."""
    pending = [None if a else p for a, p in zip(assigned, pending, strict=True)]
    holdings = {
        name: Holding(
            {one: one.slots.first // 20_000 for one in _units(assigned, name)},
            dict.fromkeys(_units(pending, name), 9),
        )
        for name in "abc"
    }
    targets = {name: joined([u.slots for u in _units(wanted, name)]) for name in "abc"}
    found = recut(
        holdings, {name: [Unit(T, 0, slots) for slots in some] for name, some in targets.items()}
    )
    after = {**holdings, **found.holdings}
    for name, before in holdings.items():
        assert _slots(after[name].assigned) == _slots(before.assigned)
        assert _slots(after[name].pending_revocation) == _slots(before.pending_revocation)
        assert joined([u.slots for u in found.targets[name]]) == targets[name]
    everything = {
        *itertools.chain.from_iterable(found.targets.values()),
        *itertools.chain.from_iterable(h.assigned for h in after.values()),
        *itertools.chain.from_iterable(h.pending_revocation for h in after.values()),
    }
    ordered = sorted(one.slots for one in everything)
    assert all(a.end <= b.first for a, b in itertools.pairwise(ordered))
    # It is the coarsest: whoever does it again finds nothing to do.
    again = recut(after, found.targets)
    assert again.holdings == {} and again.targets == found.targets


def test_what_a_member_lists_by_old_cuts() -> None:
    """A unit is covered if all of its slots are listed; what is listed and in none is left."""
    units = [unit(0, 100), unit(100, 200), unit(200, 300), Unit(U, 0)]
    listed = [unit(0, 150), unit(0, SLOT_COUNT, partition=1)]
    assert covered(units, listed) == [unit(0, 100)]
    assert covered(units, [unit(0, 50), unit(50, 300)]) == units[:3]
    assert uncovered(listed, units[:1]) == [unit(100, 150), unit(0, SLOT_COUNT, partition=1)]
    assert uncovered([unit(0, 50), unit(50, 300)], [unit(100, 200)]) == [
        unit(0, 100),
        unit(200, 300),
    ]


def test_units_since_one_epoch_are_joined() -> None:
    """Neighbours of another epoch, or of another partition, are not; they come in order."""
    units = {unit(100, 200): 1, unit(0, 100): 1, unit(200, 300): 2, Unit(U, 0): 1}
    found = joined_units(units)
    assert found == {unit(0, 200): 1, unit(200, 300): 2, Unit(U, 0): 1}
    assert list(found) == sorted(found)


# Handing out pieces


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(
            st.dictionaries(st.integers(0, n - 1), st.integers(1, 20)), min_size=n, max_size=n
        )
    )
)
def test_best_matching_is_the_best(gains: list[dict[int, int]]) -> None:
    """No other way to hand out the pieces is worth more."""
    found = best_matching(gains)
    assert len(set(found.values())) == len(found)
    worth = sum(gains[member][piece] for member, piece in found.items())
    best = max(
        sum(gains[member].get(piece, 0) for member, piece in enumerate(order))
        for order in itertools.permutations(range(len(gains)))
    )
    assert worth == best


# Checking an assignment


SHARER = RangeMember(member_id="a", topics=frozenset({"t"}))
OWNER = RangeMember(member_id="b", topics=frozenset({"t"}), is_sharing=False)


@pytest.mark.parametrize(
    ("targets", "shareable", "fault"),
    [
        ({"a": [unit(0, SLOT_COUNT)]}, True, None),
        ({"b": [unit(0, SLOT_COUNT)]}, False, None),
        ({"a": [unit(0, 9), unit(9, SLOT_COUNT)]}, True, None),
        ({"a": [unit(0, 9), unit(9, SLOT_COUNT)]}, False, "'a' has a part of partition 0 of 't'"),
        ({"b": [unit(0, 9), unit(9, SLOT_COUNT)]}, True, "'b' has a part of partition 0 of 't'"),
        ({"a": [unit(0, 9)]}, True, "partition 0 of 't': slots [9, 65536) are in no range"),
        ({}, True, "partition 0 of 't': slots [0, 65536) are in no range"),
        ({"c": [unit(0, 9)]}, True, "'c' is not in the group"),
        ({"a": [Unit(U, 0)]}, True, "'a' does not subscribe to 'u'"),
        ({"a": [unit(0, SLOT_COUNT, 1)]}, True, "does not exist"),
        ({"a": [unit(0, 9)], "b": [unit(0, SLOT_COUNT)]}, True, "slot 0 is in two ranges"),
    ],
)
def test_faults_of_targets(
    targets: dict[str, list[Unit]], shareable: bool, fault: str | None
) -> None:
    """Every rule of an assignment is checked."""
    members = [SHARER, OWNER, RangeMember(member_id="d", topics=frozenset({"u"}))]
    topics = [RangeTopic("t", T, 1, shareable), RangeTopic("u", U, 1)]
    targets = {"d": [Unit(U, 0)], **targets}
    found = target_fault(members, topics, targets)
    assert found is None if fault is None else fault in str(found)
