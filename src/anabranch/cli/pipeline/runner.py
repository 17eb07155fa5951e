"""A pipeline at work in this process: its session, its progress, its stop.

Rules of the stop
- The batch that is under way is given time to end; if it takes longer, it is broken off, and Spark
  runs it again from the checkpoint the next time.
- When the query has stopped, the group is shown the end of the last batch that is done: Spark
  itself would tell the source only with the next one.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from anabranch.cli.errors import CliError
from anabranch.cli.pipeline.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from anabranch.spark.listener import BatchProgress

_POLL_S = 0.2
_APP_MODULE = "anabranch_pipeline_app"
_QUIET = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "30s",
}


def open_session(
    name: str, settings: Mapping[str, str], *, master: str | None, remote: str | None = None
) -> "SparkSession":
    """A session here, on a cluster, or behind Spark Connect."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        # Executors of this machine run the Python that has this package, whatever PATH says.
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master is None or master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.master(master or "local[*]")
        for key, value in _QUIET.items():
            builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    if remote is None:
        session.sparkContext.setLogLevel("ERROR")
    return session


def load_app(path: Path) -> ModuleType:
    """The application as a module; executors get its functions themselves, not their names."""
    from pyspark import cloudpickle

    module = ModuleType(_APP_MODULE)
    module.__file__ = str(path.resolve())
    sys.modules[_APP_MODULE] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    except SyntaxError as error:
        raise CliError(f"Cannot run {path}", str(error), "correct the file") from error
    if not callable(getattr(module, "start", None)):
        raise CliError(
            f"Cannot run {path}",
            "it has no function start(spark)",
            "write one that starts the query and returns it",
        )
    return module


class Stop:
    """Whether the user, or whoever runs this, wants an end of it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def request(self, *_: object) -> None:
        self._event.set()

    def is_requested(self, within_s: float = 0.0) -> bool:
        return self._event.wait(within_s) if within_s else self._event.is_set()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM request it, for the time of the block."""
        names = (signal.SIGINT, signal.SIGTERM)
        before = {name: signal.signal(name, self.request) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)


def run_query(
    start: "Callable[[SparkSession], StreamingQuery]",
    session: "SparkSession",
    source: Mapping[str, str],
    report: "Callable[[BatchProgress], None]",
    *,
    stop: Stop,
    grace_s: float,
    until: Callable[[], bool] = lambda: False,
) -> "BatchProgress | None":
    """Run a query until it ends or is to be stopped; returns its last progress."""
    from anabranch.spark.listener import LagListener, progress_of

    listener = LagListener(report)
    session.streams.addListener(listener)
    try:
        # After the session, which has a handler of its own for SIGINT.
        with stop.on_signals():
            query = start(session)
            while query.isActive and not until() and not stop.is_requested(_POLL_S):
                pass
            if query.isActive:
                _silence(session)
                _stop(query, grace_s)
        problem = query.exception()
        if problem is not None:
            raise CliError(
                "The pipeline failed",
                _first_line(str(problem)),
                "it goes on from its checkpoint when it is run again; --debug shows the traceback",
            ) from problem
        last: Any = query.lastProgress
        if last is None:
            return None
        document = json.loads(last.json)
        commit(source, positions_of(document))
        return progress_of(document)
    finally:
        session.streams.removeListener(listener)


def _silence(session: "SparkSession") -> None:
    """Spark logs the traces of a batch that is broken off as if something were wrong.

    What is wrong with the query itself is told by its exception.
    """
    if not type(session).__module__.startswith("pyspark.sql.connect"):
        session.sparkContext.setLogLevel("OFF")


def _stop(query: "StreamingQuery", grace_s: float) -> None:
    """After the batch that is under way; where records keep coming, the next is broken off."""
    end_s = time.monotonic() + grace_s
    done = _batches_done(query)
    while query.isActive and _is_in_a_batch(query) and _batches_done(query) == done:
        if time.monotonic() >= end_s:
            break
        time.sleep(_POLL_S / 2)
    query.stop()


def _is_in_a_batch(query: "StreamingQuery") -> bool:
    status = query.status
    return bool(status["isTriggerActive"] and status["isDataAvailable"])


def _batches_done(query: "StreamingQuery") -> int:
    last: Any = query.lastProgress
    return -1 if last is None else int(last.batchId)


def positions_of(progress: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Where each partition of each source was read up to, by a report of Spark's."""
    from anabranch.spark.errors import DataLossError
    from anabranch.spark.offsets import from_json

    positions: dict[tuple[str, int], int] = {}
    for source in progress.get("sources", ()):
        end = source.get("endOffset")
        try:
            positions |= from_json(json.loads(end) if isinstance(end, str) else end or {})
        except (DataLossError, ValueError, AttributeError):
            continue  # a source of another kind
    return positions


def commit(source: Mapping[str, str], positions: Mapping[tuple[str, int], int]) -> None:
    """Show the source's group where the query is."""
    from anabranch.spark.options import parse_options
    from anabranch.spark.source_positions import Positions

    # Spark hands options over in lower case.
    options = parse_options(
        {name.lower(): value for name, value in source.items()}, is_streaming=True
    )
    subscription = options.subscription
    own = {
        place: offset
        for place, offset in positions.items()
        if subscription.option != "subscribe" or place[0] in subscription.topics
    }
    Positions(options).commit_group(own)


def quiet_logs() -> None:
    """What py4j and grpc say when a session ends is not for the user."""
    for name in ("py4j", "grpc", "pyspark"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def app_start(project: Project) -> "Callable[[SparkSession], StreamingQuery]":
    """The function that starts the project's query."""
    assert project.app is not None
    found: Callable[[SparkSession], StreamingQuery] = load_app(project.app).start
    return found


def _first_line(text: str) -> str:
    """What happened, without Spark's query plan and traces."""
    for line in text.splitlines():
        if line.strip():
            return line.strip().rstrip(".")
    return "no details"
