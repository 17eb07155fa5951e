"""Where `consume` starts: the forms of --from, and the offsets they mean."""

import contextlib
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from anabranch.cli.cluster import list_offsets, offset_ranges
from anabranch.cli.errors import CliError
from anabranch.cli.options import Connection
from anabranch.cli.times import duration_ms, timestamp_ms

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class StartKind(Enum):
    """How a start is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    LAST = "last"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Start:
    """A start; `value` is the offset, the number of last records, or the time in ms."""

    kind: StartKind
    value: int = 0


def parse_start(text: str, *, now_ms: int) -> Start:
    """The start that `text` means; ValueError names the forms there are."""
    if text in ("earliest", "latest"):
        return Start(StartKind(text))
    if re.fullmatch(r"-\d+", text):
        return Start(StartKind.LAST, int(text[1:]))
    if re.fullmatch(r"\d+", text):
        return Start(StartKind.OFFSET, int(text))
    with contextlib.suppress(ValueError):
        return Start(StartKind.TIMESTAMP, max(now_ms - duration_ms(text), 0))
    with contextlib.suppress(ValueError):
        return Start(StartKind.TIMESTAMP, timestamp_ms(text))
    raise ValueError(
        f"{text!r} is none of earliest, latest, an offset (1500), the last N (-10),"
        " a time (2025-01-15T09:00:00Z), a duration (5m, 1h30m)"
    )


def parse_last(text: str, *, now_ms: int) -> Start:
    """The start that --last means: a duration, or a number of records of each partition."""
    if re.fullmatch(r"\d+", text):
        return Start(StartKind.LAST, int(text))
    with contextlib.suppress(ValueError):
        return Start(StartKind.TIMESTAMP, max(now_ms - duration_ms(text), 0))
    raise ValueError(f"{text!r} is neither a duration (5m, 1h30m) nor a number of records (10)")


def resolve_start(
    admin: "AdminClient", connection: Connection, topic: str, partitions: list[int], start: Start
) -> dict[int, tuple[int, int]]:
    """Per partition the first offset to read and the present end."""
    from confluent_kafka.admin import OffsetSpec

    keys = [(topic, partition) for partition in partitions]
    ranges = {
        partition: bounds
        for (_, partition), bounds in offset_ranges(admin, connection, keys).items()
    }
    if start.kind is StartKind.TIMESTAMP:
        found = list_offsets(admin, connection, keys, OffsetSpec.for_timestamp(start.value))
        return {
            partition: (end if found[(topic, partition)] < 0 else found[(topic, partition)], end)
            for partition, (_, end) in ranges.items()
        }
    return {
        partition: (_first_offset(topic, partition, start, first, end), end)
        for partition, (first, end) in ranges.items()
    }


def _first_offset(topic: str, partition: int, start: Start, first: int, end: int) -> int:
    if start.kind is StartKind.EARLIEST:
        return first
    if start.kind is StartKind.LATEST:
        return end
    if start.kind is StartKind.LAST:
        return max(end - start.value, first)
    if not first <= start.value <= end:
        raise CliError(
            f"Offset {start.value} is not in partition {partition} of {topic!r}",
            f"it has offsets {first} to {end}",
            "choose one of those, or one --partition",
        )
    return start.value
