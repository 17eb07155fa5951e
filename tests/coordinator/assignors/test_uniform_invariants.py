"""What holds for the `uniform` assignor whatever a group goes through.

Oracles: for small groups all assignments are tried; for larger ones shortest paths find the best
balance, and the fewest moves that lead to it.
"""

import dataclasses
import random

import pytest
from assignor_kit import (
    Group,
    best_possible,
    cheapest,
    count_moves,
    member,
    owners_of,
    profile,
    rebuilt,
    snapshot,
    topic,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from anabranch.coordinator.group.assignors import shares
from anabranch.coordinator.group.assignors.api import compute_targets
from anabranch.coordinator.group.assignors.uniform import UniformAssignor
from anabranch.model.cluster_image import TopicImage
from anabranch.model.units import Unit

NAMES = "tuv"
SUBSCRIPTIONS = ["t u v"] * 6 + ["t", "u", "v", "t u", "u v", "v t", ""]
MEMBERS = st.integers(0, 5)
RACKS = st.sampled_from([None, None, "x", "y", "z"])
PARTITION_RACKS = ["x", "y", "z", "x,y", "y,z", "x,z", ""]


class UniformMachine(RuleBasedStateMachine):
    """A group that lives; assignments come at once, or after several changes."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(UniformAssignor())
        self.images: dict[str, TopicImage] = {}
        self.generation = 0
        self.before = dict(self.group.targets)

    @rule(numbers=st.lists(MEMBERS, min_size=1, max_size=3), data=st.data(), static=st.booleans())
    def join_or_change(self, numbers: list[int], data: st.DataObject, static: bool) -> None:
        specs = [
            member(
                f"m{number}",
                data.draw(st.sampled_from(SUBSCRIPTIONS)),
                instance=f"i{5 - number}" if static else None,
                rack=data.draw(RACKS),
            )
            for number in dict.fromkeys(numbers)
        ]
        self.settle()
        self.group.join(*specs)
        self.check()

    @rule(number=MEMBERS)
    def leave(self, number: int) -> None:
        if f"m{number}" in self.group.index.members:
            self.settle()
            self.group.leave(f"m{number}")
            self.check()

    @rule(name=st.sampled_from(NAMES), more=st.integers(0, 3), data=st.data())
    def create_or_grow(self, name: str, more: int, data: st.DataObject) -> None:
        known = self.images.get(name)
        if known is None:
            self.generation += 1
        count = min((known.partitions if known else 0) + more, 6)
        racks = data.draw(
            st.lists(st.sampled_from(PARTITION_RACKS), min_size=count, max_size=count)
        )
        image = topic(name, count, racks, self.generation)
        if known is not None:
            image = dataclasses.replace(image, topic_id=known.topic_id)
        self.images[name] = image
        self.group.set_topics(*self.images.values())

    @precondition(lambda self: self.images)
    @rule(data=st.data())
    def delete_topic(self, data: st.DataObject) -> None:
        del self.images[data.draw(st.sampled_from(sorted(self.images)))]
        self.group.set_topics(*self.images.values())

    @rule(number=MEMBERS, topics=st.sampled_from(SUBSCRIPTIONS), rack=RACKS)
    def replay_member_without_assigning(self, number: int, topics: str, rack: str | None) -> None:
        self.group.index.set_member(member(f"m{number}", topics, rack=rack))

    @rule(number=MEMBERS)
    def replay_leave_without_assigning(self, number: int) -> None:
        self.group.index.remove_member(f"m{number}")
        self.group.index.set_target(f"m{number}", None)

    @rule()
    def settle(self) -> None:
        """Assign what is open, so that the next change starts from a settled group."""
        self.before = dict(self.group.targets)
        self.group.assign()
        self.check()
        self.before = dict(self.group.targets)

    def check(self) -> None:
        index = self.group.index
        here = snapshot(index)
        for order in range(4):
            assert snapshot(rebuilt(index, order)) == here
        assert not index.astray
        assert not index.open_topics
        assert self.group.assign() == {}
        if index.members:
            balance, moves = cheapest(index, self.before)
            assert profile(self.group.loads().values()) == balance
            mine = count_moves(owners_of(self.before), owners_of(self.group.targets), index)
            if len(index.crews) == 1:
                assert mine == moves
            else:
                assert mine <= moves + len(index.members)


UniformMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=20)
test_uniform_state_machine = UniformMachine.TestCase


@st.composite
def small_groups(draw: st.DrawFn, is_homogeneous: bool) -> Group:
    """A group that just changed: up to three members with targets that fit no longer."""
    group = Group(UniformAssignor())
    counts = {name: draw(st.integers(0, 3)) for name in ("tu" if is_homogeneous else NAMES)}
    group.set_topics(*(topic(name, count) for name, count in counts.items()))
    subscriptions = st.sampled_from(["t u"] if is_homogeneous else SUBSCRIPTIONS)
    for number in range(draw(st.integers(1, 3))):
        group.index.set_member(member(f"m{number}", draw(subscriptions)))
    owned: dict[str, set[Unit]] = {key: set() for key in group.index.members}
    for image in group.index.image.topics.values():
        for partition in range(image.partitions):
            owner = draw(st.sampled_from([None, *owned]))
            if owner is not None:
                owned[owner].add(Unit(image.topic_id, partition))
    for key, mine in owned.items():
        group.index.set_target(key, frozenset(mine))
    return group


@given(group=small_groups(is_homogeneous=True))
def test_same_subscriptions_need_the_fewest_moves(group: Group) -> None:
    """From any targets to the best balance there is, with the fewest moves there are."""
    before = dict(group.targets)
    group.assign()
    balance, moves = best_possible(group.index, before)
    assert cheapest(group.index, before) == (balance, moves), "the oracles agree"
    assert profile(group.loads().values()) == balance
    assert count_moves(owners_of(before), owners_of(group.targets), group.index) == moves


@given(group=small_groups(is_homogeneous=False))
def test_different_subscriptions_are_balanced(group: Group) -> None:
    """From any targets to the best balance there is, whatever the subscriptions."""
    before = dict(group.targets)
    group.assign()
    balance, moves = best_possible(group.index, before)
    assert cheapest(group.index, before) == (balance, moves), "the oracles agree"
    assert profile(group.loads().values()) == balance


@pytest.mark.parametrize(("members", "subscriptions"), [(8, 8), (12, 3)])
def test_different_subscriptions_move_little(members: int, subscriptions: int) -> None:
    """Over many changes balance is the best there is, and moves are few more than they must be."""
    source = random.Random(1)
    names = [f"t{number}" for number in range(5)]
    moves = least = 0
    for _ in range(12):
        choices = [
            " ".join(source.sample(names, source.randint(1, 5))) for _ in range(subscriptions)
        ]
        counts = {name: source.randint(1, 7) for name in names}
        group = Group(UniformAssignor(), *(topic(name, count) for name, count in counts.items()))
        for _ in range(12):
            before = dict(group.targets)
            present = sorted(group.index.members)
            match source.randrange(4):
                case 0 if len(present) > 2:
                    group.leave(source.choice(present))
                case 1:
                    counts[source.choice(names)] += source.randint(1, 3)
                    group.set_topics(*(topic(name, count) for name, count in counts.items()))
                    group.assign()
                case _:
                    number = source.randrange(members)
                    group.join(member(f"m{number}", source.choice(choices)))
            if group.index.members:
                balance, fewest = cheapest(group.index, before)
                assert profile(group.loads().values()) == balance
                least += fewest
                moves += count_moves(owners_of(before), owners_of(group.targets), group.index)
    assert least > 100
    assert moves <= 1.06 * least


def test_search_for_balance_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a group too varied to be balanced in time everything is assigned, and later balanced."""
    source = random.Random(3)
    names = [f"t{number:02}" for number in range(10)]
    group = Group(UniformAssignor(), *(topic(name, source.randint(1, 20)) for name in names))
    for number in range(25):
        group.index.set_member(member(f"m{number:02}", " ".join(source.sample(names, 2))))
    monkeypatch.setattr(shares, "WORK_MAX", 0)
    group.assign()
    at_once = profile(group.loads().values())
    monkeypatch.undo()
    group.assign()
    balance, _ = cheapest(group.index, {})
    assert at_once > balance
    assert profile(group.loads().values()) == balance


@given(group=small_groups(is_homogeneous=False), order=st.integers(1, 3))
def test_answer_does_not_depend_on_history(group: Group, order: int) -> None:
    """Members, targets and topics that came in another order get the same answer."""
    twin = rebuilt(group.index, order)
    joining = {"new": member("new", "t u"), "m0": None}
    assert dict(compute_targets(group.assignor, group.index, joining)) == dict(
        compute_targets(group.assignor, twin, joining)
    )
