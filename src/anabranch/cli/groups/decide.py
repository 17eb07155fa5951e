"""`anabranch groups release|skip|dlq`: decide about records that nobody could process."""

import functools
from collections.abc import Callable
from typing import Any

import click

from anabranch.cli.completion.live_names import complete_groups, complete_topics
from anabranch.cli.connection import open_admin
from anabranch.cli.errors import CliError, CommandFailedError
from anabranch.cli.groups.lookup import Group, describe_groups, require_groups
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
from anabranch.cli.output import counted, note, printable, report_error, write_json, write_table

_TAGS_VERSION = 8
_LAST_WITH_NAMES = 9


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments that the three commands have in common."""
    for option in reversed(
        (
            click.argument("group", shell_complete=complete_groups),
            click.option(
                "--topic",
                required=True,
                metavar="TOPIC",
                shell_complete=complete_topics,
                help="The topic.",
            ),
            click.option(
                "--partition",
                type=click.IntRange(min=0),
                required=True,
                metavar="N",
                help="The partition.",
            ),
            click.option(
                "--offset",
                "offsets",
                type=click.IntRange(min=0),
                multiple=True,
                metavar="N",
                help="A record that waits; may be given again.",
            ),
            click.option(
                "--key",
                "keys",
                multiple=True,
                metavar="KEY",
                help="A key, of which all records are meant that wait; may be given again.",
            ),
            click.option(
                "--key-hash",
                "key_hashes",
                type=click.IntRange(min=0),
                multiple=True,
                metavar="HASH",
                help="The same by the hash of the key, as `groups describe --ranges` shows it.",
            ),
            click.option("--all", "is_all", is_flag=True, help="Everything that waits."),
            yes_option,
            dry_run_option,
            connection_options,
            format_option,
            debug_option,
        )
    ):
        command = option(command)
    return command


def _command(verb: str, short_help: str) -> Callable[[Callable[..., Any]], click.Command]:
    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(**values: Any) -> None:
            _decide(verb, **values)

        place = "payments --topic orders --partition 0"
        return click.command(
            verb,
            short_help=short_help,
            epilog=examples(
                f"""
anabranch groups {verb} {place} --offset 1042
anabranch groups {verb} {place} --key customer-7 --dry-run
anabranch groups {verb} {place} --all --yes
"""
            ),
        )(_options(run))

    return decorate


@_command("release", "Have records tried again that were given up.")
def release(**_: Any) -> None:
    """Have records tried again that were given up, and keys processed that are diverted.

    A record that failed too often, or that its consumer rejected, is not tried again by itself and
    blocks its key. Released, it comes back to the member that owns its key within seconds, as if
    for the first time. A key that was diverted to the dead-letter topic (coop.disposition=dlq-key)
    is processed again from then on; what went there stays there.
    """


@_command("skip", "Count records as done that nobody could process.")
def skip(**_: Any) -> None:
    """Count records as done that nobody could process, so that their keys go on.

    Nothing is kept of them but in the topic itself, for as long as that keeps them.
    """


@_command("dlq", "Send records that nobody could process to the dead-letter topic.")
def dlq(**_: Any) -> None:
    """Send records that nobody could process to the dead-letter topic, so that their keys go on.

    They count as done when they are there. The topic is coop.dlq.topic, or the name of their own
    with `.dlq` behind it, and is created if need be.
    """


def _decide(
    verb: str,
    *,
    connection: Connection,
    output_format: str,
    group: str,
    topic: str,
    partition: int,
    is_confirmed: bool,
    is_dry_run: bool,
    **chosen: Any,
) -> None:
    # Only who decides about records pays for these imports.
    from anabranch.cli.groups.range_questions import ask_ranges
    from anabranch.cli.groups.waiting import Chosen, Verb, choose

    given = [name for name, value in chosen.items() if value]
    if len(given) != 1:
        flags = "--offset, --key, --key-hash or --all"
        raise click.UsageError(
            f"{flags} exclude each other; give one of them" if given else f"say what: {flags}"
        )
    admin, _ = open_admin(connection)
    described = describe_groups(admin, connection, [group])
    require_groups(admin, connection, described)
    found = ask_ranges(connection, [described[group]], {group: {(topic, partition)}})
    if not found[group].partitions:
        raise CliError(
            f"There is no partition {partition} of topic {topic!r}",
            f"group {group!r} has nothing there",
            f"see `anabranch groups describe {group}`",
        )
    (progress,) = found[group].partitions
    targets = choose(group, progress, Verb[verb.upper()], Chosen(**chosen))
    rows: list[dict[str, Any]] = [
        {
            "group": group,
            "topic": topic,
            "partition": partition,
            "offset": one.offset if one.offset >= 0 else None,
            "key_hash": one.key_hash,
            "attempts": one.attempts,
            "reason": one.reason,
            "before": one.before,
            "after": one.after,
            "status": "valid",
            "error": None,
        }
        for one in targets
    ]
    if output_format != "json":
        _write(rows)
    stable_offset = progress.stable_offset
    if not is_dry_run:
        if not is_confirmed:
            confirm(f"{verb.capitalize()} {_counted(rows)} of group {group!r}?")
        stable_offset = _send(connection, described[group], Verb[verb.upper()].value, rows)
    if output_format == "json":
        write_json(rows)
    elif is_dry_run:
        note("Nothing was changed (--dry-run).")
    else:
        done = [row for row in rows if row["status"] == "done"]
        note(
            f"{verb.capitalize()}: {_counted(done)}; the stable offset of {progress.name} was"
            f" {_known(progress.stable_offset)} and is {_known(stable_offset)}."
        )
    if any(row["status"] == "failed" for row in rows):
        raise CommandFailedError


def _write(rows: list[dict[str, Any]]) -> None:
    write_table(
        (
            *("GROUP", "TOPIC", "PARTITION", "OFFSET", "KEY-HASH", "ATTEMPTS"),
            *("BEFORE", "AFTER", "REASON"),
        ),
        [
            (
                *(row["group"], row["topic"], row["partition"], row["offset"], row["key_hash"]),
                *(row["attempts"], row["before"], row["after"]),
                printable(row["reason"].encode()),
            )
            for row in rows
        ],
    )


def _counted(rows: list[dict[str, Any]]) -> str:
    keys = sum(row["offset"] is None for row in rows)
    parts = [counted(len(rows) - keys, "record")] if len(rows) > keys or not keys else []
    if keys:
        parts.append(counted(keys, "key"))
    return " and ".join(parts)


def _known(offset: int | None) -> str:
    return "unknown" if offset is None or offset < 0 else str(offset)


def _send(connection: Connection, group: Group, action: int, rows: list[dict[str, Any]]) -> int:
    """Have the broker take the decisions, and write into each row what became of it."""
    from anabranch.cli.raw_client import RawClient
    from anabranch.wire.messages.cooperation import Decisions, RecordDecision
    from anabranch.wire.messages.offset_commit import (
        OFFSET_COMMIT,
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )

    decisions = [
        RecordDecision(
            offset=-1 if row["offset"] is None else row["offset"],
            key_hash=row["key_hash"],
            action=action,
        )
        for row in rows
    ]
    asked = OffsetCommitRequestPartition(
        partition_index=rows[0]["partition"],
        committed_offset=-1,
        decisions=Decisions(decisions=decisions),
    )
    topic = OffsetCommitRequestTopic(name=rows[0]["topic"], partitions=[asked])
    request = OffsetCommitRequest(group_id=group.group, topics=[topic])
    assert group.coordinator is not None, "its ranges were asked for there"
    _, host, port = group.coordinator
    with RawClient(host, port, connection.timeout_s) as client:
        answer = client.send(
            OFFSET_COMMIT, request, least_version=_TAGS_VERSION, last_version=_LAST_WITH_NAMES
        )
    answered = answer.topics[0].partitions[0] if answer is not None else None
    if answered is None or answered.decisions is None or answered.error_code:
        why = "it does not know how"
        if answered is not None and answered.error_code:
            why = f"it says {_name(answered.error_code)}"
        raise CliError(
            f"The broker took no decision about {rows[0]['topic']}-{rows[0]['partition']}",
            why,
            "look at the broker's log",
        )
    for row, outcome in zip(rows, answered.decisions.outcomes, strict=True):
        row["status"] = "failed" if outcome.error_code else "done"
        if outcome.error_code:
            row["error"] = outcome.error_message or _name(outcome.error_code)
            what = (
                f"Record {row['offset']}"
                if row["offset"] is not None
                else f"The key with hash {row['key_hash']}"
            )
            report_error(
                f"{what} was left as it is - {row['error']} - see `anabranch groups describe"
                f" {group.group} --ranges`"
            )
    stable_offset: int = answered.decisions.stable_offset
    return stable_offset


def _name(code: int) -> str:
    from anabranch.model.errors import ErrorCode

    return ErrorCode(code).name
