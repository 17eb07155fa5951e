"""More tables of a group's Sharing tab: failed records, special keys, hand-overs and branches."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from anabranch.broker.range_loads import HotKey
from anabranch.broker.timeline_events import HandOver
from anabranch.broker.topics import Topic
from anabranch.console.branch_sharing import BranchRow
from anabranch.console.pages.group_sharing_columns import owner_cell, percent
from anabranch.console.sharing import (
    DivertedKey,
    FailedRecord,
    SharedPartition,
    SharedRange,
    slots_text,
)
from anabranch.console.strips import key_text
from anabranch.console.tables import Column
from anabranch.console.words import MISSING, duration, link, time
from anabranch.coordinator.group.consumer_describe import Movement

# Records and keys -------------------------------------------------------------------------------

FAILED: list[Column[FailedRecord]] = [
    Column("topic", "Topic", lambda row: row.topic, is_searched=True),
    Column("partition", "Partition", lambda row: row.partition, is_number=True),
    Column("offset", "Offset", lambda row: row.offset, is_number=True),
    Column("attempts", "Attempts", lambda row: row.attempts, is_number=True),
    Column(
        "rest_ms",
        "Again in",
        lambda row: row.rest_ms,
        lambda row: (
            Markup('<span class="state error">not by itself</span>')
            if row.rest_ms is None
            else duration(row.rest_ms)
        ),
        hint="After its last attempt a record waits until somebody decides about it.",
        is_number=True,
    ),
    Column("slot", "Slot", lambda row: row.slot, is_number=True),
    Column(
        "key_hash",
        "Key hash",
        lambda row: str(row.key_hash),
        hint="As `anabranch groups release --key-hash` takes it.",
    ),
    Column("reason", "Reason", lambda row: row.reason, is_searched=True),
]

DIVERTED: list[Column[DivertedKey]] = [
    Column("topic", "Topic", lambda row: row.topic, is_searched=True),
    Column("partition", "Partition", lambda row: row.partition, is_number=True),
    Column("key_hash", "Key hash", lambda row: str(row.key_hash), is_searched=True),
    Column("slot", "Slot", lambda row: row.slot, is_number=True),
    Column("from_offset", "From offset", lambda row: row.from_offset, is_number=True),
]


class HotRow(NamedTuple):
    """A slot that is more than a fair load by itself."""

    topic: str
    partition: int
    hot: HotKey
    range: SharedRange | None


HOT: list[Column[HotRow]] = [
    Column("topic", "Topic", lambda row: row.topic, is_searched=True),
    Column("partition", "Partition", lambda row: row.partition, is_number=True),
    Column("slot", "Slot", lambda row: row.hot.slot.slot, is_number=True),
    Column(
        "share",
        "Load",
        lambda row: row.hot.slot.share,
        lambda row: percent(row.hot.slot.share),
        is_number=True,
        hint="How much of the group's load it is; more than a fair share cannot be split further.",
    ),
    Column(
        "key",
        "Key",
        lambda row: key_text(row.hot.key) if row.hot.key is not None else None,
        lambda row: (
            Markup("<code>{0}</code>").format(key_text(row.hot.key))
            if row.hot.key is not None
            else MISSING
        ),
        hint="The key that most of its newest records have, if one does.",
        is_searched=True,
    ),
    Column("member_id", "Owner", lambda row: row.hot.slot.member_id, is_searched=True),
]


# Hand-overs -------------------------------------------------------------------------------------


class Party(NamedTuple):
    """One side of a hand-over; without a member id it is nobody."""

    member_id: str
    client_id: str

    def __str__(self) -> str:
        return f"{self.client_id} {self.member_id}".strip() or "nobody"

    @property
    def html(self) -> Markup:
        return Markup('<span title="{0}">{1}</span>').format(
            self.member_id, self.client_id or self.member_id or "nobody"
        )


class MoveRow(NamedTuple):
    """Key ranges that change hands, or did."""

    what: str
    ranges: int
    giver: Party
    taker: Party
    since_ms: int
    # None while it is under way.
    duration_ms: int | None

    @classmethod
    def under_way(
        cls, partition: SharedPartition, movement: Movement, clients: Mapping[str, str]
    ) -> "MoveRow":
        return cls(
            f"{partition.name} slots {slots_text(movement.unit.slots)}",
            1,
            _party(movement.from_member_id, clients),
            _party(movement.to_member_id, clients),
            movement.since_ms,
            None,
        )

    @classmethod
    def over(cls, event: HandOver) -> "MoveRow":
        named = ", ".join(
            f"{one.topic}-{one.partition} slots {slots_text(one.slots)}" for one in event.ranges[:3]
        )
        more = f" and {event.count - 3:,} more" if event.count > 3 else ""
        return cls(
            named + more,
            event.count,
            Party(event.giver.member_id, event.giver.client_id),
            Party(event.taker.member_id, event.taker.client_id),
            event.at_ms,
            event.duration_ms,
        )


def _party(member_id: str | None, clients: Mapping[str, str]) -> Party:
    return Party(member_id or "", clients.get(member_id or "", ""))


def moves(now_ms: int) -> Sequence[Column[MoveRow]]:
    return [
        Column(
            "state",
            "State",
            lambda row: "under way" if row.duration_ms is None else "done",
            lambda row: Markup('<span class="state {0}">{1}</span>').format(
                "reconciling" if row.duration_ms is None else "stable",
                "under way" if row.duration_ms is None else "done",
            ),
            hint="Under way: the giver still finishes what runs, or the taker has yet to hear.",
            is_searched=True,
        ),
        Column(
            "since_ms",
            "When",
            lambda row: row.since_ms,
            lambda row: time(row.since_ms, now_ms),
            is_number=True,
            hint="Since when it is on its way, or when it was over.",
        ),
        Column(
            "duration_ms",
            "Took",
            lambda row: row.duration_ms,
            lambda row: duration(row.duration_ms),
            is_number=True,
            hint="From when the giver was told to stop, or was gone, until the taker had it.",
        ),
        Column(
            "giver",
            "From",
            lambda row: str(row.giver),
            lambda row: row.giver.html,
            is_searched=True,
        ),
        Column(
            "taker",
            "To",
            lambda row: str(row.taker),
            lambda row: row.taker.html,
            is_searched=True,
        ),
        Column("count", "Ranges", lambda row: row.ranges, is_number=True),
        Column("what", "What", lambda row: row.what, is_searched=True),
    ]


# Branches ---------------------------------------------------------------------------------------

SOURCES: list[Column[tuple[Topic, int]]] = [
    Column(
        "topic",
        "Branch topic",
        lambda row: row[0].name,
        lambda row: link(row[0].name, "topics", row[0].name),
        is_searched=True,
    ),
    Column(
        "source",
        "Source",
        lambda row: row[0].source.name if row[0].source is not None else None,
        is_searched=True,
    ),
    Column("partition", "Partition", lambda row: row[1], is_number=True),
    Column(
        "branches",
        "Branches",
        lambda row: row[0].layout.ranges if row[0].layout is not None else None,
        is_number=True,
    ),
]


def branches(numbers: Mapping[str, int]) -> Sequence[Column[BranchRow]]:
    return [
        Column("topic", "Branch topic", lambda row: row.topic, is_searched=True),
        Column(
            "branch",
            "Branch",
            lambda row: row.index,
            is_number=True,
            hint="The partition of the branch topic.",
        ),
        Column("partition", "Partition", lambda row: row.partition, is_number=True),
        Column(
            "first_slot",
            "Slots",
            lambda row: row.slots.first,
            lambda row: slots_text(row.slots),
            is_number=True,
        ),
        Column(
            "client_id",
            "Owner",
            lambda row: row.client_id or None,
            lambda row: owner_cell(row.owner, row.client_id, numbers),
            is_searched=True,
        ),
        Column(
            "member_id",
            "Member",
            lambda row: row.owner,
            lambda row: Markup('<code class="id">{0}</code>').format(row.owner or MISSING),
            is_searched=True,
        ),
        Column(
            "committed",
            "Committed",
            lambda row: row.committed_offset,
            is_number=True,
            hint="What the group has committed for this branch.",
        ),
        Column(
            "first_open",
            "First open",
            lambda row: row.first_open_offset,
            is_number=True,
            hint="The first record of this branch that is not done, or the end.",
        ),
        Column(
            "unprocessed",
            "Unprocessed",
            lambda row: row.unprocessed,
            is_number=True,
            hint="Records of this branch alone that are not done.",
        ),
    ]
