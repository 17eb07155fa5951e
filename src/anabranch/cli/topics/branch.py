"""`anabranch topics branch`: show a topic's partitions, cut by key, as a topic of more of them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.cluster import require_topics
from anabranch.cli.completion.live_names import complete_groups, complete_topics
from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.errors import CliError, kafka_error_of, reason_of, refusal
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
from anabranch.cli.output import counted, note, write_blank_line, write_json, write_table
from anabranch.cli.topics.configs import alter_topic, describe_topics
from anabranch.cli.topics.refusals import topic_refusal

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata

    from anabranch.cli.groups.branch_start import StartPlan

_NAME_SUFFIX = ".by-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRequest:
    """A branch topic as the command line asks for it."""

    source: str
    name: str
    partitions: int
    # What is set on the source before it is branched, and on the branch topic itself.
    source_configs: dict[str, str | None] = field(default_factory=dict)
    own_configs: dict[str, str] = field(default_factory=dict)


@click.command(
    "branch",
    epilog=examples(
        """
anabranch topics branch orders --into 24
anabranch topics branch orders --into 24 --as orders.for-billing --commit-source
anabranch topics branch orders --into 48 --as orders.wider --from-group billing
anabranch topics branch payments --null-key ordered --ordering-header customer --dry-run
"""
    ),
)
@click.argument("source", shell_complete=complete_topics)
@click.option(
    "--into",
    "partitions",
    type=int,
    metavar="N",
    help="Partitions of the branch topic, a multiple of SOURCE's."
    "  [default: the broker's branch.ranges.per.partition for each]",
)
@click.option("--as", "name", metavar="NAME", help=f"Its name.  [default: SOURCE{_NAME_SUFFIX}]")
@click.option(
    "--null-key",
    type=click.Choice(("ordered", "unordered")),
    help="Set on SOURCE whether records without a key stay in one branch, in order.",
)
@click.option(
    "--ordering-header",
    metavar="NAME",
    help="Set on SOURCE a record header that takes the place of the key.",
)
@click.option(
    "--commit-source",
    is_flag=True,
    help="Commit what a group has finished as its offsets on SOURCE, too.",
)
@click.option(
    "--from-group",
    "group",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Commit offsets for GROUP, so that it goes on from its progress elsewhere.",
)
@click.option(
    "--from-topic",
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Where that is: another branch topic of SOURCE, or SOURCE.  [default: the only one]",
)
@yes_option
@dry_run_option
@connection_options
@format_option
@debug_option
def branch(
    connection: Connection,
    output_format: str,
    source: str,
    partitions: int | None,
    name: str | None,
    null_key: str | None,
    ordering_header: str | None,
    commit_source: bool,
    group: str | None,
    from_topic: str | None,
    is_confirmed: bool,
    is_dry_run: bool,
) -> None:
    """Make a branch topic of SOURCE, so that more consumers share its partitions.

    Each partition of SOURCE is cut into key ranges, and each range is a partition of the branch
    topic: any consumer group that subscribes to it scales past SOURCE's partitions, and the records
    of one key stay in order. Nothing is copied. Producers go on with SOURCE.

    What decides the range of a record is set on SOURCE, and cannot change while it has branch
    topics: --null-key and --ordering-header show BEFORE and AFTER, then ask.

    With --from-group, a group that has read another branch topic of SOURCE, or SOURCE itself, goes
    on from there: nothing is skipped, and REPLAYED records that it had done come again, because
    ranges that are cut differently cannot all start where others stopped. Stop its consumers first.
    """
    if from_topic is not None and group is None:
        raise click.UsageError("--from-topic says where the progress of --from-group is; give both")
    if partitions is not None and partitions < 1:
        raise click.UsageError(f"--into must be 1 or more, got {partitions}")
    admin, metadata = open_admin(connection)
    name = name or source + _NAME_SUFFIX
    require_branchable(metadata, source, name)
    request = BranchRequest(
        source=source,
        name=name,
        partitions=partitions or _partitions_default(admin, connection, metadata, source),
        source_configs=_source_configs(null_key, ordering_header),
        own_configs={"branch.commit.source": "true"} if commit_source else {},
    )
    # All is checked before anything is changed: a source must not be left with half of it.
    make_branch_topic(admin, connection, request, is_dry_run=True)
    plan = None
    if group is not None:
        # Only who asks for it pays for these imports.
        from anabranch.cli.groups.branch_start import find_origin, plan_start, start_group

        origin = find_origin(
            admin, connection, metadata, group, source, from_topic, is_dry_run=is_dry_run
        )
        plan = plan_start(connection, metadata, origin, name, request.partitions)
    changes = _changes(admin, connection, request)
    if changes and output_format != "json":
        write_table(("NAME", "BEFORE", "AFTER"), changes)
    if not is_dry_run:
        if changes and not is_confirmed:
            confirm(f"Change {counted(len(changes), 'setting')} of topic {source!r} and branch it?")
        make_branch_topic(admin, connection, request, is_dry_run=False)
        metadata = admin.list_topics(timeout=connection.timeout_s)
        if plan is not None:
            plan = start_group(admin, connection, metadata, plan)
    if changes and output_format != "json":
        write_blank_line()
    _report(metadata, request, output_format, plan, is_dry_run=is_dry_run)


def _changes(
    admin: "AdminClient", connection: Connection, request: BranchRequest
) -> list[tuple[str, str | None, str | None]]:
    """Settings of the source that get another value: name, before and after."""
    if not request.source_configs:
        return []
    present = describe_topics(admin, connection, [request.source])[request.source]
    before = {name: entry.value for name, entry in present.items()}
    return [
        (name, before.get(name), after)
        for name, after in request.source_configs.items()
        if before.get(name) != after
    ]


def _source_configs(null_key: str | None, ordering_header: str | None) -> dict[str, str | None]:
    configs: dict[str, str | None] = {}
    if null_key is not None:
        configs["branch.null.key"] = null_key
    if ordering_header is not None:
        configs["branch.ordering.key.header"] = ordering_header
    return configs


def require_branchable(metadata: "ClusterMetadata", source: str, name: str) -> None:
    """CliError when the source is not there, or something is under the name already."""
    require_topics(metadata, [source])
    if name in metadata.topics:
        raise CliError(
            f"Topic {source!r} was not branched",
            f"there is a topic {name!r} already",
            "give the branch topic another name with --as",
        )


def _partitions_default(
    admin: "AdminClient", connection: Connection, metadata: "ClusterMetadata", source: str
) -> int:
    """What the broker would choose, asked beforehand so that a dry run can show it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    broker_id = next(iter(metadata.brokers))
    (future,) = admin.describe_configs(
        [ConfigResource(ResourceType.BROKER, str(broker_id))], request_timeout=connection.timeout_s
    ).values()
    try:
        ranges = result_of(future, connection).get("branch.ranges.per.partition")
    except KafkaException as exception:
        error = kafka_error_of(exception)
        raise refusal("Cannot read the settings of the broker", error) from exception
    if ranges is None or ranges.value is None:
        raise _no_branch_topics(source)
    return len(metadata.topics[source].partitions) * int(ranges.value)


def make_branch_topic(
    admin: "AdminClient", connection: Connection, request: BranchRequest, *, is_dry_run: bool
) -> None:
    """Set what the source needs, then create the branch topic; CliError when one is refused."""
    from confluent_kafka import KafkaException

    try:
        if request.source_configs:
            alter_topic(
                admin, connection, request.source, request.source_configs, is_dry_run=is_dry_run
            )
        _create(admin, connection, request, is_dry_run=is_dry_run)
    except KafkaException as exception:
        raise _refusal(request, kafka_error_of(exception)) from exception


def _create(
    admin: "AdminClient", connection: Connection, request: BranchRequest, *, is_dry_run: bool
) -> None:
    from confluent_kafka.admin import NewTopic

    topic = NewTopic(
        request.name,
        num_partitions=request.partitions,
        replication_factor=-1,
        config={**request.own_configs, "branch.source.topic": request.source},
    )
    futures = admin.create_topics(
        [topic],
        validate_only=is_dry_run,
        request_timeout=connection.timeout_s,
        operation_timeout=connection.timeout_s,
    )
    for future in futures.values():
        result_of(future, connection)


def _refusal(request: BranchRequest, error: "KafkaError") -> CliError:
    if "nknown topic config name: branch." in reason_of(error):
        return _no_branch_topics(request.source)
    return topic_refusal(f"Topic {request.source!r} was not branched", error)


def _no_branch_topics(source: str) -> CliError:
    return CliError(
        f"Topic {source!r} was not branched",
        "this broker has no branch topics",
        "use an Anabranch broker",
    )


def _report(
    metadata: "ClusterMetadata",
    request: BranchRequest,
    output_format: str,
    plan: "StartPlan | None",
    *,
    is_dry_run: bool,
) -> None:
    """Show what exists now, or what would: the counts are the broker's where it has them."""
    made = metadata.topics.get(request.name)
    partitions = request.partitions if made is None else len(made.partitions)
    row: dict[str, Any] = {
        "topic": request.name,
        "source": request.source,
        "partitions": partitions,
        "ranges_per_partition": partitions // len(metadata.topics[request.source].partitions),
        "status": "valid" if is_dry_run else "created",
    }
    if output_format == "json":
        write_json([row if plan is None else {**row, "start": plan.document()}])
        return
    columns = ("TOPIC", "SOURCE", "PARTITIONS", "RANGES-PER-PARTITION", "STATUS")
    write_table(columns, [tuple(row.values())])
    if plan is not None:
        plan.write(is_dry_run=is_dry_run)
    if is_dry_run:
        note("Nothing was created (--dry-run); the broker accepts it.")
    else:
        note(f"Consumers subscribe to {request.name!r}; producers go on with {request.source!r}.")
