"""`anabranch groups describe`: offsets and lag, members, or state, in Kafka's columns."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.cluster import known_offset_ranges
from anabranch.cli.connection import open_admin
from anabranch.cli.groups.lookup import (
    Committed,
    Group,
    Member,
    TopicPartitionKey,
    committed_offsets,
    describe_groups,
    list_groups,
    require_groups,
)
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import note, write_json, write_table
from anabranch.model.lag import lag

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata


class View(Enum):
    """What of the groups is shown."""

    OFFSETS = "--offsets"
    MEMBERS = "--members"
    STATE = "--state"
    SUMMARY = "--summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition that a group has committed for or owns; `member` is None while nobody has it."""

    topic: str
    partition: int
    current_offset: int | None
    leader_epoch: int | None
    log_start_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member: Member | None


@click.command(
    short_help="Show lag, members or state of groups.",
    epilog=examples(
        """
anabranch groups describe payments
anabranch groups describe payments --members --verbose
anabranch groups describe --all --summary
anabranch groups describe payments --format json | jq '.[].total_lag'
"""
    ),
)
@click.argument("names", metavar="[GROUP...]", nargs=-1)
@click.option("--all", "all_groups", is_flag=True, help="All groups.")
@click.option(
    "--offsets",
    "with_offsets",
    is_flag=True,
    help="Partitions with offsets, lag and owner.  [default]",
)
@click.option(
    "--members", "with_members", is_flag=True, help="Members, and how many partitions they own."
)
@click.option("--state", "with_state", is_flag=True, help="Coordinator, assignor and state.")
@click.option(
    "--summary", "with_summary", is_flag=True, help="One line for each group, with its total lag."
)
@click.option(
    "--verbose",
    is_flag=True,
    help="Show LEADER-EPOCH with offsets, ASSIGNMENT with members.",
)
@connection_options
@format_option
@debug_option
def describe(
    connection: Connection,
    output_format: str,
    names: tuple[str, ...],
    all_groups: bool,
    with_offsets: bool,
    with_members: bool,
    with_state: bool,
    with_summary: bool,
    verbose: bool,
) -> None:
    """Show what groups have read, who is in them, or how they are.

    Columns are those of kafka-consumer-groups. LAG is how many records are left to read: from
    CURRENT-OFFSET, which is what the group committed, to LOG-END-OFFSET, and from the partition's
    first record where nothing was committed.
    """
    if bool(names) == all_groups:
        raise click.UsageError("name groups, or pass --all for every one")
    view = _chosen_view(
        {
            View.OFFSETS: with_offsets,
            View.MEMBERS: with_members,
            View.STATE: with_state,
            View.SUMMARY: with_summary,
        }
    )
    admin, metadata = open_admin(connection)
    wanted = list(dict.fromkeys(names))
    if all_groups:
        wanted = [listing.group for listing in list_groups(admin, connection, set(), set())[0]]
    found = describe_groups(admin, connection, wanted)
    if not all_groups:  # one that was deleted since the listing is no failure
        require_groups(admin, connection, found)
    described = [group for group in found.values() if group.exists]
    rows: dict[str, list[PartitionRow]] = {}
    if view in (View.OFFSETS, View.SUMMARY):
        rows = partition_rows(admin, connection, metadata, described)
    if output_format == "json":
        write_json([_document(group, rows.get(group.group)) for group in described])
    else:
        _write_text(view, described, rows, verbose)


def _chosen_view(given: dict[View, bool]) -> View:
    chosen = [view for view, is_given in given.items() if is_given]
    if len(chosen) > 1:
        flags = " and ".join(view.value for view in chosen)
        raise click.UsageError(f"{flags} exclude each other; give one of them")
    return chosen[0] if chosen else View.OFFSETS


def partition_rows(
    admin: "AdminClient",
    connection: Connection,
    metadata: "ClusterMetadata",
    groups: list[Group],
) -> dict[str, list[PartitionRow]]:
    """Per group, the partitions it has committed for or owns."""
    committed = committed_offsets(admin, connection, [group.group for group in groups])
    owners = {group.group: _owners(group) for group in groups}
    keys = {
        group.group: sorted({*committed[group.group], *owners[group.group]}) for group in groups
    }
    ranges = known_offset_ranges(
        admin, connection, metadata, {key for some in keys.values() for key in some}
    )
    return {
        name: [
            _row(key, committed[name].get(key), ranges.get(key), member)
            for key in some
            for member in owners[name].get(key, [None])
        ]
        for name, some in keys.items()
    }


def _owners(group: Group) -> dict[TopicPartitionKey, list[Member | None]]:
    """Who owns what; while a cooperative group rebalances, two may claim one partition."""
    owners: dict[TopicPartitionKey, list[Member | None]] = {}
    for member in group.members:
        for key in member.partitions:
            owners.setdefault(key, []).append(member)
    return owners


def _row(
    key: TopicPartitionKey,
    committed: Committed | None,
    bounds: tuple[int, int] | None,
    member: Member | None,
) -> PartitionRow:
    start, end = (None, None) if bounds is None else bounds
    offset = None if committed is None else committed.offset
    return PartitionRow(
        topic=key[0],
        partition=key[1],
        current_offset=offset,
        leader_epoch=None if committed is None else committed.leader_epoch,
        log_start_offset=start,
        log_end_offset=end,
        lag=lag(end, offset, start or 0),
        member=member,
    )


def total_lag(rows: list[PartitionRow]) -> int:
    """The lag of all partitions, each counted once."""
    return sum({(row.topic, row.partition): row.lag or 0 for row in rows}.values())


# JSON -------------------------------------------------------------------------------------------


def _document(group: Group, rows: list[PartitionRow] | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": (
            None
            if group.coordinator is None
            else dict(zip(("id", "host", "port"), group.coordinator, strict=True))
        ),
        "members": [
            {
                "consumer_id": member.consumer_id,
                "group_instance_id": member.group_instance_id,
                "host": member.host,
                "client_id": member.client_id,
                "assignment": [
                    {"topic": topic, "partitions": partitions}
                    for topic, partitions in _by_topic(member).items()
                ],
            }
            for member in group.members
        ],
    }
    if rows is not None:
        document["total_lag"] = total_lag(rows)
        document["partitions"] = [_partition_document(row) for row in rows]
    return document


def _partition_document(row: PartitionRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "current_offset": row.current_offset,
        "leader_epoch": row.leader_epoch,
        "log_start_offset": row.log_start_offset,
        "log_end_offset": row.log_end_offset,
        "lag": row.lag,
        "consumer_id": None if row.member is None else row.member.consumer_id,
        "host": None if row.member is None else row.member.host,
        "client_id": None if row.member is None else row.member.client_id,
    }


def _by_topic(member: Member) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in member.partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


# Text -------------------------------------------------------------------------------------------


def _write_text(
    view: View, groups: list[Group], rows: dict[str, list[PartitionRow]], verbose: bool
) -> None:
    if view is View.STATE:
        _write_states(groups)
    elif view is View.SUMMARY:
        write_table(
            ("GROUP", "TYPE", "STATE", "MEMBERS", "TOTAL-LAG"),
            [
                (
                    group.group,
                    group.type,
                    group.state,
                    len(group.members),
                    total_lag(rows[group.group]),
                )
                for group in groups
            ],
        )
    else:
        for group in groups:
            _tell_state(group)
        if view is View.MEMBERS:
            _write_members(groups, verbose)
        else:
            _write_offsets(groups, rows, verbose)


def _tell_state(group: Group) -> None:
    """Why there is nobody in a table, or not yet."""
    if group.is_rebalancing:
        note(f"Consumer group {group.group!r} is rebalancing ({group.state}).")
    elif not group.members:
        note(f"Consumer group {group.group!r} has no active members.")


def _write_offsets(groups: list[Group], rows: dict[str, list[PartitionRow]], verbose: bool) -> None:
    columns = ["GROUP", "TOPIC", "PARTITION"]
    columns += ["LEADER-EPOCH"] if verbose else []
    columns += ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    table: list[list[object]] = []
    for group in groups:
        for row in rows[group.group]:
            table.append(
                [
                    group.group,
                    row.topic,
                    row.partition,
                    *([row.leader_epoch] if verbose else []),
                    row.current_offset,
                    row.log_end_offset,
                    row.lag,
                    *_member_cells(row.member),
                ]
            )
        # A member without partitions is shown too: there are more consumers than partitions.
        empty = [None] * (len(columns) - 4)
        table += [
            [group.group, *empty, *_member_cells(member)]
            for member in group.members
            if not member.partitions
        ]
    write_table(columns, table)


def _member_cells(member: Member | None) -> tuple[object, ...]:
    return (None,) * 3 if member is None else (member.consumer_id, member.host, member.client_id)


def _write_members(groups: list[Group], verbose: bool) -> None:
    columns = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    columns += ["ASSIGNMENT"] if verbose else []
    table: list[list[object]] = []
    for group in groups:
        for member in group.members:
            cells: list[object] = [
                group.group,
                member.consumer_id,
                member.group_instance_id,
                member.host,
                member.client_id,
                len(member.partitions),
            ]
            if verbose:
                cells.append(
                    ";".join(
                        f"{topic}:{','.join(map(str, partitions))}"
                        for topic, partitions in _by_topic(member).items()
                    )
                )
            table.append(cells)
    write_table(columns, table)


def _write_states(groups: list[Group]) -> None:
    table: list[tuple[object, ...]] = []
    for group in groups:
        place = None
        if group.coordinator is not None:
            node_id, host, port = group.coordinator
            place = f"{host}:{port} ({node_id})"
        table.append((group.group, place, group.assignor, group.state, len(group.members)))
    write_table(("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"), table)
