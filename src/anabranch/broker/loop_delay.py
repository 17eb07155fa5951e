"""By how much the event loop is late, measured while somebody wants to know."""

import asyncio

from anabranch.observe.metrics import Histogram

_EVERY_S = 0.1
_WATCHED_S = 120.0


class LoopDelay:
    """Sets a timer ten times a second and sees when it rings; stops some minutes after a scrape."""

    def __init__(self) -> None:
        self.delays = Histogram(Histogram.FINE_BOUNDS_S)
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0

    def watch(self) -> None:
        """Somebody wants to know."""
        loop = asyncio.get_running_loop()
        self._until_s = loop.time() + _WATCHED_S
        if self._timer is None:
            self._arm(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + _EVERY_S
        self._timer = loop.call_at(due_s, self._ring, due_s)

    def _ring(self, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now_s = loop.time()
        self.delays.observe(max(now_s - due_s, 0.0))
        if now_s < self._until_s:
            self._arm(loop)
