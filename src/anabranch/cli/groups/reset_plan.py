"""Where `groups reset` puts each offset: the forms of a target, and what they mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from anabranch.cli.cluster import list_offsets, offset_ranges
from anabranch.cli.errors import CliError
from anabranch.cli.groups.lookup import Committed, TopicPartitionKey
from anabranch.cli.options import Connection
from anabranch.model.lag import lag

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class TargetKind(Enum):
    """How the new offsets are given; the values are the flags."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One partition's offset before and after, and why it is not what was asked for."""

    topic: str
    partition: int
    before: int | None
    after: int
    lag: int  # when it is done
    remark: str | None


def plan(
    admin: "AdminClient",
    connection: Connection,
    target: Target,
    keys: list[TopicPartitionKey],
    committed: Mapping[TopicPartitionKey, Committed],
) -> list[Change]:
    """The new offset of each partition; CliError where there can be none."""
    from confluent_kafka.admin import OffsetSpec

    ranges = offset_ranges(admin, connection, keys)
    found: dict[TopicPartitionKey, int] = {}
    if target.kind in (TargetKind.DATETIME, TargetKind.DURATION):
        found = list_offsets(admin, connection, keys, OffsetSpec.for_timestamp(target.value))
    changes = []
    for key in keys:
        start, end = ranges[key]
        before = committed[key].offset if key in committed else None
        after, remark = new_offset(target, key, before, start, end, found.get(key, -1))
        changes.append(
            Change(
                topic=key[0],
                partition=key[1],
                before=before,
                after=after,
                lag=lag(end, after, start),
                remark=remark,
            )
        )
    return changes


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
                return end, f"Nothing was committed for {_name(key)}; it is set to its end, {end}."
            return before, None
        case TargetKind.OFFSET:
            return _clamped(target.value, key, start, end)
        case TargetKind.FILE:
            return _clamped(target.offsets[key], key, start, end)
        case TargetKind.SHIFT:
            if before is None:
                raise CliError(
                    f"Cannot shift the offset of {_name(key)}",
                    "nothing was committed for it",
                    "leave that partition out, or use another target such as --to-earliest",
                )
            return _clamped(before + target.value, key, start, end)


def _clamped(wanted: int, key: TopicPartitionKey, start: int, end: int) -> tuple[int, str | None]:
    """An offset that can be read from, as near to the wanted one as there is."""
    if wanted < start:
        return start, f"Offset {wanted} of {_name(key)} is before its first; it is set to {start}."
    if wanted > end:
        return end, f"Offset {wanted} of {_name(key)} is beyond its end; it is set to {end}."
    return wanted, None


def _name(key: TopicPartitionKey) -> str:
    return f"{key[0]}-{key[1]}"
