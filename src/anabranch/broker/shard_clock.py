"""The deadlines of one shard, and the one loop timer that is armed for the nearest of them.

Decisions are made by the wall clock, because what they write down is compared with it after a
restart. Timers run by a clock that nobody can set: nothing must end because somebody did.

Nothing is armed before `start`: a shard is loaded before the loop runs.
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
        self._is_running = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = _NEVER_MS

    def now_ms(self) -> int:
        """The time that deadlines are compared with."""
        return self._steady_ms()

    def start(self) -> None:
        """The loop runs: let the timers run too."""
        self._is_running = True
        self._arm()

    def stop(self) -> None:
        self._is_running = False
        self.clear()

    def clear(self) -> None:
        """Forget all timers."""
        self._timers.clear()
        self._arm()

    def set(self, changes: Iterable[TimerChange], decided_ms: int) -> None:
        """Set a decision's timers, whose deadlines are by the clock that it was made by."""
        ahead_ms = self._steady_ms() - decided_ms
        is_early = False
        for change in changes:
            deadline_ms = self._timers.apply(change, ahead_ms)
            if deadline_ms is not None and deadline_ms < self._alarm_ms:
                is_early = True
        if is_early:
            self._arm()

    def ring_at(self, key: TimerKey, deadline_ms: int) -> None:
        """Set a timer of the driver's own, by the clock of the timers; one that runs stays."""
        self.set([TimerChange(key, deadline_ms, only_if_absent=True)], self._steady_ms())

    def _arm(self) -> None:
        """Have the loop call when the nearest deadline comes.

        An alarm that comes too early does no harm, so timers that are moved later or cancelled do
        not move it: when it rings it is armed anew.
        """
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_ms = _NEVER_MS
        deadline_ms = self._timers.next_deadline_ms() if self._is_running else None
        if deadline_ms is not None:
            delay_s = max(0, deadline_ms - self._steady_ms()) / 1000
            self._alarm_ms = deadline_ms
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._turn)

    def _turn(self) -> None:
        self._alarm = None
        self._alarm_ms = 0  # no timer that is set meanwhile has to arm it
        turn_end_ms = self._steady_ms() + _TURN_MS
        while (key := self._timers.pop_expired(self._steady_ms())) is not None:
            self._ring(key)
            if self._steady_ms() >= turn_end_ms:
                break
        self._arm()
        self._after()
