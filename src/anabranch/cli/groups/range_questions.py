"""Asking what members of groups have done record by record, which only this broker tells."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from anabranch.cli.connection import Troubles, client_config
from anabranch.cli.errors import CliError
from anabranch.cli.groups.consumer_details import can_ask
from anabranch.cli.groups.lookup import Group, Member, TopicPartitionKey
from anabranch.cli.options import Connection
from anabranch.cli.output import counted, note
from anabranch.client import (
    BrokerError,
    ConsumerError,
    CooperationNotSupportedError,
    GroupProgress,
    PartitionProgress,
    TopicPartition,
    group_progress,
)
from anabranch.model.units import ALL_SLOTS


def ask_ranges(
    connection: Connection, groups: list[Group], wanted: Mapping[str, set[TopicPartitionKey]]
) -> dict[str, GroupProgress]:
    """How far each group is with its partitions, range by range; CliError when it is not told."""
    return {
        group.group: _ask(connection, group, wanted[group.group], with_oldest=True)
        for group in groups
    }


def tell_forgotten(
    connection: Connection, group: Group, offsets: Mapping[TopicPartitionKey, int]
) -> None:
    """Say what is done above these offsets and would be done again, if they were committed.

    For commands that are about something else: what cannot be had is not told.
    """
    if not can_ask(connection) or group.coordinator is None:
        return
    try:
        found = _ask(connection, group, set(offsets), with_oldest=False)
    except CliError:
        return
    for partition in found.partitions:
        # Below the stable offset nothing was done out of order: there the commit says it all.
        offset = max(offsets[(partition.topic, partition.partition)], partition.stable_offset or 0)
        count = partition.done_from(offset)
        if count:
            note(
                f"{partition.name}: members have done up to {counted(count, 'record')} from offset"
                f" {offset} on, one by one; that will be forgotten."
            )


def _ask(
    connection: Connection, group: Group, wanted: set[TopicPartitionKey], *, with_oldest: bool
) -> GroupProgress:
    config = client_config(connection, Troubles())
    if not can_ask(connection) or group.coordinator is None:
        protocol = config.get("security.protocol", "plaintext")
        raise _unknown(
            group.group,
            f"the broker cannot be asked for it by {protocol}",
            "use a listener without TLS and SASL",
        )
    _, host, port = group.coordinator
    asking = group_progress(
        f"{host}:{port}",
        group.group,
        partitions=[TopicPartition(*key) for key in sorted(wanted)],
        with_oldest=with_oldest,
        client_id=str(config["client.id"]),
        request_timeout_ms=max(1, int(connection.timeout_s * 1000)),
    )
    try:
        found = asyncio.run(asking)
    except CooperationNotSupportedError as error:
        raise _unknown(
            group.group, "this broker has no individual commits", "use an Anabranch broker"
        ) from error
    except ConsumerError as error:
        reason = f"the broker says {error.code.name}" if isinstance(error, BrokerError) else None
        raise _unknown(
            group.group,
            reason or str(error),
            "look at the broker's log, or run again with --debug",
        ) from error
    partitions = tuple(_with_only_owner(group, one) for one in found.partitions)
    return replace(found, partitions=partitions)


def _unknown(group: str, reason: str, next_step: str) -> CliError:
    return CliError(f"The key ranges of group {group!r} are not known", reason, next_step)


def _with_only_owner(group: Group, partition: PartitionProgress) -> PartitionProgress:
    """Who owns a partition, where groups do not know of ranges: those of the classic protocol."""
    (row, *others) = partition.ranges or (None,)
    owner = _only_owner(group, (partition.topic, partition.partition))
    if row is None or others or row.slots != ALL_SLOTS or row.owner is not None or owner is None:
        return partition
    row = replace(row, owner=owner.consumer_id, client_id=owner.client_id)
    return replace(partition, ranges=(row,))


def _only_owner(group: Group, key: TopicPartitionKey) -> Member | None:
    owners = [member for member in group.members if key in member.partitions]
    return owners[0] if len(owners) == 1 else None
