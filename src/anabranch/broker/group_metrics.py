"""What happens to groups, counted where decisions are applied.

The coordinator knows nothing of metrics: this looks at commands, answers and records as a shard's
driver carries them out. A plain heartbeat costs one addition; whatever has records costs a look at
each of them, before they are replayed (what a member had) and after (whether the group is settled).

What can be counted by looking, such as groups by state, is counted when somebody asks.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicState
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.coordinator.group.consumer_records import CurrentWritten, GroupEpochWritten
from anabranch.coordinator.group.consumer_state import ConsumerGroup, ConsumerGroupState
from anabranch.coordinator.group.records import ClassicGroupChanged, OffsetCommitted
from anabranch.coordinator.group.shard import GroupShard
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, Unit
from anabranch.observe import metrics as m

CLASSIC = "classic"
CONSUMER = "consumer"
PROTOCOLS = (CLASSIC, CONSUMER)
PARTITION, RANGE = UNITS = ("partition", "range")

FENCINGS = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
)

_STATES = {
    CLASSIC: tuple(state.value for state in ClassicState if state is not ClassicState.DEAD),
    CONSUMER: tuple(
        state.value for state in ConsumerGroupState if state is not ConsumerGroupState.DEAD
    ),
}
_AT_REST = (ClassicState.STABLE, ClassicState.EMPTY)
_TIMER_CAUSES = {
    "session": Cause.SESSION_EXPIRED,
    "join": Cause.REBALANCE_TIMEOUT,
    "sync": Cause.REBALANCE_TIMEOUT,
}


class GroupMetrics:
    """The counts of one broker; all its shards add to them."""

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        # Added to by the drivers themselves: nothing may be slower than a plain heartbeat.
        self.classic_heartbeats = 0
        self.consumer_heartbeats = 0
        self.rebalances: Counter[tuple[str, str]] = Counter()
        self.durations = {protocol: m.Histogram() for protocol in PROTOCOLS}
        self.partitions_moved = 0
        self.handovers = {unit: m.Histogram() for unit in UNITS}
        self.fencings: Counter[tuple[str, str]] = Counter()
        # Since when a group has not been settled, by the clock that nobody can set.
        self._began_ms: dict[str, int] = {}

    # Counting -------------------------------------------------------------------------------------

    def refused(self, shard: GroupShard, command: Any, error: ErrorCode) -> None:
        """A request was answered with an error."""
        if error not in FENCINGS:
            return
        is_consumer = type(command) is ConsumerHeartbeat or isinstance(
            shard.groups.get(command.group_id), ConsumerGroup
        )
        self.fencings[CONSUMER if is_consumer else CLASSIC, error.name] += 1

    def before_replay(self, shard: GroupShard, command: Any, records: tuple[Any, ...]) -> None:
        """Records were written and are about to change the shard."""
        if type(records[0]) is OffsetCommitted:
            return  # commits have nothing else
        had: dict[tuple[str, str], Iterable[Unit]] = {}
        for record in records:
            kind = type(record)
            if kind is CurrentWritten:
                self._member_written(shard, record, had)
            elif kind is GroupEpochWritten:
                if record.cause:
                    self._began(record.group_id, CONSUMER, record.cause)
            elif kind is ClassicGroupChanged:
                self._classic_changed(shard, record.group, command)

    def after_replay(self, shard: GroupShard, records: tuple[Any, ...]) -> None:
        """The shard is what the records made it: see which groups are settled by now."""
        if not self._began_ms or type(records[0]) is OffsetCommitted:
            return
        for group_id in self._began_ms.keys() & map(_group_of, records):
            self._settled_or_not(group_id, shard.groups.get(group_id))

    def _began(self, group_id: str, protocol: str, cause: Cause) -> None:
        self.rebalances[protocol, cause.value] += 1
        self._began_ms.setdefault(group_id, self._steady_ms())

    def _settled_or_not(self, group_id: str, group: ClassicGroup | ConsumerGroup | None) -> None:
        if group is None or not group.members:
            del self._began_ms[group_id]  # nobody is left who could wait for anything
            return
        if isinstance(group, ConsumerGroup):
            protocol, is_settled = CONSUMER, group.is_settled
        else:
            protocol, is_settled = CLASSIC, group.state is ClassicState.STABLE
        if is_settled:
            took_ms = self._steady_ms() - self._began_ms.pop(group_id)
            self.durations[protocol].observe(took_ms / 1000)

    def _member_written(
        self,
        shard: GroupShard,
        record: CurrentWritten,
        had: dict[tuple[str, str], Iterable[Unit]],
    ) -> None:
        """Count what a member has now and had not; `had` is what earlier records gave it."""
        if record.member is None:
            return
        key = (record.group_id, record.member_id)
        before = had.get(key)
        if before is None:
            group = shard.groups.get(record.group_id)
            known = group.members.get(record.member_id) if group is not None else None
            # Whoever comes over from the classic protocol keeps what it had.
            before = getattr(known, "assigned", record.member.assigned if known else ())
        came = record.member.assigned.keys() - set(before)
        self.partitions_moved += len(came)
        had[key] = record.member.assigned
        group = shard.groups.get(record.group_id)
        if came and isinstance(group, ConsumerGroup):
            self._handed_over(group, came)

    def _handed_over(self, group: ConsumerGroup, came: Iterable[Unit]) -> None:
        """Count how long units took to come to their new owner."""
        now_ms = self._steady_ms()
        for unit in came:
            since_ms = group.moving_since_ms.get(unit)
            if since_ms is not None:
                kind = PARTITION if unit.slots == ALL_SLOTS else RANGE
                # Targets have the time of the wall clock, which somebody may have set back.
                self.handovers[kind].observe(max(now_ms - since_ms, 0) / 1000)

    def _classic_changed(self, shard: GroupShard, group: ClassicGroup, command: Any) -> None:
        before = shard.groups.get(group.group_id)
        if is_rebalance(before, group):
            self._began(group.group_id, CLASSIC, classic_cause(before, command))

    # Showing --------------------------------------------------------------------------------------

    def collect(self, shards: Iterable[GroupShard]) -> Iterator[tuple[m.Metric, m.Values]]:
        """The metrics of this broker, with what is seen in its shards now."""
        groups: dict[tuple[str, ...], int] = {
            (p, state): 0 for p in PROTOCOLS for state in _STATES[p]
        }
        members = dict.fromkeys(PROTOCOLS, 0)
        moving = 0
        for shard in shards:
            for group in shard.groups.values():
                if isinstance(group, ConsumerGroup):
                    groups[CONSUMER, group.state.value] += 1
                    members[CLASSIC] += group.classic_members
                    members[CONSUMER] += len(group.members) - group.classic_members
                    moving += len(group.moving_since_ms)
                else:
                    groups[CLASSIC, group.state.value] += 1
                    members[CLASSIC] += len(group.members)
            # Groups that never had a member and hold offsets only.
            groups[CLASSIC, ClassicState.EMPTY.value] += len(shard.group_ids()) - len(shard.groups)
        yield m.GROUPS, groups
        yield m.GROUP_MEMBERS, {(p,): count for p, count in members.items()}
        yield (
            m.GROUP_HEARTBEATS,
            {(CLASSIC,): self.classic_heartbeats, (CONSUMER,): self.consumer_heartbeats},
        )
        yield m.GROUP_REBALANCES, {(p, cause): self.rebalances[p, cause] for p, cause in _CAUSES_OF}
        yield m.GROUP_REBALANCE_DURATION, {(p,): self.durations[p] for p in PROTOCOLS}
        yield m.GROUP_PARTITIONS_MOVED, {(): self.partitions_moved}
        yield m.GROUP_PARTITIONS_MOVING, {(): moving}
        yield m.GROUP_HANDOVER_DURATION, {(unit,): self.handovers[unit] for unit in UNITS}
        yield (
            m.GROUP_FENCINGS,
            {(p, e.name): self.fencings[p, e.name] for p, e in _FENCINGS_OF},
        )


_CAUSES_OF = [
    (protocol, cause.value)
    for protocol in PROTOCOLS
    for cause in Cause
    # Classic groups leave topics and assignors to their members.
    if protocol == CONSUMER or cause not in (Cause.TOPICS, Cause.REGEX, Cause.ASSIGNOR)
]
_FENCINGS_OF = [
    (protocol, error)
    for protocol in PROTOCOLS
    for error in FENCINGS
    if protocol == CONSUMER
    or error not in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID)
]


def _group_of(record: Any) -> str:
    if type(record) is ClassicGroupChanged:
        return record.group.group_id
    return getattr(record, "group_id", "")


def is_rebalance(before: ClassicGroup | ConsumerGroup | None, group: ClassicGroup) -> bool:
    """Whether a classic group begins to rebalance; a small one may be half through at once."""
    if group.state is ClassicState.PREPARING_REBALANCE:
        return before is None or before.state is not ClassicState.PREPARING_REBALANCE
    if group.state is not ClassicState.COMPLETING_REBALANCE:
        return False
    if not isinstance(before, ClassicGroup) or before.state in _AT_REST:
        return True
    is_completing = before.state is ClassicState.COMPLETING_REBALANCE
    return is_completing and before.generation_id != group.generation_id


def classic_cause(before: ClassicGroup | ConsumerGroup | None, command: Any) -> Cause:
    match command:
        case c.JoinGroup():
            is_known = before is not None and command.member_id in before.members
            return Cause.SUBSCRIPTION if is_known else Cause.JOIN
        case c.LeaveGroup():
            return Cause.LEAVE
        case c.TimerFired():
            return _TIMER_CAUSES.get(command.key[0], Cause.OTHER)  # type: ignore[index]
        case _:
            return Cause.OTHER
