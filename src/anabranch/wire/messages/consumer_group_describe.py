"""ConsumerGroupDescribe (key 69): the state, epochs and members of groups of KIP-848.

A tag of our own tells who waits for whom: the partitions that are on their way from one member to
another. Only who asks for it gets it, by another tag: there are clients that stumble over tags they
do not know.

1 what protocol a member speaks (KIP-1099).
"""

from anabranch.wire.api import api
from anabranch.wire.messages.metadata import OPERATIONS_NOT_REQUESTED
from anabranch.wire.schema import Bool, Int8, Int16, Int32, Int64, String, Uuid, at, struct

MEMBER_TYPE_UNKNOWN = -1
MEMBER_TYPE_CLASSIC = 0
MEMBER_TYPE_CONSUMER = 1


@struct
class ConsumerGroupDescribeRequest:
    group_ids: list[String] = at("0+")
    include_authorized_operations: Bool = at("0+")
    # Ours: whether the answer may have the tag of movements.
    include_movements: Bool = at("0+", tag=10_000)


@struct
class TopicPartitions:
    topic_id: Uuid = at("0+")
    topic_name: String = at("0+")
    partitions: list[Int32] = at("0+")


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = at("0+")


@struct
class Member:
    member_id: String = at("0+")
    instance_id: String | None = at("0+", default=None)
    rack_id: String | None = at("0+", default=None)
    member_epoch: Int32 = at("0+")
    client_id: String = at("0+")
    client_host: String = at("0+")
    subscribed_topic_names: list[String] = at("0+")
    subscribed_topic_regex: String | None = at("0+", default=None)
    assignment: Assignment = at("0+")
    target_assignment: Assignment = at("0+")
    member_type: Int8 = at("1+", default=MEMBER_TYPE_UNKNOWN, ignorable=True)


@struct
class Movement:
    """A key range of a partition that has not arrived yet; an empty member id is nobody."""

    topic_id: Uuid = at("0+")
    topic_name: String = at("0+")
    partition: Int32 = at("0+")
    first_hash: Int64 = at("0+")
    last_hash: Int64 = at("0+")
    from_member_id: String = at("0+")
    to_member_id: String = at("0+")
    state: String = at("0+")
    since_ms: Int64 = at("0+")


@struct
class DescribedGroup:
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)
    group_id: String = at("0+")
    group_state: String = at("0+")
    group_epoch: Int32 = at("0+")
    assignment_epoch: Int32 = at("0+")
    assignor_name: String = at("0+")
    members: list[Member] = at("0+")
    authorized_operations: Int32 = at("0+", default=OPERATIONS_NOT_REQUESTED)
    movements: list[Movement] = at("0+", tag=10_000)


@struct
class ConsumerGroupDescribeResponse:
    throttle_time_ms: Int32 = at("0+")
    groups: list[DescribedGroup] = at("0+")


CONSUMER_GROUP_DESCRIBE = api(
    69,
    "ConsumerGroupDescribe",
    request=ConsumerGroupDescribeRequest,
    response=ConsumerGroupDescribeResponse,
    versions="0-1",
    flexible="0+",
)
