"""What librdkafka does not tell of groups: states and epochs of KIP-848, who waits for whom.

Groups whose members are not consumers it does not show at all, such as those of Kafka Connect.

A movement is a partition that is not where it should be. This broker tells them, with the time
since when; of any other one they follow from what members have and what they should have.
"""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from anabranch.cli.connection import Troubles, client_config
from anabranch.cli.groups.lookup import TYPES, Group, Member, Movement, TopicPartitionKey
from anabranch.cli.options import Connection
from anabranch.cli.raw_client import RawClient
from anabranch.model.units import ALL_SLOTS, slots_between
from anabranch.wire.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    MEMBER_TYPE_UNKNOWN,
    ConsumerGroupDescribeRequest,
)
from anabranch.wire.messages.describe_groups import DESCRIBE_GROUPS, DescribeGroupsRequest
from anabranch.wire.messages.list_groups import LIST_GROUPS, ListedGroup, ListGroupsRequest

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

_FIRST_WITH_STATES = 4
REVOKING = "revoking"
ASSIGNING = "assigning"


def can_ask(connection: Connection) -> bool:
    """Whether the way to the broker is one that `RawClient` can go."""
    protocol = client_config(connection, Troubles()).get("security.protocol", "plaintext")
    return str(protocol).lower() == "plaintext"


def add_details(connection: Connection, groups: dict[str, Group]) -> dict[str, Group]:
    """The groups with what their coordinators tell of consumer groups beyond librdkafka."""
    found = {name: _derived(group) for name, group in groups.items()}
    if not can_ask(connection):
        return found
    by_place: dict[tuple[str, int], list[str]] = {}
    for name, group in groups.items():
        if group.coordinator is not None:
            _, host, port = group.coordinator
            by_place.setdefault((host, port), []).append(name)
    for (host, port), names in by_place.items():
        request = ConsumerGroupDescribeRequest(group_ids=names, include_movements=True)
        with RawClient(host, port, connection.timeout_s) as client:
            answer = client.send(CONSUMER_GROUP_DESCRIBE, request)
        for described in answer.groups if answer is not None else ():
            # One that was deleted or changed its protocol a moment ago stays as librdkafka saw it.
            if not described.error_code:
                found[described.group_id] = _detailed(groups[described.group_id], described)
    return found


def list_all(connection: Connection, metadata: "ClusterMetadata") -> dict[str, ListedGroup]:
    """Every group, of consumers or not, in the broker's own words; nothing where it cannot say."""
    groups: dict[str, ListedGroup] = {}
    if not can_ask(connection):
        return groups
    nodes: Iterable[Any] = metadata.brokers.values()
    for node in nodes:
        with RawClient(node.host, node.port, connection.timeout_s) as client:
            answer = client.send(LIST_GROUPS, ListGroupsRequest(), _FIRST_WITH_STATES)
        if answer is not None:
            groups |= {group.group_id: group for group in answer.groups}
    return groups


def describe_other(connection: Connection, metadata: "ClusterMetadata", name: str) -> Group | None:
    """A group that is not of consumers; what its members share out, only they can read."""
    if not can_ask(connection):
        return None
    nodes: Iterable[Any] = metadata.brokers.values()
    for node in nodes:
        with RawClient(node.host, node.port, connection.timeout_s) as client:
            answer = client.send(DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[name]))
        for described in answer.groups if answer is not None else ():
            # Other brokers than its coordinator say that they are not.
            if not described.error_code:
                return _other(described, (node.id, node.host, node.port))
    return None


def _other(described: Any, coordinator: tuple[int, str, int]) -> Group:
    members = [
        Member(
            consumer_id=member.member_id,
            group_instance_id=member.group_instance_id,
            host=member.client_host,
            client_id=member.client_id,
            partitions=(),
        )
        for member in described.members
    ]
    return Group(
        group=described.group_id,
        type=TYPES["CLASSIC"],
        protocol=described.protocol_type,
        state=described.group_state,
        assignor=described.protocol_data or None,
        coordinator=coordinator,
        members=tuple(sorted(members, key=lambda m: (m.client_id, m.consumer_id))),
    )


def _detailed(group: Group, described: Any) -> Group:
    members = tuple(
        Member(
            consumer_id=member.member_id,
            group_instance_id=member.instance_id,
            host=member.client_host,
            client_id=member.client_id,
            partitions=_keys(member.assignment),
            target=_keys(member.target_assignment),
            epoch=member.member_epoch,
            is_upgraded=None
            if member.member_type == MEMBER_TYPE_UNKNOWN
            else bool(member.member_type),
        )
        for member in sorted(described.members, key=lambda m: (m.client_id, m.member_id))
    )
    told = tuple(_told(movement) for movement in described.movements)
    return dataclasses.replace(
        group,
        state=described.group_state,
        assignor=described.assignor_name,
        group_epoch=described.group_epoch,
        target_epoch=described.assignment_epoch,
        members=members,
        movements=told or movements_of(members),
    )


def _told(movement: Any) -> Movement:
    slots = slots_between(movement.first_hash, movement.last_hash)
    is_part = slots is not None and slots != ALL_SLOTS
    return Movement(
        topic=movement.topic_name,
        partition=movement.partition,
        first_slot=slots.first if slots is not None and is_part else None,
        last_slot=slots.end - 1 if slots is not None and is_part else None,
        from_consumer_id=movement.from_member_id or None,
        to_consumer_id=movement.to_member_id or None,
        state=movement.state,
        since_ms=movement.since_ms,
    )


def _keys(assignment: Any) -> tuple[TopicPartitionKey, ...]:
    return tuple(
        sorted(
            (topic.topic_name, partition)
            for topic in assignment.topic_partitions
            for partition in topic.partitions
        )
    )


def _derived(group: Group) -> Group:
    return dataclasses.replace(group, movements=movements_of(group.members))


def movements_of(members: Iterable[Member]) -> tuple[Movement, ...]:
    """What is on its way, from what members have and what they should have."""
    owners: dict[TopicPartitionKey, str] = {}
    heirs: dict[TopicPartitionKey, str] = {}
    for member in members:
        if member.target is None:
            return ()  # nobody knows
        owners |= dict.fromkeys(member.partitions, member.consumer_id)
        heirs |= dict.fromkeys(member.target, member.consumer_id)
    return tuple(
        Movement(
            topic=key[0],
            partition=key[1],
            from_consumer_id=owners.get(key),
            to_consumer_id=heirs.get(key),
            state=REVOKING if key in owners else ASSIGNING,
            since_ms=None,
        )
        for key in sorted(owners.keys() | heirs.keys())
        if owners.get(key) != heirs.get(key)
    )
