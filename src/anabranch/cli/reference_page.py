"""Renders docs/reference/cli.md: the contract of the command line, and every command's help.

python -m anabranch.cli.reference_page > docs/reference/cli.md
"""

from collections.abc import Iterator

import click

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

_JSON_FIELDS = (
    ("topics list", "list", "`topic`, `partitions`, `replication_factor`"),
    (
        "topics create",
        "list",
        (
            "`topic`, `partitions`, `replication_factor`, `status` (`created`, `exists`, `valid`,"
            " `failed`), `error`"
        ),
    ),
    (
        "topics describe",
        "list",
        (
            "`topic`, `topic_id`, `partition_count`, `replication_factor`, `configs` (object),"
            " `partitions` (list of `partition`, `leader`, `replicas`, `isr`; with `--offsets` also"
            " `log_start_offset`, `log_end_offset`)"
        ),
    ),
    (
        "topics branch",
        "list",
        (
            "`topic`, `source`, `partitions`, `ranges_per_partition`, `status` (`created`,"
            " `valid`), with `--from-group` `start`"
        ),
    ),
    (
        "topics delete",
        "list",
        "`topic`, `partitions`, `records`, `status` (`deleted`, `kept`, `failed`), `error`",
    ),
    (
        "topics configs",
        "list",
        "`topic`, `name`, `value`, `source`, `is_read_only`, `is_sensitive`",
    ),
    (
        "topics configs --set",
        "list",
        "`topic`, `name`, `before`, `after`, `status` (`changed`, `valid`)",
    ),
    (
        "produce",
        "object",
        "`topic`, `delivered`, `failed`, `errors` (list of `error`, `records`)",
    ),
    (
        "consume",
        "object per line",
        (
            "`topic`, `partition`, `offset`, `timestamp` (ms), `timestamp_type`, `key`,"
            " `key_encoding`, `value`, `value_encoding`, `headers` (list of `key`, `value`,"
            " `value_encoding`)"
        ),
    ),
    ("groups list", "list", "`group`, `type`, `protocol`, `state`"),
    (
        "groups describe",
        "list",
        (
            "`group`, `type`, `protocol`, `state`, `group_epoch`, `target_assignment_epoch`,"
            " `assignor`, `coordinator` (`id`, `host`, `port`), `members`"
            " (list of `consumer_id`, `group_instance_id`, `host`, `client_id`, `epoch`,"
            " `assignment` and `target_assignment`, which are lists of `topic`, `partitions`,"
            " `upgraded`), `movements` (list of `topic`, `partition`, `from_consumer_id`,"
            " `to_consumer_id`, `state`, `since_ms`), where the group reads branch topics"
            " `branch_progress` (list of what the second table shows), with `--ranges`"
            " `individual_progress` (list of `topic`, `partition`, `stable_offset`,"
            " `high_watermark`, `window`, `why`, `held_by`, `ranges`, `retried`);"
            " epochs, targets and movements are null or"
            " empty for classic groups; without `--members`, `--state` and `--movements`"
            " also `total_lag`, `partitions` (list of `topic`, `partition`, `current_offset`,"
            " `leader_epoch`, `log_start_offset`, `log_end_offset`, `lag`, `consumer_id`, `host`,"
            " `client_id`)"
        ),
    ),
    (
        "groups reset",
        "list",
        (
            "`group`, `topic`, `partition`, `before`, `after`, `lag`, `status` (`reset`, `valid`,"
            " `failed`), `error`"
        ),
    ),
    (
        "groups delete",
        "list",
        (
            "`group`, `state`, `members`, `offsets` (how many), `status` (`deleted`, `kept`,"
            " `failed`), `error`"
        ),
    ),
    (
        "groups delete-offsets",
        "list",
        (
            "`group`, `topic`, `partition`, `offset`, `status` (`deleted`, `kept`, `failed`),"
            " `error`"
        ),
    ),
    (
        "groups release, skip, dlq",
        "list",
        (
            "`group`, `topic`, `partition`, `offset`, `key_hash`, `attempts`, `reason`, `before`,"
            " `after`, `status` (`done`, `valid`, `failed`), `error`"
        ),
    ),
    (
        "configs list, describe",
        "list",
        (
            "`resource_type` (`broker`, `topic`, `group`), `resource`, `name`, `value`, `source`,"
            " `default`, `type`, `is_read_only`, `is_sensitive`, `documentation`"
        ),
    ),
    (
        "configs alter",
        "list",
        ("`resource_type`, `resource`, `name`, `before`, `after`, `status` (`changed`, `valid`)"),
    ),
    (
        "configs explain",
        "list",
        (
            "`name`, `resource_type`, `type`, `default`, `valid_values`, `change`,"
            " `documentation`, `importance`, `aliases`, `broker_settings`, `environment`,"
            " `is_of_kafka`"
        ),
    ),
    ("transactions list", "list", "`transactional_id`, `coordinator`, `producer_id`, `state`"),
    (
        "transactions describe",
        "list",
        (
            "`transactional_id`, `coordinator` (`id`, `host`, `port`), `producer_id`,"
            " `producer_epoch`, `state`, `timeout_ms`, `start_time_ms`, `duration_ms`,"
            " `partitions` (list of `topic`, `partition`)"
        ),
    ),
    (
        "transactions describe-producers",
        "list",
        (
            "`topic`, `partition`, `producer_id`, `producer_epoch`, `latest_coordinator_epoch`,"
            " `last_sequence`, `last_timestamp`, `current_transaction_start_offset`"
        ),
    ),
    (
        "transactions find-hanging",
        "list",
        (
            "`topic`, `partition`, `producer_id`, `producer_epoch`, `coordinator_epoch`,"
            " `start_offset`, `last_timestamp`, `duration_min`"
        ),
    ),
    (
        "transactions abort",
        "list",
        (
            "`producer_id`, `producer_epoch`, `status` (`aborted`, with `--dry-run` `open`), and"
            " `transactional_id`, `partitions` (list of `topic`, `partition`), or `topic`,"
            " `partition`, `coordinator_epoch`, `start_offset`"
        ),
    ),
    ("pipeline new", "object", "`pipeline`, `folder`, `files` (list)"),
    (
        "pipeline run, demo",
        "object per line",
        "`query`, `batch`, `rows`, `rows_per_second`, `duration_ms`, `lag`",
    ),
    (
        "pipeline status",
        "object",
        (
            "`pipeline`, `group`, `total_lag`, `partitions` (list of `topic`, `partition`,"
            " `current_offset`, `log_end_offset`, `lag`)"
        ),
    ),
    (
        "doctor",
        "list",
        (
            "`status` (`ok`, `warning`, `problem`, `skipped`), `check`, `subject`, `what`, `why`,"
            " `next_step`"
        ),
    ),
    (
        "log dump",
        "object per line",
        (
            "`file` and `type`; a `batch` has its header's fields, a `record` those of `consume`,"
            " an `offset_entry` `offset` and `position`, a `time_entry` `timestamp` and `offset`, a"
            " `producer` its state, a `damage` `position` and `reason`, a `summary` `size_bytes`,"
            " `valid_bytes`, `entries`, `records`, `is_sound`"
        ),
    ),
)

_AFTER_FIELDS = """
An encoding is `utf-8`, or `base64` where the bytes are not UTF-8. What `consume --format json`
writes, `produce --input json` reads.

## Commands
"""


def render_page() -> str:
    """The whole page."""
    fields = "| Command | Result | Fields |\n|---|---|---|\n" + "".join(
        f"| `{command}` | {result} | {names} |\n" for command, result, names in _JSON_FIELDS
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
