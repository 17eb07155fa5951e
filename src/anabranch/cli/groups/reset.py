"""`anabranch groups reset`: move what a group has read, with a look before."""

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.cluster import require_partitions
from anabranch.cli.completion.live_names import complete_groups, complete_topics
from anabranch.cli.connection import open_admin
from anabranch.cli.errors import (
    CliError,
    CommandFailedError,
    reason_of,
    refusal,
)
from anabranch.cli.groups.commit import commit_offsets
from anabranch.cli.groups.lookup import (
    Committed,
    Group,
    TopicPartitionKey,
    committed_offsets,
    describe_groups,
    still_active,
)
from anabranch.cli.groups.offsets_file import read_offsets, write_offsets
from anabranch.cli.groups.reset_plan import Change, Target, TargetKind, plan
from anabranch.cli.groups.scope import Scope, parse_topics, partitions_of
from anabranch.cli.options import (
    Connection,
    confirm,
    connection_options,
    debug_option,
    dry_run_option,
    examples,
    format_option,
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
from anabranch.cli.times import duration_ms, timestamp_ms

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata

_RULE = "offsets can only be reset"


def _time(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else timestamp_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else duration_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    short_help="Move the offsets that a group has committed.",
    epilog=examples(
        """
anabranch groups reset payments --topic orders --to-earliest
anabranch groups reset payments --topic orders:0,1 --to-offset 1500 --dry-run
anabranch groups reset payments --all-topics --to-datetime 2025-01-15T09:00:00Z
anabranch groups reset payments --all-topics --by-duration 1h30m --yes
anabranch groups reset payments --all-topics --to-current --export > offsets.csv
anabranch groups reset payments --from-file offsets.csv
"""
    ),
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:N,...]",
    shell_complete=complete_topics,
    multiple=True,
    help="A topic, or some partitions of it; may be given again.",
)
@click.option(
    "--all-topics", is_flag=True, help="Every partition that the group has committed for."
)
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end: skip all that is there.")
@click.option(
    "--to-current", is_flag=True, help="To what is committed, or the end where nothing is."
)
@click.option("--to-offset", type=int, metavar="N", help="To this offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    callback=_time,
    help="To the first record from this time on; an ISO time, UTC unless it has a zone.",
)
@click.option(
    "--by-duration",
    metavar="DURATION",
    callback=_duration,
    help="To the first record from that long ago on; 5m, 1h30m, or P1DT2H30M.",
)
@click.option("--shift-by", type=int, metavar="N", help="Forward by N records, or back by -N.")
@click.option(
    "--from-file",
    metavar="FILE",
    help="To the offsets in a CSV file, as --export writes it; - for stdin.",
)
@click.option(
    "--export",
    "is_export",
    is_flag=True,
    help="Write the new offsets as CSV (topic,partition,offset) and change nothing.",
)
@yes_option
@click.option(
    "--execute", "is_executed", is_flag=True, hidden=True, help="As --yes, for Kafka's users."
)
@dry_run_option
@connection_options
@format_option
@debug_option
def reset(
    connection: Connection,
    output_format: str,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    is_export: bool,
    is_confirmed: bool,
    is_executed: bool,
    is_dry_run: bool,
    **targets: Any,
) -> None:
    """Move the offsets that a group has committed, so that it reads again or skips.

    Say for which partitions (--topic or --all-topics) and where to (one of --to-..., --by-duration,
    --shift-by), or take both from a file. Shows BEFORE and AFTER with the LAG that it makes, then
    asks. An offset outside of the partition becomes the nearest inside. The group must have no
    members: stop its consumers first.

    Where members shared a partition by key, what they have done one by one above the new offset is
    forgotten, and processed again.
    """
    target = _target(group, targets)
    scope = _scope(topics, all_topics, target)
    is_confirmed = is_confirmed or is_executed
    if is_export and (is_confirmed or output_format != "text"):
        other = "--yes" if is_confirmed else f"--format {output_format}"
        raise click.UsageError(f"--export and {other} exclude each other")
    admin, metadata = open_admin(connection)
    run = Reset(admin=admin, connection=connection, group=group)
    described = None if is_export else run.require_empty()
    committed = run.committed()
    keys = _partitions(metadata, target, scope, committed, group)
    changes = plan(admin, connection, target, keys, committed)
    for change in changes:
        if change.remark is not None:
            note(change.remark)
    if described is not None:
        _tell_forgotten(connection, described, changes)
    if is_export:
        offsets = {(change.topic, change.partition): change.after for change in changes}
        write_offsets(offsets, sys.stdout)
    elif is_dry_run:
        _show([_row(group, change, "valid") for change in changes], output_format)
        if output_format == "text":
            note("Nothing was changed (--dry-run).")
    else:
        if not is_confirmed:
            _ask(group, changes, output_format)
        run.execute(changes, output_format)


# What is asked for ------------------------------------------------------------------------------


def _target(group: str, given: dict[str, Any]) -> Target:
    """The one target among the flags."""
    chosen = [
        kind
        for kind in TargetKind
        if given[_parameter(kind)] is not None and given[_parameter(kind)] is not False
    ]
    if len(chosen) != 1:
        flags = ", ".join(kind.value for kind in chosen or TargetKind)
        raise click.UsageError(
            f"{flags} exclude each other; give one of them"
            if chosen
            else f"say where to: one of {flags}"
        )
    (kind,) = chosen
    value = given[_parameter(kind)]
    if kind is TargetKind.FILE:
        return Target(kind, offsets=read_offsets(value, group))
    if kind is TargetKind.DURATION:
        return Target(kind, max(int(time.time() * 1000) - value, 0))
    return Target(kind, int(value))


def _parameter(kind: TargetKind) -> str:
    return kind.value.removeprefix("--").replace("-", "_")


def _scope(topics: tuple[str, ...], all_topics: bool, target: Target) -> Scope:
    """The topics that were named; none means all, or those of the file."""
    if target.kind is TargetKind.FILE:
        if topics or all_topics:
            raise click.UsageError("--from-file names its topics itself; leave out the others")
    elif bool(topics) == all_topics:
        raise click.UsageError("give --topic or --all-topics, one of them")
    return parse_topics(topics)


def _partitions(
    metadata: "ClusterMetadata",
    target: Target,
    scope: Scope,
    committed: dict[TopicPartitionKey, Committed],
    group: str,
) -> list[TopicPartitionKey]:
    if scope:
        return partitions_of(metadata, scope)
    if target.kind is TargetKind.FILE:
        for topic, partition in target.offsets:
            require_partitions(metadata, topic, [partition])
        return sorted(target.offsets)
    if not committed:
        raise CliError(
            f"Group {group!r} has committed no offsets",
            "--all-topics means those that it has committed for",
            "name topics with --topic",
        )
    present = []
    for topic, partition in sorted(committed):
        if topic in metadata.topics and partition in metadata.topics[topic].partitions:
            present.append((topic, partition))
        else:
            note(f"{topic}-{partition} is left out; there is no such partition any more.")
    return present


def _tell_forgotten(connection: Connection, group: Group, changes: list[Change]) -> None:
    from anabranch.cli.groups.range_questions import tell_forgotten

    offsets = {(change.topic, change.partition): change.after for change in changes}
    tell_forgotten(connection, group, offsets)


def _ask(group: str, changes: list[Change], output_format: str) -> None:
    if output_format == "text":
        _show([_row(group, change, "valid") for change in changes], output_format)
    confirm(f"Reset {counted(len(changes), 'offset')} of group {group!r}?")
    if output_format == "text":
        write_blank_line()


# Doing it ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One group's offsets, on their way."""

    admin: "AdminClient"
    connection: Connection
    group: str

    def require_empty(self) -> Group:
        """The group; CliError while it has members, who would commit their offsets over ours."""
        group = describe_groups(self.admin, self.connection, [self.group])[self.group]
        if group.is_active:
            raise still_active(group, _RULE)
        if not group.exists:
            note(f"Group {self.group!r} does not exist yet; its first offsets make it.")
        return group

    def committed(self) -> dict[TopicPartitionKey, Committed]:
        return committed_offsets(self.admin, self.connection, [self.group])[self.group]

    def execute(self, changes: list[Change], output_format: str) -> None:
        """Commit the new offsets, read them again, and show what is there now."""
        errors = self._alter(changes)
        present = self.committed()
        rows = []
        for change in changes:
            key = (change.topic, change.partition)
            row = _row(self.group, change, "reset")
            row["after"] = present[key].offset if key in present else None
            if key in errors:
                row["status"], row["error"] = "failed", reason_of(errors[key])
                what = f"Offset of {change.topic}-{change.partition} was not reset"
                report_error(str(refusal(what, errors[key])))
            rows.append(row)
        _show(rows, output_format)
        done = sum(row["status"] == "reset" for row in rows)
        if output_format == "text":
            note(f"Reset {counted(done, 'offset')} of group {self.group!r}.")
        if done < len(rows):
            raise CommandFailedError

    def _alter(self, changes: list[Change]) -> "dict[TopicPartitionKey, KafkaError]":
        """Commit; the partitions that were refused, or CliError when all were."""
        errors = commit_offsets(
            self.admin,
            self.connection,
            self.group,
            {(change.topic, change.partition): change.after for change in changes},
            failure=f"Offsets of group {self.group!r} were not reset",
        )
        if any(error.name() == "UNKNOWN_MEMBER_ID" for error in errors.values()):
            self.require_empty()  # somebody joined after we looked
        return errors


def _row(group: str, change: Change, status: str) -> dict[str, Any]:
    return {
        "group": group,
        "topic": change.topic,
        "partition": change.partition,
        "before": change.before,
        "after": change.after,
        "lag": change.lag,
        "status": status,
        "error": None,
    }


def _show(rows: list[dict[str, Any]], output_format: str) -> None:
    if output_format == "json":
        write_json(rows)
    else:
        write_table(
            ("GROUP", "TOPIC", "PARTITION", "BEFORE", "AFTER", "LAG"),
            [tuple(row.values())[:6] for row in rows],
        )
