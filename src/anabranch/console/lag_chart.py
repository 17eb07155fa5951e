"""A group's lag and rates over time, as points of a picture that the server draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from anabranch.broker.survey import LagSample
from anabranch.console import words

WIDTH, HEIGHT = 720, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 10, 10, 22
_TICKS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One value over time; a gap begins another piece."""

    name: str
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spot:
    """A sample: where the pointer finds it, and what it says."""

    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over one time axis."""

    title: str
    lines: tuple[Line, ...]
    # Where the grid is, with its labels: (y, text) and (x, text).
    rows: tuple[tuple[float, str], ...]
    columns: tuple[tuple[float, str], ...]
    spots: tuple[Spot, ...]
    # What it shows, for who cannot see it.
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM
    right: int = WIDTH - _RIGHT


Value = Callable[[LagSample], float | None]


def make_chart(
    title: str,
    samples: Sequence[LagSample],
    values: Sequence[tuple[str, Value]],
    unit: str = "",
) -> Chart | None:
    """A chart of some values; None before there are two samples to draw a line between."""
    if len(samples) < 2:
        return None
    known = [value for _, of in values for one in samples if (value := of(one)) is not None]
    if not known:
        return None
    top = _round_up(max(known))
    first_ms, last_ms = samples[0].at_ms, samples[-1].at_ms
    span_ms = max(last_ms - first_ms, 1)

    def x_of(at_ms: int) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (at_ms - first_ms) / span_ms, 1)

    def y_of(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * value / top, 1)

    lines = tuple(Line(name, _pieces(samples, of, x_of, y_of)) for name, of in values)
    if not any(line.pieces for line in lines):
        return None
    steps = [top * number / _TICKS for number in range(_TICKS + 1)]
    return Chart(
        title=title,
        lines=lines,
        rows=tuple((y_of(step), f"{_short(step)}{unit}") for step in steps),
        columns=tuple((x_of(at_ms), _clock(at_ms)) for at_ms in (first_ms, last_ms)),
        spots=tuple(_spots(samples, values, x_of, unit)),
        summary=_summary(samples, values, unit),
    )


def _pieces(
    samples: Sequence[LagSample],
    of: Value,
    x_of: Callable[[int], float],
    y_of: Callable[[float], float],
) -> tuple[str, ...]:
    pieces: list[list[str]] = [[]]
    for sample in samples:
        value = of(sample)
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{x_of(sample.at_ms)},{y_of(value)}")
    return tuple(" ".join(piece) for piece in pieces if len(piece) > 1)


def _spots(
    samples: Sequence[LagSample],
    values: Sequence[tuple[str, Value]],
    x_of: Callable[[int], float],
    unit: str,
) -> list[Spot]:
    spots = []
    for number, sample in enumerate(samples):
        x = x_of(sample.at_ms)
        before = x_of(samples[number - 1].at_ms) if number else x
        told = ", ".join(f"{name} {_text(of(sample), unit)}" for name, of in values)
        spots.append(Spot(before, max(x - before, 1.0), f"{_clock(sample.at_ms)}: {told}"))
    return spots


def _summary(samples: Sequence[LagSample], values: Sequence[tuple[str, Value]], unit: str) -> str:
    minutes = words.duration(samples[-1].at_ms - samples[0].at_ms)
    told = []
    for name, of in values:
        known = [value for one in samples if (value := of(one)) is not None]
        if known:
            told.append(
                f"{name} now {_text(of(samples[-1]), unit)}, between {_text(min(known), unit)} "
                f"and {_text(max(known), unit)}"
            )
    return f"Over the last {minutes}: {'; '.join(told)}."


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "not known"
    return f"{value:,.0f}{unit}" if value >= 10 or value == int(value) else f"{value:,.1f}{unit}"


def _short(value: float) -> str:
    for limit, scale, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _round_up(value: float) -> float:
    """A round number at or above, so that the grid has labels that can be read."""
    if value <= 3:
        return 3.0
    scale = 10.0 ** (len(str(int(value))) - 1)
    for step in (1.2, 1.5, 3, 4.5, 6, 7.5, 9, 10.5):
        if step * scale >= value:
            return step * scale
    return 12 * scale


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")
