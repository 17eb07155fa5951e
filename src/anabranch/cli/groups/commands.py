"""`anabranch groups`: the family, and `list`; the other commands are beside it."""

import dataclasses

import click

from anabranch.cli.connection import open_admin
from anabranch.cli.errors import CommandFailedError
from anabranch.cli.groups.decide import dlq, release, skip
from anabranch.cli.groups.delete import delete_groups
from anabranch.cli.groups.delete_offsets import delete_offsets
from anabranch.cli.groups.describe import describe
from anabranch.cli.groups.lookup import STATES, TYPES, list_groups
from anabranch.cli.groups.peek import peek
from anabranch.cli.groups.reset import reset
from anabranch.cli.groups.watch import watch
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import report_error, write_json, write_table


@click.group(
    short_help="List consumer groups, see their lag, move their offsets.",
    epilog=examples(
        """
anabranch groups list
anabranch groups describe payments
anabranch groups reset payments --topic orders --to-earliest
"""
    ),
)
@debug_option
def groups() -> None:
    """List, describe, reset and delete consumer groups.

    A group is a name under which consumers share the partitions of their topics, and under which
    the offsets are kept that they have read up to. It is Stable while its members own their
    partitions, PreparingRebalance or CompletingRebalance (of type Consumer: Assigning or
    Reconciling) while partitions change hands, and Empty while only its offsets are there.
    """


groups.add_command(describe)
groups.add_command(watch)
groups.add_command(peek)
groups.add_command(reset)
groups.add_command(delete_groups)
groups.add_command(delete_offsets)
groups.add_command(release)
groups.add_command(skip)
groups.add_command(dlq)


@groups.command(
    "list",
    epilog=examples(
        """
anabranch groups list
anabranch groups list --state Empty
anabranch groups list --format json | jq -r '.[].group'
"""
    ),
)
@click.option(
    "--state",
    "states",
    type=click.Choice(list(STATES.values()), case_sensitive=False),
    metavar="STATE",
    multiple=True,
    help=f"Only groups in this state ({', '.join(STATES.values())}); may be given again.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice(list(TYPES.values()), case_sensitive=False),
    metavar="TYPE",
    multiple=True,
    help=f"Only groups of this type ({', '.join(TYPES.values())}); may be given again.",
)
@connection_options
@format_option
@debug_option
def list_command(
    connection: Connection, output_format: str, states: tuple[str, ...], types: tuple[str, ...]
) -> None:
    """List consumer groups with their state.

    TYPE is the protocol that members speak to the broker: Classic or Consumer (KIP-848). PROTOCOL
    is what they are to each other: consumers, or workers of Kafka Connect (connect), for example. A
    group without one holds offsets that somebody committed without joining.
    """
    admin, _ = open_admin(connection)
    listings, failures = list_groups(admin, connection, set(states), set(types))
    rows = [dataclasses.asdict(listing) for listing in listings]
    if output_format == "json":
        write_json(rows)
    else:
        write_table(("GROUP", "TYPE", "PROTOCOL", "STATE"), [tuple(row.values()) for row in rows])
    for failure in failures:
        report_error(str(failure))
    if failures:
        raise CommandFailedError
