"""The flags that commands share, and the question that destructive ones ask."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from anabranch.cli.output import FORMATS, choose_format, note

BOOTSTRAP_SERVER_DEFAULT: Final = "localhost:9092"
TIMEOUT_DEFAULT_S: Final = 10.0

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class AppState:
    """What the entry point needs to know after a command has failed."""

    is_debug: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach a broker, as given on the command line."""

    bootstrap_server: str | None  # None: from the properties file, else the default
    command_config: Path | None
    timeout_s: float
    is_debug: bool


def examples(text: str) -> str:
    """An epilog that shows example lines as they are written."""
    return "\b\nEXAMPLES\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())


def debug_option(command: Command) -> Command:
    """Accept --debug, which lets tracebacks and librdkafka's own log lines through."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.ensure_object(AppState).is_debug = True

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Show tracebacks and the client library's log.",
    )(command)


def format_option(command: Command) -> Command:
    """Accept --format; the command gets `output_format`, and its tables follow it by themselves."""

    def remember(context: click.Context, _: click.Parameter, value: str) -> str:
        choose_format(context, value)
        return value

    return click.option(
        "--format",
        "output_format",
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        callback=remember,
        show_default=True,
        help="How results are written to stdout.",
    )(command)


def connection_options(command: Command) -> Command:
    """Accept the flags of Kafka's own tools; the command gets a `Connection`."""
    options = (
        click.option(
            "--bootstrap-server",
            metavar="HOST:PORT[,...]",
            envvar="ANABRANCH_BOOTSTRAP_SERVER",
            show_envvar=True,
            help=f"Where to find the broker.  [default: {BOOTSTRAP_SERVER_DEFAULT}]",
        ),
        click.option(
            "--command-config",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Client properties (security, sasl, ssl), under Java's or librdkafka's names.",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            metavar="SECONDS",
            type=click.FloatRange(min=0, min_open=True),
            default=TIMEOUT_DEFAULT_S,
            show_default=True,
            help="How long to wait for the broker.",
        ),
    )

    @functools.wraps(command)
    def with_connection(**values: Any) -> Any:
        connection = Connection(
            bootstrap_server=values.pop("bootstrap_server"),
            command_config=values.pop("command_config"),
            timeout_s=values.pop("timeout_s"),
            is_debug=click.get_current_context().ensure_object(AppState).is_debug,
        )
        return command(connection=connection, **values)

    wrapped: Any = with_connection
    for option in reversed(options):
        wrapped = option(wrapped)
    result: Command = wrapped
    return result


def yes_option(command: Command) -> Command:
    """Accept --yes; the command gets `is_confirmed`."""
    return click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")(command)


def dry_run_option(command: Command) -> Command:
    """Accept --dry-run; the command gets `is_dry_run`."""
    return click.option(
        "--dry-run", "is_dry_run", is_flag=True, help="Show what would happen, change nothing."
    )(command)


def is_interactive() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin.isatty()


def confirm(question: str) -> None:
    """Ask on the terminal; without one it is a usage error to leave --yes out."""
    if not is_interactive():
        raise click.UsageError(
            "stdin is no terminal, so nobody can be asked; pass --yes to go ahead,"
            " or --dry-run to only look"
        )
    sys.stdout.flush()  # the table that the question is about
    if not click.confirm(question, err=True):
        note("Nothing was changed.")
        raise click.exceptions.Exit(1)


def key_value_pairs(flag: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """`k=v` arguments as a dictionary; a usage error names the flag that was misused."""
    result: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{flag} takes name=value, got {pair!r}")
        if key.strip() in result:
            raise click.UsageError(f"{flag} names {key.strip()!r} twice")
        result[key.strip()] = value.strip()
    return result
