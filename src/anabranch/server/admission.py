"""Who may connect, and how many bytes of unfinished requests may wait, over all listeners."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Limits:
    """What the broker lets its clients do."""

    request_max_bytes: int
    connections_max: int
    connections_per_ip_max: int
    connections_idle_max_ms: int
    queued_request_max_bytes: int  # -1: no limit
    backlog: int


class Guest(Protocol):
    """What of a connection matters here."""

    client_host: str

    def hold_reading(self, hold: bool) -> None: ...


class Admission:
    """The counts that limits speak of."""

    def __init__(self, limits: Limits, current: Callable[[], Limits] | None = None) -> None:
        self._limits = limits
        # The limits as they are now: those on connections can be altered while the broker runs.
        self._current = current or (lambda: limits)
        self._inside: set[Guest] = set()
        self._per_ip: dict[str, int] = {}
        self._queued_bytes = 0
        self._receiving: set[Guest] = set()
        self._held: dict[Guest, None] = {}  # in the order in which they began to wait
        self._exempt: set[Guest] = set()
        self._has_moved = True

    def admit(self, guest: Guest) -> str | None:
        """Count a new connection in; a sentence says why it must go again."""
        host = guest.client_host
        limits = self._current()
        if len(self._inside) >= limits.connections_max:
            return f"there are {limits.connections_max} connections (max.connections)"
        if self._per_ip.get(host, 0) >= limits.connections_per_ip_max:
            limit = limits.connections_per_ip_max
            return f"{host} has {limit} connections (max.connections.per.ip)"
        self._inside.add(guest)
        self._per_ip[host] = self._per_ip.get(host, 0) + 1
        return None

    def forget(self, guest: Guest) -> None:
        """Count a connection out; one that was refused was never in."""
        if guest not in self._inside:
            return
        self._inside.discard(guest)
        host = guest.client_host
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]

    # Bytes of requests that have not arrived whole ------------------------------------------

    def reserve(self, guest: Guest, size_bytes: int) -> None:
        """A connection holds a partial request; above the limit it waits for others to finish.

        At least one of those that receive is never held, so the queue moves; and where that one
        does not send, `free_one_if_stuck` lets another go on.
        """
        self._queued_bytes += size_bytes
        self._receiving.add(guest)
        if (
            0 < self._limits.queued_request_max_bytes < self._queued_bytes
            and len(self._receiving) - len(self._held) > 1
            and guest not in self._exempt
        ):
            self._held[guest] = None
            guest.hold_reading(True)

    def release(self, guest: Guest, size_bytes: int) -> None:
        """The request arrived whole, or never will."""
        self._queued_bytes -= size_bytes
        self._has_moved = True
        self._receiving.discard(guest)
        self._exempt.discard(guest)
        if guest in self._held:
            self._free(guest)
        limit = self._limits.queued_request_max_bytes
        while self._held and (
            self._queued_bytes <= limit or len(self._held) == len(self._receiving)
        ):
            self._free(next(iter(self._held)))

    def _free(self, guest: Guest) -> None:
        del self._held[guest]
        guest.hold_reading(False)

    def free_one_if_stuck(self) -> None:
        """Called by the clock: those that are not held may be slow, and must not hold up all."""
        if self._held and not self._has_moved:
            longest = next(iter(self._held))
            self._exempt.add(longest)
            self._free(longest)
        self._has_moved = False
