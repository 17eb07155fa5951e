"""Asking what members of groups have done record by record, which only this broker tells."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from anabranch.cli.connection import Troubles, client_config
from anabranch.cli.errors import CliError
from anabranch.cli.groups.consumer_details import can_ask
from anabranch.cli.groups.lookup import Group, Member, TopicPartitionKey
from anabranch.cli.groups.range_progress import NEVER_MS, RangeRow, RetriedRow, SharedPartition
from anabranch.cli.options import Connection
from anabranch.cli.output import counted, note
from anabranch.cli.raw_client import RawClient
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import ALL_SLOTS, slots_between
from anabranch.wire import offset_set
from anabranch.wire.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

_FIRST_WITH_MANY_GROUPS: Final = 8

# The partitions to ask for, with their high watermarks where these are known.
Wanted = Mapping[TopicPartitionKey, int | None]


def ask_ranges(
    connection: Connection, groups: list[Group], wanted: Mapping[str, Wanted]
) -> dict[str, list[SharedPartition]]:
    """How far each group is with its partitions, range by range; CliError when it is not told."""
    by_place: dict[tuple[str, int], list[Group]] = {}
    found: dict[str, list[SharedPartition]] = {group.group: [] for group in groups}
    for group in groups:
        if wanted[group.group]:
            by_place.setdefault(_place(connection, group), []).append(group)
    for place, some in by_place.items():
        with RawClient(*place, connection.timeout_s) as client:
            found |= _ask(client, some, wanted)
    return found


def tell_forgotten(
    connection: Connection, group: Group, offsets: Mapping[TopicPartitionKey, int]
) -> None:
    """Say what is done above these offsets and would be done again, if they were committed.

    For commands that are about something else: what cannot be had is not told.
    """
    if not can_ask(connection) or group.coordinator is None:
        return
    try:
        found = ask_ranges(connection, [group], {group.group: dict.fromkeys(offsets)})
    except CliError:
        return
    for partition in found[group.group]:
        # Below the stable offset nothing was done out of order: there the commit says it all.
        offset = max(offsets[(partition.topic, partition.partition)], partition.stable_offset or 0)
        count = partition.done_from(offset)
        if count:
            note(
                f"{partition.name}: members have done up to {counted(count, 'record')} from offset"
                f" {offset} on, one by one; that will be forgotten."
            )


def _place(connection: Connection, group: Group) -> tuple[str, int]:
    if not can_ask(connection) or group.coordinator is None:
        protocol = client_config(connection, Troubles()).get("security.protocol", "plaintext")
        raise _unknown(
            group.group,
            f"the broker cannot be asked for it by {protocol}",
            "use a listener without TLS and SASL",
        )
    return group.coordinator[1:]


def _unknown(group: str, reason: str, next_step: str) -> CliError:
    return CliError(f"The key ranges of group {group!r} are not known", reason, next_step)


def _ask(
    client: RawClient, groups: list[Group], wanted: Mapping[str, Wanted]
) -> dict[str, list[SharedPartition]]:
    ids = _topic_ids(client, {topic for group in groups for topic, _ in wanted[group.group]})
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id=group.group, topics=_topics(wanted[group.group], ids))
            for group in groups
        ],
        with_individual=True,
    )
    answer = client.send(OFFSET_FETCH, request, _FIRST_WITH_MANY_GROUPS)
    by_name = {group.group: group for group in groups}
    names = {topic_id: name for name, topic_id in ids.items()}
    if answer is None:
        raise _not_ours(groups[0].group)
    return {
        one.group_id: _partitions(by_name[one.group_id], one, wanted[one.group_id], names)
        for one in answer.groups
    }


def _topic_ids(client: RawClient, names: set[str]) -> dict[str, bytes]:
    """By name, as newer versions ask by id; what was deleted meanwhile is left out."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in sorted(names)],
        allow_auto_topic_creation=False,
    )
    answer = client.send(METADATA, request)
    topics = answer.topics if answer is not None else ()
    return {topic.name: topic.topic_id for topic in topics if not topic.error_code}


def _topics(wanted: Iterable[TopicPartitionKey], ids: dict[str, bytes]) -> list[Any]:
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(wanted):
        if topic in ids:
            partitions.setdefault(topic, []).append(partition)
    return [
        OffsetFetchRequestTopics(name=name, topic_id=ids[name], partition_indexes=indexes)
        for name, indexes in partitions.items()
    ]


def _not_ours(group: str) -> CliError:
    return _unknown(group, "this broker has no individual commits", "use an Anabranch broker")


def _partitions(
    group: Group, answer: Any, wanted: Wanted, names: dict[bytes, str]
) -> list[SharedPartition]:
    if answer.error_code:
        raise _unknown(
            group.group,
            f"the broker says {_name_of(answer.error_code)}",
            "look at the broker's log, or run again with --debug",
        )
    members = {member.consumer_id: member for member in group.members}
    found = []
    for topic in answer.topics:
        name = topic.name or names[bytes(topic.topic_id)]
        for partition in topic.partitions:
            if partition.error_code:
                continue  # deleted between two questions
            if partition.individual is None:
                raise _not_ours(group.group)
            key = (name, partition.partition_index)
            alone = _only_owner(group, key)
            found.append(_partition(key, partition.individual, wanted[key], members, alone))
    return found


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _only_owner(group: Group, key: TopicPartitionKey) -> Member | None:
    """Who owns a partition, where groups do not know of ranges: those of the classic protocol."""
    owners = [member for member in group.members if key in member.partitions]
    return owners[0] if len(owners) == 1 else None


def _partition(
    key: TopicPartitionKey,
    progress: Any,
    high_watermark: int | None,
    members: dict[str, Member],
    alone: Member | None,
) -> SharedPartition:
    rows = tuple(_range(one, members, alone) for one in progress.ranges)
    # The high watermark was asked for before, and what is done can only be below it.
    end_offset = max((row.end_offset for row in rows), default=0)
    return SharedPartition(
        topic=key[0],
        partition=key[1],
        stable_offset=progress.stable_offset if progress.stable_offset >= 0 else None,
        high_watermark=None if high_watermark is None else max(high_watermark, end_offset),
        ranges=rows,
        retried=tuple(
            RetriedRow(
                offset=one.offset,
                attempts=one.attempts,
                rest_ms=None if one.not_before_ms == NEVER_MS else one.not_before_ms,
                reason=one.reason,
            )
            for one in progress.retried
        ),
    )


def _range(found: Any, members: dict[str, Member], alone: Member | None) -> RangeRow:
    slots = slots_between(found.first_hash, found.last_hash)
    try:
        done = offset_set.decode(found.done)
    except KafkaError as error:
        raise _unreadable(error.message) from error
    if slots is None:
        raise _unreadable("a key range does not begin and end at slots")
    owner = found.owner
    if owner is None and alone is not None and slots == ALL_SLOTS:
        owner = alone.consumer_id
    member = members.get(owner) if owner is not None else None
    return RangeRow(
        slots=slots,
        owner=owner,
        client_id=None if member is None else member.client_id,
        epoch=found.epoch if found.epoch >= 0 else None,
        watermark=found.watermark,
        done=done,
    )


def _unreadable(reason: str) -> CliError:
    return CliError(
        "The broker's answer about key ranges cannot be read",
        reason.rstrip("."),
        "use a command line of the broker's version",
    )
