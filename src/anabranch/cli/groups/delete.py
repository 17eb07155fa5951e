"""`anabranch groups delete`: forget empty groups and what they committed."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.completion.live_names import complete_groups
from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.errors import CliError, CommandFailedError, kafka_error_of, refusal
from anabranch.cli.groups.lookup import (
    Group,
    committed_offsets,
    describe_groups,
    still_active,
    unknown_group,
)
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
from anabranch.cli.progress import progress_bar

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@click.command(
    "delete",
    epilog=examples(
        """
anabranch groups delete payments
anabranch groups delete payments audit --dry-run
anabranch groups delete payments --yes
"""
    ),
)
@click.argument(
    "names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups
)
@yes_option
@dry_run_option
@connection_options
@format_option
@debug_option
def delete_groups(
    connection: Connection,
    output_format: str,
    names: tuple[str, ...],
    is_confirmed: bool,
    is_dry_run: bool,
) -> None:
    """Delete groups and the offsets they committed, for good.

    Shows what would go, then asks. OFFSETS is for how many partitions a group has committed. A
    group with members is refused, and so is one that does not exist; the others are deleted.
    """
    admin, _ = open_admin(connection)
    wanted = list(dict.fromkeys(names))
    groups = describe_groups(admin, connection, wanted)
    present = [name for name in wanted if groups[name].exists]
    committed = committed_offsets(admin, connection, present)
    rows = [_row(groups[name], len(committed.get(name, ()))) for name in wanted]
    if output_format != "json":
        write_table(
            ("GROUP", "STATE", "MEMBERS", "OFFSETS"),
            [tuple(row.values())[:4] for row in rows if row["group"] in present],
        )
    for row in rows:
        _refuse(admin, connection, groups[row["group"]], row)
    deletable = [row for row in rows if row["status"] == "kept"]
    if deletable and not is_dry_run:
        if not is_confirmed:
            confirm(f"Delete {counted(len(deletable), 'group')} with all offsets?")
        _delete(admin, connection, deletable)
    _report(rows, output_format, is_dry_run)


def _row(group: Group, offsets: int) -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "members": len(group.members),
        "offsets": offsets,
        "status": "kept",
        "error": None,
    }


def _refuse(
    admin: "AdminClient", connection: Connection, group: Group, row: dict[str, Any]
) -> None:
    """Tell before the question what the broker would refuse after it."""
    if not group.exists:
        _fail(row, unknown_group(admin, connection, group.group))
    elif group.is_active:
        _fail(row, still_active(group, "it can only be deleted"))


def _delete(admin: "AdminClient", connection: Connection, rows: list[dict[str, Any]]) -> None:
    from confluent_kafka import KafkaException

    futures = admin.delete_consumer_groups(
        [row["group"] for row in rows], request_timeout=connection.timeout_s
    )
    refused: list[tuple[dict[str, Any], CliError]] = []
    with progress_bar("Deleting", len(rows), is_shown=len(rows) > 1) as advance:
        for row in rows:
            try:
                result_of(futures[row["group"]], connection)
                row["status"] = "deleted"
            except KafkaException as exception:
                what = f"Group {row['group']!r} was not deleted"
                refused.append((row, refusal(what, kafka_error_of(exception))))
            advance(1)
    for row, error in refused:
        _fail(row, error)


def _fail(row: dict[str, Any], error: CliError) -> None:
    row["status"], row["error"] = "failed", error.why
    report_error(str(error))


def _report(rows: list[dict[str, Any]], output_format: str, is_dry_run: bool) -> None:
    if output_format == "json":
        write_json(rows)
    elif is_dry_run:
        note("Nothing was deleted (--dry-run).")
    else:
        note(f"Deleted {counted(sum(row['status'] == 'deleted' for row in rows), 'group')}.")
    if any(row["status"] == "failed" for row in rows):
        raise CommandFailedError
