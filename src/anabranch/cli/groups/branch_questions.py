"""Asking how far groups are with the sources of branch topics, which only this broker tells.

A group commits an offset for each branch. What that means for the source's partition, and how many
records are left to do, follows from the records themselves, so the broker is asked.
"""

from typing import Any, Final

from anabranch.cli.connection import Troubles, client_config
from anabranch.cli.errors import CliError
from anabranch.cli.groups.branch_progress import RangeStart, SourceRow
from anabranch.cli.groups.consumer_details import can_ask
from anabranch.cli.groups.lookup import Group
from anabranch.cli.options import Connection
from anabranch.cli.output import note
from anabranch.cli.raw_client import RawClient
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    BranchProgressQuestion,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)

_FIRST_WITH_MANY_GROUPS: Final = 8


def find_progress(connection: Connection, groups: list[Group]) -> dict[str, list[SourceRow]]:
    """Of each group that reads branch topics, how far it is.

    Other brokers know nothing of it, and it is not what a command is for: when it cannot be had,
    that is said and no more.
    """
    found: dict[str, list[SourceRow]] = {}
    if not can_ask(connection):
        return found
    by_place: dict[tuple[str, int], list[str]] = {}
    for group in groups:
        if group.coordinator is not None:
            by_place.setdefault(group.coordinator[1:], []).append(group.group)
    for place, names in by_place.items():
        try:
            for name, answer in _ask(connection, place, names, BranchProgressQuestion()).items():
                found[name] = _rows(name, answer)
        except CliError as error:
            note(f"How far groups are with the sources of branch topics is not known: {error.why}.")
    return found


def ask_plan(connection: Connection, group: Group, topic: str, ranges: int) -> list[SourceRow]:
    """Where so many ranges would begin for a group that goes on from a topic; CliError if not."""
    place = _place(connection, group)
    question = BranchProgressQuestion(topics=[topic], planned_ranges=ranges)
    answer = _ask(connection, place, [group.group], question).get(group.group)
    if answer is None:
        raise CliError(
            f"The progress of group {group.group!r} is not known",
            "this broker has no branch topics",
            "use an Anabranch broker",
        )
    return _rows(group.group, answer)


def _place(connection: Connection, group: Group) -> tuple[str, int]:
    if not can_ask(connection) or group.coordinator is None:
        protocol = client_config(connection, Troubles()).get("security.protocol", "plaintext")
        raise CliError(
            f"The progress of group {group.group!r} is not known",
            f"the broker cannot be asked for it by {protocol}",
            "use a listener without TLS and SASL",
        )
    return group.coordinator[1:]


def _ask(
    connection: Connection,
    place: tuple[str, int],
    names: list[str],
    question: BranchProgressQuestion,
) -> dict[str, Any]:
    """The answer for each group; none from a broker that does not know the question."""
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=name, topics=[]) for name in names],
        branch_progress=question,
    )
    with RawClient(*place, connection.timeout_s) as client:
        answer = client.send(OFFSET_FETCH, request, _FIRST_WITH_MANY_GROUPS)
    return {
        group.group_id: group.branch_progress
        for group in (answer.groups if answer is not None else ())
        if group.branch_progress is not None
    }


def _rows(group: str, answer: Any) -> list[SourceRow]:
    if answer.error_code:
        why = (answer.error_message or f"error {answer.error_code}").strip().rstrip(".")
        raise CliError(
            f"The progress of group {group!r} is not known",
            why,
            "look at the broker's log, or run again with --debug",
        )
    return [
        SourceRow(
            branch_topic=row.topic,
            source_topic=row.source_topic,
            source_partition=row.source_partition,
            stable_offset=row.stable_offset,
            log_start_offset=row.log_start_offset,
            high_watermark=row.high_watermark,
            unprocessed_records=row.unprocessed_records,
            branches=row.ranges,
            committed_branches=row.committed_ranges,
            plan=tuple(
                RangeStart(start_offset=one.start_offset, replayed_records=one.replayed_records)
                for one in row.planned_ranges
            ),
        )
        for row in answer.partitions
    ]
