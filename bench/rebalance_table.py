"""The figures of the rebalance benchmark as an aligned table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

UNTIL_STABLE = "until stable"
AFTER_LAST_JOIN = "after the last JoinGroup"
SERVER_CPU = "server CPU"
GENERATIONS = "generations"

_EVENTS = ("form", "join", "leave", "join or leave")
_PARTS = (UNTIL_STABLE, AFTER_LAST_JOIN, SERVER_CPU, GENERATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a list of samples is of; milliseconds, but for GENERATIONS, which are counted."""

    is_real: bool
    members: int
    heartbeat_ms: int
    is_cooperative: bool
    event: str
    part: str = UNTIL_STABLE

    @property
    def key(self) -> str:
        """The name in the JSON file."""
        client = "librdkafka" if self.is_real else "simulated"
        protocol = "cooperative" if self.is_cooperative else "eager"
        place = f"{client}/{self.members}/{self.heartbeat_ms}ms/{protocol}"
        return f"{place}/{self.event}/{self.part}".replace(" ", "_")


def row_order(row: Row) -> tuple[object, ...]:
    """Simulated members first, small groups before large ones, events as they happen."""
    group = (row.is_real, row.members, row.heartbeat_ms, row.is_cooperative)
    return *group, _EVENTS.index(row.event), _PARTS.index(row.part)


Samples = Mapping[Row, Sequence[float]]

_HEADER = [
    "members",
    "",
    "heartbeat",
    "protocol",
    "event",
    "time",
    "n",
    "Kafka p50",
    "p99",
    "Anabranch p50",
    "p99",
    "ratio of p50",
    "of p99",
]
_LEFT_ALIGNED = range(1, 6)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank: a value that was measured; with few values p99 is the largest."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def rebalance_table(theirs: Samples, ours: Samples) -> str:
    """Milliseconds, less is better; ratios above 1 say that Anabranch is faster."""
    lines = [_HEADER]
    for row in sorted(theirs.keys() & ours.keys(), key=row_order):
        left, right = theirs[row], ours[row]
        if not left or not right or row.part == GENERATIONS:
            continue
        figures = [percentile(side, percent) for side in (left, right) for percent in (50, 99)]
        lines.append(
            [
                str(row.members),
                "librdkafka" if row.is_real else "simulated",
                f"{row.heartbeat_ms / 1000:g} s",
                "cooperative" if row.is_cooperative else "eager",
                row.event,
                row.part if row.part == UNTIL_STABLE else f"  {row.part}",
                str(min(len(left), len(right))),
                *(f"{figure:,.1f}" for figure in figures),
                _ratio(figures[0], figures[2]),
                _ratio(figures[1], figures[3]),
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    out = [
        "  ".join(
            cell.ljust(width) if column in _LEFT_ALIGNED else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    out.insert(1, "-" * max(map(len, out)))
    return "\n".join(out)


def extra_generations(samples: Samples) -> str:
    """How many cooperative joins needed more than the two generations of the protocol."""
    counts = [
        count
        for row, values in samples.items()
        if row.part == GENERATIONS and row.is_cooperative and row.event == "join"
        for count in values
    ]
    return f"{sum(count > 2 for count in counts)} of {len(counts)}"


def _ratio(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.2f}x" if ours else "-"
