"""What holds for the consumer groups of a shard at all times, in whatever order things happen."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anabranch.coordinator.group.assignors.index import TargetIndex
from anabranch.coordinator.group.consumer_records import (
    CurrentWritten,
    GroupEpochWritten,
    ImageChanged,
    MemberWritten,
    RegexWritten,
    TargetEpochWritten,
    TargetWritten,
)
from anabranch.coordinator.group.consumer_state import (
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
    MemberState,
)
from anabranch.coordinator.group.records import GroupWritten, OffsetCommitted
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard, Surroundings
from anabranch.model.cluster_image import ClusterImage

# Of these only the living process can be sure: when compaction has hidden how a unit came to be on
# its way, nobody knows since when it is.
SOFT = frozenset({"moving_since_ms", "_retargeted"})


def shard_image(shard: GroupShard, *, soft: bool = True) -> Any:
    """The whole state of a shard as values that can be compared."""
    return (
        {name: group_image(group, soft=soft) for name, group in shard.groups.items()},
        {name: dict(shard.offsets(name)) for name in shard.group_ids()},
        shard.consumer_members,
    )


def group_image(group: Any, *, soft: bool = True) -> Any:
    if not isinstance(group, ConsumerGroup):
        return group, dict(group.members)
    return {name: _copied(value) for name, value in vars(group).items() if soft or name not in SOFT}


def _copied(value: Any) -> Any:
    if isinstance(value, TargetIndex):
        return index_image(value)
    return value.copy() if isinstance(value, dict | set) else value


def index_image(index: TargetIndex) -> Any:
    """What assignors read, without the order it came in."""
    return {
        "members": index.members.copy(),
        "targets": {key: target for key, target in index.targets.items() if target},
        "racks": index.racks.copy(),
        "loads": {key: (holder.load, tuple(holder.units)) for key, holder in index.holders.items()},
        "crews": {
            topics: (crew.size, crew.load, crew.held.copy(), sorted(crew.buckets.by_load))
            for topics, crew in index.crews.items()
        },
        "topics": {
            key: (topic.image, [o and o.member_id for o in topic.owners], topic.free.copy())
            for key, topic in index.topics.items()
        },
        "open": set(index.open_topics),
        "astray": {
            key: {unit: set(strays) for unit, strays in units.items()}
            for key, units in index.astray.items()
        },
    }


def replayed(
    records: Iterable[Any],
    image: ClusterImage,
    settings: GroupSettings,
    surroundings: Surroundings,
) -> GroupShard:
    """The shard that these records make in a cluster that looks like this."""
    shard = GroupShard(settings, surroundings)
    shard.replay(ImageChanged(image=image))
    for record in records:
        shard.replay(record)
    return shard


def compacted(records: Iterable[Any]) -> list[Any]:
    """The last record of each key, in the order they were written: what a broker starts from."""
    last: dict[Any, Any] = {}
    for record in records:
        key = _key(record)
        last.pop(key, None)
        last[key] = record
    return list(last.values())


def _key(record: Any) -> tuple[Any, ...]:
    match record:
        case OffsetCommitted():
            return (type(record), record.group_id, record.topic, record.partition)
        case GroupEpochWritten() | TargetEpochWritten() | GroupWritten():
            return (type(record), record.group_id)
        case MemberWritten() | TargetWritten() | CurrentWritten():
            return (type(record), record.group_id, record.member_id)
        case RegexWritten():
            return (type(record), record.group_id, record.regex)
    raise AssertionError(record)


# What holds ---------------------------------------------------------------------------------------


def check_group(group: ConsumerGroup) -> None:
    _check_epochs(group)
    _check_owners(group)
    _check_members(group)
    _check_counters(group)
    _check_index(group)
    _check_movements(group)


def _check_epochs(group: ConsumerGroup) -> None:
    assert 1 <= group.target_epoch <= group.group_epoch
    for member in group.members.values():
        is_away = member.member_epoch == STATIC_LEAVING_EPOCH
        assert is_away or 1 <= member.member_epoch <= group.target_epoch
        assert member.previous_member_epoch <= max(member.member_epoch, group.target_epoch)
        for epoch in (*member.assigned.values(), *member.pending_revocation.values()):
            assert 0 <= epoch <= group.target_epoch


def _check_owners(group: ConsumerGroup) -> None:
    """A unit has one owner, and the map of owners says who."""
    held = [(unit, m.member_id) for m in group.members.values() for unit in m.held]
    assert len(held) == len({unit for unit, _ in held}), "a unit has two owners"
    assert group.owners == dict(held)


def _check_members(group: ConsumerGroup) -> None:
    for member_id, member in group.members.items():
        assert member.member_id == member_id
        match member.state:
            case MemberState.STABLE | MemberState.UNRELEASED_PARTITIONS:
                assert not member.pending_revocation
            case MemberState.UNREVOKED_PARTITIONS:
                assert member.pending_revocation
        if member.member_epoch == STATIC_LEAVING_EPOCH:
            assert member.state is MemberState.STABLE
            assert member.instance_id is not None
    instances = [m.instance_id for m in group.members.values() if m.instance_id is not None]
    assert len(instances) == len(set(instances)), "two members have one instance id"


def _check_counters(group: ConsumerGroup) -> None:
    """What is counted as things happen is what can be counted now."""
    members = group.members.values()
    assert group.votes == Counter(m.server_assignor for m in members if m.server_assignor)
    assert group.regex_subscribers == Counter(
        m.subscribed_topic_regex for m in members if m.subscribed_topic_regex
    )
    assert group.classic_members == sum(m.classic is not None for m in members)
    assert group.static_members == {
        m.instance_id: m.member_id for m in members if m.instance_id is not None
    }
    assert group._by_state == Counter(m.state for m in members)
    assert group._stable_at == Counter(
        m.member_epoch for m in members if m.state is MemberState.STABLE
    )
    assert group.regexes.keys() <= group.regex_subscribers.keys()
    assert group.state.value == _naive_state(group)


def _naive_state(group: ConsumerGroup) -> str:
    if not group.members:
        return "Empty"
    if group.group_epoch > group.target_epoch:
        return "Assigning"
    has_all = all(
        m.state is MemberState.STABLE and m.member_epoch == group.target_epoch
        for m in group.members.values()
    )
    return "Stable" if has_all else "Reconciling"


def _check_index(group: ConsumerGroup) -> None:
    """The index is what the members, the targets and the image make."""
    fresh = TargetIndex()
    fresh.set_image(group.index.image)
    for member in group.members.values():
        fresh.set_member(group.spec_of(member))
    for member_id, target in group.targets.items():
        assert member_id in group.members, "a target of somebody who is gone"
        fresh.set_target(member_id, target)
    assert index_image(fresh) == index_image(group.index)


def _check_movements(group: ConsumerGroup) -> None:
    """What is on its way is not where it belongs, and in a settled group nothing is."""
    wanted = {unit: key for key, target in group.targets.items() for unit in target}
    for unit in group.moving_since_ms:
        owner, heir = group.owners.get(unit), wanted.get(unit)
        assert owner is None or owner != heir, f"{unit} is where it belongs"
    assert not (group.is_settled and group.moving_since_ms)


def epochs(shard: GroupShard) -> Iterator[tuple[Any, int]]:
    """Every epoch of a shard, by what it belongs to."""
    for name, group in shard.groups.items():
        if isinstance(group, ConsumerGroup):
            yield (name, "group"), group.group_epoch
            yield (name, "target"), group.target_epoch
            for member in group.members.values():
                if member.member_epoch > 0:
                    yield (name, member.member_id), member.member_epoch


def check_no_epoch_went_back(before: Mapping[Any, int], after: Mapping[Any, int]) -> None:
    for key, epoch in after.items():
        assert epoch >= before.get(key, 0), f"the epoch of {key} went back"
