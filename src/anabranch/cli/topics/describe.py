"""`anabranch topics describe`: topics with their partitions, settings and branches."""

from typing import Any

import click

from anabranch.cli.cluster import offset_ranges, require_topics, topic_id_text
from anabranch.cli.completion.live_names import complete_topics
from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import write_blank_line, write_json, write_table
from anabranch.cli.topics.branch_lookup import branch_topic_of
from anabranch.cli.topics.configs import topic_overrides
from anabranch.config.branch_settings import FIXED_CONFIGS


@click.command(
    "describe",
    epilog=examples(
        """
anabranch topics describe
anabranch topics describe orders --offsets
anabranch topics describe orders --format json | jq '.[].partitions[].leader'
"""
    ),
)
@click.argument("names", metavar="[TOPIC...]", nargs=-1, shell_complete=complete_topics)
@click.option("--offsets", "with_offsets", is_flag=True, help="Show first and next offsets too.")
@connection_options
@format_option
@debug_option
def describe_topics(
    connection: Connection, output_format: str, names: tuple[str, ...], with_offsets: bool
) -> None:
    """Show topics with their partitions, leaders, replicas and settings.

    Without names, all topics. CONFIGS are the settings made for the topic itself; see
    `anabranch topics configs` for all that apply. Columns are those of kafka-topics. Of a branch
    topic it also says whose branches it shows: RANGES are the source's partitions times the key
    ranges of each, SLOTS the part of the 65,536 hash slots that a partition has.
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
    branch_topic = branch_topic_of(topic.name, overrides)
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
        if branch_topic is not None:
            row["source_partition"], (first, end) = branch_topic.place_of(partition.id)
            row["first_slot"], row["last_slot"] = first, end - 1
        partitions.append(row)
    return {
        "topic": topic.name,
        "topic_id": topic_id_text(topic.topic_id),
        "partition_count": len(partitions),
        "replication_factor": len(partitions[0]["replicas"]) if partitions else 0,
        "configs": overrides,
        "branch_of": None if branch_topic is None else branch_topic.source,
        "ranges_per_partition": None if branch_topic is None else branch_topic.layout.ranges,
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
                ",".join(f"{name}={value}" for name, value in _own_configs(topic).items()),
            )
            for topic in described
        ],
    )
    write_blank_line()
    branched = [topic for topic in described if topic["branch_of"] is not None]
    if branched:
        write_table(
            ("TOPIC", "BRANCH-OF", "RANGES"),
            [(topic["topic"], topic["branch_of"], _ranges(topic)) for topic in branched],
        )
        write_blank_line()
    _write_partitions(described, with_offsets, with_branches=bool(branched))


def _own_configs(topic: dict[str, Any]) -> dict[str, str]:
    """Without what says that it is a branch topic, which has a table for itself."""
    return {name: value for name, value in topic["configs"].items() if name not in FIXED_CONFIGS}


def _ranges(topic: dict[str, Any]) -> str:
    each = topic["ranges_per_partition"]
    return f"{topic['partition_count'] // each} x {each}"


def _write_partitions(
    described: list[dict[str, Any]], with_offsets: bool, with_branches: bool
) -> None:
    columns = ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR"]
    if with_offsets:
        columns += ["LOG-START-OFFSET", "LOG-END-OFFSET"]
    if with_branches:
        columns += ["SOURCE-PARTITION", "SLOTS"]
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
            if "source_partition" in partition:
                slots = f"{partition['first_slot']}-{partition['last_slot']}"
                cells += [partition["source_partition"], slots]
            elif with_branches:
                cells += [None, None]
            rows.append(cells)
    write_table(columns, rows)


def _comma_list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
