"""The tables of a group's Sharing tab: what a row is, and how its cells read."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from anabranch.console.oldest_records import OldestRecord
from anabranch.console.sharing import (
    SharedPartition,
    SharedRange,
    slots_text,
)
from anabranch.console.strips import letter, look, pattern
from anabranch.console.tables import Column, Value
from anabranch.console.words import MISSING, duration
from anabranch.coordinator.cooperative.records import Place

# Partitions -------------------------------------------------------------------------------------


class PartitionRow:
    """A shared partition of the list; what it is like is read when somebody looks."""

    __slots__ = (
        "_is_read",
        "_partition",
        "_read",
        "error",
        "number",
        "oldest",
        "oldest_age_ms",
        "place",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        number: int,
        place: Place,
        read: "Callable[[PartitionRow], SharedPartition | None]",
    ) -> None:
        self.topic = topic
        self.number = number
        self.place = place
        self.error = ""
        self.oldest: OldestRecord | None = None
        self.oldest_age_ms: int | None = None
        self._read = read
        self._is_read = False
        self._partition: SharedPartition | None = None

    @property
    def partition(self) -> SharedPartition | None:
        if not self._is_read:
            self._is_read = True
            self._partition = self._read(self)
        return self._partition


def _of(
    value: "Callable[[SharedPartition], Value]",
) -> "Callable[[PartitionRow], Value]":
    """A value of a partition, where it could be read."""
    return lambda row: value(row.partition) if row.partition is not None else None


PARTITIONS: list[Column[PartitionRow]] = [
    Column(
        "topic",
        "Topic",
        lambda row: row.topic,
        lambda row: Markup('<a href="#{0}">{1}</a>').format(
            f"strip-{row.topic}-{row.number}", row.topic
        ),
        hint="A topic with range.fetch.enable=true; the link leads to the strip below.",
        is_searched=True,
    ),
    Column("partition", "Partition", lambda row: row.number, is_number=True),
    Column(
        "stable_offset",
        "Stable offset",
        _of(lambda one: one.stable_offset),
        is_number=True,
        hint="Everything below it is done, whoever did it; it is the group's committed offset.",
    ),
    Column(
        "high_watermark",
        "End",
        _of(lambda one: one.high_watermark),
        is_number=True,
        hint="The high watermark: the offset of the next record to come.",
    ),
    Column(
        "done_above",
        "Done above",
        _of(lambda one: one.done_above),
        is_number=True,
        hint="Offsets above the stable offset that somebody has done; at most so many records.",
    ),
    Column(
        "gaps",
        "Gaps",
        _of(lambda one: one.gaps),
        is_number=True,
        hint="Open stretches between records that are done, over all ranges.",
    ),
    Column(
        "in_flight",
        "In flight",
        _of(lambda one: one.in_flight),
        is_number=True,
        hint="Offsets that members were shown and have not finished; at most so many records.",
    ),
    Column(
        "oldest_offset",
        "Oldest open",
        lambda row: row.oldest.offset if row.oldest is not None else None,
        is_number=True,
        hint="The first record that nobody has finished.",
    ),
    Column(
        "oldest_age_ms",
        "Its age",
        lambda row: row.oldest_age_ms,
        lambda row: duration(row.oldest_age_ms),
        is_number=True,
        hint="How long ago that record was written.",
    ),
    Column(
        "stalled_ms",
        "Standing still",
        _of(lambda one: one.stalled_ms),
        lambda row: duration(row.partition.stalled_ms if row.partition else None),
        is_number=True,
        hint="How long the stable offset has not moved although members were shown more.",
    ),
    Column(
        "ranges",
        "Ranges",
        _of(lambda one: len(one.ranges)),
        is_number=True,
        hint="Key ranges that are equally far and have one owner.",
    ),
    Column(
        "retries",
        "Retries",
        _of(lambda one: one.retries),
        is_number=True,
        hint="Failed attempts at records that are still to be done.",
    ),
    Column(
        "blocked",
        "Blocked",
        _of(lambda one: one.blocked),
        is_number=True,
        hint="Records that had their last attempt: their keys wait for a decision.",
    ),
    Column(
        "diverted",
        "Diverted",
        _of(lambda one: len(one.diverted)),
        is_number=True,
        hint="Keys whose records go to the dead-letter topic.",
    ),
]


# Owners -----------------------------------------------------------------------------------------


class OwnerRow(NamedTuple):
    """A member and what it has of the key space."""

    number: int
    member_id: str
    client_id: str
    host: str
    ranges: int | None
    share: float | None


def swatch(number: int | None) -> Markup:
    """The letter of an owner in its colour and pattern."""
    text = letter(number) if number is not None else MISSING
    over = ""
    if pattern(number) is not None:
        over = Markup('<rect width="100%" height="100%" fill="url(#strip-pattern-{0})"/>').format(
            pattern(number)
        )
    return Markup(
        '<svg class="swatch" width="30" height="18" role="img" aria-label="{0}">'
        '<rect width="100%" height="100%" class="{1}"/>{2}'
        '<text x="50%" y="13" text-anchor="middle">{0}</text></svg>'
    ).format(text, look(number), over)


def owner_cell(member_id: str | None, client_id: str, numbers: Mapping[str, int]) -> Markup:
    """The name of an owner with its swatch."""
    if member_id is None:
        return Markup('<span class="soft">nobody</span>')
    return Markup('<span class="signed">{0} {1}</span>').format(
        swatch(numbers.get(member_id)), client_id or member_id
    )


def percent(share: float | None) -> str:
    """A share for people."""
    if share is None:
        return MISSING
    return f"{100 * share:.1f} %" if share >= 0.001 or not share else f"{100 * share:.4f} %"


def owners(numbers: Mapping[str, int]) -> Sequence[Column[OwnerRow]]:
    return [
        Column(
            "letter",
            "Sign",
            lambda row: letter(row.number),
            lambda row: swatch(numbers.get(row.member_id)),
            hint="How the member is drawn in the strips, for as long as it is here.",
        ),
        Column("client_id", "Client", lambda row: row.client_id, is_searched=True),
        Column(
            "member_id",
            "Member",
            lambda row: row.member_id,
            lambda row: Markup('<code class="id">{0}</code>').format(row.member_id),
            is_searched=True,
        ),
        Column("host", "Host", lambda row: row.host, is_searched=True),
        Column(
            "ranges",
            "Ranges",
            lambda row: row.ranges,
            is_number=True,
            hint="Key ranges and whole partitions that it holds.",
        ),
        Column(
            "share",
            "Keys",
            lambda row: row.share,
            lambda row: percent(row.share),
            is_number=True,
            hint="How much it has of the key space of all shared partitions.",
        ),
    ]


# Ranges -----------------------------------------------------------------------------------------


def ranges(numbers: Mapping[str, int], now_ms: int) -> Sequence[Column[SharedRange]]:
    return [
        *_range_columns(numbers),
        *_RANGE_PROGRESS,
        Column(
            "heir",
            "Goes to",
            lambda row: row.heir,
            lambda row: _heir(row, numbers, now_ms),
            hint="Who is to have it next, and for how long it has been on its way.",
        ),
    ]


def _range_columns(numbers: Mapping[str, int]) -> list[Column[SharedRange]]:
    """What a range is, and whose."""
    return [
        Column("topic", "Topic", lambda row: row.topic, is_searched=True),
        Column("partition", "Partition", lambda row: row.partition, is_number=True),
        Column(
            "first_slot",
            "Slots",
            lambda row: row.slots.first,
            lambda row: slots_text(row.slots),
            is_number=True,
            hint="First and last of the 65,536 slots that the key space is cut into.",
        ),
        Column(
            "slots",
            "Keys",
            lambda row: row.slots.end - row.slots.first,
            lambda row: percent(row.share),
            is_number=True,
            hint="How much of the key space of its partition it is.",
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
            "epoch",
            "Epoch",
            lambda row: row.epoch,
            is_number=True,
            hint="The member epoch since which the owner has it.",
        ),
    ]


_RANGE_PROGRESS: list[Column[SharedRange]] = [
    Column(
        "watermark",
        "Watermark",
        lambda row: row.watermark,
        is_number=True,
        hint="All records of the range below it are done.",
    ),
    Column(
        "done_above",
        "Done above",
        lambda row: row.done_above,
        is_number=True,
        hint="Offsets above the watermark that are done; at most so many records.",
    ),
    Column(
        "gaps",
        "Gaps",
        lambda row: row.gaps,
        is_number=True,
        hint="Open stretches between the watermark and the last record that is done.",
    ),
    Column(
        "in_flight",
        "In flight",
        lambda row: row.in_flight,
        is_number=True,
        hint="Offsets that the owner was shown and has not done; at most so many records.",
    ),
]


def _heir(row: SharedRange, numbers: Mapping[str, int], now_ms: int) -> Markup | str:
    if row.moving_since_ms is None:
        return MISSING
    sign = swatch(numbers.get(row.heir)) if row.heir is not None else Markup("nobody")
    return Markup("{0} for {1}").format(sign, duration(max(now_ms - row.moving_since_ms, 0)))
