"""`anabranch transactions describe-producers|find-hanging`: what partitions have open.

A transaction hangs when a partition has it open and no coordinator has: nobody will end it, and
consumers that read committed records only wait before it for good.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from anabranch.cli.completion.live_names import complete_topics
from anabranch.cli.errors import CommandFailedError
from anabranch.cli.options import (
    Command,
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import note, report_error, write_json, write_table
from anabranch.cli.times import duration_ms

if TYPE_CHECKING:
    from anabranch.cli.transactions.questions import Cluster, Found, ProducerRow, TopicPartitionKey

_MINUTE_MS: Final = 60_000


def _topic_option(help_text: str) -> Callable[[Command], Command]:
    return click.option(
        "--topic",
        "topics",
        metavar="TOPIC[:N,...]",
        multiple=True,
        shell_complete=complete_topics,
        help=help_text,
    )


@click.command(
    "describe-producers",
    short_help="Show the producers that partitions remember.",
    epilog=examples(
        """
anabranch transactions describe-producers --topic orders
anabranch transactions describe-producers --topic orders:0,1 --topic payments
"""
    ),
)
@_topic_option("A topic, or some partitions of it; may be given again.  [required]")
@connection_options
@format_option
@debug_option
def describe_producers(connection: Connection, output_format: str, topics: tuple[str, ...]) -> None:
    """Show the producers that partitions remember, and where their open transactions begin.

    Producers without a transactional id are among them if they are idempotent, as they are by
    default. LATEST-COORDINATOR-EPOCH is of the coordinator that ended their last transaction.
    """
    from anabranch.cli.transactions.questions import describe_producers as ask
    from anabranch.cli.transactions.questions import open_cluster

    if not topics:
        raise click.UsageError("say which partitions: --topic TOPIC or --topic TOPIC:0,1")
    cluster = open_cluster(connection)
    found = ask(cluster, _places(cluster, topics))
    rows = [dataclasses.asdict(row) for row in found.rows]
    if output_format == "json":
        write_json(rows)
    else:
        write_table(
            (
                *("TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH"),
                *("LATEST-COORDINATOR-EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP"),
                "CURRENT-TRANSACTION-START-OFFSET",
            ),
            [tuple(row.values()) for row in rows],
        )
    _end(found)


def _places(cluster: "Cluster", topics: tuple[str, ...]) -> "list[TopicPartitionKey]":
    """The partitions that are meant; all where nothing is said."""
    from anabranch.cli.groups.scope import parse_topics, partitions_of

    scope = parse_topics(topics) or {name: set() for name in cluster.metadata.topics}
    return partitions_of(cluster.metadata, scope)


def _timeout(_: click.Context, __: click.Parameter, value: str) -> int:
    try:
        return duration_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    "find-hanging",
    short_help="Find transactions that no coordinator will end.",
    epilog=examples(
        """
anabranch transactions find-hanging
anabranch transactions find-hanging --topic orders --max-transaction-timeout 1h
"""
    ),
)
@_topic_option("Look only here; may be given again.")
@click.option(
    "--max-transaction-timeout",
    "timeout_ms",
    callback=_timeout,
    metavar="DURATION",
    default="15m",
    show_default=True,
    help="What was written to less long ago is not looked at: the broker's"
    " transaction.max.timeout.ms.",
)
@connection_options
@format_option
@debug_option
def find_hanging(
    connection: Connection, output_format: str, topics: tuple[str, ...], timeout_ms: int
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end.

    Consumers that read committed records only do not get past START-OFFSET there. The command
    that ends each is shown with it.
    """
    from anabranch.cli.transactions.questions import open_cluster

    now_ms = int(time.time() * 1000)
    found = hanging_transactions(open_cluster(connection), topics, timeout_ms, now_ms)
    rows = [_hanging_row(row, now_ms) for row in found.rows]
    if output_format == "json":
        write_json(rows)
    else:
        write_table(
            (
                *("TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH"),
                *("START-OFFSET", "LAST-TIMESTAMP", "DURATION-MIN"),
            ),
            [tuple(row.values()) for row in rows],
        )
    for row in rows:
        note(
            f"{row['topic']}-{row['partition']}: end it with `anabranch transactions abort --topic"
            f" {row['topic']} --partition {row['partition']} --start-offset {row['start_offset']}`"
        )
    _end(found)


def hanging_transactions(
    cluster: "Cluster", topics: tuple[str, ...], timeout_ms: int, now_ms: int
) -> "Found":
    """Open transactions of these topics, or of all, that no coordinator has."""
    from anabranch.cli.transactions.questions import describe_producers as ask

    found = ask(cluster, _places(cluster, topics))
    candidates = [row for row in found.rows if _is_old(row, now_ms - timeout_ms)]
    found.rows = _hanging(cluster, candidates, found) if candidates else []
    return found


def _is_old(row: "ProducerRow", before_ms: int) -> bool:
    if row.current_transaction_start_offset is None:
        return False
    return row.last_timestamp is None or row.last_timestamp < before_ms


def _hanging(
    cluster: "Cluster", candidates: "list[ProducerRow]", found: "Found"
) -> "list[ProducerRow]":
    """Those of the open transactions that no coordinator has open in that partition.

    Nothing is called so while a coordinator could not be asked.
    """
    from anabranch.cli.transactions.questions import (
        Filters,
        describe_transactions,
        list_transactions,
    )

    ids = tuple(sorted({row.producer_id for row in candidates}))
    listed = list_transactions(cluster, Filters(producer_ids=ids))
    described = describe_transactions(cluster, [one.transactional_id for one in listed.rows])
    failures = listed.failures + described.failures
    if failures:
        found.failures += failures
        return []
    alive = {(one.producer_id, place) for one in described.rows for place in one.partitions}
    return [row for row in candidates if (row.producer_id, row.place) not in alive]


def _hanging_row(row: "ProducerRow", now_ms: int) -> dict[str, Any]:
    duration_min = None
    if row.last_timestamp is not None:
        duration_min = (now_ms - row.last_timestamp) // _MINUTE_MS
    return {
        "topic": row.topic,
        "partition": row.partition,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "coordinator_epoch": row.latest_coordinator_epoch,
        "start_offset": row.current_transaction_start_offset,
        "last_timestamp": row.last_timestamp,
        "duration_min": duration_min,
    }


def _end(found: "Found") -> None:
    for failure in found.failures:
        report_error(str(failure))
    if found.failures:
        raise CommandFailedError
