"""The members of a group as people want to know them: what they have, how they fare, who is slow.

How fast a member is follows from its partitions, as with groups: what came to them less what their
lag grew by. It is known from the second look on.
"""

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.broker.broker import Broker
from anabranch.broker.survey import GroupSummary, PartitionLag
from anabranch.broker.survey_rates import Pace
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember, ClassicState
from anabranch.coordinator.group.consumer_state import (
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from anabranch.coordinator.group.shard import Group
from anabranch.coordinator.group.subscription import subscribed_topics
from anabranch.model.units import ALL_SLOTS

_SLICE = 2_000
# Who has that many times the lag of the others, partition by partition, is slow; a lag that is
# younger than that means nothing yet.
SLOW_RATIO = 2
SLOW_MIN_MS = 1_000
# Groups whose paces are kept, those that were looked at last.
_GROUPS_MAX = 50


class State(NamedTuple):
    """What a member is doing, and a sentence about it."""

    name: str
    hint: str
    colour: str


_STABLE = State("Stable", "It has all that it should have.", "ok")
_AWAY = State(
    "Away",
    "A static member that has left for a while; it keeps its partitions until its session ends.",
    "warning",
)
_CONSUMER_STATES = {
    MemberState.STABLE: _STABLE,
    MemberState.UNREVOKED_PARTITIONS: State(
        "Revoking",
        "It was told to give partitions up, and has not said yet that it did.",
        "warning",
    ),
    MemberState.UNRELEASED_PARTITIONS: State(
        "Waiting", "It waits for partitions that others have not given up yet.", "warning"
    ),
    MemberState.UNKNOWN: State("Unknown", "The journal has a state that is not known here.", ""),
}
_BEHIND = State(
    "Catching up",
    "There is a new assignment, which it hears of with its next heartbeat.",
    "warning",
)
_REJOINED = State("Joined", "It has joined, and waits for the others.", "ok")
_REJOINING = State("Awaited", "The group waits for it to join again.", "warning")
_SYNCING = State("Awaited", "It has yet to ask for its assignment.", "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    # The member epoch, or the generation of a classic group.
    epoch: int
    state: State
    heard_ago_ms: int | None
    is_leader: bool
    partitions: tuple[PartitionLag, ...]
    # Key ranges of partitions that it shares with others; these have no lag of one member.
    ranges: int
    lag_records: int | None
    lag_ms: int | None
    consume_per_s: float | None
    subscription: str
    # Why it is marked as slow; empty when it is not.
    slow: str = ""


@dataclass(slots=True)
class MemberPaces:
    """The paces of the members of groups that somebody looks at."""

    groups: dict[str, dict[str, Pace]] = field(default_factory=dict)

    def of(self, group_id: str, member_ids: Iterable[str]) -> dict[str, Pace]:
        known = self.groups.pop(group_id, {})
        paces = {member_id: known.get(member_id) or Pace() for member_id in member_ids}
        self.groups[group_id] = paces
        if len(self.groups) > _GROUPS_MAX:
            del self.groups[next(iter(self.groups))]
        return paces


async def member_rows(
    broker: Broker, summary: GroupSummary, paces: MemberPaces, at_ms: int
) -> list[MemberRow]:
    """All members of a group."""
    group = broker.groups.group(summary.group_id)
    if group is None or not group.members:
        return []
    heard = broker.groups.heard_ago_ms(group)
    owned: dict[str, list[PartitionLag]] = {}
    for number, one in enumerate(summary.partitions):
        if not (number + 1) % _SLICE:
            await asyncio.sleep(0)
        if one.member_id is not None:
            owned.setdefault(one.member_id, []).append(one)
    known = paces.of(summary.group_id, group.members)
    rows = []
    members: list[ClassicMember | ConsumerMember] = [*group.members.values()]
    for number, member in enumerate(members):
        if not (number + 1) % 100:
            await asyncio.sleep(0)
        mine = tuple(owned.get(member.member_id, ()))
        rate = _rate(known[member.member_id], mine, at_ms)
        rows.append(_row(group, member, mine, heard.get(member.member_id), rate))
    return _marked(rows)


def _row(
    group: Group,
    member: ClassicMember | ConsumerMember,
    mine: tuple[PartitionLag, ...],
    heard_ago_ms: int | None,
    rate: float | None,
) -> MemberRow:
    lags = [one.lag_records for one in mine if one.lag_records is not None]
    times = [one.lag_ms for one in mine if one.lag_ms is not None]
    if isinstance(member, ClassicMember):
        assert isinstance(group, ClassicGroup)
        instance_id, epoch = member.group_instance_id, group.generation_id
        state = _classic_state(group, member)
        ranges, subscription = 0, _classic_subscription(group, member)
        is_leader = group.leader_id == member.member_id
    else:
        assert isinstance(group, ConsumerGroup)
        instance_id, epoch = member.instance_id, member.member_epoch
        state = consumer_state(group, member)
        ranges = sum(unit.slots != ALL_SLOTS for unit in member.assigned)
        subscription, is_leader = _consumer_subscription(member), False
    return MemberRow(
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.client_host,
        instance_id=instance_id,
        epoch=epoch,
        state=state,
        heard_ago_ms=heard_ago_ms,
        is_leader=is_leader,
        partitions=mine,
        ranges=ranges,
        lag_records=sum(lags) if lags else None,
        lag_ms=max(times) if times else None,
        consume_per_s=rate,
        subscription=subscription,
    )


def consumer_state(group: ConsumerGroup, member: ConsumerMember) -> State:
    if member.member_epoch == STATIC_LEAVING_EPOCH:
        return _AWAY
    if member.state is MemberState.STABLE and not group.has_caught_up(member):
        return _BEHIND
    return _CONSUMER_STATES[member.state]


def _classic_state(group: ClassicGroup, member: ClassicMember) -> State:
    if group.state is ClassicState.PREPARING_REBALANCE:
        return _REJOINED if member.join_waiter is not None else _REJOINING
    if group.state is ClassicState.COMPLETING_REBALANCE:
        return _SYNCING if member.member_id in group.pending_syncs else _REJOINED
    return _STABLE


def _consumer_subscription(member: ConsumerMember) -> str:
    names = ", ".join(member.subscribed_topic_names)
    if not member.subscribed_topic_regex:
        return names
    regex = f"/{member.subscribed_topic_regex}/"
    return f"{names}, {regex}" if names else regex


def _classic_subscription(group: ClassicGroup, member: ClassicMember) -> str:
    name = group.protocol_name or next(iter(member.protocol_names), None)
    topics = subscribed_topics(member.metadata(name))
    return ", ".join(sorted(topics)) if topics else ""


def _rate(pace: Pace, mine: Sequence[PartitionLag], at_ms: int) -> float | None:
    """Records per second that a member gets done; None when it has nothing that tells."""
    known = [one for one in mine if one.log_end_offset is not None and one.lag_records is not None]
    if not known:
        return None
    produced = float(sum(one.log_end_offset or 0 for one in known))
    lag_records = sum(one.lag_records or 0 for one in known)
    pace.note(at_ms, produced, lag_records, tuple((one.topic, one.partition) for one in known))
    return pace.rates(at_ms, produced, lag_records).consume_per_s


def _marked(rows: list[MemberRow]) -> list[MemberRow]:
    """The rows, with those marked that hold the others up or fall behind them."""
    told = [row for row in rows if _has_lag_to_tell(row)]
    if len(told) < 2:
        return rows
    total_lag = sum(row.lag_records or 0 for row in told)
    total_partitions = sum(len(row.partitions) for row in told)
    marked = []
    for row in rows:
        why = ""
        if _has_lag_to_tell(row) and (row.lag_ms or 0) >= SLOW_MIN_MS:
            why = _slow(row, total_lag, total_partitions)
        marked.append(dataclasses.replace(row, slow=why) if why else row)
    return marked


def _has_lag_to_tell(row: MemberRow) -> bool:
    return bool(row.partitions) and row.lag_records is not None


def _slow(row: MemberRow, total_lag: int, total_partitions: int) -> str:
    mine = (row.lag_records or 0) / len(row.partitions)
    others = (total_lag - (row.lag_records or 0)) / max(1, total_partitions - len(row.partitions))
    if mine <= SLOW_RATIO * others:
        return ""
    if others == 0:
        return "It is the only member that has lag."
    return f"It has {mine / others:,.1f} times the lag of the others, partition by partition."


def partitions_text(partitions: Iterable[tuple[str, int]]) -> str:
    """`orders 0-3, 7; payments 1`."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    return "; ".join(
        f"{topic} {numbers_text(numbers)}" for topic, numbers in sorted(by_topic.items())
    )


def numbers_text(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
