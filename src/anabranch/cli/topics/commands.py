"""`anabranch topics`: list, create, describe and delete; `configs` is beside it."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.cluster import offset_ranges, require_topics, topic_id_text, topic_summary
from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.errors import CommandFailedError, kafka_error_of, reason_of, refusal
from anabranch.cli.options import (
    Connection,
    confirm,
    connection_options,
    debug_option,
    dry_run_option,
    examples,
    format_option,
    key_value_pairs,
    yes_option,
)
from anabranch.cli.output import (
    counted,
    note,
    report_error,
    write_blank_line,
    write_json,
    write_table,
)
from anabranch.cli.topics.configs import configs, topic_overrides

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata


@click.group(
    short_help="List, create and change topics.",
    epilog=examples(
        """
anabranch topics create orders --partitions 3
anabranch topics describe orders
"""
    ),
)
@debug_option
def topics() -> None:
    """List, create, describe, change and delete topics."""


topics.add_command(configs)


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
    """List all topics."""
    _, metadata = open_admin(connection)
    rows = [topic_summary(metadata, name) for name in sorted(metadata.topics)]
    if output_format == "json":
        write_json(rows)
        return
    write_table(
        ("TOPIC", "PARTITIONS", "REPLICATION-FACTOR"), [tuple(row.values()) for row in rows]
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
                report_error(str(refusal(f"Topic {name!r} was not created", error)))
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


@topics.command(
    "describe",
    epilog=examples(
        """
anabranch topics describe
anabranch topics describe orders --offsets
anabranch topics describe orders --format json | jq '.[].partitions[].leader'
"""
    ),
)
@click.argument("names", metavar="[TOPIC...]", nargs=-1)
@click.option("--offsets", "with_offsets", is_flag=True, help="Show first and next offsets too.")
@connection_options
@format_option
@debug_option
def describe_topics(
    connection: Connection, output_format: str, names: tuple[str, ...], with_offsets: bool
) -> None:
    """Show topics with their partitions, leaders, replicas and settings.

    Without names, all topics. CONFIGS are the settings made for the topic itself; see
    `anabranch topics configs` for all that apply. Columns are those of kafka-topics.
    """
    admin, metadata = open_admin(connection)
    wanted = list(dict.fromkeys(names)) or sorted(metadata.topics)
    require_topics(metadata, wanted)
    if not wanted:
        _write_descriptions([], output_format, with_offsets)
        return
    from confluent_kafka import TopicCollection

    futures = admin.describe_topics(TopicCollection(wanted), request_timeout=connection.timeout_s)
    overrides = topic_overrides(admin, connection, wanted)
    described = [result_of(futures[name], connection) for name in wanted]
    ranges = (
        offset_ranges(
            admin,
            connection,
            [(topic.name, partition.id) for topic in described for partition in topic.partitions],
        )
        if with_offsets
        else {}
    )
    _write_descriptions(
        [_description(topic, overrides[topic.name], ranges, with_offsets) for topic in described],
        output_format,
        with_offsets,
    )


def _description(
    topic: Any,
    overrides: dict[str, str],
    ranges: dict[tuple[str, int], tuple[int, int]],
    with_offsets: bool,
) -> dict[str, Any]:
    partitions = []
    for partition in sorted(topic.partitions, key=lambda partition: int(partition.id)):
        row: dict[str, Any] = {
            "partition": partition.id,
            "leader": None if partition.leader is None else partition.leader.id,
            "replicas": [node.id for node in partition.replicas],
            "isr": [node.id for node in partition.isr],
        }
        if with_offsets:
            row["log_start_offset"], row["log_end_offset"] = ranges[(topic.name, partition.id)]
        partitions.append(row)
    return {
        "topic": topic.name,
        "topic_id": topic_id_text(topic.topic_id),
        "partition_count": len(partitions),
        "replication_factor": len(partitions[0]["replicas"]) if partitions else 0,
        "configs": overrides,
        "partitions": partitions,
    }


def _write_descriptions(
    described: list[dict[str, Any]], output_format: str, with_offsets: bool
) -> None:
    if output_format == "json":
        write_json(described)
        return
    write_table(
        ("TOPIC", "TOPIC-ID", "PARTITION-COUNT", "REPLICATION-FACTOR", "CONFIGS"),
        [
            (
                topic["topic"],
                topic["topic_id"],
                topic["partition_count"],
                topic["replication_factor"],
                ",".join(f"{name}={value}" for name, value in topic["configs"].items()),
            )
            for topic in described
        ],
    )
    write_blank_line()
    columns = ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR"]
    if with_offsets:
        columns += ["LOG-START-OFFSET", "LOG-END-OFFSET"]
    rows: list[list[object]] = []
    for topic in described:
        for partition in topic["partitions"]:
            cells: list[object] = [
                topic["topic"],
                partition["partition"],
                partition["leader"],
                _comma_list(partition["replicas"]),
                _comma_list(partition["isr"]),
            ]
            if with_offsets:
                cells += [partition["log_start_offset"], partition["log_end_offset"]]
            rows.append(cells)
    write_table(columns, rows)


@topics.command(
    "delete",
    epilog=examples(
        """
anabranch topics delete orders
anabranch topics delete orders payments --dry-run
anabranch topics delete orders --yes
"""
    ),
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@yes_option
@dry_run_option
@connection_options
@format_option
@debug_option
def delete_topics(
    connection: Connection,
    output_format: str,
    names: tuple[str, ...],
    is_confirmed: bool,
    is_dry_run: bool,
) -> None:
    """Delete topics and all their records, for good.

    Shows what would go, then asks.
    """
    admin, metadata = open_admin(connection)
    wanted = list(dict.fromkeys(names))
    require_topics(metadata, wanted)
    keys = [(name, partition) for name in wanted for partition in metadata.topics[name].partitions]
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
    if output_format == "text":
        write_table(
            ("TOPIC", "PARTITIONS", "RECORDS"),
            [(row["topic"], row["partitions"], row["records"]) for row in rows],
        )
    if not is_dry_run:
        if not is_confirmed:
            confirm(f"Delete {counted(len(wanted), 'topic')} with all records?")
        _delete(admin, connection, rows)
    if output_format == "json":
        write_json(rows)
    elif is_dry_run:
        note("Nothing was deleted (--dry-run).")
    else:
        note(f"Deleted {counted(sum(row['status'] == 'deleted' for row in rows), 'topic')}.")
    if any(row["status"] == "failed" for row in rows):
        raise CommandFailedError


def _delete(admin: "AdminClient", connection: Connection, rows: list[dict[str, Any]]) -> None:
    from confluent_kafka import KafkaException

    futures = admin.delete_topics(
        [row["topic"] for row in rows],
        request_timeout=connection.timeout_s,
        operation_timeout=connection.timeout_s,
    )
    for row in rows:
        try:
            result_of(futures[row["topic"]], connection)
            row["status"] = "deleted"
        except KafkaException as exception:
            error = kafka_error_of(exception)
            row["status"], row["error"] = "failed", reason_of(error)
            report_error(str(refusal(f"Topic {row['topic']!r} was not deleted", error)))


def _comma_list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
