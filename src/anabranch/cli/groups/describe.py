"""`anabranch groups describe`: offsets and lag, members, state, key ranges, who waits for whom."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from anabranch.cli.cluster import known_offset_ranges
from anabranch.cli.completion.live_names import complete_groups, complete_members
from anabranch.cli.connection import open_admin
from anabranch.cli.errors import CliError
from anabranch.cli.groups.branch_progress import SourceRow, write_progress
from anabranch.cli.groups.describe_output import PartitionRow, View, document, write_text
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
from anabranch.cli.output import write_json
from anabranch.model.lag import lag

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

    from anabranch.client import GroupProgress


@click.command(
    short_help="Show lag, members or state of groups.",
    epilog=examples(
        """
anabranch groups describe payments
anabranch groups describe payments --members --verbose
anabranch groups describe payments --movements
anabranch groups describe payments --ranges
anabranch groups describe --all --summary
anabranch groups describe payments --format json | jq '.[].total_lag'
"""
    ),
)
@click.argument("names", metavar="[GROUP...]", nargs=-1, shell_complete=complete_groups)
@click.option("--all", "all_groups", is_flag=True, help="All groups.")
@click.option(
    "--member",
    "member_ids",
    metavar="CONSUMER-ID",
    multiple=True,
    shell_complete=complete_members,
    help="Only this member and what it owns; may be given again.",
)
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
    "--movements",
    "with_movements",
    is_flag=True,
    help="Partitions on their way: from whom, to whom, since when.",
)
@click.option(
    "--ranges",
    "with_ranges",
    is_flag=True,
    help="Key ranges of shared partitions: owners, what is done, what holds the stable offset.",
)
@click.option(
    "--summary", "with_summary", is_flag=True, help="One line for each group, with its total lag."
)
@click.option(
    "--verbose",
    is_flag=True,
    help="More columns: LEADER-EPOCH with offsets, epochs and assignments with members, "
    "epochs, type and protocol with state.",
)
@connection_options
@format_option
@debug_option
def describe(
    connection: Connection,
    output_format: str,
    names: tuple[str, ...],
    all_groups: bool,
    member_ids: tuple[str, ...],
    with_offsets: bool,
    with_members: bool,
    with_state: bool,
    with_movements: bool,
    with_ranges: bool,
    with_summary: bool,
    verbose: bool,
) -> None:
    """Show what groups have read, who is in them, or how they are.

    Columns are those of kafka-consumer-groups. LAG is how many records are left to read: from
    CURRENT-OFFSET, which is what the group committed, to LOG-END-OFFSET, and from the partition's
    first record where nothing was committed.

    A consumer group (KIP-848) moves one partition at a time: its owner is told to give it up
    (revoking), and when it did, the next one gets it (assigning). --movements shows what is on its
    way, that is, who waits for whom, and which SLOTS of the partition where members share it.
    CURRENT-EPOCH behind TARGET-EPOCH is a member that has not caught up yet.

    For branch topics a second table shows how far the group is with their sources (in JSON,
    branch_progress): everything below STABLE-OFFSET is finished, UNPROCESSED records are left, and
    BRANCHES says how many of them have a commit. LAG of a branch is a difference of offsets, as
    with kafka-consumer-groups, so it counts the records of the other branches too.

    Members that share a partition by key own ranges of its 65,536 slots, and say record by record
    what they have done; --ranges shows it (in JSON, individual_progress). Below STABLE-OFFSET
    everything is done; WINDOW is how far ahead of it somebody is; IN-FLIGHT is what members were
    shown and have not done; OLDEST-OPEN is the first record that is not done, AGE how old it is,
    and STALLED how long the stable offset has waited for it. Of each range all below its WATERMARK
    is done, and DONE-ABOVE offsets beyond, between so many GAPS; its owner was shown what is below
    DELIVERED. Records that failed, keys that go to the dead-letter topic and keys that are most of
    the work have tables of their own. One sentence for each partition says why its stable offset
    is where it is. Offsets are counted with those of other keys in between, so there may be fewer
    records.
    """
    if bool(names) == all_groups:
        raise click.UsageError("name groups, or pass --all for every one")
    view = _chosen_view(
        {
            View.OFFSETS: with_offsets,
            View.MEMBERS: with_members,
            View.STATE: with_state,
            View.MOVEMENTS: with_movements,
            View.RANGES: with_ranges,
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
    if member_ids:
        described = _with_members(described, member_ids)
    rows: dict[str, list[PartitionRow]] = {}
    progress: dict[str, list[SourceRow]] = {}
    shared: dict[str, GroupProgress] = {}
    if view in (View.OFFSETS, View.SUMMARY, View.RANGES):
        rows = partition_rows(admin, connection, metadata, described)
    if member_ids:
        rows = {name: [row for row in some if row.member] for name, some in rows.items()}
    if view is View.OFFSETS:
        from anabranch.cli.groups.branch_questions import find_progress

        progress = find_progress(connection, [group for group in described if rows[group.group]])
    if view is View.RANGES:
        shared = _ranges(connection, described, rows)
    if output_format == "json":
        write_json(
            [
                document(
                    group,
                    rows.get(group.group),
                    progress.get(group.group),
                    shared.get(group.group),
                )
                for group in described
            ]
        )
    else:
        write_text(view, described, rows, verbose)
        write_progress(progress)
        if view is View.RANGES:
            from anabranch.cli.groups.range_output import write_ranges

            write_ranges(shared)


def _with_members(groups: list[Group], member_ids: tuple[str, ...]) -> list[Group]:
    """The groups with these members only; CliError for one that nobody knows."""
    known = {member.consumer_id for group in groups for member in group.members}
    for member_id in member_ids:
        if member_id not in known:
            from difflib import get_close_matches

            near = get_close_matches(member_id, known, n=1)
            raise CliError(
                f"There is no member {member_id!r}",
                "it is not in the group, or not any more",
                f"did you mean {near[0]!r}?"
                if near
                else "see `anabranch groups describe GROUP --members`",
            )
    chosen = [
        replace(
            group,
            members=tuple(one for one in group.members if one.consumer_id in member_ids),
        )
        for group in groups
    ]
    return [group for group in chosen if group.members]


def _ranges(
    connection: Connection, groups: list[Group], rows: dict[str, list[PartitionRow]]
) -> "dict[str, GroupProgress]":
    # Only who asks for ranges pays for this import.
    from anabranch.cli.groups.range_questions import ask_ranges

    wanted = {name: {(row.topic, row.partition) for row in some} for name, some in rows.items()}
    return ask_ranges(connection, groups, wanted)


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
