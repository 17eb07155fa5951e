"""`anabranch dev`: a broker for a test run or an afternoon, gone afterwards."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click

from anabranch.cli.errors import CliError
from anabranch.cli.options import debug_option, examples, key_value_pairs
from anabranch.cli.output import note
from anabranch.cli.own_broker import create_topics, own_broker

# What a test suite wants: groups that form at once, and no flush that a crash would need.
_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "console.listeners": "",
}
_NAMES: Final = ("KAFKA_BOOTSTRAP_SERVERS", "BOOTSTRAP_SERVERS", "ANABRANCH_BOOTSTRAP_SERVER")


@click.command(
    short_help="Start a broker for development or a test run, gone afterwards.",
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        """
anabranch dev
anabranch dev --topic orders:3 --topic audit --port 19092
anabranch dev --topic orders:3 -- pytest tests
anabranch dev --console localhost:8081 --folder ./scratch
"""
    ),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Where to listen; 0 is any free port.  [default: 9092, with a COMMAND 0]",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:PARTITIONS]",
    multiple=True,
    help="Create this topic; may be given again.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data here.  [default: a temporary folder, deleted at the end]",
)
@click.option("--console", metavar="HOST:PORT", help="Serve the console here.  [default: nowhere]")
@click.option(
    "--override",
    "overrides",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set one setting of the broker; may be given again.",
)
@debug_option
def dev(
    command: tuple[str, ...],
    port: int | None,
    topics: tuple[str, ...],
    folder: Path | None,
    console: str | None,
    overrides: tuple[str, ...],
) -> int:
    """Start a broker that lives as long as COMMAND, or until Ctrl-C.

    COMMAND finds its address in KAFKA_BOOTSTRAP_SERVERS, BOOTSTRAP_SERVERS and
    ANABRANCH_BOOTSTRAP_SERVER, and its exit code is that of `anabranch dev`. Groups form without
    the initial delay of three seconds, and the broker's own topics have one partition; everything
    else is as in `anabranch serve`.
    """
    wanted = [_topic(entry) for entry in topics]
    settings = {**_SETTINGS, **key_value_pairs("--override", overrides)}
    if console is not None:
        settings["console.listeners"] = console
    if port is None:
        port = 0 if command else 9092
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-dev-")))
        address = stack.enter_context(own_broker(folder, settings, port=port))
        create_topics(address, wanted)
        stopped = None if command else _stop_signal()
        note(f"A broker is ready on {address}, its data in {folder}.")
        if console is not None:
            note(f"The console is at http://{console}")
        if stopped is None:
            return _run(command, address)
        note("Ctrl-C ends it.")
        stopped.wait()
        return 0


def _topic(entry: str) -> tuple[str, int]:
    name, colon, count = entry.partition(":")
    if not name or (colon and not (count.isdigit() and int(count) > 0)):
        raise click.UsageError(f"--topic takes NAME or NAME:PARTITIONS, got {entry!r}")
    return name, int(count) if colon else 1


def _run(command: tuple[str, ...], address: str) -> int:
    environment = {**os.environ, **dict.fromkeys(_NAMES, address)}
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise CliError(
            f"Cannot run {command[0]!r}", error.strerror or str(error), "name a program on the PATH"
        ) from error
    with _passed_on(process):
        code = process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def _passed_on(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Signals go to the command, which decides what to make of them; the broker outlives it."""
    # Ctrl-C reaches the command by itself: it is in the same group of the terminal.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminate = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)


def _stop_signal() -> threading.Event:
    """Set when somebody wants it to end."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped
