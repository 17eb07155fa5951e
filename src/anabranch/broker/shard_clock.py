"""The deadlines of one shard, and the one loop timer that is armed for the nearest of them.

Decisions are made by the wall clock, because what they write down is compared with it after a
restart. Timers run by a clock that nobody can set: nothing must end because somebody did.

Nothing polls: one loop timer, the alarm, is armed for the nearest deadline. While the broker is
loaded no loop may be there yet; what is set then is armed when it starts.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable

from anabranch.coordinator.runtime.result import TimerChange, TimerKey
from anabranch.coordinator.runtime.timers import Timers

_NEVER_MS = sys.maxsize
# Timers that are due together let others have the loop after so long.
_TURN_MS = 5


class ShardClock:
    """Calls `ring` for each timer whose time has come, and `after` when a turn of them ends."""

    def __init__(
        self,
        steady_ms: Callable[[], int],
        ring: Callable[[TimerKey], None],
        after: Callable[[], None],
    ) -> None:
        self._steady_ms = steady_ms
        self._ring = ring
        self._after = after
        self._timers = Timers()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = _NEVER_MS

    @property
    def is_armed(self) -> bool:
        return self._alarm is not None

    def now_ms(self) -> int:
        """The time that deadlines are compared with."""
        return self._steady_ms()

    def left_ms(self, key: TimerKey) -> int | None:
        """How long a timer has yet to run; None when it does not."""
        deadline_ms = self._timers.deadline_ms(key)
        return None if deadline_ms is None else deadline_ms - self._steady_ms()

    def clear(self) -> None:
        """Forget all timers."""
        self._timers.clear()

    def set(self, changes: Iterable[TimerChange], decided_ms: int) -> bool:
        """Set a decision's timers, whose deadlines are by the clock that it was made by.

        Returns whether one of them comes before the alarm, which has to be armed anew then.
        """
        ahead_ms = self._steady_ms() - decided_ms
        is_early = False
        for change in changes:
            deadline_ms = self._timers.apply(change, ahead_ms)
            if deadline_ms is not None and deadline_ms < self._alarm_ms:
                is_early = True
        return is_early

    def ring_at(self, key: TimerKey, deadline_ms: int) -> None:
        """Set a timer of the driver's own, by the clock of the timers; one that runs stays."""
        self._timers.apply(TimerChange(key, deadline_ms, only_if_absent=True))

    def arm(self) -> None:
        """Have the loop call when the nearest deadline comes.

        An alarm that comes too early does no harm, so timers that are moved later or cancelled do
        not move it: when it rings it is armed anew.
        """
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_ms = _NEVER_MS
        deadline_ms = self._timers.next_deadline_ms()
        if deadline_ms is not None and _has_loop():
            delay_s = max(0, deadline_ms - self._steady_ms()) / 1000
            self._alarm_ms = deadline_ms
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self.turn)

    def turn(self) -> None:
        """Let the timers ring whose time has come, for as long as a turn may take."""
        self._alarm = None
        self._alarm_ms = 0  # no timer that is set meanwhile has to arm it
        turn_end_ms = self._steady_ms() + _TURN_MS
        while (key := self._timers.pop_expired(self._steady_ms())) is not None:
            self._ring(key)
            if self._steady_ms() >= turn_end_ms:
                break
        self.arm()
        self._after()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
