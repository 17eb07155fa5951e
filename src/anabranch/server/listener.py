"""A listening socket, the connections that came in through it, and the idle sweep."""

import asyncio
import time

from anabranch.observe import logs
from anabranch.server.admission import Admission, Limits
from anabranch.server.connection import Connection
from anabranch.server.dispatch import Dispatch


class Listener:
    """One bound address and the connections that came in through it."""

    def __init__(
        self, name: str, dispatch: Dispatch, limits: Limits, admission: Admission | None = None
    ) -> None:
        self.name = name
        self.admission = admission or Admission(limits)  # all listeners of a broker share one
        self.request_max_bytes = limits.request_max_bytes
        self.clock_s = time.monotonic()
        self._limits = limits
        self._dispatch = dispatch
        self._connections: set[Connection] = set()
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

    def admit(self, connection: Connection) -> str | None:
        """Let a new connection in; a sentence says why it must go again."""
        refusal = self.admission.admit(connection)
        if refusal is None:
            self._connections.add(connection)
        return refusal

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.admission.forget(connection)

    # Time -----------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Close idle connections, and keep the coarse clock that connections stamp reads with."""
        self.clock_s = time.monotonic()
        idle_max_s = self._limits.connections_idle_max_ms / 1000
        for connection in list(self._connections):
            connection.sweep(self.clock_s, idle_max_s)
        self.admission.free_one_if_stuck()
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
