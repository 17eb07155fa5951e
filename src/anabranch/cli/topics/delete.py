"""`anabranch topics delete`: with a look at what goes, and a question."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.cluster import offset_ranges, require_topics
from anabranch.cli.completion.live_names import complete_topics
from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.errors import CliError, CommandFailedError, kafka_error_of, reason_of
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
from anabranch.cli.topics.branch_lookup import BranchTopic, find_branch_topics
from anabranch.cli.topics.refusals import topic_refusal

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@click.command(
    "delete",
    epilog=examples(
        """
anabranch topics delete orders
anabranch topics delete orders payments --dry-run
anabranch topics delete orders --yes
anabranch topics delete orders --with-branches
"""
    ),
)
@click.argument(
    "names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
@click.option("--with-branches", is_flag=True, help="Delete the branch topics of each as well.")
@yes_option
@dry_run_option
@connection_options
@format_option
@debug_option
def delete_topics(
    connection: Connection,
    output_format: str,
    names: tuple[str, ...],
    with_branches: bool,
    is_confirmed: bool,
    is_dry_run: bool,
) -> None:
    """Delete topics and all their records, for good.

    Shows what would go, then asks. A branch topic has no records of its own: those of its source
    stay, and a source goes only with its branch topics.
    """
    admin, metadata = open_admin(connection)
    require_topics(metadata, names)
    branched = find_branch_topics(connection, metadata)
    wanted = _with_branches(list(dict.fromkeys(names)), branched, with_branches)
    keys = [
        (name, partition)
        for name in wanted
        if name not in branched
        for partition in metadata.topics[name].partitions
    ]
    ranges = offset_ranges(admin, connection, keys)
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": len(metadata.topics[name].partitions),
            "records": sum(
                end - start for (topic, _), (start, end) in ranges.items() if topic == name
            ),
            "status": "kept",
            "error": None,
        }
        for name in wanted
    ]
    if output_format != "json":
        write_table(
            ("TOPIC", "PARTITIONS", "RECORDS"),
            [(row["topic"], row["partitions"], row["records"]) for row in rows],
        )
    if not is_dry_run:
        if not is_confirmed:
            confirm(_question(wanted, branched))
        _delete(admin, connection, rows)
    if output_format == "json":
        write_json(rows)
    elif is_dry_run:
        note("Nothing was deleted (--dry-run).")
    else:
        note(f"Deleted {counted(sum(row['status'] == 'deleted' for row in rows), 'topic')}.")
    if any(row["status"] == "failed" for row in rows):
        raise CommandFailedError


def _with_branches(
    wanted: list[str], branched: dict[str, BranchTopic], with_branches: bool
) -> list[str]:
    """The topics that go, branch topics of each behind it; CliError when one would be left over."""
    result = []
    for name in wanted:
        left = [topic.name for topic in branched.values() if topic.source == name]
        left = [branch_topic for branch_topic in left if branch_topic not in wanted]
        if left and not with_branches:
            raise CliError(
                f"Topic {name!r} was not deleted",
                f"its records are shown by {', '.join(map(repr, sorted(left)))}",
                "pass --with-branches to delete the branch topics as well",
            )
        result += [name, *sorted(left)]
    return result


def _question(wanted: list[str], branched: dict[str, BranchTopic]) -> str:
    if all(name in branched for name in wanted):
        count = counted(len(wanted), "branch topic")
        return f"Delete {count}? The records stay where they are, in the source."
    return f"Delete {counted(len(wanted), 'topic')} with all records?"


def _delete(admin: "AdminClient", connection: Connection, rows: list[dict[str, Any]]) -> None:
    from confluent_kafka import KafkaException

    futures = admin.delete_topics(
        [row["topic"] for row in rows],
        request_timeout=connection.timeout_s,
        operation_timeout=connection.timeout_s,
    )
    refused: list[CliError] = []
    with progress_bar("Deleting", len(rows), is_shown=len(rows) > 1) as advance:
        for row in rows:
            try:
                result_of(futures[row["topic"]], connection)
                row["status"] = "deleted"
            except KafkaException as exception:
                error = kafka_error_of(exception)
                row["status"], row["error"] = "failed", reason_of(error)
                refused.append(topic_refusal(f"Topic {row['topic']!r} was not deleted", error))
            advance(1)
    for refusal in refused:
        report_error(str(refusal))
