"""The entry point: finds the command, runs it, and turns every ending into an exit code.

    0  done        1  failed (any part of it)        2  wrong usage
    130 (by signal)  interrupted with Ctrl-C

A closed pipe (`anabranch consume ... | head`) is a normal way to end and exits 0.
"""

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

try:
    import click
except ImportError:  # the client alone was installed, without dependencies
    sys.exit("error: The anabranch command needs its dependencies; run: pip install anabranch")

from anabranch.cli.errors import EXIT_FAILED, EXIT_OK, CliError, CommandFailedError
from anabranch.cli.options import AppState, debug_option, examples
from anabranch.cli.output import report_error

CONTEXT_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


class LazyCommand(NamedTuple):
    """Where a command lives, and its line in the list, so that listing imports nothing."""

    target: str  # module:attribute
    short_help: str


COMMANDS: Final = {
    "serve": LazyCommand("anabranch.cli.serve:serve", "Start a broker."),
    "dev": LazyCommand(
        "anabranch.cli.dev:dev", "Start a broker for development or a test run, gone afterwards."
    ),
    "topics": LazyCommand(
        "anabranch.cli.topics.commands:topics", "List, create and change topics."
    ),
    "produce": LazyCommand("anabranch.cli.records.produce:produce", "Send records to a topic."),
    "consume": LazyCommand("anabranch.cli.records.consume:consume", "Read records from a topic."),
    "groups": LazyCommand(
        "anabranch.cli.groups.commands:groups",
        "List consumer groups, see their lag, move their offsets.",
    ),
    "configs": LazyCommand(
        "anabranch.cli.configs.commands:configs",
        "See, explain and change the settings of brokers, topics and groups.",
    ),
    "transactions": LazyCommand(
        "anabranch.cli.transactions.commands:transactions",
        "See what transactions are doing, and abort those that hang.",
    ),
    "pipeline": LazyCommand(
        "anabranch.cli.pipeline.commands:pipeline", "Make and run pipelines on Spark."
    ),
    "demo": LazyCommand(
        "anabranch.cli.pipeline.demo:demo", "Watch a pipeline work: broker, orders and Spark."
    ),
    "log": LazyCommand("anabranch.cli.log.dump:log", "Look into log files without a broker."),
    "doctor": LazyCommand(
        "anabranch.cli.doctor.commands:doctor",
        "Find the usual misconfigurations of machine, broker, topics and groups.",
    ),
    "completion": LazyCommand(
        "anabranch.cli.completion.commands:completion",
        "Print the script that makes bash, zsh or fish complete.",
    ),
    "bench": LazyCommand(
        "anabranch.cli.bench:bench", "Measure produce, consume and latency of a broker."
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.short_help) for name, command in COMMANDS.items()])


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"anabranch {version('anabranch')}")
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings=CONTEXT_SETTINGS,
    epilog=examples(
        """
anabranch serve
anabranch topics create orders --partitions 3
echo hello | anabranch produce orders
anabranch consume orders --exit-at-end
"""
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@debug_option
def root() -> None:
    """A Kafka-compatible broker, and the tools to work with it or any other Kafka broker.

    Every command has its own help: `anabranch topics create --help`.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    if "_ANABRANCH_COMPLETE" in os.environ:  # the shell asks for completions
        importlib.import_module("anabranch.cli.completion.shells")  # bash's is ours
        root.main(prog_name="anabranch")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a test's capture is no TextIOWrapper
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    state = AppState()
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments), state)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _abandon_stdout()
        return EXIT_OK
    except KeyboardInterrupt:
        return _die_of_interrupt()


def _run(arguments: list[str], state: AppState) -> int:
    try:
        with root.make_context("anabranch", arguments, obj=state) as context:
            code = root.invoke(context)
            return code if isinstance(code, int) else EXIT_OK
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.exceptions.Abort:
        return _die_of_interrupt()
    except click.ClickException as error:  # usage errors above all, which carry exit code 2
        error.show()
        return error.exit_code
    except CommandFailedError:
        return EXIT_FAILED
    except CliError as error:
        if state.is_debug:
            raise
        report_error(str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        raise
    except Exception as error:
        if state.is_debug:
            raise
        report_error(
            f"Unexpected {type(error).__name__} - {error or 'no details'}"
            " - run again with --debug and report the traceback"
        )
        return EXIT_FAILED


def _abandon_stdout() -> None:
    """Nobody reads on: let Python's last flush at exit go nowhere instead of failing."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _die_of_interrupt() -> int:
    """End by the signal itself, so that a shell script around this stops as well."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return 128 + signal.SIGINT
