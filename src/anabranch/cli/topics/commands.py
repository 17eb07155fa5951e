"""`anabranch topics`: list and create; the other verbs are beside it, a module each."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.cluster import topic_summary
from anabranch.cli.completion.live_names import complete_topic_config_pairs
from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.errors import CommandFailedError, kafka_error_of, reason_of
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    dry_run_option,
    examples,
    format_option,
    key_value_pairs,
)
from anabranch.cli.output import report_error, write_json, write_table
from anabranch.cli.topics.branch import branch
from anabranch.cli.topics.branch_lookup import find_branch_topics
from anabranch.cli.topics.configs import configs
from anabranch.cli.topics.delete import delete_topics
from anabranch.cli.topics.describe import describe_topics
from anabranch.cli.topics.refusals import topic_refusal

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata


@click.group(
    short_help="List, create and change topics.",
    epilog=examples(
        """
anabranch topics create orders --partitions 3
anabranch topics describe orders
anabranch topics branch orders --into 24
"""
    ),
)
@debug_option
def topics() -> None:
    """List, create, branch, describe, change and delete topics."""


@topics.command(
    "list",
    epilog=examples(
        """
anabranch topics list
anabranch topics list --format json | jq -r '.[].topic'
"""
    ),
)
@connection_options
@format_option
@debug_option
def list_topics(connection: Connection, output_format: str) -> None:
    """List all topics.

    BRANCH-OF is the topic whose records a branch topic shows.
    """
    _, metadata = open_admin(connection)
    branched = find_branch_topics(connection, metadata)
    rows = [
        topic_summary(metadata, name)
        | {"branch_of": branched[name].source if name in branched else None}
        for name in sorted(metadata.topics)
    ]
    if output_format == "json":
        write_json(rows)
        return
    write_table(
        ("TOPIC", "PARTITIONS", "REPLICATION-FACTOR", "BRANCH-OF"),
        [tuple(row.values()) for row in rows],
    )


@topics.command(
    "create",
    epilog=examples(
        """
anabranch topics create orders
anabranch topics create orders --partitions 6 --config retention.ms=86400000
anabranch topics create orders payments --if-not-exists
"""
    ),
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions", type=int, metavar="N", help="How many.  [default: the broker's num.partitions]"
)
@click.option(
    "--replication-factor",
    type=int,
    metavar="N",
    help="How many copies.  [default: the broker's default.replication.factor]",
)
@click.option(
    "--config",
    "config_pairs",
    metavar="NAME=VALUE",
    multiple=True,
    shell_complete=complete_topic_config_pairs,
    help="A topic setting, such as cleanup.policy=compact; may be given again.",
)
@click.option("--if-not-exists", is_flag=True, help="A topic that exists already is no failure.")
@dry_run_option
@connection_options
@format_option
@debug_option
def create_topics(
    connection: Connection,
    output_format: str,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config_pairs: tuple[str, ...],
    if_not_exists: bool,
    is_dry_run: bool,
) -> None:
    """Create topics.

    With --dry-run the broker checks names, counts and settings, and creates nothing.
    """
    if partitions is not None and partitions < 1:
        raise click.UsageError(f"--partitions must be 1 or more, got {partitions}")
    if replication_factor is not None and replication_factor < 1:
        raise click.UsageError(f"--replication-factor must be 1 or more, got {replication_factor}")
    config = key_value_pairs("--config", config_pairs)
    admin, _ = open_admin(connection)
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    futures = admin.create_topics(
        [
            NewTopic(
                name,
                num_partitions=-1 if partitions is None else partitions,
                replication_factor=-1 if replication_factor is None else replication_factor,
                config=config,
            )
            for name in dict.fromkeys(names)
        ],
        validate_only=is_dry_run,
        request_timeout=connection.timeout_s,
        operation_timeout=connection.timeout_s,
    )
    results: list[dict[str, Any]] = []
    for name, future in futures.items():
        status, why = "valid" if is_dry_run else "created", None
        try:
            result_of(future, connection)
        except KafkaException as exception:
            error = kafka_error_of(exception)
            if error.name() == "TOPIC_ALREADY_EXISTS" and if_not_exists:
                status = "exists"
            else:
                status, why = "failed", reason_of(error)
                report_error(str(topic_refusal(f"Topic {name!r} was not created", error)))
        results.append({"topic": name, "status": status, "error": why})
    _report_created(admin, connection, results, output_format)


def _report_created(
    admin: "AdminClient",
    connection: Connection,
    results: list[dict[str, Any]],
    output_format: str,
) -> None:
    """Show what exists now; the counts are the broker's answer, not the request's echo."""
    if any(row["status"] in ("created", "exists") for row in results):
        metadata: ClusterMetadata = admin.list_topics(timeout=connection.timeout_s)
        found = {row["topic"]: topic_summary(metadata, row["topic"]) for row in results}
    else:
        found = {}
    rows = [
        {
            "topic": row["topic"],
            "partitions": found.get(row["topic"], {}).get("partitions"),
            "replication_factor": found.get(row["topic"], {}).get("replication_factor"),
            "status": row["status"],
            "error": row["error"],
        }
        for row in results
    ]
    if output_format == "json":
        write_json(rows)
    else:
        write_table(
            ("TOPIC", "PARTITIONS", "REPLICATION-FACTOR", "STATUS"),
            [tuple(row.values())[:4] for row in rows],
        )
    if any(row["status"] == "failed" for row in results):
        raise CommandFailedError


for command in (branch, describe_topics, configs, delete_topics):
    topics.add_command(command)
