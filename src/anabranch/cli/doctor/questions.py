"""What checks have to ask beside the survey: retention, transactions, shared partitions."""

import time
from typing import TYPE_CHECKING, Any, Final, cast

from anabranch.cli.cluster import list_offsets
from anabranch.cli.doctor.findings import Finding, found_or_ok, problem, skipped, warning
from anabranch.cli.doctor.survey import Survey
from anabranch.cli.errors import CliError
from anabranch.cli.groups.consumer_details import can_ask
from anabranch.cli.groups.lookup import CONSUMER, Group, TopicPartitionKey
from anabranch.cli.options import Connection
from anabranch.cli.output import counted

if TYPE_CHECKING:
    from anabranch.cli.configs.resources import Cluster
    from anabranch.client import GroupProgress

RETENTION_SHARE: Final = 0.8
_STALLED_MS: Final = 60_000
_TRANSACTION_MS: Final = 15 * 60 * 1000  # transaction.max.timeout.ms, where it is not told
_INTERNAL: Final = ("__consumer_offsets", "__transaction_state")


def newest_timestamp_ms(cluster: "Cluster") -> int | None:
    """The newest time that the broker itself has written into its own topics."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    places = [
        TopicPartition(topic, partition)
        for topic in _INTERNAL
        if topic in cluster.metadata.topics
        for partition in cluster.metadata.topics[topic].partitions
    ]
    if not places:
        return None
    # The published type stubs lag behind the library here.
    futures = cast(Any, cluster.admin).list_offsets(
        {place: OffsetSpec.max_timestamp() for place in places},
        request_timeout=cluster.connection.timeout_s,
    )
    times = []
    for future in futures.values():
        try:
            times.append(future.result(cluster.connection.timeout_s + 5).timestamp)
        except KafkaException:
            continue  # one partition that does not tell leaves the others
    return max((moment for moment in times if moment > 0), default=None)


def safe_offsets(cluster: "Cluster", seen: Survey, now_ms: int) -> dict[TopicPartitionKey, int]:
    """By partition with lag, the first offset that is younger than most of its retention."""
    from confluent_kafka.admin import OffsetSpec

    behind = {(row.topic, row.partition) for rows in seen.rows.values() for row in rows if row.lag}
    by_retention: dict[int, list[TopicPartitionKey]] = {}
    for topic, partition in sorted(behind):
        configs = seen.configs.get(topic, {})
        text = configs.get("retention.ms") or "-1"
        if int(text) > 0 and "delete" in (configs.get("cleanup.policy") or "delete"):
            by_retention.setdefault(int(text), []).append((topic, partition))
    safe: dict[TopicPartitionKey, int] = {}
    for retention_ms, places in by_retention.items():
        spec = OffsetSpec.for_timestamp(max(0, now_ms - int(retention_ms * RETENTION_SHARE)))
        found = list_offsets(cluster.admin, cluster.connection, places, spec)
        for place, offset in found.items():
            # None that is younger: all that there is goes soon.
            safe[place] = offset if offset >= 0 else seen.ranges[place][1]
    return safe


def check_transactions(connection: Connection) -> list[Finding]:
    """Transactions that no coordinator will end, and those that outlive their own timeout."""
    check = "transactions"
    if not can_ask(connection):
        return [skipped(check, "brokers are asked for them without TLS and SASL only")]
    from anabranch.cli.transactions.producers import hanging_transactions
    from anabranch.cli.transactions.questions import (
        Filters,
        describe_transactions,
        list_transactions,
        open_cluster,
    )

    now_ms = int(time.time() * 1000)
    try:
        cluster = open_cluster(connection)
        hanging = hanging_transactions(cluster, (), _TRANSACTION_MS, now_ms)
        listed = list_transactions(cluster, Filters(states=("Ongoing",)))
        described = describe_transactions(cluster, [one.transactional_id for one in listed.rows])
    except CliError as error:
        return [skipped(check, error.why)]
    found = [
        problem(
            check,
            f"{row.topic}-{row.partition}",
            f"a transaction of producer {row.producer_id} hangs at offset"
            f" {row.current_transaction_start_offset}",
            why="no coordinator has it, so consumers that read committed records wait for ever",
            next_step=f"run `anabranch transactions abort --topic {row.topic} --partition"
            f" {row.partition} --start-offset {row.current_transaction_start_offset}`",
        )
        for row in hanging.rows
    ]
    for one in described.rows:
        open_ms = None if one.start_time_ms is None else now_ms - one.start_time_ms
        if open_ms is not None and open_ms > one.timeout_ms and one.prepared_for is None:
            found.append(
                problem(
                    check,
                    one.transactional_id,
                    f"its transaction is open for {open_ms // 1000} s",
                    why=f"its timeout is {one.timeout_ms // 1000} s, and consumers that read"
                    " committed records wait for it",
                    next_step=f"run `anabranch transactions abort {one.transactional_id}`",
                )
            )
    return found_or_ok(found, check, "none hangs")


def check_sharing(connection: Connection, seen: Survey) -> list[Finding]:
    """Cooperative groups that are blocked by a record, or stand still."""
    check = "cooperation"
    groups = [group for group in seen.groups.values() if group.type == CONSUMER]
    if not groups or not can_ask(connection):
        return [skipped(check, "there are no consumer groups of KIP-848 that could be asked")]
    from anabranch.cli.groups.range_questions import ask_ranges

    found: list[Finding] = []
    for group in sorted(groups, key=lambda group: group.group):
        places = {(row.topic, row.partition) for row in seen.rows[group.group]}
        try:
            progress = ask_ranges(connection, [group], {group.group: places})[group.group]
        except CliError as error:
            return [skipped(check, error.why)]
        found += judge_sharing(group, progress)
    return found_or_ok(found, check, "no group is blocked")


def judge_sharing(group: Group, progress: "GroupProgress") -> list[Finding]:
    """What keeps the stable offsets of a group's partitions where they are."""
    from anabranch.client.stable_hold import explain_stable_offset

    found = []
    for partition in progress.partitions:
        given_up = [record for record in partition.retried if record.rest_ms is None]
        subject = f"{group.group} on {partition.name}"
        look = f"see `anabranch groups describe {group.group} --ranges`"
        if given_up:
            place = f"{group.group} --topic {partition.topic} --partition {partition.partition}"
            found.append(
                problem(
                    "cooperation",
                    subject,
                    f"somebody must decide about {counted(len(given_up), 'record')}",
                    why="they failed too often, and the other records of their keys wait with them",
                    next_step=f"{look}; then `anabranch groups release {place} --all`, or skip, or"
                    " dlq",
                )
            )
        elif partition.stalled_ms is not None and partition.stalled_ms > _STALLED_MS:
            found.append(
                warning(
                    "cooperation",
                    subject,
                    f"its stable offset stands still for {partition.stalled_ms // 1000} s",
                    why=explain_stable_offset(partition, is_enabled=progress.is_enabled),
                    next_step=look,
                )
            )
    return found
