"""`anabranch doctor`: run the checks and tell what they found."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from anabranch.cli.errors import CommandFailedError
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import counted, note, write_json, write_table

if TYPE_CHECKING:
    from anabranch.cli.configs.resources import Cluster
    from anabranch.cli.doctor.findings import Finding

_WATCH_DEFAULT_S: Final = 2.0


@click.command(
    short_help="Find the usual misconfigurations of machine, broker, topics and groups.",
    epilog=examples(
        """
anabranch doctor
anabranch doctor server.properties --only machine
anabranch doctor --only broker --bootstrap-server kafka.example:9092 --watch 30
anabranch doctor --format json | jq '.[] | select(.status == "problem")'
"""
    ),
)
@click.argument(
    "properties",
    required=False,
    metavar="[SERVER.PROPERTIES]",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--only",
    type=click.Choice(("machine", "broker")),
    help="Only this machine, or only the broker with its topics and groups.",
)
@click.option(
    "--watch",
    "watch_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=_WATCH_DEFAULT_S,
    show_default=True,
    help="How long to look at groups, to see what moves.",
)
@connection_options
@format_option
@debug_option
def doctor(
    connection: Connection,
    output_format: str,
    properties: Path | None,
    only: str | None,
    watch_s: float,
) -> None:
    """Find the usual misconfigurations, and say for each why it matters and what to do.

    On this machine: Python and packages, the settings of SERVER.PROPERTIES and the environment,
    open files, disk space, inodes, ports, and Java where Spark is installed. On the broker:
    whether it is reached and tells clients an address that works, versions, clock, automatic
    topics, session timeouts; groups that nobody reads for, that keep rebalancing, do not commit,
    fall behind, have idle members, read a branch topic and its source, or are about to lose records
    to retention; topics that nobody reads, dead letters, transactions that hang, and cooperative
    groups that are blocked. Works with Apache Kafka as well, and changes nothing.

    STATUS is ok, warning, problem, or skipped where a check could not be made. The exit code is 1
    when there is a problem.
    """
    found: list[Finding] = []
    if only != "broker":
        from anabranch.cli.doctor.machine import check_machine

        found += check_machine(properties)
    if only != "machine":
        found += _check_broker(connection, watch_s)
    if output_format == "json":
        write_json([_document(one) for one in found])
    else:
        write_table(
            ("STATUS", "CHECK", "SUBJECT", "FINDING", "NEXT-STEP"),
            [
                (one.status.value, one.check, one.subject, one.sentence, one.next_step)
                for one in found
            ],
        )
    count = {
        word: sum(one.status.value == word for one in found) for word in ("problem", "warning")
    }
    note(f"{counted(count['problem'], 'problem')}, {counted(count['warning'], 'warning')}.")
    if count["problem"]:
        raise CommandFailedError


def _document(one: "Finding") -> dict[str, Any]:
    return {
        "status": one.status.value,
        "check": one.check,
        "subject": one.subject,
        "what": one.what,
        "why": one.why,
        "next_step": one.next_step,
    }


def _check_broker(connection: Connection, watch_s: float) -> "Iterator[Finding]":
    from anabranch.cli.configs.resources import open_cluster
    from anabranch.cli.doctor import broker_checks
    from anabranch.cli.doctor.findings import problem
    from anabranch.cli.errors import CliError

    try:
        cluster = open_cluster(connection)
    except CliError as error:
        what, why, next_step = str(error).split(" - ", 2)
        yield problem("reachable", None, what, why=why, next_step=next_step)
        return
    yield broker_checks.check_reachable(cluster)
    places = broker_checks.places_of(cluster)
    advertised = list(broker_checks.check_advertised(connection, places))
    yield from advertised
    if any(one.status.value == "problem" for one in advertised):
        from anabranch.cli.doctor.findings import skipped

        yield skipped(
            "topics-and-groups", "a broker cannot be reached where it says", "correct that first"
        )
        return
    yield from broker_checks.check_versions(connection, places)
    yield from _check_settings(cluster, places)
    yield from _check_contents(cluster, watch_s)


def _check_settings(cluster: "Cluster", places: list[Any]) -> "Iterator[Finding]":
    from anabranch.cli.configs.resources import (
        Resource,
        configured_groups,
        describe,
        describe_all,
    )
    from anabranch.cli.doctor import broker_checks
    from anabranch.cli.doctor.questions import newest_timestamp_ms
    from anabranch.config.setting import Scope

    configs = describe(cluster, Resource(Scope.BROKER, str(places[0].broker)))
    newest_ms = newest_timestamp_ms(cluster)
    yield broker_checks.check_clock(cluster.connection, places, configs, newest_ms)
    yield broker_checks.check_auto_create(configs)
    yield broker_checks.check_client_session(cluster.connection, configs)
    groups = [Resource(Scope.GROUP, group) for group in sorted(configured_groups(cluster))]
    for group, own in describe_all(cluster, groups).items():
        finding = broker_checks.check_group_session(group.name, own, configs)
        if finding is not None:
            yield finding


def _check_contents(cluster: "Cluster", watch_s: float) -> "Iterator[Finding]":
    import time

    from anabranch.cli.doctor.group_checks import check_groups, check_retention
    from anabranch.cli.doctor.questions import (
        RETENTION_SHARE,
        check_sharing,
        check_transactions,
        safe_offsets,
    )
    from anabranch.cli.doctor.survey import LOOKS, survey
    from anabranch.cli.doctor.topic_checks import check_topics
    from anabranch.cli.progress import progress_bar

    connection = cluster.connection
    with progress_bar("Looking at groups", LOOKS) as advance:
        seen = survey(cluster.admin, connection, cluster.metadata, watch_s=watch_s, on_look=advance)
    yield from check_topics(seen)
    yield from check_groups(seen)
    safe_from = safe_offsets(cluster, seen, int(time.time() * 1000))
    yield from check_retention(seen, safe_from, RETENTION_SHARE)
    yield from check_sharing(connection, seen)
    yield from check_transactions(connection)
