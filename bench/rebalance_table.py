"""The figures of the rebalance benchmark as an aligned table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

UNTIL_STABLE = "until stable"
AFTER_LAST_JOIN = "after the last JoinGroup"
SERVER_CPU = "server CPU"
GENERATIONS = "generations"
HEARTBEATS = "heartbeats"
STEADY_CPU = "server CPU per second"
KEPT = "kept on unmoved partitions"

EAGER, COOPERATIVE, CONSUMER = "eager", "cooperative", "consumer"
# Whose settings the group has: the broker's defaults, or the fastest that Kafka allows.
DEFAULT, TUNED = "default", "tuned"

_PROTOCOLS = (EAGER, COOPERATIVE, CONSUMER)
_EVENTS = ("form", "join", "leave", "join or leave", "grow", "steady")
_UNITS = {
    UNTIL_STABLE: "ms",
    AFTER_LAST_JOIN: "ms",
    SERVER_CPU: "ms",
    GENERATIONS: "",
    HEARTBEATS: "1/s",
    STEADY_CPU: "ms/s",
    KEPT: "%",
}
_PARTS = tuple(_UNITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a list of samples is of; the unit is that of the part."""

    is_real: bool
    members: int
    protocol: str
    event: str
    # Chosen by the members in the classic protocol, told by the broker in the consumer protocol.
    heartbeat_ms: int = 0
    settings: str = DEFAULT
    part: str = UNTIL_STABLE

    @property
    def client(self) -> str:
        return "librdkafka" if self.is_real else "simulated"

    @property
    def heartbeat(self) -> str:
        if self.heartbeat_ms:
            return f"{self.heartbeat_ms / 1000:g} s"
        return "told" if self.settings == DEFAULT else "Kafka tuned"

    @property
    def key(self) -> str:
        """The name in the JSON file."""
        place = f"{self.client}/{self.members}/{self.heartbeat}/{self.protocol}"
        return f"{place}/{self.event}/{self.part}".replace(" ", "_")


def row_order(row: Row) -> tuple[object, ...]:
    """Simulated members first, small groups before large ones, events as they happen."""
    group = (row.is_real, row.members, _PROTOCOLS.index(row.protocol), row.heartbeat_ms)
    return *group, row.settings, _EVENTS.index(row.event), _PARTS.index(row.part)


Samples = Mapping[Row, Sequence[float]]

_HEADER = [
    "members",
    "",
    "heartbeat",
    "protocol",
    "event",
    "what",
    "unit",
    "n",
    "Kafka p50",
    "p99",
    "Anabranch p50",
    "p99",
    "ratio of p50",
    "of p99",
]
_LEFT_ALIGNED = range(1, 7)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank: a value that was measured; with few values p99 is the largest."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def rebalance_table(theirs: Samples, ours: Samples) -> str:
    """Ratios above 1 say that Anabranch is better; its side of a tuned row has default settings."""
    lines = [_HEADER]
    for row in sorted(theirs.keys() | ours.keys(), key=row_order):
        left, right = theirs.get(row, ()), ours.get(replace(row, settings=DEFAULT), ())
        if row.part == GENERATIONS or not (left or right):
            continue
        lines.append(
            [
                str(row.members),
                row.client,
                row.heartbeat,
                row.protocol,
                row.event,
                row.part if row.part == UNTIL_STABLE else f"  {row.part}",
                _UNITS[row.part],
                "/".join(dict.fromkeys((str(len(left)), str(len(right))))),
                *_figures(row, left, right),
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


def _figures(row: Row, left: Sequence[float], right: Sequence[float]) -> list[str]:
    # Of what should be much, the bad end is the small one.
    percents = (50, 1) if row.part == KEPT else (50, 99)
    figures = [
        percentile(side, percent) if side else math.nan
        for side in (left, right)
        for percent in percents
    ]
    pairs = [(figures[0], figures[2]), (figures[1], figures[3])]
    if row.part == KEPT:
        pairs = [(ours, theirs) for theirs, ours in pairs]
    cells = ["-" if math.isnan(figure) else f"{figure:,.1f}" for figure in figures]
    return [*cells, *(_ratio(*pair) for pair in pairs)]


def extra_generations(samples: Samples) -> str:
    """How many cooperative joins needed more than the two generations of the protocol."""
    counts = [
        count
        for row, values in samples.items()
        if row.part == GENERATIONS and row.protocol == COOPERATIVE and row.event == "join"
        for count in values
    ]
    return f"{sum(count > 2 for count in counts)} of {len(counts)}"


def _ratio(theirs: float, ours: float) -> str:
    if math.isnan(theirs) or math.isnan(ours) or not ours:
        return "-"
    return f"{theirs / ours:.2f}x"
