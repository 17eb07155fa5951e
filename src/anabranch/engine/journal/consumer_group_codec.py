"""The records of consumer groups as bytes of `__consumer_offsets`, in Kafka's own format.

A unit is a whole partition in Kafka's records. Key ranges are in tags of our own beside the list of
partitions, which has a partition once for each of its ranges; records without ranges are Kafka's,
byte for byte.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, repeat
from typing import Any

from anabranch.coordinator.group.consumer_records import (
    ConsumerGroupRecord,
    CurrentWritten,
    GroupEpochWritten,
    MemberWritten,
    RegexWritten,
    TargetEpochWritten,
    TargetWritten,
)
from anabranch.coordinator.group.consumer_state import (
    ClassicMembership,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
)
from anabranch.model.units import ALL_SLOTS, SlotRange, Unit, whole_partitions
from anabranch.wire.journal import consumer_groups as wire
from anabranch.wire.journal.record_type import RecordType, read_prefix

_VERSION = 0

# Writing ----------------------------------------------------------------------------------------


def encode_consumer(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; no value for a tombstone."""
    match record:
        case CurrentWritten():
            return _entry(
                wire.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
                record,
                None if record.member is None else _current_value(record.member),
            )
        case MemberWritten():
            return _entry(
                wire.CONSUMER_GROUP_MEMBER_METADATA,
                record,
                None if record.member is None else _member_value(record.member),
            )
        case TargetWritten():
            return _entry(
                wire.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
                record,
                None if record.target is None else _target_value(record.target),
            )
        case TargetEpochWritten():
            value: Any = None
            if record.epoch is not None:
                value = wire.ConsumerGroupTargetAssignmentMetadataValue(
                    assignment_epoch=record.epoch, assignment_timestamp_ms=record.timestamp_ms
                )
            return _entry(wire.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, record, value)
        case GroupEpochWritten():
            written = None if record.epoch is None else record
            return _entry(wire.CONSUMER_GROUP_METADATA, record, written)
        case RegexWritten():
            key = wire.RegularExpressionKey(
                group_id=record.group_id, regular_expression=record.regex
            )
            value = None
            if record.resolved is not None:
                value = wire.ConsumerGroupRegularExpressionValue(
                    topics=sorted(record.resolved.topics),
                    version=record.resolved.version,
                    timestamp_ms=record.resolved.timestamp_ms,
                )
            return _entry(wire.CONSUMER_GROUP_REGULAR_EXPRESSION, key, value)


def _entry(record_type: RecordType, key: Any, value: Any) -> tuple[bytes, bytes | None]:
    key_bytes = record_type.key_encoder()(key)
    return key_bytes, None if value is None else record_type.value_encoder(_VERSION)(value)


def _member_value(member: ConsumerMember) -> wire.ConsumerGroupMemberMetadataValue:
    classic = None
    if member.classic is not None:
        classic = wire.ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[
                wire.ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in member.classic.protocols
            ],
        )
    return wire.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic=classic,
        shares=member.shares,
    )


def _by_topic(units: Iterable[Unit]) -> Iterable[tuple[bytes, list[Unit]]]:
    for topic_id, of_topic in groupby(sorted(units), key=lambda unit: unit.topic_id):
        yield topic_id, list(of_topic)


def _slots(units: list[Unit]) -> list[int]:
    """First and end of each unit's slots; nothing where all are whole partitions."""
    if all(unit.slots == ALL_SLOTS for unit in units):
        return []
    return [slot for unit in units for slot in unit.slots]


def _target_value(target: Iterable[Unit]) -> wire.ConsumerGroupTargetAssignmentMemberValue:
    return wire.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            wire.TargetTopicPartitions(
                topic_id=topic_id,
                partitions=[unit.partition for unit in units],
                slots=_slots(units),
            )
            for topic_id, units in _by_topic(target)
        ]
    )


def _current_value(member: ConsumerMember) -> wire.ConsumerGroupCurrentMemberAssignmentValue:
    return wire.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state,
        assigned_partitions=_with_epochs(member.assigned),
        partitions_pending_revocation=_with_epochs(member.pending_revocation),
    )


def _with_epochs(units: Mapping[Unit, int]) -> list[wire.CurrentTopicPartitions]:
    return [
        wire.CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=[unit.partition for unit in of_topic],
            assignment_epochs=[units[unit] for unit in of_topic],
            slots=_slots(of_topic),
        )
        for topic_id, of_topic in _by_topic(units)
    ]


# Reading ----------------------------------------------------------------------------------------


def _group_epoch(key: wire.GroupKey, value: Any) -> GroupEpochWritten:
    group_id = sys.intern(key.group_id)
    if value is None:
        return GroupEpochWritten(group_id=group_id, epoch=None)
    return GroupEpochWritten(
        group_id=group_id, epoch=value.epoch, metadata_hash=value.metadata_hash
    )


def _member(key: wire.MemberKey, value: Any) -> MemberWritten:
    group_id, member_id = sys.intern(key.group_id), sys.intern(key.member_id)
    if value is None:
        return MemberWritten(group_id=group_id, member_id=member_id, member=None)
    classic = value.classic
    # A tag that was left out reads as an empty struct, which no classic member ever wrote.
    is_classic = classic is not None and classic.supported_protocols
    member = ConsumerMember(
        member_id=member_id,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        subscribed_topic_names=tuple(value.subscribed_topic_names),
        subscribed_topic_regex=value.subscribed_topic_regex,
        server_assignor=value.server_assignor,
        classic=ClassicMembership(
            session_timeout_ms=classic.session_timeout_ms,
            protocols=tuple((p.name, p.metadata) for p in classic.supported_protocols),
        )
        if is_classic
        else None,
        shares=value.shares,
    )
    return MemberWritten(group_id=group_id, member_id=member_id, member=member)


def _target_epoch(key: wire.GroupKey, value: Any) -> TargetEpochWritten:
    group_id = sys.intern(key.group_id)
    if value is None:
        return TargetEpochWritten(group_id=group_id, epoch=None)
    return TargetEpochWritten(
        group_id=group_id,
        epoch=value.assignment_epoch,
        timestamp_ms=value.assignment_timestamp_ms,
    )


def _target(key: wire.MemberKey, value: Any) -> TargetWritten:
    target = None
    if value is not None:
        target = frozenset(unit for topic in value.topic_partitions for unit in _read_units(topic))
    group_id, member_id = sys.intern(key.group_id), sys.intern(key.member_id)
    return TargetWritten(group_id=group_id, member_id=member_id, target=target)


def _current(key: wire.MemberKey, value: Any) -> CurrentWritten:
    member_id = sys.intern(key.member_id)
    member = None
    if value is not None:
        try:
            state = MemberState(value.state)
        except ValueError:
            state = MemberState.UNKNOWN
        member = ConsumerMember(
            member_id=member_id,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=state,
            assigned=_units(value.assigned_partitions, value.member_epoch),
            pending_revocation=_units(value.partitions_pending_revocation, value.member_epoch),
        )
    return CurrentWritten(group_id=sys.intern(key.group_id), member_id=member_id, member=member)


def _read_units(
    topic: wire.TargetTopicPartitions | wire.CurrentTopicPartitions,
) -> Iterable[Unit]:
    if not topic.slots:
        return whole_partitions(topic.topic_id, topic.partitions)
    ranges = map(SlotRange, topic.slots[::2], topic.slots[1::2])
    return map(Unit, repeat(topic.topic_id), topic.partitions, ranges)


def _units(topics: list[wire.CurrentTopicPartitions], member_epoch: int) -> dict[Unit, int]:
    units: dict[Unit, int] = {}
    for topic in topics:
        # Records from before 4.3 have none: then it is the member's (KIP-1251).
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        units.update(zip(_read_units(topic), epochs, strict=True))
    return units


def _regex(key: wire.RegularExpressionKey, value: Any) -> RegexWritten:
    resolved = None
    if value is not None:
        resolved = ResolvedRegex(
            topics=frozenset(value.topics), version=value.version, timestamp_ms=value.timestamp_ms
        )
    return RegexWritten(
        group_id=sys.intern(key.group_id), regex=key.regular_expression, resolved=resolved
    )


_READERS: dict[int, tuple[RecordType, Callable[[Any, Any], ConsumerGroupRecord]]] = {
    record_type.number: (record_type, read)
    for record_type, read in (
        (wire.CONSUMER_GROUP_METADATA, _group_epoch),
        (wire.CONSUMER_GROUP_MEMBER_METADATA, _member),
        (wire.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, _target_epoch),
        (wire.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, _target),
        (wire.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, _current),
        (wire.CONSUMER_GROUP_REGULAR_EXPRESSION, _regex),
    )
}


def decode_consumer(number: int, key: bytes, value: bytes | None) -> ConsumerGroupRecord | None:
    """The record of a key of type `number`; None for a type that is none of a consumer group's.

    Type 4 is among those: what it says is in the hash of type 3 since Kafka 4.1.
    """
    found = _READERS.get(number)
    if found is None:
        return None
    record_type, read = found
    place = record_type.key_decoder()(key)
    said = None
    if value is not None:
        said = record_type.value_decoder(read_prefix(value))(value)
    return read(place, said)
