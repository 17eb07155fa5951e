"""ConsumerGroupHeartbeat (key 68): join, stay in, acknowledge and leave a group of KIP-848.

A null (or a rebalance timeout of -1) in a request says "as it was when I last said it", so that a
member that has nothing new to say sends next to nothing. An assignment of null in a response says
the same of the broker.

1 regular expressions, and a member makes its own id (KIP-1082).
"""

from anabranch.wire.api import api
from anabranch.wire.messages.cooperation import Cooperation, CooperationAnswer
from anabranch.wire.schema import Int16, Int32, String, Uuid, at, struct


@struct
class TopicPartitions:
    topic_id: Uuid = at("0+")
    partitions: list[Int32] = at("0+")


@struct
class ConsumerGroupHeartbeatRequest:
    group_id: String = at("0+")
    member_id: String = at("0+")
    # 0 joins, -1 leaves, -2 leaves for a while as a static member.
    member_epoch: Int32 = at("0+")
    instance_id: String | None = at("0+", default=None)
    rack_id: String | None = at("0+", default=None)
    rebalance_timeout_ms: Int32 = at("0+", default=-1)
    subscribed_topic_names: list[String] | None = at("0+", default=None)
    subscribed_topic_regex: String | None = at("1+", default=None)
    server_assignor: String | None = at("0+", default=None)
    # What the member owns, not what it would like to.
    topic_partitions: list[TopicPartitions] | None = at("0+", default=None)
    cooperation: Cooperation | None = at("0+", tag=10_000, nullable="none", default=None)


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = at("0+")


@struct
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: Int32 = at("0+")
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)
    member_id: String | None = at("0+", default=None)
    member_epoch: Int32 = at("0+")
    heartbeat_interval_ms: Int32 = at("0+")
    assignment: Assignment | None = at("0+", default=None)
    cooperation: CooperationAnswer | None = at("0+", tag=10_000, nullable="none", default=None)


CONSUMER_GROUP_HEARTBEAT = api(
    68,
    "ConsumerGroupHeartbeat",
    request=ConsumerGroupHeartbeatRequest,
    response=ConsumerGroupHeartbeatResponse,
    versions="0-1",
    flexible="0+",
)
