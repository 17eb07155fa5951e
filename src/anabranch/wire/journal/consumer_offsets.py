"""The records of `__consumer_offsets` that classic groups and committed offsets are kept in.

Fields are named as the coordinator names them (`group_id` for Kafka's "group", times with their
unit): an encode function asks only for attributes, so a committed offset is written straight from
the coordinator's value, without a copy into these structs.

OffsetCommit (type 1) says how far a group has read one partition. 1 an expiry of the client's own,
2 none again (KIP-211), 3 leader epochs (KIP-320), 4 flexible, with topic ids as a tag (KIP-915).
Kafka writes 4, or 1 where a client asked for its own retention. Type 0 is the same from before
groups had coordinators; it is only read.

GroupMetadata (type 2) is a classic group with its members. 1 rebalance timeouts (KIP-62), 2 the
time of the last change of state (KIP-211), 3 static members (KIP-345), 4 flexible (KIP-915).
Kafka writes 3.
"""

from anabranch.wire.journal.record_type import record_type
from anabranch.wire.schema import Bytes, Int32, Int64, String, Uuid, at, struct


@struct
class OffsetCommitKey:
    group_id: String = at("0")
    topic: String = at("0")
    partition: Int32 = at("0")


@struct
class OffsetCommitValue:
    offset: Int64 = at("0+")
    leader_epoch: Int32 = at("3+", default=-1, ignorable=True)
    metadata: String = at("0+")
    commit_timestamp_ms: Int64 = at("0+")
    expire_timestamp_ms: Int64 = at("1", default=-1, ignorable=True)
    topic_id: Uuid = at("4+", tag=0, ignorable=True)


@struct
class GroupMetadataKey:
    group_id: String = at("0")


@struct
class MemberMetadata:
    member_id: String = at("0+")
    group_instance_id: String | None = at("3+", default=None, ignorable=True)
    client_id: String = at("0+")
    client_host: String = at("0+")
    # Version 0 has none: there the session timeout stands for it.
    rebalance_timeout_ms: Int32 = at("1+", default=-1, ignorable=True)
    session_timeout_ms: Int32 = at("0+")
    subscription: Bytes = at("0+")
    assignment: Bytes = at("0+")


@struct
class GroupMetadataValue:
    protocol_type: String = at("0+")
    generation_id: Int32 = at("0+")
    protocol_name: String | None = at("0+")
    leader_id: String | None = at("0+")
    state_timestamp_ms: Int64 = at("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = at("0+")


LEGACY_OFFSET_COMMIT = record_type(
    0,
    "LegacyOffsetCommit",
    key=OffsetCommitKey,
    value=OffsetCommitValue,
    versions="0",
    flexible="none",
)
OFFSET_COMMIT = record_type(
    1,
    "OffsetCommit",
    key=OffsetCommitKey,
    value=OffsetCommitValue,
    versions="0-4",
    flexible="4+",
)
GROUP_METADATA = record_type(
    2,
    "GroupMetadata",
    key=GroupMetadataKey,
    value=GroupMetadataValue,
    versions="0-4",
    flexible="4+",
)
