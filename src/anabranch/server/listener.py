"""A listening socket: who may connect, how much they may have in flight, and the idle sweep."""

import asyncio
import time
from dataclasses import dataclass

from anabranch.observe import logs
from anabranch.server.connection import Connection
from anabranch.server.dispatch import Dispatch


@dataclass(frozen=True, slots=True)
class Limits:
    """What one listener lets its clients do."""

    request_max_bytes: int
    connections_max: int
    connections_per_ip_max: int
    connections_idle_max_ms: int
    queued_request_max_bytes: int  # -1: no limit
    backlog: int


class Listener:
    """One bound address and the connections that came in through it."""

    def __init__(self, name: str, dispatch: Dispatch, limits: Limits) -> None:
        self.name = name
        self.request_max_bytes = limits.request_max_bytes
        self.clock_s = time.monotonic()
        self._limits = limits
        self._dispatch = dispatch
        self._connections: set[Connection] = set()
        self._per_ip: dict[str, int] = {}
        self._queued_bytes = 0
        self._receiving: set[Connection] = set()
        self._held: dict[Connection, None] = {}  # in the order in which they began to wait
        self._exempt: set[Connection] = set()
        self._has_moved = True
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Bind and accept; returns the port, which matters when 0 was asked for."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self, self._dispatch),
            host or None,
            port,
            backlog=self._limits.backlog,
            reuse_address=True,
        )
        self._sweep()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    # Admission ------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection in; a sentence says why it must go again."""
        host = connection.client_host
        if len(self._connections) >= self._limits.connections_max:
            return f"there are {self._limits.connections_max} connections (max.connections)"
        if self._per_ip.get(host, 0) >= self._limits.connections_per_ip_max:
            limit = self._limits.connections_per_ip_max
            return f"{host} has {limit} connections (max.connections.per.ip)"
        self._connections.add(connection)
        self._per_ip[host] = self._per_ip.get(host, 0) + 1
        return None

    def forget(self, connection: Connection) -> None:
        """Count a connection out; one that was refused was never in."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        host = connection.client_host
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]

    # Bytes of requests that have not arrived whole ------------------------------------------

    def reserve(self, connection: Connection, size_bytes: int) -> None:
        """A connection holds a partial request; above the limit it waits for others to finish.

        At least one of those that receive is never held, so the queue moves; and where that one
        does not send, the sweep frees another.
        """
        self._queued_bytes += size_bytes
        self._receiving.add(connection)
        limit = self._limits.queued_request_max_bytes
        if (
            0 < limit < self._queued_bytes
            and len(self._receiving) - len(self._held) > 1
            and connection not in self._exempt
        ):
            self._held[connection] = None
            connection.hold_reading(True)

    def release(self, connection: Connection, size_bytes: int) -> None:
        """The request arrived whole, or never will."""
        self._queued_bytes -= size_bytes
        self._has_moved = True
        self._receiving.discard(connection)
        self._exempt.discard(connection)
        if connection in self._held:
            self._free(connection)
        limit = self._limits.queued_request_max_bytes
        while self._held and (
            self._queued_bytes <= limit or len(self._held) == len(self._receiving)
        ):
            self._free(next(iter(self._held)))

    def _free(self, connection: Connection) -> None:
        del self._held[connection]
        connection.hold_reading(False)

    def _free_one_if_stuck(self) -> None:
        """Those that are not held may be slow; the others must not wait for them for ever."""
        if self._held and not self._has_moved:
            longest = next(iter(self._held))
            self._exempt.add(longest)
            self._free(longest)
        self._has_moved = False

    # Time -----------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Close idle connections, and keep the coarse clock that connections stamp reads with."""
        self.clock_s = time.monotonic()
        idle_max_s = self._limits.connections_idle_max_ms / 1000
        for connection in list(self._connections):
            connection.sweep(self.clock_s, idle_max_s)
        self._free_one_if_stuck()
        period_s = min(1.0, idle_max_s / 4) if idle_max_s > 0 else 1.0
        self._sweep_timer = asyncio.get_running_loop().call_later(period_s, self._sweep)

    def close(self) -> None:
        """Accept no more connections and read no more requests; what waits is answered."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.finish()

    async def wait_closed(self, grace_s: float) -> None:
        """Let connections send what they owe, then drop those that are left."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        deadline_s = time.monotonic() + grace_s
        while self._connections and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)
        if self._connections:
            logs.warning(
                "listener.abandoned", listener=self.name, connections=self.connection_count
            )
            for connection in list(self._connections):
                connection.abort()
