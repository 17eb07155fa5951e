"""`anabranch groups watch`: lag, its trend and the time to drain, look by look."""

import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from anabranch.cli.completion.live_names import complete_groups
from anabranch.cli.connection import open_admin
from anabranch.cli.errors import CliError, CommandFailedError, kafka_error_of, refusal
from anabranch.cli.groups.describe import partition_rows
from anabranch.cli.groups.describe_output import PartitionRow, total_lag
from anabranch.cli.groups.lag_trend import GroupLag, LagTrend
from anabranch.cli.groups.lookup import describe_groups, list_groups, require_groups
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import note, report_error, write_json_line, write_table, write_tsv_line
from anabranch.cli.times import duration_ms

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

_COLUMNS: Final = ("GROUP", "STATE", "MEMBERS", "LAG", "TREND", "DRAIN")
_CLEAR: Final = "\x1b[H\x1b[J"
_ALTERNATE_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
_MAIN_SCREEN: Final = "\x1b[?1049l\x1b[?25h"


def _interval_s(_: click.Context, __: click.Parameter, value: str) -> float:
    try:
        interval_ms = duration_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if interval_ms < 100:
        raise click.BadParameter("the shortest interval is 100ms")
    return interval_ms / 1000


@click.command(
    short_help="Watch the lag of groups, its trend and the time to drain.",
    epilog=examples(
        """
anabranch groups watch payments
anabranch groups watch --all --interval 5s
anabranch groups watch payments --alert-lag 10000 --exit-on-alert
anabranch groups watch payments --until-drained
anabranch groups watch --all --format json --count 1 | jq '.groups[] | select(.lag > 0)'
"""
    ),
)
@click.argument("names", metavar="[GROUP...]", nargs=-1, shell_complete=complete_groups)
@click.option("--all", "all_groups", is_flag=True, help="All groups, also those that come later.")
@click.option(
    "--interval",
    "interval_s",
    metavar="DURATION",
    default="2s",
    show_default=True,
    callback=_interval_s,
    help="How long to wait between two looks, such as 500ms or 1m.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N looks.")
@click.option(
    "--alert-lag",
    type=click.IntRange(min=0),
    metavar="N",
    help="Mark groups whose lag is above N records.",
)
@click.option(
    "--exit-on-alert", is_flag=True, help="Stop at the first such group, with exit code 1."
)
@click.option(
    "--until-drained", is_flag=True, help="Stop when none of the groups has anything left to read."
)
@connection_options
@format_option
@debug_option
def watch(
    connection: Connection,
    output_format: str,
    names: tuple[str, ...],
    all_groups: bool,
    interval_s: float,
    count: int | None,
    alert_lag: int | None,
    exit_on_alert: bool,
    until_drained: bool,
) -> None:
    """Watch the lag of groups until Ctrl-C.

    On a terminal one table is drawn again and again. Elsewhere every look is written one after the
    other: JSON as one object a look, text and TSV with the time before each line.

    TREND is how fast the lag changes, over the last half minute; DRAIN is when it will be 0 if that
    goes on, and never while the lag does not fall. Groups on branch topics have the records that
    they have not processed as their LAG.
    """
    if bool(names) == all_groups:
        raise click.UsageError("name groups, or pass --all for every one")
    if exit_on_alert and alert_lag is None:
        raise click.UsageError("--exit-on-alert needs --alert-lag N, which says when")
    admin, _ = open_admin(connection)
    wanted = list(dict.fromkeys(names))
    require_groups(admin, connection, describe_groups(admin, connection, wanted))
    trends: dict[str, LagTrend] = {}

    def look() -> list[GroupLag]:
        found = look_at(admin, connection, wanted, all_groups)
        return [_with_trend(trends, group, alert_lag) for group in found]

    is_redrawn = output_format == "text" and sys.stdout.isatty()
    if is_redrawn:
        sys.stdout.write(_ALTERNATE_SCREEN)
    alerts: list[GroupLag] = []
    try:
        for number, groups in enumerate(_looks(look, connection, interval_s), start=1):
            _WRITERS["screen" if is_redrawn else output_format](groups, number == 1)
            sys.stdout.flush()
            alerts = [group for group in groups if group.is_alert]
            is_drained = until_drained and all(group.lag == 0 for group in groups)
            if (alerts and exit_on_alert) or is_drained or number == count:
                break
    finally:
        if is_redrawn:
            sys.stdout.write(_MAIN_SCREEN)
            sys.stdout.flush()
    if alerts and exit_on_alert:
        for group in alerts:
            report_error(
                f"Group {group.group!r} has a lag of {group.lag} - that is above --alert-lag"
                f" {alert_lag} - see `anabranch groups describe {group.group}`"
            )
        raise CommandFailedError


def _looks(
    look: Callable[[], list[GroupLag]],
    connection: Connection,
    interval_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[GroupLag]]:
    """Look after look, at a steady pace; a broker that is away for a while is waited for."""
    due_s = clock()
    lost_s: float | None = None
    while True:
        try:
            groups = look()
        except CliError as error:
            if lost_s is None:
                lost_s = clock()
                note(f"{error} - trying again")
            if clock() - lost_s > 3 * connection.timeout_s:
                raise
        else:
            lost_s = None
            yield groups
        due_s = max(due_s + interval_s, clock())
        sleep(max(due_s - clock(), 0))


def look_at(
    admin: "AdminClient", connection: Connection, names: list[str], all_groups: bool
) -> list[GroupLag]:
    """The groups as they are now, by name."""
    if all_groups:
        names = [listing.group for listing in list_groups(admin, connection, set(), set())[0]]
    described = [
        group for group in describe_groups(admin, connection, names).values() if group.exists
    ]
    metadata = _metadata(admin, connection)
    rows = partition_rows(admin, connection, metadata, described)
    from anabranch.cli.groups.branch_questions import find_progress

    progress = find_progress(connection, [group for group in described if rows[group.group]])
    found = []
    for group in described:
        unprocessed: dict[str, int] = {}
        for row in progress.get(group.group, ()):
            so_far = unprocessed.get(row.branch_topic, 0)
            unprocessed[row.branch_topic] = so_far + row.unprocessed_records
        found.append(
            GroupLag(
                group=group.group,
                state=group.state,
                members=len(group.members),
                lag=_lag(rows[group.group], unprocessed),
            )
        )
    gone = set(names) - {group.group for group in described}
    # A group that was deleted stays in the table of who named it.
    found += [
        GroupLag(group=name, state="Dead", members=0, lag=None)
        for name in (() if all_groups else sorted(gone))
    ]
    return found


def _metadata(admin: "AdminClient", connection: Connection) -> "ClusterMetadata":
    """The topics as they are now: some may be new."""
    from confluent_kafka import KafkaException

    try:
        return admin.list_topics(timeout=connection.timeout_s)
    except KafkaException as exception:
        raise refusal("Cannot list topics", kafka_error_of(exception)) from exception


def _lag(rows: list[PartitionRow], unprocessed: dict[str, int]) -> int:
    """Of branches what is left to process: their offsets count the other branches' records too."""
    plain = [row for row in rows if row.topic not in unprocessed]
    return total_lag(plain) + sum(unprocessed.values())


def _with_trend(trends: dict[str, LagTrend], group: GroupLag, alert_lag: int | None) -> GroupLag:
    trend = trends.setdefault(group.group, LagTrend())
    trend_per_s, drain_s = trend.add(time.monotonic_ns() // 1_000_000, group.lag)
    return dataclasses.replace(
        group,
        trend_per_s=trend_per_s,
        drain_s=drain_s,
        is_alert=alert_lag is not None and (group.lag or 0) > alert_lag,
    )


# Writing ----------------------------------------------------------------------------------------


def _cells(group: GroupLag) -> tuple[object, ...]:
    return (
        group.group,
        group.state,
        group.members,
        None if group.lag is None else f"{group.lag}{' !' if group.is_alert else ''}",
        _trend_text(group.trend_per_s),
        _drain_text(group),
    )


def _trend_text(trend_per_s: float | None) -> str | None:
    if trend_per_s is None:
        return None
    if abs(trend_per_s) < 0.05:
        return "steady"
    return f"{trend_per_s:+,.1f}/s"


def _drain_text(group: GroupLag) -> str | None:
    if group.trend_per_s is None or group.lag is None:
        return None
    if group.lag == 0:
        return "done"
    if group.drain_s is None:
        return "never"
    seconds = round(group.drain_s)
    if seconds < 120:
        return f"{seconds}s"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds % 60:02}s"


def _now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _write_screen(groups: list[GroupLag], is_first: bool) -> None:
    sys.stdout.write(_CLEAR)
    height = shutil.get_terminal_size().lines
    # The longest lags are those to look at when not all groups have room.
    order = sorted(groups, key=lambda group: (-(group.lag or 0), group.group))
    shown = order[: max(height - 4, 1)]
    write_table(_COLUMNS, [_cells(group) for group in shown])
    hidden = len(order) - len(shown)
    sys.stdout.write(
        f"\n{_now_text()}{f'  and {hidden} more groups' if hidden else ''}  Ctrl-C stops"
    )


def _write_text(groups: list[GroupLag], is_first: bool) -> None:
    now = _now_text()
    if is_first:
        write_table(("TIME", *_COLUMNS), [(now, *_cells(group)) for group in groups])
        return
    for group in groups:
        cells = ["-" if cell is None else str(cell) for cell in _cells(group)]
        sys.stdout.write("  ".join([now, *cells]) + "\n")


def _write_tsv(groups: list[GroupLag], is_first: bool) -> None:
    now = _now_text()
    if is_first:
        write_tsv_line(("TIME", *_COLUMNS))
    for group in groups:
        write_tsv_line((now, *_cells(group)))


def _write_json(groups: list[GroupLag], is_first: bool) -> None:
    write_json_line({"time": _now_text(), "groups": [_document(group) for group in groups]})


def _document(group: GroupLag) -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "members": group.members,
        "lag": group.lag,
        "trend_per_s": group.trend_per_s,
        "drain_s": group.drain_s,
        "is_alert": group.is_alert,
    }


_WRITERS: Final = {
    "screen": _write_screen,
    "text": _write_text,
    "tsv": _write_tsv,
    "json": _write_json,
}
