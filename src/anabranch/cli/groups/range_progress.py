"""Partitions that members share by key range: what is done of them, and what holds them up.

Offsets are not records: members say what they have done of their own slots, and a range of offsets
that is done may have records of other slots within it. So what is counted here is the most that it
can be.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from anabranch.cli.output import counted, printable
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import SlotRange

# How long a record rests that is not tried again.
NEVER_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRow:
    """Slots that are equally far and have one owner, or none."""

    slots: SlotRange
    owner: str | None
    client_id: str | None
    epoch: int | None
    watermark: int
    done: OffsetRanges

    @property
    def end_offset(self) -> int:
        """Nothing at or above it is done."""
        return self.done.last + 1 if self.done else self.watermark

    @property
    def slots_text(self) -> str:
        return f"{self.slots.first}-{self.slots.end - 1}"

    def is_done(self, offset: int) -> bool:
        return offset < self.watermark or offset in self.done

    def done_from(self, offset: int) -> OffsetRanges:
        """What is done at or above an offset."""
        below = OffsetRanges([(offset, self.watermark - 1)]) if offset < self.watermark else EMPTY
        return below.union(self.done.at_or_above(offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedRow:
    """A record that failed; a rest of None has no end."""

    offset: int
    attempts: int
    rest_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPartition:
    """A partition, as far as a group is with it; a stable offset of None is not there yet."""

    topic: str
    partition: int
    stable_offset: int | None
    high_watermark: int | None  # None: not known
    ranges: tuple[RangeRow, ...]
    retried: tuple[RetriedRow, ...]

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def window(self) -> int | None:
        """How far ahead of the stable offset somebody is."""
        if self.stable_offset is None:
            return None
        return max(row.end_offset for row in self.ranges) - self.stable_offset

    def done_from(self, offset: int) -> int:
        """How many offsets at or above this one somebody has done."""
        return _offsets_done(self.ranges, offset)

    def oldest_open_offset(self, row: RangeRow) -> int | None:
        """The offset that a range waits for; None when it has nothing left to do."""
        if self.stable_offset is None or row.watermark >= (self.high_watermark or 0):
            return None
        return row.watermark

    def range_of(self, retried: RetriedRow) -> RangeRow | None:
        """The range of a record that failed; None when it may be one of several."""
        open_ranges = [row for row in self.ranges if not row.is_done(retried.offset)]
        return open_ranges[0] if len(open_ranges) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What keeps a stable offset where it is."""

    row: RangeRow
    other_ranges: int  # that wait for the same offset
    since_offset: int
    own_done_above: int
    others_done_above: int
    retried: RetriedRow | None


def find_hold(partition: SharedPartition) -> Hold | None:
    """Why the stable offset does not move; None when all is done, or nothing has begun."""
    stable = partition.stable_offset
    if stable is None:
        return None
    holding = [row for row in partition.ranges if partition.oldest_open_offset(row) == stable]
    if not holding:
        return None
    # What nobody works on stays where it is, so that comes first; then who is ahead of itself.
    row = min(holding, key=lambda one: (one.owner is not None, not one.done, one.slots))
    return Hold(
        row=row,
        other_ranges=len(holding) - 1,
        since_offset=stable,
        own_done_above=row.done.offsets_count,
        others_done_above=_offsets_done([one for one in partition.ranges if one != row], stable),
        retried=next((one for one in partition.retried if one.offset == stable), None),
    )


def _offsets_done(rows: Iterable[RangeRow], offset: int) -> int:
    done = EMPTY
    for row in rows:
        done = done.union(row.done_from(offset))
    return done.offsets_count


# In words ---------------------------------------------------------------------------------------


def why(partition: SharedPartition) -> str:
    """One sentence: why the stable offset is where it is."""
    stable, high_watermark = partition.stable_offset, partition.high_watermark
    if stable is None:
        return f"there is no stable offset of {partition.name}: nothing was committed yet."
    hold = find_hold(partition)
    if hold is None:
        if high_watermark is None:
            return f"the stable offset of {partition.name} is {stable}; its end is not known."
        return f"the stable offset of {partition.name} is {stable}: nothing is left to do."
    parts = [
        f"the stable offset of {partition.name} stays at {stable}: {_holder(hold)}",
        _done_above(hold),
        *([_failed(hold.retried)] if hold.retried is not None else []),
    ]
    return "; ".join(parts) + "."


def _holder(hold: Hold) -> str:
    row = hold.row
    if row.owner is None:
        text = f"nobody owns slots {row.slots_text}, which wait for offset {hold.since_offset}"
    else:
        owner = row.owner if row.client_id is None else f"{row.client_id} ({row.owner})"
        text = f"slots {row.slots_text} of {owner} wait for offset {hold.since_offset}"
    if hold.other_ranges:
        text += f", and {counted(hold.other_ranges, 'more range')} with them"
    return text


def _done_above(hold: Hold) -> str:
    counts = [
        f"{counted(number, 'record')} of {whose}"
        for number, whose in (
            (hold.others_done_above, "other ranges"),
            (hold.own_done_above, "its own"),
        )
        if number
    ]
    if not counts:
        return "nothing above it is done"
    verb = "is" if hold.others_done_above + hold.own_done_above == 1 else "are"
    return f"up to {' and '.join(counts)} {verb} done above it"


def _failed(retried: RetriedRow) -> str:
    times = counted(retried.attempts, "time")
    reason = f" ({printable(retried.reason.encode())})" if retried.reason else ""
    if retried.rest_ms is None:
        rest = "is not tried again until somebody decides about it"
    elif retried.rest_ms:
        rest = f"rests for another {rest_text(retried.rest_ms)}"
    else:
        rest = "is due again"
    return f"the record there failed {times}{reason} and {rest}"


def rest_text(rest_ms: int | None) -> str:
    """A rest for people: `1.5s`, or `for-ever`."""
    return "for-ever" if rest_ms is None else f"{rest_ms / 1000:g}s"


# JSON -------------------------------------------------------------------------------------------


def ranges_document(partitions: list[SharedPartition]) -> list[dict[str, Any]]:
    """The partitions as JSON shows them; slots and offsets of ranges include both ends."""
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "stable_offset": partition.stable_offset,
            "high_watermark": partition.high_watermark,
            "window": partition.window,
            "why": why(partition),
            "held_by": _hold_document(find_hold(partition)),
            "ranges": [_range_document(partition, row) for row in partition.ranges],
            "retried": [_retried_document(partition, one) for one in partition.retried],
        }
        for partition in partitions
    ]


def _slots_document(row: RangeRow | None) -> dict[str, Any]:
    return {
        "first_slot": None if row is None else row.slots.first,
        "last_slot": None if row is None else row.slots.end - 1,
    }


def _owner_document(row: RangeRow) -> dict[str, Any]:
    return {"consumer_id": row.owner, "client_id": row.client_id, "epoch": row.epoch}


def _hold_document(hold: Hold | None) -> dict[str, Any] | None:
    if hold is None:
        return None
    return {
        **_slots_document(hold.row),
        **_owner_document(hold.row),
        "since_offset": hold.since_offset,
        "other_ranges": hold.other_ranges,
        "own_done_above": hold.own_done_above,
        "others_done_above": hold.others_done_above,
        "is_retried": hold.retried is not None,
    }


def _range_document(partition: SharedPartition, row: RangeRow) -> dict[str, Any]:
    return {
        **_slots_document(row),
        **_owner_document(row),
        "watermark": row.watermark if partition.stable_offset is not None else None,
        "oldest_open_offset": partition.oldest_open_offset(row),
        "done_ranges": len(row.done),
        "done_offsets": row.done.offsets_count,
        "done": [{"first": first, "last": last} for first, last in row.done],
    }


def _retried_document(partition: SharedPartition, retried: RetriedRow) -> dict[str, Any]:
    return {
        "offset": retried.offset,
        "attempts": retried.attempts,
        "rest_ms": retried.rest_ms,
        "is_exhausted": retried.rest_ms is None,
        "reason": retried.reason,
        **_slots_document(partition.range_of(retried)),
    }
