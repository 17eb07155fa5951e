"""The group coordinator's records as bytes of `__consumer_offsets`, in Kafka's own format.

Kafka's tools, and whatever else reads that topic, read ours; a topic that Apache Kafka wrote is
read here. Versions written are those of Kafka 4: OffsetCommit 4, or 1 where a client asked for its
own retention (such a record has no place for leader epoch and topic id), GroupMetadata 3. The
records of consumer groups are in `consumer_group_codec`.
"""

import functools
import sys
from struct import Struct

from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember, ClassicState
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.consumer_records import ConsumerGroupRecord
from anabranch.coordinator.group.records import GroupWritten, OffsetCommitted
from anabranch.engine.journal.consumer_group_codec import decode_consumer, encode_consumer
from anabranch.engine.journal.errors import JournalError
from anabranch.wire.journal.consumer_offsets import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
)
from anabranch.wire.journal.record_type import RecordType, read_prefix
from anabranch.wire.primitives import DecodeError

DurableRecord = OffsetCommitted | GroupWritten | ConsumerGroupRecord

_NO_TIMESTAMP = -1
_NO_TIMEOUT = -1
_NO_TOPIC_ID = bytes(16)

# Version, offset, leader epoch, the length (plus one) of the metadata, time of the commit.
_pack_offset = Struct(">hqiBq").pack
_NO_TAGS = b"\x00"
_TOPIC_ID_TAG = b"\x01\x00\x10"  # one tag, number 0, 16 bytes

_write_offset_key = OFFSET_COMMIT.key_encoder()
_write_offset = OFFSET_COMMIT.value_encoder(4)
_encode_expiring_offset = OFFSET_COMMIT.value_encoder(1)
_encode_group_key = GROUP_METADATA.key_encoder()
_encode_group = GROUP_METADATA.value_encoder(3)


@functools.lru_cache(4096)
def _encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """A consumer commits the same few partitions over and over."""
    return _write_offset_key(OffsetCommitKey(group_id=group_id, topic=topic, partition=partition))


def _encode_offset(offset: CommittedOffset) -> bytes:
    """The value of a commit; without metadata, as nearly all are, in a quarter of the time."""
    if offset.metadata:
        return _write_offset(offset)
    fixed = _pack_offset(4, offset.offset, offset.leader_epoch, 1, offset.commit_timestamp_ms)
    topic_id = offset.topic_id
    return fixed + (_NO_TAGS if topic_id == _NO_TOPIC_ID else _TOPIC_ID_TAG + topic_id)


def encode(record: DurableRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; no value for a tombstone."""
    if isinstance(record, OffsetCommitted):
        key = _encode_offset_key(record.group_id, record.topic, record.partition)
        offset = record.value
        if offset is None:
            return key, None
        if offset.expire_timestamp_ms != _NO_TIMESTAMP:
            return key, _encode_expiring_offset(offset)
        return key, _encode_offset(offset)
    if not isinstance(record, GroupWritten):
        return encode_consumer(record)
    key, group = _encode_group_key(record), record.group
    return key, None if group is None else _encode_group(_group_value(group))


def decode(key: bytes, value: bytes | None) -> DurableRecord | None:
    """The record of a key and a value; None for a type that is not known here.

    A type that is not known belongs to a newer Kafka, or to groups of another kind; whoever loads
    a journal passes over it and says so. Anything malformed is a JournalError.
    """
    try:
        number = read_prefix(key)
        if number == OFFSET_COMMIT.number:
            return _decode_offset(OFFSET_COMMIT, key, value)
        if number == GROUP_METADATA.number:
            return _decode_group(key, value)
        if number == LEGACY_OFFSET_COMMIT.number:
            return _decode_offset(LEGACY_OFFSET_COMMIT, key, value)
        return decode_consumer(number, key, value)
    except (DecodeError, ValueError) as error:
        raise JournalError(f"a record of __consumer_offsets cannot be read: {error}") from error


def _decode_offset(record_type: RecordType, key: bytes, value: bytes | None) -> OffsetCommitted:
    place = record_type.key_decoder()(key)
    offset = None
    if value is not None:
        read = record_type.value_decoder(read_prefix(value))(value)
        offset = CommittedOffset(
            offset=read.offset,
            leader_epoch=read.leader_epoch,
            metadata=read.metadata,
            commit_timestamp_ms=read.commit_timestamp_ms,
            expire_timestamp_ms=read.expire_timestamp_ms,
            topic_id=read.topic_id,
        )
    # A few names are in all the records of a journal: each is held once.
    return OffsetCommitted(
        group_id=sys.intern(place.group_id),
        topic=sys.intern(place.topic),
        partition=place.partition,
        value=offset,
    )


def _group_value(group: ClassicGroup) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation_id=group.generation_id,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id,
        state_timestamp_ms=group.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name or ""),
                assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def _decode_group(key: bytes, value: bytes | None) -> GroupWritten:
    group_id = GROUP_METADATA.key_decoder()(key).group_id
    if value is None:
        return GroupWritten(group_id=group_id, group=None)
    read: GroupMetadataValue = GROUP_METADATA.value_decoder(read_prefix(value))(value)
    group = ClassicGroup(
        group_id=group_id,
        state=ClassicState.STABLE if read.members else ClassicState.EMPTY,
        generation_id=read.generation_id,
        protocol_type=read.protocol_type or None,
        protocol_name=read.protocol_name,
        leader_id=read.leader_id,
        state_timestamp_ms=read.state_timestamp_ms,
        members={
            member.member_id: _read_member(member, read.protocol_name) for member in read.members
        },
    )
    return GroupWritten(group_id=group_id, group=group)


def _read_member(member: MemberMetadata, protocol_name: str | None) -> ClassicMember:
    """A member takes part in the protocol that was chosen; what else it could do is not kept."""
    rebalance_timeout_ms = member.rebalance_timeout_ms
    if rebalance_timeout_ms == _NO_TIMEOUT:
        rebalance_timeout_ms = member.session_timeout_ms
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        protocols=((protocol_name or "", member.subscription),),
        assignment=member.assignment,
    )
