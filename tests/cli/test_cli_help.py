"""Every command's help, its examples, and the page that is rendered from them."""

import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from anabranch.cli.main import COMMANDS, CONTEXT_SETTINGS, root
from anabranch.cli.reference_page import commands, render_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
ALL = {path: command for path, command, _ in commands(root, "anabranch")}


def examples_of(command: click.Command) -> list[str]:
    assert command.epilog is not None
    return [line.strip() for line in command.epilog.split("EXAMPLES\n")[1].splitlines()]


EXAMPLES = [line for command in ALL.values() for line in examples_of(command)]


@pytest.mark.parametrize("path", ALL)
def test_every_command_has_help(run: Callable, path: str) -> None:
    """--help and -h exit 0, write to stdout only, and show examples."""
    for flag in ("--help", "-h"):
        result = run(*path.split()[1:], flag)
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith(f"Usage: {path}")
        assert "EXAMPLES\n    " in result.out


@pytest.mark.parametrize("path", ALL)
def test_every_flag_is_explained(path: str) -> None:
    """No option comes without a sentence."""
    for parameter in ALL[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


# They start or print something for another program, and have no results of their own.
WITHOUT_RESULTS = {"anabranch serve", "anabranch dev", "anabranch completion"}


@pytest.mark.parametrize("path", [path for path in ALL if path not in WITHOUT_RESULTS])
def test_every_result_has_three_formats(path: str) -> None:
    """Each command that gives results takes --format text|json|tsv."""
    if isinstance(ALL[path], click.Group):
        return
    (option,) = [p for p in ALL[path].params if "--format" in p.opts]
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == ("text", "json", "tsv")


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_are_valid(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example parses: commands, flags and values are real (nothing is run)."""
    segment = tmp_path / "anabranch-data" / "orders-0" / "00000000000000000000.log"
    segment.parent.mkdir(parents=True)
    for path in (segment, tmp_path / "orders.txt", tmp_path / "server.properties"):
        path.touch()
    monkeypatch.chdir(tmp_path)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<()")
    lexer.whitespace_split = True
    lexer.escape = ""
    words = list(lexer)
    calls = 0
    while "anabranch" in words:
        del words[: words.index("anabranch") + 1]
        ends = [index for index, word in enumerate(words) if word in ("|", ">", ")")]
        arguments = words[: ends[0]] if ends else words
        command: click.Command = root
        # As the entry point has it: a command keeps the help option of its first context.
        context = click.Context(root, **CONTEXT_SETTINGS)
        while isinstance(command, click.Group):
            inner = command.get_command(context, arguments.pop(0))
            assert inner is not None
            command = inner
        command.make_context("example", list(arguments), parent=context).close()
        calls += 1
    assert calls


def test_the_list_of_commands_is_right() -> None:
    """The lazily listed lines are those of the commands themselves."""
    for name, command in COMMANDS.items():
        assert ALL[f"anabranch {name}"].get_short_help_str(200) == command.short_help


def test_the_committed_page_is_up_to_date() -> None:
    """Whoever changes a command renders the page again."""
    assert PAGE.read_text(encoding="utf-8") == render_page(), (
        "run: python -m anabranch.cli.reference_page > docs/reference/cli.md"
    )
