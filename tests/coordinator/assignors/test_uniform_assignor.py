"""The `uniform` assignor, by example."""

import pytest
from assignor_kit import Group, check_complete, member, topic, units

from anabranch.coordinator.group.assignors.api import compute_targets
from anabranch.coordinator.group.assignors.uniform import UniformAssignor


def group_of(count: int, *topics: tuple[str, int]) -> Group:
    group = Group(UniformAssignor(), *(topic(name, partitions) for name, partitions in topics))
    names = " ".join(name for name, _ in topics)
    group.join(*(member(f"m{number:04}", names) for number in range(count)))
    return group


def test_first_member_gets_everything() -> None:
    """Who is alone owns all partitions of all topics it subscribes to."""
    group = Group(UniformAssignor(), topic("t", 3), topic("u", 2), topic("v", 2))
    assert group.join(member("a", "t u")) == {"a": units("t", 0, 1, 2) | units("u", 0, 1)}


def test_members_share_evenly() -> None:
    """Loads differ by one at most, over all topics together."""
    assert sorted(group_of(4, ("t", 3), ("u", 7)).loads().values()) == [2, 2, 3, 3]


def test_join_moves_one_share() -> None:
    """A new member gets its share from those who have most; nothing moves between the others."""
    group = group_of(3, ("t", 12))
    before = dict(group.targets)
    changed = group.join(member("new"))
    assert len(changed["new"]) == 3
    for member_id in before:
        assert group.targets[member_id] < before[member_id]
        assert len(group.targets[member_id]) == 3


def test_join_takes_from_no_more_members_than_units() -> None:
    """In a large group a join touches the targets of as many members as units move, and its own."""
    group = group_of(50, ("t", 500))
    changed = group.join(member("new"))
    assert len(changed["new"]) == 9
    assert len(changed) == 10


def test_leave_shares_what_is_left() -> None:
    """What a leaving member had goes to those with fewest; the others keep all they have."""
    group = group_of(4, ("t", 12))
    before = dict(group.targets)
    group.leave("m0001")
    assert sorted(group.loads().values()) == [4, 4, 4]
    for member_id in group.targets:
        assert group.targets[member_id] > before[member_id]


def test_more_members_than_partitions() -> None:
    """Some members have nothing, and get something when a place becomes free."""
    group = group_of(5, ("t", 3))
    assert sorted(group.loads().values()) == [0, 0, 1, 1, 1]
    busy = next(member_id for member_id, load in group.loads().items() if load)
    changed = group.leave(busy)
    assert len(changed) == 1
    assert sorted(group.loads().values()) == [0, 1, 1, 1]


@pytest.mark.parametrize("extra_at", ["a", "b", "c"])
def test_balanced_target_never_moves(extra_at: str) -> None:
    """Whoever has the one unit more keeps it: any balanced target is left alone."""
    group = Group(UniformAssignor(), topic("t", 4))
    for spec in (member("a"), member("b"), member("c")):
        group.index.set_member(spec)
    for number, member_id in enumerate("abc"):
        mine = units("t", number, 3) if member_id == extra_at else units("t", number)
        group.index.set_target(member_id, mine)
    assert group.assign() == {}


def test_new_partitions_go_to_those_with_fewest() -> None:
    """When a topic grows nothing moves; what is new evens out the loads."""
    group = group_of(3, ("t", 4))
    before = dict(group.targets)
    group.set_topics(topic("t", 9))
    group.assign()
    assert sorted(group.loads().values()) == [3, 3, 3]
    assert all(before[member_id] <= target for member_id, target in group.targets.items())


def test_deleted_topic_leaves_all_targets() -> None:
    """Partitions of a deleted topic leave the targets; the rest is made even again."""
    group = group_of(2, ("t", 4), ("u", 4))
    group.set_topics(topic("t", 4))
    group.assign()
    assert sorted(group.loads().values()) == [2, 2]


def test_recreated_topic_is_another_topic() -> None:
    """A topic with the same name and another id is new: targets have the new id only."""
    group = group_of(2, ("t", 2))
    new = topic("t", 2, generation=1)
    group.set_topics(new)
    group.assign()
    assert {unit.topic_id for target in group.targets.values() for unit in target} == {new.topic_id}


def test_unknown_topics_are_nothing_to_assign() -> None:
    """A subscription to a topic that is not there yet is answered when it is created."""
    group = Group(UniformAssignor(), topic("t", 2))
    group.join(member("a", "t soon"), member("b", "soon"))
    assert group.loads() == {"a": 2, "b": 0}
    group.set_topics(topic("t", 2), topic("soon", 2))
    group.assign()
    assert group.targets == {"a": units("t", 0, 1), "b": units("soon", 0, 1)}


def test_empty_subscription_gets_nothing() -> None:
    """Who subscribes to nothing owns nothing, and does not count."""
    group = Group(UniformAssignor(), topic("t", 4))
    group.join(member("a"), member("b"), member("idle", ""))
    assert group.loads() == {"a": 2, "b": 2, "idle": 0}


def test_changed_subscription_gives_up_the_rest() -> None:
    """A member that drops a topic loses its partitions of it and is compensated by others."""
    group = group_of(2, ("t", 4), ("u", 4))
    group.join(member("m0000", "t"))
    assert group.targets["m0000"] == units("t", 0, 1, 2, 3)
    assert group.targets["m0001"] == units("u", 0, 1, 2, 3)


def test_chain_of_subscriptions_is_balanced() -> None:
    """Balance is found by chains: a unit for b so that b can give another one to c.

    Looking at one topic at a time, 3, 2 and 1 units look balanced, since neighbours differ by one.
    """
    group = Group(UniformAssignor(), topic("t", 4), topic("u", 2))
    for spec, target in (
        (member("a", "t"), units("t", 0, 1, 2)),
        (member("b", "t u"), units("t", 3) | units("u", 0)),
        (member("c", "u"), units("u", 1)),
    ):
        group.index.set_member(spec)
        group.index.set_target(spec.member_id, target)
    group.assign()
    assert group.loads() == {"a": 2, "b": 2, "c": 2}


def test_other_subscribers_take_from_who_has_most() -> None:
    """A unit for a member with another subscription comes from the busiest who can give one."""
    group = Group(UniformAssignor(), topic("t", 3), topic("u", 2))
    for key, target in (("a", units("t", 0) | units("u", 0, 1)), ("b", units("t", 1, 2))):
        group.index.set_member(member(key, "t u"))
        group.index.set_target(key, target)
    assert group.join(member("c", "t")) == {"a": units("u", 0, 1), "c": units("t", 0)}


def test_same_member_under_a_new_id_keeps_its_target() -> None:
    """A static member that comes back with another member id gets what it had; nobody notices."""
    group = Group(UniformAssignor(), topic("t", 6))
    group.join(member("a"), member("b", instance="i"), member("c"))
    target = group.targets["b"]
    changed = compute_targets(
        group.assignor,
        group.index,
        {"b": None, "b2": member("b2", instance="i")},
        {"b": None, "b2": target},
    )
    assert dict(changed) == {}


def test_static_members_give_last() -> None:
    """Where one of two members has to give a unit, it is the dynamic one."""
    group = Group(UniformAssignor(), topic("t", 4))
    group.join(member("z", instance="i"), member("b"))
    assert group.loads() == {"z": 2, "b": 2}
    changed = group.join(member("new"))
    assert set(changed) == {"b", "new"}


def test_several_changes_at_once() -> None:
    """Members that join, leave and change in one decision are assigned in one."""
    group = group_of(4, ("t", 8), ("u", 8))
    members = {
        "m0000": None,
        "m0001": member("m0001", "u"),
        "new": member("new", "t u"),
    }
    changed = dict(compute_targets(group.assignor, group.index, members))
    for member_id, spec in members.items():
        if spec is None:
            group.index.set_target(member_id, None)
            group.index.remove_member(member_id)
        else:
            group.index.set_member(spec)
    for member_id, target in changed.items():
        group.index.set_target(member_id, target)
    check_complete(group.index)
    assert sorted(group.loads().values()) == [4, 4, 4, 4]


def test_unchanged_targets_are_not_answered() -> None:
    """The answer names those whose target changes, and those who give come before who gets."""
    group = group_of(6, ("t", 12))
    changed = group.join(member("a-new"))
    assert list(changed)[-1] == "a-new"
    assert group.assign() == {}


def test_answer_outlives_the_index() -> None:
    """An answer that was not read yet stays what it was when the group goes on."""
    group = Group(UniformAssignor(), topic("t", 6))
    for spec in (member("a"), member("b")):
        group.index.set_member(spec)
    answer = compute_targets(group.assignor, group.index)
    expected = dict(answer)
    group.set_topics(topic("t", 9), topic("u", 1))
    group.index.set_target("a", units("t", 0, 5))
    group.index.remove_member("b")
    assert dict(answer) == expected
