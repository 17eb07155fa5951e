"""How `anabranch groups describe` shows groups: one document of JSON, or tables."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from anabranch.cli.groups.branch_progress import SourceRow, progress_document
from anabranch.cli.groups.lookup import Group, Member, Movement, TopicPartitionKey
from anabranch.cli.output import counted, note, write_table

if TYPE_CHECKING:
    from anabranch.client import GroupProgress


class View(Enum):
    """What of the groups is shown."""

    OFFSETS = "--offsets"
    MEMBERS = "--members"
    STATE = "--state"
    MOVEMENTS = "--movements"
    RANGES = "--ranges"
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


def total_lag(rows: list[PartitionRow]) -> int:
    """The lag of all partitions, each counted once."""
    return sum({(row.topic, row.partition): row.lag or 0 for row in rows}.values())


# JSON -------------------------------------------------------------------------------------------


def document(
    group: Group,
    rows: list[PartitionRow] | None,
    progress: list[SourceRow] | None = None,
    shared: "GroupProgress | None" = None,
) -> dict[str, Any]:
    """Everything that is known of a group."""
    found: dict[str, Any] = {
        "group": group.group,
        "type": group.type,
        "protocol": group.protocol,
        "state": group.state,
        "group_epoch": group.group_epoch,
        "target_assignment_epoch": group.target_epoch,
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
                "epoch": member.epoch,
                "assignment": _assignment_document(member.partitions),
                "target_assignment": (
                    None if member.target is None else _assignment_document(member.target)
                ),
                "upgraded": member.is_upgraded,
            }
            for member in group.members
        ],
        "movements": [dataclasses.asdict(movement) for movement in group.movements],
    }
    if rows is not None:
        found["total_lag"] = total_lag(rows)
        found["partitions"] = [_partition_document(row) for row in rows]
    if progress:
        found["branch_progress"] = progress_document(progress)
    if shared is not None:
        from anabranch.cli.groups.range_output import ranges_document

        found["individual_progress"] = ranges_document(shared)
    return found


def _assignment_document(partitions: Sequence[TopicPartitionKey]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partitions": numbers} for topic, numbers in _by_topic(partitions).items()
    ]


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


def _by_topic(partitions: Sequence[TopicPartitionKey]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


# Text -------------------------------------------------------------------------------------------


def write_text(
    view: View, groups: list[Group], rows: dict[str, list[PartitionRow]], verbose: bool
) -> None:
    """One view of the groups, in Kafka's columns where Kafka's tool has it."""
    if view is View.STATE:
        _write_states(groups, verbose)
    elif view is View.SUMMARY:
        _write_summary(groups, rows)
    else:
        for group in groups:
            _tell_state(group, view)
        if view is View.MEMBERS:
            _write_members(groups, verbose)
        elif view is View.MOVEMENTS:
            _write_movements(groups)
        elif view is View.OFFSETS:
            _write_offsets(groups, rows, verbose)


def _tell_state(group: Group, view: View) -> None:
    """Why there is nobody in a table, or not yet."""
    if group.is_rebalancing:
        text = f"Consumer group {group.group!r} is rebalancing ({group.state})"
        if group.movements and view is not View.MOVEMENTS:
            moving = counted(len(group.movements), "partition")
            text += f", {moving} on the way: see --movements"
        note(f"{text}.")
    elif not group.members:
        note(f"Consumer group {group.group!r} has no active members.")


def _write_summary(groups: list[Group], rows: dict[str, list[PartitionRow]]) -> None:
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
    if verbose:
        columns += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        columns += ["UPGRADED"]
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
                cells += [
                    member.epoch,
                    _assignment_text(member.partitions),
                    group.target_epoch,
                    _assignment_text(member.target or ()),
                    None if member.is_upgraded is None else str(member.is_upgraded).lower(),
                ]
            table.append(cells)
    write_table(columns, table)


def _assignment_text(partitions: Sequence[TopicPartitionKey]) -> str:
    return ";".join(
        f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in _by_topic(partitions).items()
    )


def _write_movements(groups: list[Group]) -> None:
    write_table(
        (
            *("GROUP", "TOPIC", "PARTITION", "SLOTS", "STATE"),
            *("FROM-CONSUMER-ID", "TO-CONSUMER-ID", "SINCE"),
        ),
        [
            (
                group.group,
                movement.topic,
                movement.partition,
                _slots_text(movement),
                movement.state,
                movement.from_consumer_id,
                movement.to_consumer_id,
                None if movement.since_ms is None else _moment_text(movement.since_ms),
            )
            for group in groups
            for movement in group.movements
        ],
    )


def _slots_text(movement: Movement) -> str:
    if movement.first_slot is None:
        return "all"
    return f"{movement.first_slot}-{movement.last_slot}"


def _moment_text(moment_ms: int) -> str:
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_states(groups: list[Group], verbose: bool) -> None:
    columns = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    columns += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"] if verbose else []
    columns += ["#MEMBERS"]
    columns += ["TYPE", "PROTOCOL"] if verbose else []
    table: list[list[object]] = []
    for group in groups:
        place = None
        if group.coordinator is not None:
            node_id, host, port = group.coordinator
            place = f"{host}:{port} ({node_id})"
        table.append(
            [
                *(group.group, place, group.assignor, group.state),
                *((group.group_epoch, group.target_epoch) if verbose else ()),
                len(group.members),
                *((group.type, group.protocol) if verbose else ()),
            ]
        )
    write_table(columns, table)
