"""Renders docs/reference/cli.md: the contract of the command line, and every command's help.

python -m anabranch.cli.reference_page > docs/reference/cli.md
"""

from collections.abc import Iterator

import click

from anabranch.cli.json_fields import JSON_FIELDS
from anabranch.cli.main import CONTEXT_SETTINGS, root

_WIDTH = 100

_INTRODUCTION = """\
# Command line

<!-- Rendered by `python -m anabranch.cli.reference_page > docs/reference/cli.md`. -->

`anabranch serve` starts a broker. All other commands talk to a broker, Anabranch or Apache Kafka,
as a client does, or read its files.

## What every command keeps to

- **Data on stdout, everything else on stderr.** Notes, questions, progress and errors never mix
  with results.
- **`--format text`** is aligned columns under upper-case headers, two spaces apart, never cut;
  `-` stands for nothing. **`--format json`** is one document, or one object per line where results
  stream (`consume`, `log dump`). Fields are stable: later versions may add some and remove none.
  An empty list is `[]`. **`--format tsv`** is the tables of text for programs: a header line with
  the same names, tabs between cells, nothing in a cell where text has `-`, and `\\t`, `\\n`, `\\r`
  and `\\\\` for what would break a line. An empty line stands between two tables. `consume` writes
  `TOPIC PARTITION OFFSET TIMESTAMP KEY VALUE HEADERS`, and `log dump` puts `FILE` before its
  columns.
- **Exit codes.** 0: done. 1: failed, wholly or in any part. 2: wrong usage. Ctrl-C ends a command
  by that signal (130 in a shell). A reader that closes the pipe (`| head`) is no failure.
- **Errors** are one line: what happened - why - what to do next. `--debug` adds the traceback and
  the client library's own log.
- **Changes that lose something** show what they would do and ask; `--yes` skips the question,
  `--dry-run` stops before it. Without a terminal to ask on, leaving out both is wrong usage.
- **Colour and progress** appear on a terminal only; `NO_COLOR` switches colour off.

## Reaching a broker

`--bootstrap-server`, or else the variable `ANABRANCH_BOOTSTRAP_SERVER`, or else
`bootstrap.servers` in the `--command-config` file, or else `localhost:9092`.

`--command-config` takes the properties file of Kafka's own tools. Names that librdkafka spells
differently are translated: `sasl.jaas.config` (its username and password), `request.timeout.ms`,
`ssl.truststore.*` and `ssl.keystore.*` for PEM and PKCS12 files. Settings that only mean
something to Java are ignored; librdkafka's own names work too.

`--timeout` is how long a command waits for the broker. Where nothing listens at all, it says so
after a second or two.

## Completion

`source <(anabranch completion bash)` makes this shell complete commands, flags, values, and the
names of topics, groups, members, transactional ids and settings. To have it always:

| Shell | Once |
|---|---|
| bash | `anabranch completion bash > ~/.local/share/bash-completion/completions/anabranch` |
| zsh | `anabranch completion zsh > ~/.zfunc/_anabranch`, with `fpath+=~/.zfunc` before `compinit` |
| fish | `anabranch completion fish > ~/.config/fish/completions/anabranch.fish` |

Names come from the broker of the line that is typed (`--bootstrap-server`, `--command-config`), or
else of `ANABRANCH_BOOTSTRAP_SERVER`. It has one second; when it does not answer, there is nothing
to offer, and no error.

## Fields of JSON results

"""

_AFTER_FIELDS = """
An encoding is `utf-8`, or `base64` where the bytes are not UTF-8. What `consume --format json`
writes, `produce --input json` reads.

## Commands
"""


def render_page() -> str:
    """The whole page."""
    fields = "| Command | Result | Fields |\n|---|---|---|\n" + "".join(
        f"| `{command}` | {result} | {names} |\n" for command, result, names in JSON_FIELDS
    )
    return _INTRODUCTION + fields + _AFTER_FIELDS + "".join(_sections(root, "anabranch"))


def commands(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with the words that call it, in the order of the help."""
    context = click.Context(
        command, info_name=path.rpartition(" ")[2], parent=parent, **CONTEXT_SETTINGS
    )
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{path} {name}", context)


def _sections(command: click.Command, name: str) -> Iterator[str]:
    for path, inner, context in commands(command, name):
        context.terminal_width = _WIDTH
        yield f"\n### `{path}`\n\n```text\n{inner.get_help(context)}\n```\n"


if __name__ == "__main__":
    click.echo(render_page(), nl=False)
