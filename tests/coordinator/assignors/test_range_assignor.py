"""The `range` assignor: contiguous, in order, co-partitioned."""

from assignor_kit import Group, member, rebuilt, snapshot, topic, units
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.group.assignors.api import compute_targets
from anabranch.coordinator.group.assignors.range import RangeAssignor


def test_ranges_are_contiguous_and_in_order() -> None:
    """The first members get one partition more, as in Kafka."""
    group = Group(RangeAssignor(), topic("t", 7))
    group.join(member("b"), member("c"), member("a"))
    assert group.targets == {
        "a": units("t", 0, 1, 2),
        "b": units("t", 3, 4),
        "c": units("t", 5, 6),
    }


def test_static_members_come_first() -> None:
    """Static members are ordered by instance id, before all others."""
    group = Group(RangeAssignor(), topic("t", 4))
    group.join(member("a"), member("z", instance="1"), member("b"), member("y", instance="2"))
    assert group.targets == {
        "z": units("t", 0),
        "y": units("t", 1),
        "a": units("t", 2),
        "b": units("t", 3),
    }


def test_static_member_keeps_its_place_under_a_new_id() -> None:
    """Who comes back with the same instance id gets the same ranges; nobody else changes."""
    group = Group(RangeAssignor(), topic("t", 6))
    group.join(member("a", instance="1"), member("b", instance="2"), member("c", instance="3"))
    changed = dict(
        compute_targets(group.assignor, group.index, {"b": None, "z": member("z", instance="2")})
    )
    assert changed == {"z": units("t", 2, 3)}


def test_equal_topics_are_co_partitioned() -> None:
    """Topics with equally many partitions give each member the same partition numbers."""
    group = Group(RangeAssignor(), topic("t", 5), topic("u", 5), topic("v", 3))
    group.join(*(member(f"m{number}", "t u v") for number in range(3)))
    for target in group.targets.values():
        numbers = {
            name: {unit.partition for unit in target if unit.topic_id.startswith(name)}
            for name in (b"t/", b"u/")
        }
        assert numbers[b"t/"] == numbers[b"u/"]


def test_fewer_partitions_than_members() -> None:
    """The first members get one partition each of every topic; the last get none."""
    group = Group(RangeAssignor(), topic("t", 2), topic("u", 2))
    group.join(*(member(f"m{number}", "t u") for number in range(3)))
    assert group.loads() == {"m0": 2, "m1": 2, "m2": 0}


def test_different_subscriptions() -> None:
    """Each topic is cut for its own subscribers."""
    group = Group(RangeAssignor(), topic("t", 4), topic("u", 4))
    group.join(member("a", "t"), member("b", "t u"), member("c", "u"))
    assert group.targets == {
        "a": units("t", 0, 1),
        "b": units("t", 2, 3) | units("u", 0, 1),
        "c": units("u", 2, 3),
    }


def test_only_shifted_members_change() -> None:
    """Those who stand before the first shift keep their target; who gets nothing has none."""
    group = Group(RangeAssignor(), topic("t", 3))
    group.join(member("a"), member("b"), member("c"))
    assert group.join(member("d")) == {}
    assert set(group.leave("b")) == {"c", "d"}


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, int, str]]:
    kinds = st.sampled_from(["join", "join", "leave", "grow", "delete"])
    topics = st.sampled_from(["t u", "t u", "t", "u"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 5), topics), max_size=15))


@given(steps=changes())
def test_ranges_whatever_happens(steps: list[tuple[str, int, str]]) -> None:
    """After any change: every topic in contiguous ranges, in order of members, sizes within one."""
    group = Group(RangeAssignor())
    sizes: dict[str, int] = {}
    for kind, number, topics in steps:
        if kind == "join":
            group.join(member(f"m{number}", topics, instance="i" if number == 3 else None))
        elif kind == "leave":
            group.leave(f"m{number}")
        else:
            sizes[topics[-1]] = sizes.get(topics[-1], 0) + number
            if kind == "delete":
                del sizes[topics[-1]]
            group.set_topics(*(topic(name, count) for name, count in sizes.items()))
            group.assign()
        assert snapshot(rebuilt(group.index, 1)) == snapshot(group.index)
        assert group.assign() == {}
        for name in sizes:
            check_ranges(group, name)


def check_ranges(group: Group, name: str) -> None:
    specs = [spec for spec in group.index.members.values() if name in spec.topics]
    specs.sort(key=lambda spec: (spec.instance_id is None, spec.instance_id or spec.member_id))
    prefix = f"{name}/".encode()
    lengths, partitions = [], []
    for spec in specs:
        mine = sorted(
            unit.partition
            for unit in group.targets.get(spec.member_id, ())
            if unit.topic_id.startswith(prefix)
        )
        lengths.append(len(mine))
        partitions.extend(mine)
    assert partitions == list(range(len(partitions)))
    assert lengths == sorted(lengths, reverse=True)
    assert not lengths or lengths[0] - lengths[-1] <= 1
