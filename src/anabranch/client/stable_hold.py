"""Why a stable offset does not move: what holds it, and one sentence that says so. Pure.

Looked for in this order, because what comes first will not go away by itself
- a record that is not tried again, or rests: its key waits for it;
- key ranges that nobody owns;
- a hand-over that is not over;
- a record that its owner was not shown yet, or works on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.client.group_view import (
    GroupRange,
    Handover,
    OldestRecord,
    PartitionProgress,
    RetriedRecord,
)
from anabranch.model.offset_ranges import EMPTY

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What keeps a stable offset where it is."""

    row: GroupRange
    other_ranges: int  # that wait for the same offset
    since_offset: int
    own_done_above: int
    others_done_above: int
    retried: RetriedRecord | None
    oldest: OldestRecord | None
    handover: Handover | None

    @property
    def offset(self) -> int:
        """The record that is waited for, where it is known; else where to look for it."""
        return self.oldest.offset if self.oldest is not None else self.since_offset

    @property
    def is_shown(self) -> bool | None:
        """Whether the owner was shown it; None: not known."""
        if self.row.delivered_offset is None:
            return None
        return self.offset < self.row.delivered_offset


def find_hold(partition: PartitionProgress) -> Hold | None:
    """Why the stable offset does not move; None when all is done, or nothing has begun."""
    stable = partition.stable_offset
    if stable is None:
        return None
    holding = [row for row in partition.ranges if partition.oldest_open_offset(row) == stable]
    row = _holder(partition, holding)
    if row is None:
        return None
    oldest = partition.oldest
    offset = oldest.offset if oldest is not None else stable
    return Hold(
        row=row,
        other_ranges=sum(one != row for one in holding),
        since_offset=stable,
        own_done_above=row.done.offsets_count,
        others_done_above=_offsets_done([one for one in partition.ranges if one != row], stable),
        retried=next((one for one in partition.retried if one.offset == offset), None),
        oldest=oldest,
        handover=_handover(partition, row),
    )


def _holder(partition: PartitionProgress, holding: list[GroupRange]) -> GroupRange | None:
    if partition.oldest is not None:
        found = partition.range_of_slot(partition.oldest.slot)
        if found is not None:
            return found
    # What nobody works on stays where it is, so that comes first; then who is ahead of itself.
    return min(
        holding, key=lambda one: (one.owner is not None, not one.done, one.slots), default=None
    )


def _handover(partition: PartitionProgress, row: GroupRange) -> Handover | None:
    """What of a range is on its way."""
    return next(
        (
            one
            for one in partition.handovers
            if one.from_member == row.owner
            and one.key_range.slots.first < row.slots.end
            and row.slots.first < one.key_range.slots.end
        ),
        None,
    )


def _offsets_done(rows: Iterable[GroupRange], offset: int) -> int:
    done = EMPTY
    for row in rows:
        done = done.union(row.done_from(offset))
    return done.offsets_count


# In words ---------------------------------------------------------------------------------------


def explain_stable_offset(partition: PartitionProgress, *, is_enabled: bool = True) -> str:
    """One sentence: why the stable offset is where it is."""
    stable = partition.stable_offset
    if stable is None:
        return _nothing_yet(partition) + "."
    hold = find_hold(partition)
    if hold is None or (partition.is_searched and partition.oldest is None):
        return _all_done(partition, hold) + "."
    since = f" for {duration(partition.stalled_ms)}" if partition.stalled_ms is not None else ""
    parts = [
        f"the stable offset of {partition.name} stays at {stable}{since}: {_cause(hold)}",
        _done_above(hold),
        *_switches(partition, is_enabled),
    ]
    return "; ".join(parts) + "."


def _nothing_yet(partition: PartitionProgress) -> str:
    silent = [row for row in partition.ranges if row.watermark < 0]
    head = f"there is no stable offset of {partition.name}: nothing was committed yet"
    if len(silent) == len(partition.ranges):
        return head
    texts = ", ".join(_of_owner(row) for row in silent[:3])
    more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
    return f"{head} for slots {texts}{more}"


def _of_owner(row: GroupRange) -> str:
    return f"{row.slots_text} ({'which nobody owns' if row.owner is None else _owner(row)})"


def _all_done(partition: PartitionProgress, hold: Hold | None) -> str:
    head = f"the stable offset of {partition.name} is {partition.stable_offset}"
    if partition.high_watermark is None:
        return f"{head}; its end is not known"
    if hold is None:
        return f"{head}: nothing is left to do"
    row = hold.row
    who = "nobody owns" if row.owner is None else f"{_owner(row)} has not confirmed"
    return f"{head}: no record is left to do, but {who} slots {row.slots_text}"


def _cause(hold: Hold) -> str:
    text = _failed(hold) if hold.retried is not None else _waiting(hold)
    if hold.other_ranges:
        text += f", and {_counted(hold.other_ranges, 'more range')} with it"
    return text


def _failed(hold: Hold) -> str:
    retried = hold.retried
    assert retried is not None
    reason = f" ({printable(retried.reason)})" if retried.reason else ""
    if retried.rest_ms is None:
        rest = (
            "is not tried again until somebody decides about it"
            " (anabranch groups release, skip or dlq)"
        )
    elif retried.rest_ms:
        rest = f"rests for another {duration(retried.rest_ms)}"
    else:
        rest = "is due again"
    whose = "which nobody owns" if hold.row.owner is None else f"of {_owner(hold.row)}"
    return (
        f"{_record(hold)} in slots {hold.row.slots_text}, {whose}, failed"
        f" {_counted(retried.attempts, 'time')}{reason} and {rest}"
    )


def _waiting(hold: Hold) -> str:
    row = hold.row
    if row.owner is None:
        text = f"nobody owns slots {row.slots_text}, which wait for {_record(hold)}"
        if hold.handover is not None and hold.handover.to_member is not None:
            text += f"; {hold.handover.to_member} is to have them"
        return text
    if hold.handover is not None:
        heir = hold.handover.to_member or "nobody"
        return (
            f"{_owner(row)} is to hand slots {row.slots_text} over to {heir}, and still has"
            f" {_record(hold)}"
        )
    if hold.is_shown is None:
        return f"slots {row.slots_text} of {_owner(row)} wait for {_record(hold)}"
    if not hold.is_shown:
        return (
            f"slots {row.slots_text} of {_owner(row)} wait for {_record(hold)}, which it was not"
            " shown yet"
        )
    return f"{_owner(row)} works on {_record(hold)} in slots {row.slots_text}"


def _record(hold: Hold) -> str:
    oldest = hold.oldest
    if oldest is None:
        return f"offset {hold.since_offset}"
    details = []
    if oldest.key is not None:
        details.append(f"key {printable(oldest.key.decode('utf-8', 'backslashreplace'))}")
    if oldest.age_ms is not None:
        details.append(f"{duration(oldest.age_ms)} old")
    return f"offset {oldest.offset}" + (f" ({', '.join(details)})" if details else "")


def _owner(row: GroupRange) -> str:
    return f"{row.owner}" if row.client_id is None else f"{row.client_id} ({row.owner})"


def _done_above(hold: Hold) -> str:
    counts = [
        f"{_counted(number, 'record')} of {whose}"
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


def _switches(partition: PartitionProgress, is_enabled: bool) -> list[str]:
    found = []
    if partition.is_shareable is False and any(row.done for row in partition.ranges):
        found.append(f"{partition.topic} may not be shared any more (range.fetch.enable=false)")
    if not is_enabled:
        found.append(
            "the broker takes no individual commits now (group.individual.commit.enable=false)"
        )
    return found


def duration(length_ms: int) -> str:
    """A length of time for people, in one unit."""
    if length_ms < _SECOND_MS:
        return f"{max(length_ms, 0)} ms"
    if length_ms < 2 * _MINUTE_MS:
        return f"{length_ms / _SECOND_MS:.3g} s"
    for unit_ms, unit in ((_DAY_MS, "days"), (_HOUR_MS, "h"), (_MINUTE_MS, "min")):
        if length_ms >= 2 * unit_ms or unit_ms == _MINUTE_MS:
            return f"{length_ms // unit_ms} {unit}"
    raise AssertionError(length_ms)


def printable(text: str) -> str:
    """Text on one line, with escapes for what would not show."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
