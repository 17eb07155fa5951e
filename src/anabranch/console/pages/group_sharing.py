"""Group, Sharing: each shared partition as a strip of key ranges, with all that is under way in it.

Partitions are paged, and only those of the page are looked at; sorting by what they are like looks
at all of them, in slices. Groups that read branch topics have a strip for each partition of the
source, with the branches in it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from starlette.requests import Request

from anabranch.broker.broker import Broker
from anabranch.broker.timeline_events import HandOver
from anabranch.broker.topics import Topic
from anabranch.console.branch_sharing import (
    BranchedPartition,
    branch_pieces,
    branch_topics,
    read_branched,
)
from anabranch.console.frame import Console, Page
from anabranch.console.oldest_records import OldestRecord, OldestRecords
from anabranch.console.pages import group_sharing_columns as columns
from anabranch.console.pages import group_sharing_details as details
from anabranch.console.pages.group_sharing_columns import OwnerRow, PartitionRow
from anabranch.console.pages.group_sharing_details import HotRow, MoveRow
from anabranch.console.sharing import SharedPartition, SharingReader, client_ids, shared_places
from anabranch.console.stable_reason import stable_reason
from anabranch.console.strips import OwnerNumbers, Piece, Strip, make_strip
from anabranch.console.tables import Table, make_table
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.model.units import SLOT_COUNT
from anabranch.observe import logs

# Partitions of one page; each has a strip.
_CARDS = 6
# With more members than that strips have so many pieces that fewer of them are enough.
_CROWD, _CARDS_OF_A_CROWD = 50, 2
# Rows of the other tables: there are many of them on one page.
_ROWS = 12
# Partitions that are read before others have the loop.
_SLICE = 20


class _Memory:
    """What is kept from one look to the next."""

    def __init__(self) -> None:
        self.numbers = OwnerNumbers()
        self.oldest = OldestRecords()


_memories: WeakKeyDictionary[Console, _Memory] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A shared partition as the page shows it."""

    partition: SharedPartition
    strip: Strip
    oldest: OldestRecord | None
    oldest_age_ms: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchCard:
    """A partition of a source as the page shows it."""

    found: BranchedPartition
    pieces: Sequence[Piece]


async def make_tab(request: Request, console: Console, group_id: str) -> Page:
    """The tab of one group, which the caller has found."""
    broker, query = console.broker, request.query_params
    memory = _memories.setdefault(console, _Memory())
    group = broker.groups.group(group_id)
    members = list(group.members) if group is not None else []
    numbers = memory.numbers.of(group_id, members)
    clients = client_ids(group)
    rows = _partition_rows(broker, group_id)
    if _needs_all(request):
        await _read_all(rows)
    partitions = make_table(
        "partitions",
        columns.PARTITIONS,
        rows,
        query,
        empty="This group shares no partition by key.",
        is_only=False,
        size=_CARDS if len(members) <= _CROWD else _CARDS_OF_A_CROWD,
    )
    await _find_oldest(broker, group_id, memory, partitions, _is_export(request, "partitions"))
    shown = [row.partition for row in partitions.rows if row.partition is not None]
    now_ms = broker.now_ms()
    branched, branches = await _branched(request, broker, group_id, clients)
    owners = _owner_rows(broker, group_id, numbers, len(rows))

    def table(
        name: str, of: Sequence[Any], found: Iterable[Any], sort: str = "", empty: str = "None."
    ) -> Table[Any]:
        return make_table(name, of, found, query, sort=sort, empty=empty, is_only=False, size=_ROWS)

    moves = _moves(broker, group_id, shown, clients)
    tables: list[Table[Any]] = [
        partitions,
        table("owners", columns.owners(numbers), owners, empty="Nobody is a member now."),
        table("ranges", columns.ranges(numbers, now_ms), _all(shown, lambda one: one.ranges)),
        table("failed", details.FAILED, _all(shown, lambda one: one.failed)),
        table("diverted", details.DIVERTED, _all(shown, lambda one: one.diverted)),
        table("hot", details.HOT, _hot(shown), sort="-share"),
        table("moves", details.moves(now_ms), moves, empty="No range has changed hands lately."),
    ]
    if branched is not None:
        rows_of_branches = [one for card in branches for one in card.branches]
        tables += [branched, table("branches", details.branches(numbers), rows_of_branches)]
    return Page(
        template="group_sharing.html",
        title=group_id,
        values={
            "group_id": group_id,
            "cards": [_card(row, numbers, now_ms) for row in partitions.rows if row.partition],
            "broken": [row for row in partitions.rows if row.error],
            "branch_cards": [
                BranchCard(found=one, pieces=branch_pieces(one, numbers)) for one in branches
            ],
            "is_shared": bool(rows),
            "is_branched": branched is not None,
            "owners_count": len(owners),
            "imbalance": broker.groups.range_loads.imbalance(group_id),
            "moving": sum(len(one.movements) for one in shown),
        },
        tables=tables,
    )


# Partitions -------------------------------------------------------------------------------------


def _partition_rows(broker: Broker, group_id: str) -> list[PartitionRow]:
    places = shared_places(broker, group_id)
    wanted: set[Place] = {(topic_id, partition) for _, partition, topic_id in places}
    reader = SharingReader(broker, group_id, wanted)

    def read(row: PartitionRow) -> SharedPartition | None:
        try:
            return reader.read(row.place)
        except Exception as error:  # one partition that cannot be read must not hide the others
            logs.warning("console.sharing.failed", group=group_id, reason=repr(error))
            row.error = f"{row.topic}-{row.number} could not be read; the broker's log says why."
            return None

    return [
        PartitionRow(topic, partition, (topic_id, partition), read)
        for topic, partition, topic_id in places
    ]


def _is_export(request: Request, name: str) -> bool:
    query = request.query_params
    return "format" in query and query.get("table", "partitions") == name


def _needs_all(request: Request) -> bool:
    """Whether partitions that are not shown have to be looked at."""
    by = request.query_params.get("partitions.sort", "").lstrip("-")
    return by not in ("", "topic", "partition") or _is_export(request, "partitions")


async def _read_all(rows: Sequence[PartitionRow]) -> None:
    for number, row in enumerate(rows):
        if not number % _SLICE:
            await asyncio.sleep(0)
        _ = row.partition


async def _find_oldest(
    broker: Broker,
    group_id: str,
    memory: _Memory,
    table: Table[PartitionRow],
    is_export: bool,
) -> None:
    for row in table.filtered if is_export else table.rows:
        await asyncio.sleep(0)
        if row.partition is not None:
            row.oldest = await memory.oldest.find(broker, group_id, row.partition)
            if row.oldest is not None and row.oldest.timestamp_ms >= 0:
                row.oldest_age_ms = max(broker.now_ms() - row.oldest.timestamp_ms, 0)


def _card(row: PartitionRow, numbers: Mapping[str, int], now_ms: int) -> Card:
    partition = row.partition
    assert partition is not None
    return Card(
        partition=partition,
        strip=make_strip(partition, numbers, now_ms),
        oldest=row.oldest,
        oldest_age_ms=row.oldest_age_ms,
        why=stable_reason(partition, row.oldest, numbers, now_ms),
    )


def _all(
    shown: Iterable[SharedPartition], part: Callable[[SharedPartition], Iterable[Any]]
) -> list[Any]:
    return [one for partition in shown for one in part(partition)]


def _hot(shown: Iterable[SharedPartition]) -> list[HotRow]:
    return [
        HotRow(partition.topic, partition.partition, hot, partition.range_of_slot(hot.slot.slot))
        for partition in shown
        for hot in partition.hot
    ]


# Members and hand-overs -------------------------------------------------------------------------


def _owner_rows(
    broker: Broker, group_id: str, numbers: Mapping[str, int], partitions: int
) -> list[OwnerRow]:
    group = broker.groups.group(group_id)
    if group is None:
        return []
    rows = []
    for member_id, member in group.members.items():
        ranges = slots = 0
        if isinstance(group, ConsumerGroup):
            for unit in group.members[member_id].held:
                ranges += 1
                slots += unit.slots.end - unit.slots.first
        share = slots / (SLOT_COUNT * partitions) if partitions else None
        rows.append(
            OwnerRow(
                number=numbers[member_id],
                member_id=member_id,
                client_id=member.client_id,
                host=member.client_host,
                ranges=ranges if isinstance(group, ConsumerGroup) else None,
                share=share,
            )
        )
    return sorted(rows, key=lambda row: row.number)


def _moves(
    broker: Broker, group_id: str, shown: Iterable[SharedPartition], clients: Mapping[str, str]
) -> list[MoveRow]:
    """Hand-overs that are under way in the partitions shown, and those that are over; newest
    first."""
    rows = [
        MoveRow.under_way(partition, movement, clients)
        for partition in shown
        for movement in partition.movements
    ]
    over = [
        MoveRow.over(event) for event in broker.timeline.of(group_id) if isinstance(event, HandOver)
    ]
    return rows + over[::-1]


# Branch topics ----------------------------------------------------------------------------------


async def _branched(
    request: Request, broker: Broker, group_id: str, clients: Mapping[str, str]
) -> tuple[Table[tuple[Topic, int]] | None, list[BranchedPartition]]:
    """The partitions of sources that a group reads by branch topics, and those of this page."""
    topics = branch_topics(broker, group_id)
    summary = await broker.surveyor.group(group_id) if topics else None
    if summary is None:
        return None, []
    places = [
        (topic, partition)
        for topic in topics
        for partition in range(len(topic.source.partitions if topic.source is not None else ()))
    ]
    table = make_table(
        "sources", details.SOURCES, places, request.query_params, is_only=False, size=_CARDS
    )
    found = [
        read_branched(broker, summary, topic, partition, clients) for topic, partition in table.rows
    ]
    return table, found
