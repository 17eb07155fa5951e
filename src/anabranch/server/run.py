"""Start a broker, serve until told to stop, stop in order."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.broker.broker import Broker
from anabranch.broker.housekeeping import Housekeeping
from anabranch.config.console_settings import CONSOLE_LISTENERS
from anabranch.config.listeners import resolve_listeners
from anabranch.config.load import ConfigError, Settings, load_settings
from anabranch.config.metrics_settings import METRICS_LISTENERS, parse_address
from anabranch.console.listener import ConsoleListener
from anabranch.coordinator.group.assignors.api import AssignorError
from anabranch.coordinator.group.assignors.registry import build_registry
from anabranch.engine.log_directory import DirectoryError
from anabranch.observe import logs
from anabranch.observe.broker_metrics import CONNECTIONS
from anabranch.observe.metrics import Families
from anabranch.server.admission import Admission, Limits
from anabranch.server.dispatch import Dispatch, last_calls
from anabranch.server.listener import Listener
from anabranch.server.service_manager import READY, STOPPING, tell_service_manager

if TYPE_CHECKING:
    from anabranch.server.metrics_listener import MetricsListener

_GRACE_S = 5.0


class Server:
    """A broker and its listeners; also what tests run in their own process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.listeners: list[Listener] = []
        self.addresses: list[str] = []
        self.metrics_urls: list[str] = []
        self._metrics_listeners: list[MetricsListener] = []
        self.console_urls: list[str] = []
        self._console_listeners: list[ConsoleListener] = []
        self.broker = Broker(settings)
        self._housekeeping = Housekeeping(self.broker)

    async def start(self) -> None:
        dispatch = Dispatch(self.broker)
        self.broker.metric_sources.append(lambda: self._collect_metrics(dispatch))
        limits = _limits(self.settings)
        admission = Admission(limits, self._current_limits)
        for wanted in resolve_listeners(self.settings):
            listener = Listener(wanted.name, dispatch, limits, admission)
            bound = wanted.bound_to(await listener.start(wanted.host, wanted.port))
            self.listeners.append(listener)
            if bound.advertised_host is not None:
                self.broker.set_endpoint(bound.name, bound.advertised_host, bound.advertised_port)
            self.addresses.append(f"{bound.name}://{bound.host or '*'}:{bound.port}")
        self.broker.groups.start()
        self.broker.transactions.start()
        self._housekeeping.start()
        await self._serve_metrics()
        self._serve_console()

    def _serve_console(self) -> None:
        for entry in self.settings.get_list(CONSOLE_LISTENERS):
            listener = ConsoleListener(self.broker)
            try:
                bound = listener.start(parse_address(entry))
            except OSError as error:
                if self.settings.is_set(CONSOLE_LISTENERS):
                    raise OSError(
                        f"{CONSOLE_LISTENERS}: {entry} cannot be used: {error}"
                    ) from error
                # Nobody asked for this address: a second broker on a machine goes without.
                logs.warning("console.address.in.use", address=entry, setting=CONSOLE_LISTENERS)
                continue
            self._console_listeners.append(listener)
            self.console_urls.append(f"http://{bound}")

    async def _serve_metrics(self) -> None:
        entries = self.settings.get_list(METRICS_LISTENERS)
        if not entries:
            return
        # Only who wants metrics loads what serves them.
        from anabranch.server.metrics_listener import MetricsListener

        for entry in entries:
            listener = MetricsListener(self.broker)
            self._metrics_listeners.append(listener)
            bound = await listener.start(parse_address(entry))
            self.metrics_urls.append(f"http://{bound}/metrics")

    def _collect_metrics(self, dispatch: Dispatch) -> Families:
        yield CONNECTIONS, {(one.name,): one.connection_count for one in self.listeners}
        yield from dispatch.metrics.collect(self.broker)

    def _current_limits(self) -> Limits:
        """The limits with those that clients may have altered."""
        return replace(
            _limits(self.settings),
            connections_max=self.broker.get_int("max.connections"),
            connections_per_ip_max=self.broker.get_int("max.connections.per.ip"),
        )

    async def stop(self) -> None:
        """Answer who waits, close the connections, then the logs."""
        for metrics_listener in self._metrics_listeners:
            await metrics_listener.stop()
        for console_listener in self._console_listeners:
            await console_listener.stop()
        for listener in self.listeners:
            listener.close()
        for topic in self.broker.topics:
            self.broker.purgatory.finish_all(topic.partitions)
        self.broker.transactions.stop()
        self.broker.groups.stop()
        for listener in self.listeners:
            await listener.wait_closed(_GRACE_S)
        await self._housekeeping.stop()
        self.broker.close()


def _limits(settings: Settings) -> Limits:
    return Limits(
        request_max_bytes=settings.get_int("socket.request.max.bytes"),
        connections_max=settings.get_int("max.connections"),
        connections_per_ip_max=settings.get_int("max.connections.per.ip"),
        connections_idle_max_ms=settings.get_int("connections.max.idle.ms"),
        queued_request_max_bytes=settings.get_int("queued.max.request.bytes"),
        backlog=settings.get_int("socket.listen.backlog.size"),
    )


def run(properties_path: str | None, overrides: Sequence[str], check: bool) -> int:
    """What `anabranch serve` does; returns the exit code."""
    logs.set_up_logging()
    try:
        settings = load_settings(
            properties_path=properties_path, environ=os.environ, overrides=overrides
        )
        _check_assignors(settings)
    except ConfigError as error:
        for problem in error.problems:
            print(f"anabranch: {problem}", file=sys.stderr)
        return 2
    for text in settings.warnings:
        logs.warning("config.warning", text=text)
    for text in settings.infos:
        logs.info("config.ignored", text=text)
    if check:
        print("The configuration is valid.")
        return 0
    _raise_open_files_limit()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings, properties_path, overrides))
    except (DirectoryError, OSError) as error:
        print(f"anabranch: {error}", file=sys.stderr)
        return 1


def _check_assignors(settings: Settings) -> None:
    """ConfigError when an assignor is not to be had, before anything is opened."""
    name = "group.consumer.assignors"
    try:
        build_registry(settings.get_list(name))
    except AssignorError as error:
        raise ConfigError(f"{settings.source(name)}: {error}") from error


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: a fifth less CPU for small requests."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(settings: Settings, properties_path: str | None, overrides: Sequence[str]) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_loop_error)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    server = Server(settings)
    try:
        await server.start()
    except BaseException:
        server.broker.close()
        raise
    # What was loaded stays: with very many partitions the garbage collector would hold the loop for
    # a tenth of a second each time it went through all of it.
    gc.collect()
    gc.freeze()
    _print_banner(server, properties_path, overrides)
    tell_service_manager(READY)
    await stopping.wait()
    tell_service_manager(STOPPING)
    logs.info("broker.stopping")
    await server.stop()
    logs.info("broker.stopped")
    return 0


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What no callback caught: a bug, reported as one line like everything else."""
    error = context.get("exception")
    calls = last_calls(error) if error is not None else ""
    logs.error("loop.failed", text=context["message"], error=repr(error), calls=calls)


def _print_banner(server: Server, properties_path: str | None, overrides: Sequence[str]) -> None:
    """A few lines that say where everything is."""
    broker = server.broker
    sources = [
        "defaults",
        *([properties_path] if properties_path else []),
        *(["KAFKA_* environment"] if any(k.startswith("KAFKA_") for k in os.environ) else []),
        *(["--override"] if overrides else []),
    ]
    folders = ", ".join(str(directory.path.resolve()) for directory in broker.engine.directories)
    print(f"Anabranch node {broker.node_id} of cluster {broker.cluster_id} is ready.")
    print(f"  listeners  {', '.join(server.addresses)}")
    print(f"  data       {folders} ({len(broker.topics)} topics)")
    if server.console_urls:
        print(f"  console    {', '.join(server.console_urls)}")
    if server.metrics_urls:
        print(f"  metrics    {', '.join(server.metrics_urls)}")
    print(f"  settings   {' < '.join(sources)}", flush=True)


def _raise_open_files_limit() -> None:
    """Logs and connections need more open files than a shell usually allows."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
