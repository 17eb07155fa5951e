"""Where a reset puts the offset of a partition: the forms of a target, and what each means.

Command line and console both ask here, so that a reset is the same wherever it is asked for.

Rules
- The new offset can always be read from: what is asked for beyond an end becomes that end, and a
  remark says so.
- A time stands for the first record from then on, or the end when there is none.
- What was never committed has no position that could be kept or shifted: to keep it means the end,
  and to shift it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

TopicPartitionKey = tuple[str, int]


class TargetKind(Enum):
    """How the new offsets are given; the values are the flags that Kafka's users know."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    DATETIME = "--to-datetime"
    DURATION = "--by-duration"
    SHIFT = "--shift-by"
    FILE = "--from-file"


@dataclass(frozen=True, slots=True)
class Target:
    """New offsets; `value` is an offset, a time in ms, or a distance, as `kind` has it."""

    kind: TargetKind
    value: int = 0
    offsets: Mapping[TopicPartitionKey, int] = field(default_factory=dict)  # of FILE


class NothingCommittedError(Exception):
    """A partition without an offset cannot be shifted."""

    def __init__(self, key: TopicPartitionKey) -> None:
        super().__init__(f"nothing was committed for {name_of(key)}")
        self.key = key


def new_offset(
    target: Target,
    key: TopicPartitionKey,
    before: int | None,
    start: int,
    end: int,
    found: int,
) -> tuple[int, str | None]:
    """One partition's new offset and a remark; `found` is the offset of the time, or -1."""
    match target.kind:
        case TargetKind.EARLIEST:
            return start, None
        case TargetKind.LATEST:
            return end, None
        case TargetKind.DATETIME | TargetKind.DURATION:
            return (end if found < 0 else found), None
        case TargetKind.CURRENT:
            if before is None:
                remark = f"Nothing was committed for {name_of(key)}; it is set to its end, {end}."
                return end, remark
            return before, None
        case TargetKind.OFFSET:
            return _clamped(target.value, key, start, end)
        case TargetKind.FILE:
            return _clamped(target.offsets[key], key, start, end)
        case TargetKind.SHIFT:
            if before is None:
                raise NothingCommittedError(key)
            return _clamped(before + target.value, key, start, end)


def _clamped(wanted: int, key: TopicPartitionKey, start: int, end: int) -> tuple[int, str | None]:
    """An offset that can be read from, as near to the wanted one as there is."""
    if wanted < start:
        remark = f"Offset {wanted} of {name_of(key)} is before its first; it is set to {start}."
        return start, remark
    if wanted > end:
        return end, f"Offset {wanted} of {name_of(key)} is beyond its end; it is set to {end}."
    return wanted, None


def name_of(key: TopicPartitionKey) -> str:
    return f"{key[0]}-{key[1]}"
