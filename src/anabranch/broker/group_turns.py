"""When which group is looked at: soon after it asked, one after the other, and not too often.

A turn comes a moment after a group asked, because its members commit together, and at least a
second after the last one. A look that took long is followed by a rest that is longer still, so that
looking never takes more than a small part of a core. Nothing polls: without wishes no timer runs.
"""

import asyncio
import functools
import heapq
from collections.abc import Callable

from anabranch.broker.deferred import Deferred
from anabranch.observe import logs

_GATHER_MS = 100
_PAUSE_MS = 1_000
# A look is followed by a rest so many times as long.
_REST_FACTOR = 20

# Partitions by the id of a topic.
Wishes = set[tuple[bytes, int]]


class GroupTurns:
    """The turns of all groups; lives on the event loop."""

    def __init__(
        self,
        look: Callable[[str, Wishes], Deferred[None]],
        steady_ms: Callable[[], int],
    ) -> None:
        self._look = look
        self._steady_ms = steady_ms
        self._wanted: dict[str, Wishes] = {}
        self._due: list[tuple[int, str]] = []
        self._rests_until_ms: dict[str, int] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._is_started = False
        self._is_looking = False

    def start(self) -> None:
        self._is_started = True
        self._arm()

    def stop(self) -> None:
        self._is_started = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def ask_for(self, group_id: str, partitions: Wishes) -> None:
        """Have partitions of a group looked at in its next turn."""
        wanted = self._wanted.get(group_id)
        if wanted is not None:
            wanted |= partitions
            return
        self._wanted[group_id] = partitions
        due_ms = self._steady_ms() + _GATHER_MS
        heapq.heappush(self._due, (max(due_ms, self._rests_until_ms.get(group_id, 0)), group_id))
        self._arm()

    def _arm(self) -> None:
        """Have the loop call when the next turn comes, unless one is on."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._is_started and not self._is_looking and self._due:
            delay_s = max(0, self._due[0][0] - self._steady_ms()) / 1000
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now_ms = self._steady_ms()
        self._rests_until_ms = {g: ms for g, ms in self._rests_until_ms.items() if ms > now_ms}
        _, group_id = heapq.heappop(self._due)
        rests_until_ms = self._rests_until_ms.get(group_id)
        if rests_until_ms is not None:
            # Its last look took longer than was known when this turn was given.
            heapq.heappush(self._due, (rests_until_ms, group_id))
            self._arm()
            return
        self._is_looking = True
        self._rests_until_ms[group_id] = now_ms + _PAUSE_MS
        ended = functools.partial(self._ended, group_id, now_ms)
        try:
            look = self._look(group_id, self._wanted.pop(group_id))
        except Exception as error:
            ended(error)
        else:
            look.deliver_to(lambda _: ended(None), ended)

    def _ended(self, group_id: str, began_ms: int, error: Exception | None) -> None:
        if error is not None:
            logs.error("branch.progress.failed", group=group_id, reason=repr(error))
        now_ms = self._steady_ms()
        rest_ms = _REST_FACTOR * (now_ms - began_ms)
        self._rests_until_ms[group_id] = max(began_ms + _PAUSE_MS, now_ms + rest_ms)
        self._is_looking = False
        self._arm()
