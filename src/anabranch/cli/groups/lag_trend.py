"""How the lag of groups develops: what `groups watch` computes between two looks."""

from collections import deque
from dataclasses import dataclass
from typing import Final

# A trend is taken over this long: shorter, and a group that commits every five seconds would seem
# to stand still and to jump in turn.
WINDOW_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group at one look; None: not known, or not yet."""

    group: str
    state: str
    members: int
    lag: int | None
    trend_per_s: float | None = None
    drain_s: float | None = None
    is_alert: bool = False


class LagTrend:
    """The last looks at one group."""

    def __init__(self, window_ms: int = WINDOW_MS) -> None:
        self._window_ms = window_ms
        self._samples: deque[tuple[int, int]] = deque()

    def add(self, now_ms: int, lag: int | None) -> tuple[float | None, float | None]:
        """Take a look; the change of the lag per second, and how many seconds until it is 0.

        None where that is not known: at the first look, or while the lag does not fall.
        """
        if lag is None:
            self._samples.clear()
            return None, None
        # Of the samples from before the window one is kept, so that there always is a pair.
        while len(self._samples) > 1 and self._samples[1][0] <= now_ms - self._window_ms:
            self._samples.popleft()
        self._samples.append((now_ms, lag))
        first_ms, first_lag = self._samples[0]
        if now_ms <= first_ms:
            return None, None
        trend_per_s = (lag - first_lag) * 1000 / (now_ms - first_ms)
        if lag == 0:
            return trend_per_s, 0.0
        return trend_per_s, lag / -trend_per_s if trend_per_s < 0 else None
