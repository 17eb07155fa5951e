"""What a decision is about to change of groups, taken out of the shard before it is replayed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.broker.timeline_events import (
    NAMED_MAX,
    HandOver,
    KeyRange,
    LeaveReason,
    TimelineEvent,
    Who,
)
from anabranch.broker.timeline_rebalance import Taken
from anabranch.coordinator.cooperative.commands import Decision
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.coordinator.group.consumer_records import (
    CurrentWritten,
    GroupEpochWritten,
    MemberWritten,
    TargetEpochWritten,
)
from anabranch.coordinator.group.consumer_state import ConsumerMember
from anabranch.coordinator.group.records import ClassicGroupChanged
from anabranch.coordinator.group.shard import Group, GroupShard

Member = ClassicMember | ConsumerMember

_TIMED_OUT = {"session": LeaveReason.SESSION_EXPIRED}


@dataclass(slots=True)
class SeenGroup:
    """A group before a decision changes it; `members` are those of consumer groups it names."""

    before: Group | None
    is_classic_before: bool
    members_before: int
    # None for who was not there.
    members: dict[str, ConsumerMember | None] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)
    has_target: bool = False
    classic_after: ClassicGroup | None = None


@dataclass(slots=True)
class Seen:
    """All that a decision is about to change, and what is known of it already."""

    groups: dict[str, SeenGroup] = field(default_factory=dict)
    events: list[TimelineEvent] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


def look(seen: Seen, shard: GroupShard, record: Any) -> None:
    """Note what a record is about to change."""
    kind = type(record)
    if kind is MemberWritten or kind is CurrentWritten:
        one = _seen_group(seen, shard, record.group_id)
        if record.member_id not in one.members:
            known = one.before.members.get(record.member_id) if one.before is not None else None
            if not isinstance(known, ClassicMember):
                one.members[record.member_id] = known
    elif kind is GroupEpochWritten:
        if record.cause is not None:
            _seen_group(seen, shard, record.group_id).causes.append(record.cause)
    elif kind is TargetEpochWritten:
        if record.epoch is not None:
            _seen_group(seen, shard, record.group_id).has_target = True
    elif kind is ClassicGroupChanged:
        _seen_group(seen, shard, record.group.group_id).classic_after = record.group


def _seen_group(seen: Seen, shard: GroupShard, group_id: str) -> SeenGroup:
    one = seen.groups.get(group_id)
    if one is None:
        before = shard.groups.get(group_id)
        one = seen.groups[group_id] = SeenGroup(
            before,
            isinstance(before, ClassicGroup),
            len(before.members) if before is not None else 0,
        )
    return one


def classic_changes(
    seen: SeenGroup, after: Group | None, command: Any
) -> Mapping[str, Member | None]:
    """Who may have come to a classic group or gone from it, as they were: None for the new.

    A group that a thousand members join is looked at a thousand times: who is new is looked for
    where they are put, at the end, and everybody is compared only when that does not explain it.
    """
    before: Mapping[str, Member] = {}
    if isinstance(seen.before, ClassicGroup):
        before = seen.before.members
    now: Mapping[str, Member] = after.members if after is not None else {}
    if not isinstance(after, ClassicGroup) or not seen.is_classic_before:
        return {**dict.fromkeys(now.keys() - before.keys()), **before}
    changes: dict[str, Member | None] = {}
    for member_id in reversed(dict(now) if not isinstance(now, dict) else now):
        if member_id in before:
            break
        changes[member_id] = None
    gone = len(before) + len(changes) - len(now)
    if gone == 0:
        return changes
    for member_id in _named(command):
        if member_id in before and member_id not in now:
            changes[member_id] = before[member_id]
            gone -= 1
    if gone:
        changes.update((member_id, before[member_id]) for member_id in before.keys() - now.keys())
        changes.update(dict.fromkeys(now.keys() - before.keys()))
    return changes


def _named(command: Any) -> Iterator[str]:
    """The members that a command is about, as far as it says so by their ids."""
    if isinstance(command, c.LeaveGroup):
        yield from (member.member_id for member in command.members)
    elif isinstance(command, c.TimerFired) and isinstance(command.key, tuple):
        yield from command.key[2:3]


def who_is(member: Member) -> Who:
    instance_id = (
        member.group_instance_id if isinstance(member, ClassicMember) else member.instance_id
    )
    return Who(
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.client_host,
        instance_id=instance_id,
    )


def leave_reason(command: Any) -> LeaveReason:
    """Why a member is gone, by what was decided about."""
    match command:
        case c.LeaveGroup():
            return LeaveReason.LEFT
        case ConsumerHeartbeat() if command.member_epoch < 0:
            return LeaveReason.LEFT
        case c.TimerFired(key=(kind, *_)):
            return _TIMED_OUT.get(str(kind), LeaveReason.REBALANCE_TIMEOUT)
        case _:
            return LeaveReason.REMOVED


def doer_of(command: Any, group: Group, seen: SeenGroup) -> str:
    """Whose doing something is, where it is that of one member."""
    match command:
        case c.JoinGroup() | ConsumerHeartbeat():
            member_id = command.member_id
        case c.LeaveGroup(members=(only,)):
            member_id = only.member_id
        case c.TimerFired(key=("session" | "rebalance" | "member-join" | "member-sync", _, one)):
            member_id = str(one)
        case _:
            return ""
    was: Group | None = seen.before
    member: Member | None = group.members.get(member_id) or seen.members.get(member_id)
    if member is None and isinstance(was, ClassicGroup):
        member = was.members.get(member_id)
    if member is None and isinstance(command, c.JoinGroup):
        # It came without an id, and has been given one.
        return command.group_instance_id or command.client_id
    return str(who_is(member)) if member is not None else ""


def hand_overs(
    shard: GroupShard, group_id: str, taken: list[Taken], now_ms: int
) -> Iterator[HandOver]:
    """What changed hands, an event for each giver."""
    by_giver: dict[str, list[Taken]] = {}
    for one in taken:
        by_giver.setdefault(one.giver.member_id, []).append(one)
    for some in by_giver.values():
        yield HandOver(
            at_ms=now_ms,
            group_id=group_id,
            giver=some[0].giver,
            taker=some[0].taker,
            ranges=tuple(_key_range(shard, one) for one in sorted(some, key=_unit)[:NAMED_MAX]),
            count=len(some),
            duration_ms=max(one.duration_ms for one in some),
        )


def _unit(one: Taken) -> tuple[object, ...]:
    return one.unit


def _key_range(shard: GroupShard, one: Taken) -> KeyRange:
    topic = shard.image.by_id.get(one.unit.topic_id)
    return KeyRange(
        topic=topic.name if topic is not None else "a topic that is gone",
        partition=one.unit.partition,
        slots=one.unit.slots,
    )
