"""How fast groups consume and topics fill, from what successive surveys saw; and the history.

Rates are over some seconds: clients commit every five by default, so that the difference of two
surveys a second apart would be nothing, or five times too much.

What a group consumes is what came to its partitions less what its lag grew by. So the three rates
always fit together, whatever a group commits: offsets, key ranges or single records.
"""

import math
from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from anabranch.broker.survey_values import LagSample

# Rates compare with a point that is no older than this, and points are so far apart at least.
WINDOW_MS = 15_000
_SPACING_MS = 1_000
HISTORY_MAX = 240
_UNKNOWN = math.nan


class _Point(NamedTuple):
    at_ms: int
    # What ever came to the partitions, in records; only differences mean something.
    produced: float
    lag_records: int


class Rates(NamedTuple):
    consume_per_s: float | None = None
    produce_per_s: float | None = None
    trend_per_s: float | None = None


NO_RATES = Rates()


class Pace:
    """The last points of one group, or of one topic, which has no lag."""

    __slots__ = ("_points", "_subject")

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()
        self._subject: object = None

    def note(self, at_ms: int, produced: float, lag_records: int, subject: object) -> None:
        """Take a new point; `subject` is what it is about, and points about another are dropped."""
        points = self._points
        if subject != self._subject:
            points.clear()
            self._subject = subject
        if points:
            last = points[-1]
            consumed = produced - lag_records
            # Offsets were reset, or a topic was made anew: what was before says nothing any more.
            if produced < last.produced or consumed < last.produced - last.lag_records:
                points.clear()
            elif at_ms - last.at_ms < _SPACING_MS:
                return
        points.append(_Point(at_ms, produced, lag_records))
        while len(points) > 1 and at_ms - points[0].at_ms > WINDOW_MS:
            points.popleft()

    def rates(self, at_ms: int, produced: float, lag_records: int) -> Rates:
        """The rates from the oldest point up to this one; unknown without one that is older."""
        if not self._points:
            return NO_RATES
        first = self._points[0]
        seconds = (at_ms - first.at_ms) / 1000
        if seconds * 1000 < _SPACING_MS:
            return NO_RATES
        produce = max(produced - first.produced, 0.0) / seconds
        trend = (lag_records - first.lag_records) / seconds
        return Rates(max(produce - trend, 0.0), produce, trend)


class History:
    """The last samples of one group, in a few kilobytes."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers = array("d")

    def add(self, sample: LagSample) -> None:
        numbers = self._numbers
        numbers.extend([_UNKNOWN if value is None else value for value in sample])
        if len(numbers) >= 2 * HISTORY_MAX * len(sample):
            del numbers[: HISTORY_MAX * len(sample)]

    def samples(self) -> Sequence[LagSample]:
        """Oldest first."""
        numbers = self._numbers
        width = len(LagSample._fields)
        first = max(len(numbers) - HISTORY_MAX * width, 0)
        return [
            LagSample(
                int(numbers[at]),
                None if math.isnan(numbers[at + 1]) else int(numbers[at + 1]),
                _or_none(numbers[at + 2]),
                _or_none(numbers[at + 3]),
            )
            for at in range(first, len(numbers), width)
        ]


def drain_s(lag_records: int | None, trend_per_s: float | None) -> float | None:
    """How long until there is no lag; None when that never comes, or nobody knows."""
    if lag_records == 0:
        return 0.0
    if lag_records is None or trend_per_s is None or trend_per_s >= 0:
        return None
    return lag_records / -trend_per_s


def _or_none(number: float) -> float | None:
    return None if math.isnan(number) else number
