"""`anabranch groups peek`: the records that a group has before it, without moving it."""

import time
from typing import Any, Final

import click

from anabranch.cli.completion.live_names import complete_groups, complete_topics
from anabranch.cli.connection import Troubles, client_config, create_client, open_admin, unreachable
from anabranch.cli.errors import CliError, refusal
from anabranch.cli.groups.describe import partition_rows
from anabranch.cli.groups.describe_output import PartitionRow
from anabranch.cli.groups.lookup import describe_groups, require_groups
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import is_tsv, note, printable, write_json, write_table
from anabranch.cli.records.writing import record_document

_COLUMNS: Final = ("TOPIC", "PARTITION", "LAG", "OFFSET", "TIMESTAMP", "AGE", "KEY", "VALUE")
_VALUE_MAX_CHARACTERS: Final = 200
_PASSING: Final = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"})

Place = tuple[str, int]


@click.command(
    short_help="Show the records that a group has to read next.",
    epilog=examples(
        """
anabranch groups peek payments
anabranch groups peek payments --topic orders --partition 3 --records 5
anabranch groups peek payments --format json | jq -r '.[].value'
"""
    ),
)
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    shell_complete=complete_topics,
    help="Only of this topic.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    metavar="N",
    multiple=True,
    help="Only of this partition; may be given again.",
)
@click.option(
    "--records",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="How many records of each partition.",
)
@connection_options
@format_option
@debug_option
def peek(
    connection: Connection,
    output_format: str,
    name: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    records: int,
) -> None:
    """Show the records that GROUP has to read next, of each partition with lag.

    That is what to look at when a group stands still: the first record that it has not committed.
    Nothing is committed and nobody is disturbed, the group may have members. Where members share a
    partition, it is the record that holds the stable offset. Text shows the beginning of a long
    value, JSON and TSV all of it.
    """
    admin, metadata = open_admin(connection)
    groups = describe_groups(admin, connection, [name])
    require_groups(admin, connection, groups)
    rows = partition_rows(admin, connection, metadata, list(groups.values()))[name]
    wanted = {
        (row.topic, row.partition): row
        for row in rows
        if (not topics or row.topic in topics) and (not partitions or row.partition in partitions)
    }
    if not wanted:
        raise CliError(
            f"Group {name!r} has no such partition",
            "it has neither committed offsets there nor a member that owns it",
            f"see `anabranch groups describe {name}`",
        )
    behind = {place: row for place, row in wanted.items() if row.lag}
    found = _read(connection, {place: _next_offset(row) for place, row in behind.items()}, records)
    if output_format == "json":
        write_json([record_document(message) for place in behind for message in found[place]])
    else:
        now_ms = int(time.time() * 1000)
        write_table(
            _COLUMNS,
            [
                _cells(message, row, now_ms)
                for place, row in behind.items()
                for message in found[place]
            ],
        )
    caught_up = len(wanted) - len(behind)
    if caught_up:
        note(f"Nothing to read: {caught_up} of {len(wanted)} partitions.")


def _next_offset(row: PartitionRow) -> int:
    start = row.log_start_offset or 0
    return start if row.current_offset is None else max(row.current_offset, start)


def _cells(message: Any, row: PartitionRow, now_ms: int) -> tuple[object, ...]:
    timestamp_ms = message.timestamp()[1]
    value = printable(message.value())
    if value is not None and len(value) > _VALUE_MAX_CHARACTERS and not is_tsv():
        value = value[:_VALUE_MAX_CHARACTERS] + "..."
    return (
        message.topic(),
        message.partition(),
        row.lag,
        message.offset(),
        timestamp_ms,
        f"{max(now_ms - timestamp_ms, 0) / 1000:.0f}s" if timestamp_ms >= 0 else None,
        printable(message.key()),
        value,
    )


def _read(connection: Connection, offsets: dict[Place, int], count: int) -> dict[Place, list[Any]]:
    """The first records of each place from its offset on; fewer where there are not so many."""
    found: dict[Place, list[Any]] = {place: [] for place in offsets}
    if not offsets:
        return found
    from confluent_kafka import Consumer, TopicPartition

    troubles = Troubles()
    config = {
        "fetch.wait.max.ms": 100,
        **client_config(connection, troubles),
        "group.id": "anabranch-cli",  # librdkafka insists; with assign() none is joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",  # what was deleted meanwhile is not there to show
    }
    consumer: Consumer = create_client(Consumer, config)
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in offsets.items()])
        open_places = set(offsets)
        while open_places:
            for message in consumer.consume(num_messages=100, timeout=0.1):
                _take(message, troubles, found, open_places, count)
            if troubles.lasts_longer_than(connection.timeout_s):
                raise unreachable(config["bootstrap.servers"], connection, troubles)
    finally:
        consumer.close()
    return found


def _take(
    message: Any,
    troubles: Troubles,
    found: dict[Place, list[Any]],
    open_places: set[Place],
    count: int,
) -> None:
    error = message.error()
    place = (message.topic(), message.partition())
    if error is None:
        troubles.forget()
        if place in open_places:
            found[place].append(message)
            if len(found[place]) >= count:
                open_places.discard(place)
    elif error.name() == "_PARTITION_EOF":
        troubles.forget()
        open_places.discard(place)
    elif error.name() in _PASSING:
        troubles.note(error)
    else:
        raise refusal(f"Cannot read partition {place[1]} of {place[0]!r}", error)
