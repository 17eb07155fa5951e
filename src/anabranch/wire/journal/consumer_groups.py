"""The records of `__consumer_offsets` that groups of the consumer protocol are kept in (KIP-848).

A group is many small records, so that a heartbeat writes only what it changed: the group's epoch
(type 3), what each member said of itself (5), the epoch of the target assignment (6) and each
member's part of it (7), what each member owns and still has to give back (8), and what each regular
expression matched (16). Type 4, the partitions of the subscribed topics, is from before 4.1, which
keeps a hash of them in type 3 instead (KIP-1101); it is read, and only to be deleted.

All values are version 0 and flexible: what came later came as tags. Fields are named as the
coordinator names them, for an encode function asks only for attributes.
"""

from anabranch.wire.journal.record_type import record_type
from anabranch.wire.schema import Bool, Bytes, Int8, Int32, Int64, String, Uuid, at, struct


@struct
class GroupKey:
    """The key of what a group has one of."""

    group_id: String = at("0")


@struct
class MemberKey:
    """The key of what each member of a group has one of."""

    group_id: String = at("0")
    member_id: String = at("0")


@struct
class RegularExpressionKey:
    group_id: String = at("0")
    regular_expression: String = at("0")


@struct
class ConsumerGroupMetadataValue:
    epoch: Int32 = at("0+")
    metadata_hash: Int64 = at("0+", tag=0)


@struct
class PartitionMetadata:
    partition: Int32 = at("0+")
    racks: list[String] = at("0+")


@struct
class TopicMetadata:
    topic_id: Uuid = at("0+")
    topic_name: String = at("0+")
    num_partitions: Int32 = at("0+")
    partition_metadata: list[PartitionMetadata] = at("0+")


@struct
class ConsumerGroupPartitionMetadataValue:
    topics: list[TopicMetadata] = at("0+")


@struct
class ClassicProtocol:
    name: String = at("0+")
    metadata: Bytes = at("0+")


@struct
class ClassicMemberMetadata:
    """What a member that speaks the classic protocol joined with."""

    session_timeout_ms: Int32 = at("0+")
    supported_protocols: list[ClassicProtocol] = at("0+")


@struct
class ConsumerGroupMemberMetadataValue:
    instance_id: String | None = at("0+", default=None)
    rack_id: String | None = at("0+", default=None)
    client_id: String = at("0+")
    client_host: String = at("0+")
    subscribed_topic_names: list[String] = at("0+")
    subscribed_topic_regex: String | None = at("0+", default=None)
    rebalance_timeout_ms: Int32 = at("0+", default=-1)
    server_assignor: String | None = at("0+", default=None)
    # Left out, it stands for a classic member without protocols: Kafka's schema gives it no default
    # of null, whatever it looks like. So null is written, and Kafka writes it for every member that
    # speaks the consumer protocol.
    classic: ClassicMemberMetadata | None = at("0+", tag=0)
    # Ours: whether it takes key ranges of partitions.
    shares: Bool = at("0+", tag=10_000)


@struct
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: Int32 = at("0+")
    assignment_timestamp_ms: Int64 = at("0+", tag=0)


@struct
class TargetTopicPartitions:
    topic_id: Uuid = at("0+")
    partitions: list[Int32] = at("0+")
    # Ours: first and end slot of each of them, none where all are whole; a partition is there once
    # for each of its ranges.
    slots: list[Int32] = at("0+", tag=10_000)


@struct
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: list[TargetTopicPartitions] = at("0+")


@struct
class CurrentTopicPartitions:
    topic_id: Uuid = at("0+")
    partitions: list[Int32] = at("0+")
    # One for each partition, from 4.3 on (KIP-1251); where there are none (left out, or null) the
    # member's epoch counts.
    assignment_epochs: list[Int32] | None = at("0+", tag=0)
    # Ours, as above.
    slots: list[Int32] = at("0+", tag=10_000)


@struct
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: Int32 = at("0+")
    previous_member_epoch: Int32 = at("0+")
    state: Int8 = at("0+")
    assigned_partitions: list[CurrentTopicPartitions] = at("0+")
    partitions_pending_revocation: list[CurrentTopicPartitions] = at("0+")


@struct
class ConsumerGroupRegularExpressionValue:
    topics: list[String] = at("0+")
    version: Int64 = at("0+")
    timestamp_ms: Int64 = at("0+")


CONSUMER_GROUP_METADATA = record_type(
    3,
    "ConsumerGroupMetadata",
    key=GroupKey,
    value=ConsumerGroupMetadataValue,
    versions="0",
    flexible="0+",
)
CONSUMER_GROUP_PARTITION_METADATA = record_type(
    4,
    "ConsumerGroupPartitionMetadata",
    key=GroupKey,
    value=ConsumerGroupPartitionMetadataValue,
    versions="0",
    flexible="0+",
)
CONSUMER_GROUP_MEMBER_METADATA = record_type(
    5,
    "ConsumerGroupMemberMetadata",
    key=MemberKey,
    value=ConsumerGroupMemberMetadataValue,
    versions="0",
    flexible="0+",
)
CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = record_type(
    6,
    "ConsumerGroupTargetAssignmentMetadata",
    key=GroupKey,
    value=ConsumerGroupTargetAssignmentMetadataValue,
    versions="0",
    flexible="0+",
)
CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = record_type(
    7,
    "ConsumerGroupTargetAssignmentMember",
    key=MemberKey,
    value=ConsumerGroupTargetAssignmentMemberValue,
    versions="0",
    flexible="0+",
)
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = record_type(
    8,
    "ConsumerGroupCurrentMemberAssignment",
    key=MemberKey,
    value=ConsumerGroupCurrentMemberAssignmentValue,
    versions="0",
    flexible="0+",
)
CONSUMER_GROUP_REGULAR_EXPRESSION = record_type(
    16,
    "ConsumerGroupRegularExpression",
    key=RegularExpressionKey,
    value=ConsumerGroupRegularExpressionValue,
    versions="0",
    flexible="0+",
)
