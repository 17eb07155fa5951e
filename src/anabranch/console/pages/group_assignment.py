"""Group, Assignment: what members have against what they should have, and who waits for whom."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from anabranch.broker.broker import Broker
from anabranch.broker.survey import GroupSummary
from anabranch.broker.timeline_events import KeyRange
from anabranch.broker.timeline_rebalance import uncovered
from anabranch.console import words
from anabranch.console.frame import Console, Page
from anabranch.console.group_found import found_group
from anabranch.console.group_members import partitions_text
from anabranch.console.member_names import MemberNames
from anabranch.console.tables import Column, Table, make_table
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicState
from anabranch.coordinator.group.consumer_describe import Movement, movements
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.shard import Group
from anabranch.model.units import ALL_SLOTS, Unit

_SLICE = 100
# How many units a cell names.
_NAMED_MAX = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentRow:
    member_id: str
    epoch: int
    target_epoch: int
    current: str
    target: str
    # What it has and should not have; what it should have and has not.
    revoking: str
    awaiting: str

    @property
    def is_settled(self) -> bool:
        return not self.revoking and not self.awaiting and self.epoch == self.target_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow:
    """A member that cannot go on before another has done its part."""

    waiting: str
    awaited: str
    what: str
    since_ms: int


def _or_dash(text: str) -> str:
    return text or words.MISSING


def _columns(names: MemberNames) -> list[Column[AssignmentRow]]:
    return [
        Column(
            "member_id",
            "Member",
            lambda row: row.member_id,
            lambda row: names.cell(row.member_id),
            is_searched=True,
        ),
        Column(
            "epoch",
            "Epoch",
            lambda row: row.epoch,
            is_number=True,
            hint="The assignment that it has caught up with.",
        ),
        Column(
            "target_epoch",
            "Target epoch",
            lambda row: row.target_epoch,
            is_number=True,
            hint="The assignment that it is to catch up with.",
        ),
        Column(
            "current",
            "Has",
            lambda row: row.current,
            lambda row: _or_dash(row.current),
            hint="What it owns now, with what it has yet to give back.",
            is_searched=True,
        ),
        Column(
            "target",
            "Should have",
            lambda row: row.target,
            lambda row: _or_dash(row.target),
            hint="What it owns when all are settled.",
            is_searched=True,
        ),
        Column(
            "revoking",
            "To give up",
            lambda row: row.revoking,
            lambda row: _or_dash(row.revoking),
            hint="What it has and is not to keep.",
        ),
        Column(
            "awaiting",
            "To receive",
            lambda row: row.awaiting,
            lambda row: _or_dash(row.awaiting),
            hint="What it is to have and has not.",
        ),
    ]


def _wait_columns(now_ms: int) -> list[Column[WaitRow]]:
    return [
        Column("waiting", "Who waits", lambda row: row.waiting, is_searched=True),
        Column("awaited", "For whom", lambda row: row.awaited, is_searched=True),
        Column("what", "For what", lambda row: row.what, is_searched=True),
        Column(
            "since_ms",
            "For",
            lambda row: row.since_ms,
            partial(_waited, now_ms),
            is_number=True,
            hint="How long it has waited so far.",
        ),
    ]


def _waited(now_ms: int, row: WaitRow) -> str:
    return words.duration(max(0, now_ms - row.since_ms))


async def make_tab(request: Request, console: Console, group_id: str) -> Page:
    broker, query = console.broker, request.query_params
    group = broker.groups.group(group_id)
    names = MemberNames(group)
    rows: list[AssignmentRow] = []
    if isinstance(group, ConsumerGroup):
        rows = await _consumer_rows(broker, group)
    elif group is not None:
        rows = _classic_rows(group, found_group(request))
    since_ms = _since_ms(console, group_id)
    waits = _waits(broker, group, names, since_ms) if group is not None else []
    tables: list[Table[Any]] = [
        make_table(
            "assignment",
            _columns(names),
            rows,
            query,
            empty="Nobody is a member now.",
            is_only=False,
        ),
        make_table(
            "waits",
            _wait_columns(broker.now_ms()),
            waits,
            query,
            sort="since_ms",
            empty="Nobody waits for anybody.",
            is_only=False,
        ),
    ]
    return Page(
        template="group_assignment.html",
        title=group_id,
        tables=tables,
        values={
            "unsettled": sum(not row.is_settled for row in rows),
            "is_classic": isinstance(group, ClassicGroup),
        },
    )


def _since_ms(console: Console, group_id: str) -> int:
    under_way = console.broker.timeline.under_way(group_id)
    return under_way.at_ms if under_way is not None else console.broker.now_ms()


# Rows -------------------------------------------------------------------------------------------


async def _consumer_rows(broker: Broker, group: ConsumerGroup) -> list[AssignmentRow]:
    rows = []
    for number, member in enumerate(list(group.members.values())):
        if not (number + 1) % _SLICE:
            await asyncio.sleep(0)
        target = group.target(member.member_id)
        held = [*member.held]
        text = partial(units_text, broker)
        rows.append(
            AssignmentRow(
                member_id=member.member_id,
                epoch=member.member_epoch,
                target_epoch=group.target_epoch,
                current=text(held),
                target=text(target),
                revoking=text(uncovered(held, target)),
                awaiting=text(uncovered(target, held)),
            )
        )
    return rows


def _classic_rows(group: ClassicGroup, summary: GroupSummary) -> list[AssignmentRow]:
    owned: dict[str, list[tuple[str, int]]] = {member_id: [] for member_id in group.members}
    for one in summary.partitions:
        if one.member_id in owned:
            owned[one.member_id].append((one.topic, one.partition))
    rows = []
    for member_id, mine in owned.items():
        text = partitions_text(mine)
        # The leader decides, and the broker knows of it when it is done.
        rows.append(
            AssignmentRow(
                member_id=member_id,
                epoch=group.generation_id,
                target_epoch=group.generation_id,
                current=text,
                target=text if group.state is ClassicState.STABLE else "",
                revoking="",
                awaiting="",
            )
        )
    return rows


def units_text(broker: Broker, units: Collection[Unit]) -> str:
    """Units as people name them: partitions by number, key ranges by their share."""
    whole: list[tuple[str, int]] = []
    ranges: list[str] = []
    for unit in sorted(units):
        topic = broker.topics.get_by_id(unit.topic_id)
        name = topic.name if topic is not None else "(deleted)"
        if unit.slots == ALL_SLOTS:
            whole.append((name, unit.partition))
        elif len(ranges) < _NAMED_MAX:
            ranges.append(str(KeyRange(topic=name, partition=unit.partition, slots=unit.slots)))
    more = len(units) - len(whole) - len(ranges)
    texts = [partitions_text(whole), *ranges, f"{more:,} more" if more else ""]
    return "; ".join(text for text in texts if text)


# Waits ------------------------------------------------------------------------------------------


def _waits(broker: Broker, group: Group, names: MemberNames, since_ms: int) -> list[WaitRow]:
    if isinstance(group, ConsumerGroup):
        return _consumer_waits(broker, group, names)
    return _classic_waits(group, names, since_ms)


def _consumer_waits(broker: Broker, group: ConsumerGroup, names: MemberNames) -> list[WaitRow]:
    """What is on its way, an entry for each pair of members and for how far it is."""
    pairs: dict[tuple[str, str, str], list[Movement]] = {}
    for one in movements(group):
        waiting = names.text(one.to_member_id) if one.to_member_id else "nobody"
        awaited = names.text(one.from_member_id) if one.from_member_id else waiting
        pairs.setdefault((waiting, awaited, one.state), []).append(one)
    rows = []
    for (waiting, awaited, state), moves in pairs.items():
        text = units_text(broker, [one.unit for one in moves])
        verb = "to give up" if state == "revoking" else "to take, with its next heartbeat,"
        rows.append(
            WaitRow(
                waiting=waiting if state == "revoking" else "the group",
                awaited=awaited,
                what=f"{verb} {text}",
                since_ms=min(one.since_ms for one in moves),
            )
        )
    return rows


def _classic_waits(group: ClassicGroup, names: MemberNames, since_ms: int) -> list[WaitRow]:
    if group.state is ClassicState.PREPARING_REBALANCE:
        awaited = [one.member_id for one in group.members.values() if one.join_waiter is None]
        awaited += group.pending_members
        what = "to join"
        if not awaited:
            return [
                WaitRow(
                    waiting="the group",
                    awaited="anybody else",
                    what="to join while it is new (group.initial.rebalance.delay.ms)",
                    since_ms=since_ms,
                )
            ]
    elif group.state is ClassicState.COMPLETING_REBALANCE:
        leader = group.leader_id
        is_leader_late = leader is not None and leader in group.pending_syncs
        awaited = [leader] if leader is not None and is_leader_late else [*group.pending_syncs]
        what = "to assign the partitions" if is_leader_late else "to ask for its assignment"
    else:
        return []
    return [
        WaitRow(waiting="the group", awaited=name, what=what, since_ms=since_ms)
        for name in _names(awaited, names.text)
    ]


def _names(member_ids: Iterable[str], name: Callable[[str], str]) -> list[str]:
    return sorted(name(member_id) for member_id in member_ids)
