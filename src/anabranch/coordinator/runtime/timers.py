"""Keyed deadlines: setting a key again replaces its deadline.

Session timers are re-armed by every heartbeat and hardly ever fire, so re-arming must be cheap.
Each key has one entry in the heap; moving its deadline later only writes the new deadline down, and
the entry is pushed on when its old time comes.
"""

import heapq

from anabranch.coordinator.runtime.result import TimerChange, TimerKey


class Timers:
    """The deadlines of one shard."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._in_heap: dict[TimerKey, int] = {}  # key -> the deadline of its live heap entry
        self._order = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def deadline_ms(self, key: TimerKey) -> int | None:
        return self._deadlines.get(key)

    def apply(self, change: TimerChange, ahead_ms: int = 0) -> int | None:
        """Set or cancel a timer; returns its deadline.

        `ahead_ms` is how far the clock that these deadlines are kept by is ahead of the one that
        the change was decided by.
        """
        key, deadline_ms = change.key, change.deadline_ms
        if deadline_ms is None:
            self._deadlines.pop(key, None)
            return None
        if change.only_if_absent and key in self._deadlines:
            return self._deadlines[key]
        deadline_ms += ahead_ms
        self._deadlines[key] = deadline_ms
        queued_ms = self._in_heap.get(key)
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(key, deadline_ms)
        return deadline_ms

    def _push(self, key: TimerKey, deadline_ms: int) -> None:
        self._order += 1
        self._in_heap[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, self._order, key))

    def next_deadline_ms(self) -> int | None:
        """The nearest deadline, for the one loop timer that the broker arms."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_expired(self, now_ms: int) -> TimerKey | None:
        """Take one timer whose time has come, earliest first."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._in_heap[key]
        del self._deadlines[key]
        return key

    def _settle(self) -> None:
        """Drop or push on entries at the top that no longer say what their key says."""
        while self._heap:
            queued_ms, _, key = self._heap[0]
            if self._in_heap.get(key) != queued_ms:
                heapq.heappop(self._heap)  # replaced by an earlier entry of the same key
                continue
            deadline_ms = self._deadlines.get(key)
            if deadline_ms == queued_ms:
                return
            heapq.heappop(self._heap)
            del self._in_heap[key]
            if deadline_ms is not None:
                self._push(key, deadline_ms)

    def clear(self) -> None:
        self._deadlines.clear()
        self._heap.clear()
        self._in_heap.clear()
