"""`anabranch groups delete-offsets`: forget what a group committed for some partitions."""

from typing import Any

import click

from anabranch.cli.completion.live_names import complete_groups, complete_topics
from anabranch.cli.connection import open_admin
from anabranch.cli.errors import CliError, CommandFailedError, reason_of, refusal
from anabranch.cli.groups.lookup import (
    Committed,
    TopicPartitionKey,
    committed_offsets,
    describe_groups,
    require_groups,
)
from anabranch.cli.groups.offset_deletion import delete_committed_offsets
from anabranch.cli.groups.scope import Scope, parse_topics
from anabranch.cli.options import (
    Connection,
    confirm,
    connection_options,
    debug_option,
    dry_run_option,
    examples,
    format_option,
    yes_option,
)
from anabranch.cli.output import counted, note, report_error, write_json, write_table


@click.command(
    "delete-offsets",
    epilog=examples(
        """
anabranch groups delete-offsets payments --topic orders
anabranch groups delete-offsets payments --topic orders:0,1 --dry-run
"""
    ),
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:N,...]",
    shell_complete=complete_topics,
    multiple=True,
    required=True,
    help="A topic, or some partitions of it; may be given again.",
)
@yes_option
@dry_run_option
@connection_options
@format_option
@debug_option
def delete_offsets(
    connection: Connection,
    output_format: str,
    group: str,
    topics: tuple[str, ...],
    is_confirmed: bool,
    is_dry_run: bool,
) -> None:
    """Delete offsets that a group has committed, for good.

    Shows what would go, then asks. The next consumer of the group starts there where its
    auto.offset.reset says. Topics that a member is subscribed to are refused. What members have
    done one by one goes with the offset.
    """
    from anabranch.cli.groups.range_questions import tell_forgotten

    scope = parse_topics(topics)
    admin, _ = open_admin(connection)
    described = describe_groups(admin, connection, [group])
    require_groups(admin, connection, described)
    committed = committed_offsets(admin, connection, [group])[group]
    rows: list[dict[str, Any]] = [
        {
            "group": group,
            "topic": topic,
            "partition": partition,
            "offset": committed[(topic, partition)].offset,
            "status": "kept",
            "error": None,
        }
        for topic, partition in _chosen(group, scope, committed)
    ]
    if output_format != "json":
        write_table(
            ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET"),
            [tuple(row.values())[:4] for row in rows],
        )
    offsets = {(row["topic"], row["partition"]): row["offset"] for row in rows}
    tell_forgotten(connection, described[group], offsets)
    if not is_dry_run:
        if not is_confirmed:
            confirm(f"Delete {counted(len(rows), 'offset')} of group {group!r}?")
        _delete(connection, group, rows)
    if output_format == "json":
        write_json(rows)
    elif is_dry_run:
        note("Nothing was deleted (--dry-run).")
    else:
        note(f"Deleted {counted(sum(row['status'] == 'deleted' for row in rows), 'offset')}.")
    if any(row["status"] == "failed" for row in rows):
        raise CommandFailedError


def _chosen(
    group: str, scope: Scope, committed: dict[TopicPartitionKey, Committed]
) -> list[TopicPartitionKey]:
    """Committed partitions of the scope; CliError for a part of it that has none."""
    chosen: list[TopicPartitionKey] = []
    for topic, numbers in scope.items():
        present = [key for key in committed if key[0] == topic]
        missing = numbers - {partition for _, partition in present}
        if not present or missing:
            place = (
                f"partition {min(missing)} of topic {topic!r}" if missing else f"topic {topic!r}"
            )
            raise CliError(
                f"There is nothing to delete for {place}",
                f"group {group!r} has committed no offset there",
                f"see `anabranch groups describe {group}`",
            )
        chosen += [key for key in present if not numbers or key[1] in numbers]
    return sorted(chosen)


def _delete(connection: Connection, group: str, rows: list[dict[str, Any]]) -> None:
    keys = [(row["topic"], row["partition"]) for row in rows]
    errors = delete_committed_offsets(connection, group, keys)
    for row, key in zip(rows, keys, strict=True):
        error = errors.get(key)
        if error is None:
            row["status"] = "deleted"
        else:
            row["status"], row["error"] = "failed", reason_of(error)
            report_error(str(refusal(f"Offset of {key[0]}-{key[1]} was not deleted", error)))
