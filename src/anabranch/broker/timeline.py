"""What happened to groups, for people to read: who came and went and why, and what it led to.

Seen where decisions are applied, as the counts of `group_metrics` are: the coordinator knows
nothing of it. A heartbeat or a commit that changes nothing else costs nothing; whatever changes the
members of a group costs a look at them before the records are replayed and another after.

All of it is in memory and begins with the process: the journal keeps what groups are and not what
they were. Each group has a ring, and there is one bound over all of them, so that a group that
never rests takes nothing from the history of the others before its own is full.
"""

import dataclasses
import functools
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from anabranch.broker import timeline_events as e
from anabranch.broker.group_metrics import FENCINGS, classic_cause, is_rebalance
from anabranch.broker.timeline_events import TimelineEvent
from anabranch.broker.timeline_looks import (
    Member,
    Seen,
    SeenGroup,
    classic_changes,
    doer_of,
    hand_overs,
    leave_reason,
    look,
    who_is,
)
from anabranch.broker.timeline_offsets import (
    decisions_to_take,
    joined_changes,
    offset_events,
    record_events,
)
from anabranch.broker.timeline_rebalance import UnderWay, classic_moved, has_ranges
from anabranch.coordinator.cooperative.commands import CountStuck, TakeAcks, TakeDecisions
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember, ClassicState
from anabranch.coordinator.group.consumer_state import (
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerMember,
)
from anabranch.coordinator.group.shard import Group, GroupShard
from anabranch.model.errors import ErrorCode
from anabranch.observe import logs

GROUP_EVENTS_MAX = 500
EVENTS_MAX = 20_000
# The same refusal again, or offsets that just go on, are one event for so long.
MERGED_MS = 60_000
_MERGED_MAX = 64

_REFUSALS = frozenset(
    {
        *FENCINGS,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }
)
_OFFSET_COMMANDS = frozenset(
    {c.CommitOffsets, c.DeleteOffsets, c.DeleteGroup, c.DeleteTopicOffsets, c.ExpireOffsets}
)
_RECORD_COMMANDS = frozenset({TakeAcks, TakeDecisions, CountStuck})
_UNINTERESTING = frozenset({c.ProjectOffsets, c.CommitTxnOffsets, c.EndTransaction})


@dataclass(slots=True)
class _Line:
    """The events of one group, by their numbers."""

    numbers: deque[int] = field(default_factory=deque)
    last_rebalance: e.RebalanceEnded | None = None
    # What may be merged with, by what it is about.
    merged: OrderedDict[object, int] = field(default_factory=OrderedDict)


class Timeline:
    """The events of all groups of one broker."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        group_events_max: int = GROUP_EVENTS_MAX,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._group_events_max = group_events_max
        self._events_max = events_max
        # Nothing is known of what was before.
        self.since_ms = now_ms()
        self._events: OrderedDict[int, TimelineEvent] = OrderedDict()
        self._lines: dict[str, _Line] = {}
        self._under_way: dict[str, UnderWay] = {}
        self._next = 0

    # Questions ------------------------------------------------------------------------------------

    def of(self, group_id: str) -> Sequence[TimelineEvent]:
        """What happened to a group, oldest first."""
        line = self._lines.get(group_id)
        return [self._events[number] for number in line.numbers] if line is not None else []

    def latest(self, n: int) -> Sequence[TimelineEvent]:
        """The last events of all groups, newest first."""
        return list(islice(reversed(self._events.values()), n))

    def last_rebalance(self, group_id: str) -> e.RebalanceEnded | None:
        """The last rebalance of a group that has ended; None when there was none, or long ago."""
        line = self._lines.get(group_id)
        return line.last_rebalance if line is not None else None

    def under_way(self, group_id: str) -> UnderWay | None:
        """The rebalance that a group is in."""
        return self._under_way.get(group_id)

    # Keeping --------------------------------------------------------------------------------------

    def add(self, event: TimelineEvent) -> int:
        """Keep an event; its number."""
        line = self._lines.get(event.group_id)
        if line is None:
            line = self._lines[event.group_id] = _Line()
        number, self._next = self._next, self._next + 1
        self._events[number] = event
        line.numbers.append(number)
        if isinstance(event, e.RebalanceEnded):
            line.last_rebalance = event
        if len(line.numbers) > self._group_events_max:
            del self._events[line.numbers.popleft()]
        if len(self._events) > self._events_max:
            self._drop_oldest()
        return number

    def _drop_oldest(self) -> None:
        number, event = self._events.popitem(last=False)
        line = self._lines[event.group_id]
        assert line.numbers[0] == number, "events of a group are in the order of all"
        line.numbers.popleft()
        if not line.numbers:
            del self._lines[event.group_id]

    def _merge(
        self, key: object, event: TimelineEvent, with_: Callable[[Any], TimelineEvent]
    ) -> None:
        """Add an event, or let one about the same that is not long ago stand for it too."""
        line = self._lines.get(event.group_id)
        number = line.merged.get(key, -1) if line is not None else -1
        known = self._events.get(number)
        if known is not None and event.at_ms - known.at_ms <= MERGED_MS:
            self._events[number] = with_(known)
            return
        number = self.add(event)
        merged = self._lines[event.group_id].merged
        merged[key] = number
        merged.move_to_end(key)
        if len(merged) > _MERGED_MAX:
            merged.popitem(last=False)

    # Seeing ---------------------------------------------------------------------------------------

    def refused(self, shard: GroupShard, command: Any, error: ErrorCode) -> None:
        """A request was answered with an error."""
        if error not in _REFUSALS:
            return
        group_id = command.group_id
        if group_id not in self._lines and group_id not in shard.groups:
            return  # anybody can ask for groups that there never were
        member_id = getattr(command, "member_id", "")
        now_ms = self._now_ms()
        event = e.MemberRefused(
            at_ms=now_ms,
            group_id=group_id,
            member_id=member_id,
            request=type(command).__name__,
            error=error.name,
            last_ms=now_ms,
        )
        self._merge(
            (member_id, error),
            event,
            lambda known: dataclasses.replace(known, count=known.count + 1, last_ms=now_ms),
        )

    def before_replay(
        self, shard: GroupShard, command: Any, records: tuple[Any, ...]
    ) -> Seen | None:
        """Records were written and are about to change the shard; None when that is nothing."""
        try:
            return self._look(shard, command, records)
        except Exception as error:
            _tell(error)
            return None

    def after_replay(self, shard: GroupShard, command: Any, seen: Seen) -> None:
        """The shard is what the records made it."""
        try:
            self._see(shard, command, seen)
        except Exception as error:
            _tell(error)

    def _look(self, shard: GroupShard, command: Any, records: tuple[Any, ...]) -> Seen | None:
        kind = type(command)
        if kind in _UNINTERESTING:
            return None
        if kind in _OFFSET_COMMANDS:
            events = offset_events(shard, command, records, self._now_ms())
            return Seen(events=events) if events else None
        if kind in _RECORD_COMMANDS:
            if kind is TakeAcks and not any(one.failures for one in command.partitions):
                return None
            is_decided = kind is TakeDecisions
            return Seen(decisions=decisions_to_take(shard, command) if is_decided else [])
        seen = Seen()
        for record in records:
            look(seen, shard, record)
        return seen if seen.groups else None

    def _see(self, shard: GroupShard, command: Any, seen: Seen) -> None:
        for event in seen.events:
            if isinstance(event, e.OffsetsChanged) and event.goes_on:
                self._merge("offsets", event, functools.partial(joined_changes, new=event))
            else:
                self.add(event)
            if isinstance(event, e.GroupDeleted):
                self._under_way.pop(event.group_id, None)
        if type(command) in _RECORD_COMMANDS:
            for event in record_events(shard, command, seen.decisions, self._now_ms()):
                self.add(event)
        for group_id, one in seen.groups.items():
            self._see_group(shard, command, group_id, one)

    def _see_group(self, shard: GroupShard, command: Any, group_id: str, seen: SeenGroup) -> None:
        now_ms, group = self._now_ms(), shard.groups.get(group_id)
        is_classic = isinstance(group, ClassicGroup)
        has_members = group is not None and seen.members_before and group.members
        if group is not None and has_members and seen.is_classic_before != is_classic:
            self.add(
                e.ProtocolChanged(
                    at_ms=now_ms,
                    group_id=group_id,
                    before="classic" if seen.is_classic_before else "consumer",
                    after="classic" if is_classic else "consumer",
                    members=len(group.members),
                )
            )
        self._see_members(command, group, group_id, seen)
        if isinstance(group, ConsumerGroup):
            self._see_consumer(shard, command, group, seen)
        elif seen.classic_after is not None:
            self._see_classic(command, seen.classic_after, seen)
        if group is None or not group.members:
            self._under_way.pop(group_id, None)  # nobody is left who could wait for anything

    # Members --------------------------------------------------------------------------------------

    def _see_members(
        self, command: Any, group: Group | None, group_id: str, seen: SeenGroup
    ) -> None:
        members: Mapping[str, Member] = group.members if group is not None else {}
        had: Mapping[str, Member | None] = seen.members
        if seen.classic_after is not None or isinstance(seen.before, ClassicGroup):
            had = {**classic_changes(seen, group, command), **seen.members}
        left = [(i, was) for i, was in had.items() if was is not None and i not in members]
        joined = [members[i] for i, was in had.items() if was is None and i in members]
        now_ms = self._now_ms()
        replaced = {who_is(was).instance_id: i for i, was in left}
        came = {who_is(member).instance_id for member in joined}
        for _, was in left:
            who = who_is(was)
            is_replaced = who.instance_id is not None and who.instance_id in came
            self.add(
                e.MemberLeft(
                    at_ms=now_ms,
                    group_id=group_id,
                    who=who,
                    reason=e.LeaveReason.REPLACED if is_replaced else leave_reason(command),
                    held=len([*was.held]) if isinstance(was, ConsumerMember) else None,
                )
            )
        for member in joined:
            who = who_is(member)
            is_classic = isinstance(member, ClassicMember) or member.classic is not None
            self.add(
                e.MemberJoined(
                    at_ms=now_ms,
                    group_id=group_id,
                    who=who,
                    protocol="classic" if is_classic else "consumer",
                    replaces=replaced.get(who.instance_id) if who.instance_id else None,
                )
            )

    # Consumer groups ------------------------------------------------------------------------------

    def _see_consumer(
        self, shard: GroupShard, command: Any, group: ConsumerGroup, seen: SeenGroup
    ) -> None:
        now_ms, steady_ms, group_id = self._now_ms(), self._steady_ms(), group.group_id
        self._see_away(group, seen)
        for cause in seen.causes:
            self._began(group_id, group.group_epoch, cause, doer_of(command, group, seen))
        if seen.has_target:
            self.add(
                e.Assigned(
                    at_ms=now_ms,
                    group_id=group_id,
                    epoch=group.target_epoch,
                    members=len(group.members),
                    moving=len(group.moving_since_ms),
                )
            )
        under_way = self._under_way.get(group_id)
        if under_way is None:
            return
        changed = [(was, group.members.get(i)) for i, was in seen.members.items()]
        for was, now in changed:
            if was is not None and was is not now:
                under_way.gave(who_is(was), was, now, steady_ms)
        for was, now in changed:
            if now is not None and was is not now:
                taken = under_way.took(who_is(now), was, now, steady_ms)
                if taken and (has_ranges(taken) or now.shares):
                    for event in hand_overs(shard, group_id, taken, now_ms):
                        self.add(event)
        if group.members and group.is_settled:
            self._ended(group, group.target_epoch, under_way.moved)

    def _see_away(self, group: ConsumerGroup, seen: SeenGroup) -> None:
        for member_id, was in seen.members.items():
            now = group.members.get(member_id)
            is_away = now is not None and now.member_epoch == STATIC_LEAVING_EPOCH
            if is_away and was is not None and was.member_epoch != STATIC_LEAVING_EPOCH:
                self.add(
                    e.MemberLeft(
                        at_ms=self._now_ms(),
                        group_id=group.group_id,
                        who=who_is(was),
                        reason=e.LeaveReason.AWAY,
                        held=len(was.assigned),
                    )
                )

    # Classic groups -------------------------------------------------------------------------------

    def _see_classic(self, command: Any, group: ClassicGroup, seen: SeenGroup) -> None:
        group_id, steady_ms = group.group_id, self._steady_ms()
        before = seen.before
        if is_rebalance(before, group):
            who = doer_of(command, group, seen)
            self._began(group_id, group.generation_id, classic_cause(before, command), who)
            if isinstance(before, ClassicGroup):
                begun = self._under_way[group_id]
                begun.classic_before = begun.classic_before or before
        under_way = self._under_way.get(group_id)
        if under_way is None or not isinstance(before, ClassicGroup):
            return
        if before.state is not group.state:
            self._wait(under_way, before, group, command)
            under_way.phase_ms = steady_ms
        if group.state is ClassicState.STABLE:
            moved = classic_moved(under_way.classic_before, group)
            self._ended(group, group.generation_id, moved)

    def _wait(
        self, under_way: UnderWay, before: ClassicGroup, after: ClassicGroup, command: Any
    ) -> None:
        """Whom the others waited for in the phase that is over."""
        if len(after.members) < 2:
            return
        if before.state is ClassicState.PREPARING_REBALANCE and isinstance(command, c.JoinGroup):
            awaited = after.members.get(command.member_id) or [*after.members.values()][-1]
            what = "to rejoin" if awaited.member_id in before.members else "to join"
        elif before.state is ClassicState.COMPLETING_REBALANCE:
            leader = after.members.get(after.leader_id or "")
            if leader is None or after.state is not ClassicState.STABLE:
                return
            awaited, what = leader, "to assign the partitions"
        else:
            return
        others = len(after.members) - 1
        under_way.classic_waits.append(
            e.Wait(
                waiting="1 other" if others == 1 else f"{others:,} others",
                awaited=str(who_is(awaited)),
                what=what,
                duration_ms=max(0, self._steady_ms() - under_way.phase_ms),
            )
        )

    # Rebalances -----------------------------------------------------------------------------------

    def _began(self, group_id: str, epoch: int, cause: Cause, member: str) -> None:
        under_way = self._under_way.get(group_id)
        if under_way is None:
            now_ms, steady_ms = self._now_ms(), self._steady_ms()
            under_way = self._under_way[group_id] = UnderWay(
                at_ms=now_ms, began_ms=steady_ms, phase_ms=steady_ms
            )
            self.add(
                e.RebalanceBegan(
                    at_ms=now_ms, group_id=group_id, epoch=epoch, cause=cause, member=member
                )
            )
        if cause not in under_way.causes:
            under_way.causes.append(cause)

    def _ended(self, group: Group, epoch: int, moved: int | None) -> None:
        under_way = self._under_way.pop(group.group_id)
        self.add(
            e.RebalanceEnded(
                at_ms=self._now_ms(),
                group_id=group.group_id,
                began_ms=under_way.at_ms,
                duration_ms=max(0, self._steady_ms() - under_way.began_ms),
                epoch=epoch,
                is_classic=isinstance(group, ClassicGroup),
                members=len(group.members),
                causes=tuple(under_way.causes),
                moved=moved,
                waits=under_way.all_waits(),
            )
        )


def _tell(error: Exception) -> None:
    """A bug in here; groups must not suffer from who only looks."""
    logs.error("timeline.failed", error=repr(error))
