"""The console's HTTP listener, in the broker's own loop.

The address is bound when the broker starts, but what serves it (starlette, uvicorn, jinja2) is
loaded when the first connection comes, which waits in the backlog meanwhile: a broker whose console
nobody opens pays one socket for it.
"""

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from anabranch.broker.broker import Broker
from anabranch.config.metrics_settings import Address
from anabranch.observe import logs

if TYPE_CHECKING:
    from uvicorn import Server

    from anabranch.console.frame import Console

_BACKLOG = 128
# Streams are told to end before, so that this is only for whoever does not read.
_GRACE_S = 1


class ConsoleListener:
    """One bound address that the console is served on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._socket: socket.socket | None = None
        self._loading: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._server: Server | None = None
        self._console: Console | None = None

    def start(self, wanted: Address) -> Address:
        """Bind; the address, whose port matters when 0 was asked for. OSError when it is in use."""
        family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
        self._socket = socket.create_server(
            (wanted.host, wanted.port), family=family, backlog=_BACKLOG
        )
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._first_connection)
        return Address(wanted.host, self._socket.getsockname()[1])

    def _first_connection(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().remove_reader(self._socket)
        self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        assert self._socket is not None
        # Importing takes a quarter of a second, in which the loop has other things to do.
        try:
            make = await asyncio.get_running_loop().run_in_executor(None, _import_maker)
            self._console, self._server = make(self._broker, self._socket.getsockname()[0])
        except Exception as error:
            logs.error("console.failed", error=repr(error))
            self._socket.close()
            self._socket = None
            return
        self._serving = asyncio.create_task(self._server.serve([self._socket]))

    async def stop(self) -> None:
        """End the streams, finish what is being answered, close the address."""
        if self._loading is not None:
            await self._loading
        if self._server is not None and self._console is not None and self._serving is not None:
            self._console.stopping.set()
            self._server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
            self._console.close()
        elif self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()


def _import_maker():  # type: ignore[no-untyped-def]
    import uvicorn

    from anabranch.console.app import make_app
    from anabranch.console.frame import Console

    class ConsoleServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self):  # type: ignore[no-untyped-def]
            yield  # signals are the broker's

    def make(broker: Broker, host: str) -> tuple[Console, uvicorn.Server]:
        console = Console(broker)
        config = uvicorn.Config(
            make_app(console, host),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        config.load()
        return console, ConsoleServer(config)

    return make
