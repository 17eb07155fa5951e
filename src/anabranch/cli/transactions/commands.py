"""`anabranch transactions`: the family, with `list` and `describe`; the others are beside it."""

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.completion.live_names import complete_transactional_ids
from anabranch.cli.errors import CliError, CommandFailedError
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import report_error, write_json, write_table
from anabranch.cli.times import duration_ms
from anabranch.cli.transactions.abort import abort
from anabranch.cli.transactions.producers import describe_producers, find_hanging

if TYPE_CHECKING:
    from anabranch.cli.transactions.questions import Described

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.group(
    short_help="See what transactions are doing, and abort those that hang.",
    epilog=examples(
        """
anabranch transactions list --state Ongoing
anabranch transactions describe payments-1
anabranch transactions abort payments-1
"""
    ),
)
@debug_option
def transactions() -> None:
    """List, describe and abort transactions.

    A transactional id is the name under which a producer writes to several partitions as one. It
    is Ongoing while its transaction is open, PrepareCommit or PrepareAbort while the decision is
    being written into all partitions, CompleteCommit or CompleteAbort after that, and Empty before
    the first. What lies behind the first open transaction of a partition is not given to consumers
    that read committed records only.
    """


transactions.add_command(describe_producers)
transactions.add_command(find_hanging)
transactions.add_command(abort)


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else duration_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@transactions.command(
    "list",
    epilog=examples(
        """
anabranch transactions list
anabranch transactions list --state Ongoing --longer-than 5m
anabranch transactions list --pattern 'payments-.*' --format json
"""
    ),
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    multiple=True,
    help=f"Only those in this state ({', '.join(STATES)}); may be given again.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=int,
    metavar="N",
    multiple=True,
    help="Only those of this producer id; may be given again.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    callback=_duration,
    metavar="DURATION",
    help="Only transactions that have been open for longer, such as 5m or PT1H30M.",
)
@click.option(
    "--pattern", metavar="RE2", help="Only those whose whole id matches this RE2 expression."
)
@connection_options
@format_option
@debug_option
def list_command(
    connection: Connection,
    output_format: str,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
) -> None:
    """List transactional ids with their state.

    COORDINATOR is the id of the broker that decides about it.
    """
    from anabranch.cli.transactions.questions import Filters, list_transactions, open_cluster

    if longer_than_ms is not None and not states:
        # To a broker an id without a transaction counts as one that began long ago.
        states = UNDER_WAY
    filters = Filters(
        states=states, producer_ids=producer_ids, duration_ms=longer_than_ms, pattern=pattern
    )
    found = list_transactions(open_cluster(connection), filters)
    rows = [dataclasses.asdict(listing) for listing in found.rows]
    if output_format == "json":
        write_json(rows)
    else:
        columns = ("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "TRANSACTION-STATE")
        write_table(columns, [tuple(row.values()) for row in rows])
    _end(found.failures)


@transactions.command(
    "describe",
    epilog=examples(
        """
anabranch transactions describe payments-1
anabranch transactions describe payments-1 payments-2 --format json
"""
    ),
)
@click.argument(
    "transactional_ids",
    metavar="TRANSACTIONAL-ID...",
    nargs=-1,
    required=True,
    shell_complete=complete_transactional_ids,
)
@connection_options
@format_option
@debug_option
def describe_command(
    connection: Connection, output_format: str, transactional_ids: tuple[str, ...]
) -> None:
    """Show what transactional ids are doing, and in which partitions.

    The partitions are those that the open transaction has written to or committed offsets in
    (__consumer_offsets), and while it is being ended those that do not have the end yet. A
    transaction that is prepared for a batch of an exactly-once sink is Ongoing, and PREPARED-FOR
    says which batch it waits for.
    """
    from anabranch.cli.transactions.questions import describe_transactions, open_cluster

    found = describe_transactions(open_cluster(connection), dict.fromkeys(transactional_ids))
    now_ms = int(time.time() * 1000)
    if output_format == "json":
        write_json([_document(one, now_ms) for one in found.rows])
    elif found.rows:
        is_any_prepared = any(one.prepared_for is not None for one in found.rows)
        write_table(
            (
                *("COORDINATOR-ID", "TRANSACTIONAL-ID", "PRODUCER-ID", "PRODUCER-EPOCH"),
                *(
                    "TRANSACTION-STATE",
                    "TRANSACTION-TIMEOUT-MS",
                    "CURRENT-TRANSACTION-START-TIME-MS",
                ),
                "TRANSACTION-DURATION-MS",
                *(("PREPARED-FOR",) if is_any_prepared else ()),
                "TOPIC-PARTITIONS",
            ),
            [
                (
                    *(one.coordinator.id, one.transactional_id, one.producer_id),
                    *(one.producer_epoch, one.state, one.timeout_ms, one.start_time_ms),
                    _duration_ms(one, now_ms),
                    *((one.prepared_for and str(one.prepared_for),) if is_any_prepared else ()),
                    ",".join(f"{topic}-{number}" for topic, number in one.partitions),
                )
                for one in found.rows
            ],
        )
    _end(found.failures)


def _duration_ms(one: "Described", now_ms: int) -> int | None:
    """How long a transaction has been under way; None of one that has ended."""
    if one.start_time_ms is None or one.state not in UNDER_WAY:
        return None
    return max(now_ms - one.start_time_ms, 0)


def _document(one: "Described", now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "coordinator": dataclasses.asdict(one.coordinator),
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "state": one.state,
        "timeout_ms": one.timeout_ms,
        "start_time_ms": one.start_time_ms,
        "duration_ms": _duration_ms(one, now_ms),
        "prepared_for": one.prepared_for and dataclasses.asdict(one.prepared_for),
        "partitions": [{"topic": topic, "partition": number} for topic, number in one.partitions],
    }


def _end(failures: list[CliError]) -> None:
    for failure in failures:
        report_error(str(failure))
    if failures:
        raise CommandFailedError
