"""Racks: units near their owners where that costs neither balance nor a move."""

import random
from itertools import permutations

import pytest
from assignor_kit import (
    Group,
    all_assignments,
    check_complete,
    count_moves,
    member,
    owners_of,
    profile,
    topic,
    units,
)
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.group.assignors.racks import Places, allot
from anabranch.coordinator.group.assignors.range import RangeAssignor
from anabranch.coordinator.group.assignors.uniform import UniformAssignor
from anabranch.model.cluster_image import TopicImage

RACKS = ("x", "y", "z")
ASSIGNORS = [UniformAssignor(), RangeAssignor()]
BY_NAME = {"ids": lambda assignor: assignor.name}


def spread(name: str, partitions: int, replicas: int) -> TopicImage:
    """A topic with replicas spread over the racks, as Kafka places them."""
    racks = [
        ",".join(RACKS[(partition + replica) % 3] for replica in range(replicas))
        for partition in range(partitions)
    ]
    return topic(name, partitions, racks)


def near(group: Group, racks: dict[str, str] | None = None) -> int:
    """How many partitions have a replica in the rack of their owner."""
    images = {image.topic_id: image for image in group.index.image.topics.values()}
    return sum(
        (racks or {}).get(key, group.index.members[key].rack_id)
        in images[unit.topic_id].racks[unit.partition]
        for key, target in group.targets.items()
        for unit in target
    )


@pytest.mark.parametrize("assignor", ASSIGNORS, **BY_NAME)
@pytest.mark.parametrize("replicas", [1, 2])
def test_gain(assignor: UniformAssignor, replicas: int) -> None:
    """With racks every partition is read nearby, where without it is as many as chance brings."""
    racks = {f"m{number:02}": RACKS[number * 7 % 11 % 3] for number in range(12)}
    image = spread("t", 12, replicas)
    aware, blind = Group(assignor, image), Group(assignor, image)
    aware.join(*(member(key, rack=rack) for key, rack in racks.items()))
    blind.join(*(member(key) for key in racks))
    assert profile(aware.loads().values()) == profile(blind.loads().values())
    assert near(blind, racks) <= 9
    assert near(aware) >= near(blind, racks) + 3
    seats = [list(racks.values()).count(rack) for rack in RACKS]
    if replicas == 1:
        assert near(aware) == sum(min(4, seat) for seat in seats)
    else:
        assert near(aware) == 12


def test_join_takes_what_is_near_to_it() -> None:
    """A new member is given partitions that have a replica in its rack."""
    group = Group(UniformAssignor(), spread("t", 30, 2))
    group.join(*(member(f"m{number}", rack=RACKS[number % 2]) for number in range(4)))
    changed = group.join(member("new", rack="z"))
    racks = group.index.image.topics["t"].racks
    assert [("z" in racks[unit.partition]) for unit in changed["new"]] == [True] * 6


def test_join_takes_from_who_has_something_near() -> None:
    """Of members with equally many units the one gives who has a unit near the new member."""
    racks = ["x,z"] + ["x"] * 15
    group = Group(UniformAssignor(), topic("t", 16, racks))
    group.join(*(member(f"m{number}", rack="x") for number in range(8)))
    assert group.join(member("new", rack="z"))["new"] == units("t", 0)


def test_leave_goes_to_who_is_near() -> None:
    """What a member leaves behind goes to members near it, of those with equally few units."""
    group = Group(UniformAssignor(), spread("t", 24, 1))
    group.join(*(member(f"m{number}", rack=RACKS[number % 3]) for number in range(12)))
    assert near(group) == 24
    group.leave("m4")
    assert near(group) == 24


def test_racks_move_nothing_by_themselves() -> None:
    """A balanced target is left alone, however far away its partitions are."""
    group = Group(UniformAssignor(), topic("t", 2, ["x", "y"]))
    for key, rack, partition in (("a", "y", 0), ("b", "x", 1)):
        group.index.set_member(member(key, rack=rack))
        group.index.set_target(key, units("t", partition))
    assert group.assign() == {}


def test_members_and_partitions_without_rack() -> None:
    """Who has no rack takes what nobody near wants."""
    group = Group(UniformAssignor(), topic("t", 4, ["x", "", "x", "unknown"]))
    group.join(member("a", rack="x"), member("b"))
    assert group.targets["a"] == units("t", 0, 2)


def test_range_stays_co_partitioned() -> None:
    """Members change places for all topics alike, so that equal topics stay co-partitioned."""
    one = topic("t", 3, ["z", "y", "x"])
    two = topic("u", 3, ["z", "y", "x"])
    group = Group(RangeAssignor(), one, two)
    group.join(*(member(f"m{number}", "t u", rack=RACKS[number]) for number in range(3)))
    assert group.targets == {
        "m0": units("t", 2) | units("u", 2),
        "m1": units("t", 1) | units("u", 1),
        "m2": units("t", 0) | units("u", 0),
    }


def test_range_with_most_to_lose_chooses_first() -> None:
    """A range that is near to two racks leaves the one to a range that is near to no other."""
    group = Group(RangeAssignor(), topic("t", 2, ["x,y", "x"]))
    group.join(member("a", rack="x"), member("b", rack="y"))
    assert group.targets == {"a": units("t", 1), "b": units("t", 0)}


def test_range_keeps_its_order_if_that_is_nearer() -> None:
    """Ranges that choose one after the other can end worse than in plain order: then that is it."""
    group = Group(RangeAssignor(), topic("t", 6, ["y,x", "y", "x,y", "z,y", "", "y,z"]))
    group.join(member("a", rack="x"), member("b", rack="y"), member("c", rack="z"))
    assert group.targets == {"a": units("t", 0, 1), "b": units("t", 2, 3), "c": units("t", 4, 5)}
    assert near(group) == 4


def test_units_make_way_for_each_other() -> None:
    """A unit that is near to several racks goes where it leaves room for one that is not."""
    one, several, other = frozenset("a"), frozenset("abc"), frozenset("b")
    places = {rack: Places(need=1, room=0) for rack in "abc"}
    allotted = allot({one: 1, several: 1, other: 1}, places, extras=0)
    assert {rack: dict(got.units) for rack, got in allotted.items()} == {
        "a": {one: 1},
        "b": {other: 1},
        "c": {several: 1},
    }


@st.composite
def racked_groups(draw: st.DrawFn, assignor: object) -> tuple[Group, Group]:
    """A group with racks, some targets and a change, and its twin without racks."""
    count = draw(st.integers(1, 6))
    racks = draw(
        st.lists(st.sampled_from(["x", "y", "z", "x,y", ""]), min_size=count, max_size=count)
    )
    aware, blind = Group(assignor), Group(assignor)  # type: ignore[arg-type]
    aware.set_topics(topic("t", count, racks))
    blind.set_topics(topic("t", count, racks))
    members = draw(st.integers(1, 4))
    owners = draw(st.lists(st.integers(-1, members - 1), min_size=count, max_size=count))
    for number in range(members):
        key = f"m{number}"
        mine = units("t", *(p for p, owner in enumerate(owners) if owner == number))
        aware.index.set_member(member(key, rack=draw(st.sampled_from([None, *RACKS]))))
        blind.index.set_member(member(key))
        for group in (aware, blind):
            group.index.set_target(key, mine)
    return aware, blind


@given(groups=racked_groups(UniformAssignor()))
def test_uniform_pays_for_racks_with_nothing(groups: tuple[Group, Group]) -> None:
    """Racks change neither the balance nor the number of moves."""
    aware, blind = groups
    before = dict(aware.targets)
    for group in groups:
        group.assign()
    assert profile(aware.loads().values()) == profile(blind.loads().values())
    moves = [
        count_moves(owners_of(before), owners_of(group.targets), group.index) for group in groups
    ]
    assert moves[0] == moves[1]


@given(groups=racked_groups(UniformAssignor()))
def test_first_assignment_is_as_near_as_can_be(groups: tuple[Group, Group]) -> None:
    """With nothing to stick to, no balanced assignment has more partitions near their owners."""
    group, _ = groups
    for key in group.index.members:
        group.index.set_target(key, None)
    group.assign()
    balance = profile(group.loads().values())
    racks = group.index.image.topics["t"].racks
    best = 0
    for assignment in all_assignments(group.index):
        owners = list(assignment.values())
        if profile(owners.count(key) for key in group.index.members) == balance:
            best = max(
                best,
                sum(
                    group.index.members[key].rack_id in racks[unit.partition]
                    for unit, key in assignment.items()
                ),
            )
    assert near(group) == best


@given(groups=racked_groups(RangeAssignor()))
def test_range_never_loses_by_racks(groups: tuple[Group, Group]) -> None:
    """Ranges have the same sizes with racks as without, and are as near or nearer."""
    aware, blind = groups
    for group in groups:
        group.assign()
        for target in group.targets.values():
            numbers = sorted(unit.partition for unit in target)
            assert not numbers or numbers[-1] - numbers[0] == len(numbers) - 1
    assert profile(aware.loads().values()) == profile(blind.loads().values())
    racks = {key: spec.rack_id or "" for key, spec in aware.index.members.items()}
    assert near(aware) >= near(blind, racks)


@pytest.mark.parametrize("seed", range(3))
def test_nearness_survives_churn(seed: int) -> None:
    """After members came and went ten times over, most partitions are near; by chance 2/3 were."""
    source = random.Random(seed)
    group = Group(UniformAssignor(), spread("t", 90, 2), spread("u", 90, 2))
    group.join(*(member(f"m{number}", "t u", rack=RACKS[number % 3]) for number in range(18)))
    assert near(group) == 180
    for number in range(18, 200):
        group.leave(source.choice(sorted(group.index.members)))
        group.join(member(f"m{number}", "t u", rack=source.choice(RACKS)))
        loads = group.loads().values()
        assert max(loads) - min(loads) <= 1
    check_complete(group.index)
    assert near(group) >= 0.85 * 180


def test_order_of_racks_does_not_matter() -> None:
    """Members that come in any order get the same targets."""
    answers = []
    for specs in permutations(
        [member(key, rack=rack) for key, rack in zip("abc", RACKS, strict=True)]
    ):
        group = Group(UniformAssignor(), spread("t", 7, 1))
        for spec in specs:
            group.index.set_member(spec)
        group.assign()
        answers.append(dict(group.targets))
    assert all(answer == answers[0] for answer in answers)
