"""What holds for a shard at all times, whatever was asked of it and in whatever order."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from anabranch.coordinator.group.classic_state import (
    ClassicGroup,
    ClassicState,
    without_soft_state,
)
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard

if TYPE_CHECKING:
    from story import Story

EMPTY = ClassicState.EMPTY
PREPARING = ClassicState.PREPARING_REBALANCE
COMPLETING = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE


def image(shard: GroupShard) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The whole state of a shard as values that can be compared."""
    groups = {name: (group, dict(group.members)) for name, group in shard.groups.items()}
    return groups, {
        name: (dict(shard.offsets(name)), pending(shard, name)) for name in shard.group_ids()
    }


def pending(shard: GroupShard, group_id: str) -> dict[tuple[str, int], dict[int, Any]]:
    """What a group has pending in transactions: for each partition, by producer."""
    return {
        place: {
            producer_id: offset.value
            for producer_id in sorted(producers)
            for offset in shard.pending_offsets.of_producer(producer_id)
            if (offset.group_id, offset.topic, offset.partition) == (group_id, *place)
        }
        for place, producers in shard.pending_offsets.of_group(group_id).items()
    }


def replayed(records: Iterable[Any], settings: GroupSettings) -> GroupShard:
    """The shard that these records make."""
    shard = GroupShard(settings)
    for record in records:
        shard.replay(record)
    return shard


def check_invariants(story: "Story") -> None:
    if story.checks_replay:
        check_replay(story)
    _check_generations(story)
    for group in story.shard.groups.values():
        _check_members(story, group)
        _check_state(story, group)
        _check_timers_of(story, group)
    _check_waiters(story)
    _check_no_other_timers(story)


def check_replay(story: "Story") -> None:
    """All records give the living shard; the durable ones give it without what only it knows."""
    assert image(replayed(story.records, story.settings)) == image(story.shard)
    durable = replayed([r for r in story.records if r.is_durable], story.settings)
    assert durable.group_ids() == story.shard.group_ids()
    for name in story.shard.group_ids():
        assert durable.offsets(name) == story.shard.offsets(name)
        assert pending(durable, name) == pending(story.shard, name)
        living, kept = story.shard.group(name), durable.group(name)
        assert living is not None
        assert kept is not None
        if living.state in (EMPTY, STABLE):
            assert kept == without_soft_state(living)
        else:
            assert kept == without_soft_state(kept)
            assert kept.generation_id <= living.generation_id


def _check_generations(story: "Story") -> None:
    """The generation of a living group never goes back."""
    groups = story.shard.groups
    for name, group in groups.items():
        assert group.generation_id >= story.generations.get(name, 0)
    story.generations = {name: group.generation_id for name, group in groups.items()}
    story.given = {key: given for key, given in story.given.items() if key[0] in groups}


def _check_members(story: "Story", group: ClassicGroup) -> None:
    members = group.members
    assert group.leader_id in members if members else group.leader_id is None
    assert not group.pending_members & members.keys()
    assert group.pending_syncs <= members.keys()
    assert all(member_id == member.member_id for member_id, member in members.items())
    instances = [m.group_instance_id for m in members.values() if m.group_instance_id is not None]
    assert len(instances) == len(set(instances))
    if members:
        assert group.protocol_type
        assert group.common_protocols()


def _check_state(story: "Story", group: ClassicGroup) -> None:
    members = group.members.values()
    assert group.state is PREPARING or not group.is_initial
    match group.state:
        case ClassicState.EMPTY:
            assert not members
            assert group.protocol_name is None
        case ClassicState.PREPARING_REBALANCE:
            assert not group.pending_syncs
            assert all(m.sync_waiter is None for m in members)
            assert group.is_initial or not group.has_all_joined
        case ClassicState.COMPLETING_REBALANCE:
            assert group.leader_id in group.pending_syncs
            assert group.protocol_name in group.common_protocols()
            assert all(m.join_waiter is None and not m.is_new for m in members)
            assert all(m.sync_waiter is None for m in members if m.member_id in group.pending_syncs)
        case ClassicState.STABLE:
            assert members
            assert not any(m.is_waiting or m.is_new for m in members)
            given = story.given[group.group_id, group.generation_id]
            for member in members:
                key = member.group_instance_id or member.member_id
                assert member.assignment == given[key]
        case ClassicState.DEAD:
            raise AssertionError("no group is kept in Dead")


def _check_timers_of(story: "Story", group: ClassicGroup) -> None:
    """Whoever is waited for has a deadline, and nobody else."""
    name = group.group_id
    has_join_timer = story.timers.deadline_ms(("join", name)) is not None
    assert has_join_timer == (group.state is PREPARING)
    has_sync_timer = story.timers.deadline_ms(("sync", name)) is not None
    assert has_sync_timer == bool(group.pending_syncs)
    for member_id in group.pending_members:
        assert story.timers.deadline_ms(("session", name, member_id)) is not None
    for member in group.members.values():
        if member.is_new or not member.is_waiting:
            assert story.timers.deadline_ms(("session", name, member.member_id)) is not None


def _check_no_other_timers(story: "Story") -> None:
    expected = 0
    for name, group in story.shard.groups.items():
        keys: list[Any] = [("join", name), ("sync", name)]
        keys += [("session", name, m) for m in (*group.members, *group.pending_members)]
        expected += sum(story.timers.deadline_ms(key) is not None for key in keys)
    assert len(story.timers) == expected


def _check_waiters(story: "Story") -> None:
    """Those who are parked are those that the groups know of."""
    waiters = [
        waiter
        for group in story.shard.groups.values()
        for member in group.members.values()
        for waiter in (member.join_waiter, member.sync_waiter)
        if waiter is not None
    ]
    assert sorted(waiters) == sorted(story.parked)
