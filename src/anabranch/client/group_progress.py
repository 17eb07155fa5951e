"""Asking how far a group is, range by range: for dashboards, tests and the command line.

Only reads, needs no membership, and fences nobody. What a group has done and who owns what comes
from its coordinator, in one answer for all partitions. The rest is asked for around it and may be
newer: members and hand-overs, the ends of partitions, the switches of topics, and the first record
that is not done, which is looked for in the partition itself.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Unpack

from anabranch.branch.record_columns import read_records
from anabranch.branch.slots import SlotRule
from anabranch.client.cluster import CONTROL_LANE, Cluster
from anabranch.client.errors import (
    ConfigurationError,
    CooperationNotSupportedError,
    broker_error,
)
from anabranch.client.group_view import (
    GroupProgress,
    Handover,
    OldestRecord,
    PartitionProgress,
    read_partition,
)
from anabranch.client.ordering import NULL_KEY_CONFIG, ORDERING_HEADER_CONFIG, rule_of
from anabranch.client.records import KeyRange, TopicPartition
from anabranch.client.settings import ConnectionOptions, settings_of
from anabranch.model.errors import ErrorCode
from anabranch.wire.compression import MissingCodecError
from anabranch.wire.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    DescribedGroup,
)
from anabranch.wire.messages.cooperation import IndividualProgress
from anabranch.wire.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from anabranch.wire.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from anabranch.wire.messages.list_offsets import (
    LATEST,
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseTopics,
)

_TAGS_VERSION: Final = 8
_FETCH_BY_ID_VERSION: Final = 13
_TOPIC_RESOURCE: Final = 2
_SHARING_CONFIG: Final = "range.fetch.enable"
# How much of a partition is looked through for the first record that is not done.
_SEARCH_BYTES: Final = 1024 * 1024
_SEARCHES_MAX: Final = 8

Place = tuple[bytes, int]


async def group_progress(
    bootstrap_servers: str | Sequence[str],
    group_id: str,
    *,
    partitions: Iterable[TopicPartition] | None = None,
    with_oldest: bool = True,
    **options: Unpack[ConnectionOptions],
) -> GroupProgress:
    """How far a group is with partitions: those named, or all it has committed for or owns.

    `with_oldest` also looks for the first record of each that is not done, which reads some of
    them. ConsumerError when the broker cannot be asked, or does not know individual commits.
    """
    if not group_id:
        raise ConfigurationError("group_id must not be empty")
    settings = settings_of(
        {**options, "bootstrap_servers": bootstrap_servers, "group_id": group_id}
    )
    cluster = Cluster(settings, is_reader=True)
    try:
        wanted = None if partitions is None else {TopicPartition(*one) for one in partitions}
        return await _ask(cluster, group_id, wanted, with_oldest)
    finally:
        await cluster.close()


def group_progress_sync(
    bootstrap_servers: str | Sequence[str],
    group_id: str,
    *,
    partitions: Iterable[TopicPartition] | None = None,
    with_oldest: bool = True,
    **options: Unpack[ConnectionOptions],
) -> GroupProgress:
    """As `group_progress`, for programs without an event loop."""
    return asyncio.run(
        group_progress(
            bootstrap_servers, group_id, partitions=partitions, with_oldest=with_oldest, **options
        )
    )


async def _ask(
    cluster: Cluster, group_id: str, wanted: set[TopicPartition] | None, with_oldest: bool
) -> GroupProgress:
    group = await _described(cluster, group_id)
    found = await _individual(cluster, group_id, group, wanted)
    names = {place.topic for place in found}
    await cluster.refresh(names=names)
    configs = {name: await _configs(cluster, name) for name in sorted(names)}
    ends = await _high_watermarks(cluster, list(found))
    client_ids = {one.member_id: one.client_id for one in group.members} if group else {}
    handovers = _handovers(group)
    partitions = []
    for place, progress in sorted(found.items()):
        partition = read_partition(
            place,
            progress,
            high_watermark=ends.get(place),
            client_ids=client_ids,
            is_shareable=configs[place.topic].get(_SHARING_CONFIG) == "true",
            handovers=handovers.get(place, ()),
        )
        if with_oldest:
            partition = await _with_oldest(cluster, partition, rule_of(configs[place.topic]))
        partitions.append(partition)
    return GroupProgress(
        group_id=group_id,
        state=group.group_state if group is not None else None,
        is_enabled=cluster.takes_individual_commits,
        partitions=tuple(partitions),
    )


# The coordinator --------------------------------------------------------------------------------


async def _described(cluster: Cluster, group_id: str) -> DescribedGroup | None:
    """Members and hand-overs; None where there is no group of KIP-848."""
    request = ConsumerGroupDescribeRequest(group_ids=[group_id], include_movements=True)
    answer = await cluster.ask_coordinator(CONSUMER_GROUP_DESCRIBE, request)
    found: DescribedGroup
    (found,) = answer.groups
    if found.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None  # a group of offsets alone, or of the classic protocol
    if found.error_code:
        raise broker_error(found.error_code, "ConsumerGroupDescribe", found.error_message)
    return found


def _handovers(group: DescribedGroup | None) -> dict[TopicPartition, tuple[Handover, ...]]:
    found: dict[TopicPartition, tuple[Handover, ...]] = {}
    for one in group.movements if group is not None else ():
        place = TopicPartition(one.topic_name, one.partition)
        handover = Handover(
            key_range=KeyRange(one.first_hash, one.last_hash),
            from_member=one.from_member_id or None,
            to_member=one.to_member_id or None,
            since_ms=one.since_ms,
        )
        found[place] = (*found.get(place, ()), handover)
    return found


async def _individual(
    cluster: Cluster,
    group_id: str,
    group: DescribedGroup | None,
    wanted: set[TopicPartition] | None,
) -> dict[TopicPartition, IndividualProgress]:
    """What the group has done of each partition."""
    if wanted is not None:
        return await _fetch_individual(cluster, group_id, wanted)
    found = await _fetch_individual(cluster, group_id, None)
    owned = {
        TopicPartition(topic.topic_name, partition)
        for member in (group.members if group is not None else ())
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    }
    if owned - found.keys():
        found |= await _fetch_individual(cluster, group_id, owned - found.keys())
    return found


async def _fetch_individual(
    cluster: Cluster, group_id: str, wanted: Collection[TopicPartition] | None
) -> dict[TopicPartition, IndividualProgress]:
    topics = None
    if wanted is not None:
        await cluster.refresh(names={place.topic for place in wanted})
        topics = _asked(cluster, wanted)
        if not topics:
            return {}
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)], with_individual=True
    )
    answer = await cluster.ask_coordinator(OFFSET_FETCH, request, least_version=_TAGS_VERSION)
    (group,) = answer.groups
    if group.error_code:
        raise broker_error(group.error_code, f"asking for the progress of {group_id}")
    # Newer versions name topics by id.
    await cluster.refresh(ids={one.topic_id for one in group.topics if any(one.topic_id)})
    found: dict[TopicPartition, IndividualProgress] = {}
    for topic in group.topics:
        name = _name_of(cluster, topic)
        for one in topic.partitions:
            if one.error_code or name is None:
                continue  # deleted between two questions
            if one.individual is None:
                raise CooperationNotSupportedError("OffsetFetch", cluster.coordinator_place)
            found[TopicPartition(name, one.partition_index)] = one.individual
    return found


def _asked(cluster: Cluster, wanted: Collection[TopicPartition]) -> list[OffsetFetchRequestTopics]:
    """The partitions in the form of a request; topics that do not exist are left out."""
    topics: dict[str, OffsetFetchRequestTopics] = {}
    for place in sorted(wanted):
        topic = cluster.topic(place.topic)
        if topic is not None:
            asked = OffsetFetchRequestTopics(name=topic.name, topic_id=topic.topic_id)
            topics.setdefault(topic.name, asked).partition_indexes.append(place.partition)
    return list(topics.values())


def _name_of(cluster: Cluster, topic: OffsetFetchResponseTopics) -> str | None:
    if topic.name:
        return topic.name
    place = cluster.place_of(bytes(topic.topic_id), 0)
    return place.topic if place is not None else None


# Topics and partitions --------------------------------------------------------------------------


async def _configs(cluster: Cluster, topic: str) -> dict[str, str | None]:
    resource = DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE,
        resource_name=topic,
        configuration_keys=[_SHARING_CONFIG, NULL_KEY_CONFIG, ORDERING_HEADER_CONFIG],
    )
    answer = await cluster.ask_any(DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource]))
    (found,) = answer.results
    return {} if found.error_code else {one.name: one.value for one in found.configs}


async def _high_watermarks(
    cluster: Cluster, places: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    by_node: dict[int, dict[str, ListOffsetsTopic]] = {}
    for place in places:
        led = _leader(cluster, place)
        if led is None:
            continue
        topics = by_node.setdefault(led.node_id, {})
        topic = topics.setdefault(place.topic, ListOffsetsTopic(name=place.topic))
        topic.partitions.append(
            ListOffsetsPartition(partition_index=place.partition, timestamp=LATEST)
        )
    found: dict[TopicPartition, int] = {}
    for node_id, topics in by_node.items():
        request = ListOffsetsRequest(replica_id=-1, topics=list(topics.values()))
        answer = await cluster.ask_node(node_id, CONTROL_LANE, LIST_OFFSETS, request)
        found |= {
            TopicPartition(topic.name, one.partition_index): one.offset
            for topic in answer.topics
            for one in topic.partitions
            if not one.error_code
        }
    return found


class _Led(NamedTuple):
    topic_id: bytes
    node_id: int


def _leader(cluster: Cluster, place: TopicPartition) -> _Led | None:
    topic = cluster.topic(place.topic)
    leader = topic.leaders.get(place.partition) if topic is not None else None
    return _Led(topic.topic_id, leader.node_id) if topic is not None and leader else None


# The first record that is not done --------------------------------------------------------------


async def _with_oldest(
    cluster: Cluster, partition: PartitionProgress, rule: SlotRule
) -> PartitionProgress:
    """The partition with its first open record, if it has one that is found within reason."""
    offset = partition.stable_offset
    led = _leader(cluster, partition.place)
    if offset is None or partition.high_watermark is None or led is None:
        return partition
    for _ in range(_SEARCHES_MAX):
        if offset >= partition.high_watermark:
            return replace(partition, is_searched=True)
        content = await _fetch(cluster, led, partition.partition, offset)
        if not content:
            return partition  # the log begins later by now, or cannot be read
        try:
            oldest, offset = find_oldest(partition, content, rule, offset, _now_ms())
        except MissingCodecError:
            return partition
        if oldest is not None:
            return replace(partition, oldest=oldest, is_searched=True)
    return partition


async def _fetch(cluster: Cluster, led: _Led, partition: int, offset: int) -> memoryview:
    asked = FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=_SEARCH_BYTES
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_SEARCH_BYTES,
        topics=[FetchTopic(topic_id=led.topic_id, partitions=[asked])],
    )
    answer: Any = await cluster.ask_node(
        led.node_id, CONTROL_LANE, FETCH, request, least_version=_FETCH_BY_ID_VERSION
    )
    data = [one for topic in answer.responses for one in topic.partitions]
    return memoryview(b"" if not data or data[0].error_code else data[0].records or b"")


def find_oldest(
    partition: PartitionProgress, content: memoryview, rule: SlotRule, offset: int, now_ms: int
) -> tuple[OldestRecord | None, int]:
    """The first record from an offset on that is not done, and where to look on."""
    columns = read_records(content, rule, from_offset=offset)
    for index, (slot, found) in enumerate(zip(columns.slots, columns.offsets, strict=True)):
        row = partition.range_of_slot(slot)
        if row is None or not row.is_done(found):
            timestamp_ms = columns.timestamps[index]
            oldest = OldestRecord(
                offset=found,
                slot=slot,
                key=columns.key(index),
                timestamp_ms=timestamp_ms,
                age_ms=max(now_ms - timestamp_ms, 0) if timestamp_ms >= 0 else None,
            )
            return oldest, found
    return None, max(columns.next_offset, offset + 1)


def _now_ms() -> int:
    return round(time.time() * 1000)
