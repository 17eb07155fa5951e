"""The index: what it holds follows from members, targets and topics, not from the way there."""

import random

import pytest
from assignor_kit import Group, image_of, member, rebuilt, snapshot, topic, topic_id, units
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.group.assignors.api import TargetIndex
from anabranch.coordinator.group.assignors.crews import CHUNK_KEYS_MAX, SortedKeys
from anabranch.coordinator.group.assignors.range import RangeAssignor
from anabranch.coordinator.group.assignors.uniform import UniformAssignor
from anabranch.model.units import SlotRange, Unit

ASSIGNORS = [UniformAssignor(), RangeAssignor()]


def index_of(*partitions: int) -> TargetIndex:
    """An index of topics t0, t1, ... with so many partitions."""
    index = TargetIndex()
    index.set_image(image_of(*(topic(f"t{n}", count) for n, count in enumerate(partitions))))
    return index


def free(index: TargetIndex) -> dict[str, set[int]]:
    return {owned.image.name: owned.free for owned in index.open_topics.values()}


def test_only_subscribed_topics_count() -> None:
    """A topic that nobody subscribes to is not there; it comes and goes with its subscribers."""
    index = index_of(2, 3)
    assert free(index) == {}
    index.set_member(member("a", "t1"))
    assert free(index) == {"t1": {0, 1, 2}}
    index.remove_member("a")
    assert snapshot(index) == snapshot(index_of(2, 3))


def test_target_of_a_stranger_owns_nothing() -> None:
    """A target can be replayed before its member; it counts as soon as the member is there."""
    index = index_of(2)
    index.set_target("a", units("t0", 0))
    assert index.owned("a") == frozenset()
    index.set_member(member("a", "t0"))
    assert index.owned("a") == units("t0", 0)
    assert free(index) == {"t0": {1}}
    index.remove_member("a")
    assert index.owned("a") == frozenset()
    assert index.targets["a"] == units("t0", 0)


def test_unit_that_was_handed_on_has_one_owner() -> None:
    """In a batch of records the taker may come before the giver: in between one of them owns it."""
    for giver, taker in (("a", "b"), ("b", "a")):
        index = index_of(2)
        for member_id in (giver, taker):
            index.set_member(member(member_id, "t0"))
        index.set_target(giver, units("t0", 0, 1))
        index.set_target(taker, units("t0", 1))
        assert len(index.owned("a")) + len(index.owned("b")) == 2
        index.set_target(giver, units("t0", 0))
        assert index.owned(taker) == units("t0", 1)
        assert not index.astray


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_targets_that_overlap_are_put_right(assignor: UniformAssignor) -> None:
    """A journal in which two targets have the same unit is cured by the next assignment."""
    group = Group(assignor, topic("t", 4))
    for member_id in ("a", "b"):
        group.index.set_member(member(member_id))
        group.index.set_target(member_id, units("t", 0, 1, 2, 3))
    group.assign()
    assert sorted(group.loads().values()) == [2, 2]


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_units_that_do_not_exist_are_taken_out(assignor: UniformAssignor) -> None:
    """Units of unknown topics, partitions beyond the last, and parts of partitions go."""
    group = Group(assignor, topic("t", 2))
    group.index.set_member(member("a"))
    group.index.set_target(
        "a",
        units("t", 0, 7) | units("gone", 0) | {Unit(topic_id("t"), 1, SlotRange(0, 32_768))},
    )
    assert group.index.owned("a") == units("t", 0)
    assert group.assign() == {"a": units("t", 0, 1)}


def test_topics_may_come_after_targets() -> None:
    """After a restart targets are replayed first, and own what they name when topics are known."""
    index = TargetIndex()
    index.set_target("a", units("t0", 0, 3))
    index.set_member(member("a", "t0"))
    assert index.owned("a") == frozenset()
    index.set_image(image_of(topic("t0", 2)))
    assert index.owned("a") == units("t0", 0)
    index.set_image(image_of(topic("t0", 4)))
    assert index.owned("a") == units("t0", 0, 3)
    assert free(index) == {"t0": {1, 2}}


def test_trial_leaves_no_trace() -> None:
    """What a decision tries out is undone, also if the decision fails."""
    index = index_of(4, 2)
    for number in range(3):
        index.set_member(member(f"m{number}", "t0", rack="x"))
        index.set_target(f"m{number}", units("t0", number))
    before = snapshot(index)
    changes = {
        "m0": None,
        "m1": member("m1", "t0 t1", instance="i"),
        "new": member("new", "t1", rack="y"),
    }
    with index.trial(changes, {"new": units("t0", 0), "m2": None}):
        assert set(index.members) == {"m1", "m2", "new"}
        assert snapshot(index) == snapshot(rebuilt(index))
    assert snapshot(index) == before
    with pytest.raises(ZeroDivisionError), index.trial(changes):
        raise ZeroDivisionError
    assert snapshot(index) == before


def test_trial_of_a_static_member_that_comes_back() -> None:
    """A target can change hands within a trial."""
    index = index_of(4)
    index.set_member(member("old", "t0", instance="i"))
    index.set_target("old", units("t0", 0, 1))
    before = snapshot(index)
    changes = {"new": member("new", "t0", instance="i"), "old": None}
    with index.trial(changes, {"new": units("t0", 0, 1), "old": None}):
        assert index.owned("new") == units("t0", 0, 1)
        assert not index.astray
    assert snapshot(index) == before


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, object]]:
    """Anything that can be replayed, in any order, with targets that overlap and do not fit."""
    members = st.sampled_from("abc")
    target = st.sets(st.tuples(st.sampled_from(["t0", "t1"]), st.integers(0, 3)), max_size=5)
    step = st.one_of(
        st.tuples(
            st.just("member"),
            st.tuples(
                members,
                st.sampled_from(["t0", "t1", "t0 t1", ""]),
                st.sampled_from([None, "i"]),
                st.sampled_from([None, "x"]),
            ),
        ),
        st.tuples(st.just("gone"), members),
        st.tuples(st.just("target"), st.tuples(members, st.none() | target)),
        st.tuples(st.just("topics"), st.tuples(st.integers(0, 3), st.integers(-1, 3))),
    )
    start: list[tuple[str, object]] = [
        ("topics", (3, 3)),
        *(("member", (member_id, "t0 t1", None, None)) for member_id in "abc"),
    ]
    return (start if draw(st.booleans()) else []) + draw(st.lists(step, max_size=25))


@given(history=histories(), order=st.integers(0, 3))
def test_index_equals_one_built_from_nothing(history: list[tuple[str, object]], order: int) -> None:
    """After any replay the index is what the present members, targets and topics make it."""
    index = TargetIndex()
    for kind, what in history:
        match kind, what:
            case "member", (member_id, topics, instance, rack):
                index.set_member(member(member_id, topics, instance, rack))
            case "gone", member_id:
                index.remove_member(str(member_id))
            case "target", (member_id, None):
                index.set_target(member_id, None)
            case "target", (member_id, wanted):
                index.set_target(
                    member_id, frozenset(Unit(topic_id(name), number) for name, number in wanted)
                )
            case "topics", (first, second):
                images = [topic("t0", first)] + ([topic("t1", second)] if second >= 0 else [])
                index.set_image(image_of(*images))
        assert snapshot(rebuilt(index, order)) == snapshot(index)


def test_keys_stay_in_order() -> None:
    """A bucket is in order whatever is added and removed, over several chunks."""
    source = random.Random(2)
    keys, expected = SortedKeys(), set()
    for _ in range(CHUNK_KEYS_MAX * 12):
        key = f"{source.randrange(CHUNK_KEYS_MAX * 4)}"
        if key in expected:
            expected.remove(key)
            keys.remove(key)
        else:
            expected.add(key)
            keys.add(key)
    assert len(keys) == len(expected) > CHUNK_KEYS_MAX
    assert list(keys) == sorted(expected)
    assert list(reversed(keys)) == sorted(expected, reverse=True)
    twin = keys.copy()
    for key in sorted(expected):
        keys.remove(key)
    assert list(keys) == []
    assert list(twin) == sorted(expected)
