"""What a reset would do: which partitions are meant, and where each of them goes.

A wish comes from an address and is made into a plan by looking; nothing is changed here. What each
target means is said by `model.offset_reset`, for the command line and for this alike.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from anabranch.broker.broker import Broker
from anabranch.broker.survey import GroupSummary
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import KafkaError
from anabranch.model.lag import lag
from anabranch.model.offset_reset import NothingCommittedError, Target, TargetKind, new_offset

Key = tuple[str, int]

# Partitions that are looked at before others have the loop.
_SLICE = 200
_TIME_SLICE = 5
_UNITS_MS: Final = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# Form fields by strategy, in the order of the page.
STRATEGIES: Final = {
    "earliest": "Earliest: read everything again",
    "latest": "Latest: skip everything that is there",
    "current": "Keep what is committed, and the end where nothing is",
    "offset": "To an offset",
    "shift": "Shift by a number of records",
    "time": "To a time",
    "ago": "To some time ago",
    "group": "As another group has it",
}


class WishError(Exception):
    """What was asked for makes no sense; the text says why, and what would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody asked for, as it is in the address."""

    # Empty: everything that the group has committed for or reads.
    topic: str = ""
    # Such as `0, 2-5`; empty: all.
    partitions: str = ""
    strategy: str = ""
    offset: str = ""
    shift: str = ""
    time: str = ""
    ago: str = ""
    unit: str = "h"
    other: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """One partition as it is."""

    topic: str
    partition: int
    committed: CommittedOffset | None
    start: int
    end: int

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    @property
    def before(self) -> int | None:
        return self.committed.offset if self.committed is not None else None

    @property
    def lag(self) -> int:
        return lag(self.end, self.before, self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One partition as it is and would be; `after` is None where it cannot be, as `remark` says."""

    topic: str
    partition: int
    before: int | None
    after: int | None
    lag_before: int
    lag_after: int | None
    remark: str = ""

    @property
    def is_change(self) -> bool:
        return self.after is not None and self.after != self.before

    @property
    def lag_change(self) -> int | None:
        return None if self.lag_after is None else self.lag_after - self.lag_before


def read_wish(query: Mapping[str, str]) -> Wish:
    names = ("topic", "partitions", "strategy", "offset", "shift", "time", "ago", "unit", "other")
    return Wish(**{name: query.get(name, "").strip() or _default(name) for name in names})


def _default(name: str) -> str:
    return "h" if name == "unit" else ""


# Partitions -------------------------------------------------------------------------------------


async def offset_rows(broker: Broker, summary: GroupSummary, wish: Wish) -> list[OffsetRow]:
    """The partitions that are meant, as they are now. WishError when they are not there."""
    offsets = broker.groups.offsets(summary.group_id)
    if wish.topic:
        keys = _of_topic(broker, wish)
    else:
        if wish.partitions:
            raise WishError("Partitions are numbers of one topic. Name the topic too.")
        keys = _of_group(broker, summary)
    rows = []
    for number, (name, partition) in enumerate(keys):
        if not (number + 1) % _SLICE:
            await asyncio.sleep(0)
        log = _log(broker, name, partition)
        if log is not None:
            rows.append(
                OffsetRow(
                    topic=name,
                    partition=partition,
                    committed=_committed(offsets, (name, partition)),
                    start=log.log_start_offset,
                    end=log.high_watermark,
                )
            )
    return rows


def _committed(offsets: Mapping[Key, CommittedOffset], key: Key) -> CommittedOffset | None:
    found = offsets.get(key)
    # -1 is committed where slots of a partition have no offset yet.
    return found if found is not None and found.offset >= 0 else None


def _log(broker: Broker, name: str, partition: int) -> PartitionLog | None:
    topic = broker.topics.get(name)
    if topic is None or not topic.has_partition(partition):
        return None
    return topic.partitions[partition].log


def _of_topic(broker: Broker, wish: Wish) -> list[Key]:
    topic = broker.topics.get(wish.topic)
    if topic is None:
        raise WishError(f"There is no topic {wish.topic}. See Topics for those there are.")
    numbers = parse_numbers(wish.partitions)
    if numbers is None:
        return [(topic.name, one.index) for one in topic.partitions]
    missing = sorted(number for number in numbers if not topic.has_partition(number))
    if missing:
        raise WishError(
            f"{topic.name} has no partition {missing[0]}; it has {len(topic.partitions)} of them, "
            "from 0 on."
        )
    return [(topic.name, number) for number in sorted(numbers)]


def _of_group(broker: Broker, summary: GroupSummary) -> list[Key]:
    keys = {(one.topic, one.partition) for one in summary.partitions}
    # What members are subscribed to has partitions too, committed or not.
    for name in summary.topics:
        topic = broker.topics.get(name)
        if topic is not None:
            keys.update((name, one.index) for one in topic.partitions)
    return sorted(keys)


def parse_numbers(text: str) -> set[int] | None:
    """`0, 2-5` as numbers; None for nothing. WishError for anything else."""
    if not text:
        return None
    numbers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() and len(end) < 7 for end in ends):
            raise WishError(f"“{part}” is no partition. Write numbers and ranges, as in 0, 2-5.")
        numbers.update(range(int(ends[0]), int(ends[1]) + 1))
    return numbers


# Targets ----------------------------------------------------------------------------------------


def target_of(broker: Broker, wish: Wish) -> Target:
    """What is asked for, as a target. WishError where a value is missing or makes no sense."""
    match wish.strategy:
        case "earliest":
            return Target(TargetKind.EARLIEST)
        case "latest":
            return Target(TargetKind.LATEST)
        case "current":
            return Target(TargetKind.CURRENT)
        case "offset":
            offset = _whole_number(wish.offset, "an offset, such as 1500")
            if offset < 0:
                raise WishError("Offsets begin at 0. Shift by a negative number to go back.")
            return Target(TargetKind.OFFSET, offset)
        case "shift":
            return Target(TargetKind.SHIFT, _whole_number(wish.shift, "a number, such as -100"))
        case "time":
            return Target(TargetKind.DATETIME, _time_ms(wish.time))
        case "ago":
            ago_ms = _whole_number(wish.ago, "how long ago, such as 2") * _UNITS_MS.get(
                wish.unit, 0
            )
            return Target(TargetKind.DURATION, max(broker.now_ms() - ago_ms, 0))
        case "group":
            return Target(TargetKind.FILE, offsets=_other_offsets(broker, wish.other))
        case _:
            raise WishError("Say where the offsets shall go: choose one of the targets.")


def _whole_number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WishError(f"Give {what}.") from None


def _time_ms(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise WishError(
            "Give a time such as 2026-01-15T09:00, in UTC unless it has a zone."
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(int(when.timestamp() * 1000), 0)


def _other_offsets(broker: Broker, other: str) -> dict[Key, int]:
    if not other:
        raise WishError("Name the group whose offsets shall be copied.")
    found = {
        key: one.offset for key, one in broker.groups.offsets(other).items() if one.offset >= 0
    }
    if not found:
        raise WishError(f"Group {other} has committed nothing that could be copied.")
    return found


# Plans ------------------------------------------------------------------------------------------


async def make_plan(broker: Broker, rows: list[OffsetRow], target: Target) -> list[PlanRow]:
    """Where each partition goes; one that cannot be moved says why and keeps no other back."""
    looks_at_times = target.kind in (TargetKind.DATETIME, TargetKind.DURATION)
    every = _TIME_SLICE if looks_at_times else _SLICE
    plan = []
    for number, row in enumerate(rows):
        if not (number + 1) % every:
            await asyncio.sleep(0)
        plan.append(_plan_row(broker, row, target, looks_at_times))
    return plan


def _plan_row(broker: Broker, row: OffsetRow, target: Target, looks_at_times: bool) -> PlanRow:
    after: int | None = None
    remark: str | None = None
    try:
        found = _offset_at(broker, row, target.value) if looks_at_times else -1
        if target.kind is TargetKind.FILE and row.key not in target.offsets:
            remark = "The other group has committed nothing for it; it is left as it is."
        else:
            after, remark = new_offset(target, row.key, row.before, row.start, row.end, found)
    except NothingCommittedError:
        remark = "Nothing was committed for it, so there is nothing to shift; it is left as it is."
    except KafkaError as error:
        remark = f"It cannot be read: {error.message}"
    return PlanRow(
        topic=row.topic,
        partition=row.partition,
        before=row.before,
        after=after,
        lag_before=row.lag,
        lag_after=None if after is None else lag(row.end, after, row.start),
        remark=remark or "",
    )


def _offset_at(broker: Broker, row: OffsetRow, at_ms: int) -> int:
    log = _log(broker, row.topic, row.partition)
    found = log.offset_for_timestamp(at_ms) if log is not None else None
    return found.offset if found is not None and found.offset < row.end else -1
