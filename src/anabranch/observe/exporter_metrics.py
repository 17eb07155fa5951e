"""Metrics under the names of kafka_exporter, so that dashboards and alerts made for it work.

Names and labels are those of kafka_exporter 1.9; that of ZooKeeper's offsets has no meaning here.
Lag is ours: by the rules of `model.lag`, never -1 and never negative.
"""

from anabranch.observe.metrics import Kind, Metric

_PARTITION = ("topic", "partition")
_GROUP_TOPIC = ("consumergroup", "topic")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")

BROKERS = Metric("kafka_brokers", Kind.GAUGE, "Brokers of the cluster.")
BROKER_INFO = Metric(
    "kafka_broker_info", Kind.GAUGE, "1, with the address of each broker.", ("id", "address")
)
TOPIC_PARTITIONS = Metric(
    "kafka_topic_partitions", Kind.GAUGE, "Partitions of a topic.", ("topic",)
)
CURRENT_OFFSET = Metric(
    "kafka_topic_partition_current_offset",
    Kind.GAUGE,
    "The offset after the newest record of a partition.",
    _PARTITION,
)
OLDEST_OFFSET = Metric(
    "kafka_topic_partition_oldest_offset",
    Kind.GAUGE,
    "The offset of the oldest record of a partition.",
    _PARTITION,
)
LEADER = Metric(
    "kafka_topic_partition_leader", Kind.GAUGE, "The node that leads a partition.", _PARTITION
)
REPLICAS = Metric(
    "kafka_topic_partition_replicas", Kind.GAUGE, "Replicas of a partition.", _PARTITION
)
IN_SYNC_REPLICAS = Metric(
    "kafka_topic_partition_in_sync_replica",
    Kind.GAUGE,
    "Replicas of a partition that are in sync.",
    _PARTITION,
)
LEADER_IS_PREFERRED = Metric(
    "kafka_topic_partition_leader_is_preferred",
    Kind.GAUGE,
    "1 if the preferred replica leads a partition.",
    _PARTITION,
)
UNDER_REPLICATED = Metric(
    "kafka_topic_partition_under_replicated_partition",
    Kind.GAUGE,
    "1 if a partition has fewer replicas in sync than it should; its log having failed, here.",
    _PARTITION,
)
GROUP_CURRENT_OFFSET = Metric(
    "kafka_consumergroup_current_offset",
    Kind.GAUGE,
    "The offset that a group has committed for a partition.",
    _GROUP_PARTITION,
)
GROUP_CURRENT_OFFSET_SUM = Metric(
    "kafka_consumergroup_current_offset_sum",
    Kind.GAUGE,
    "The sum of the offsets that a group has committed for a topic.",
    _GROUP_TOPIC,
)
GROUP_LAG = Metric(
    "kafka_consumergroup_lag",
    Kind.GAUGE,
    "Records of a partition that a group has yet to read; from the oldest one on where it has "
    "committed nothing.",
    _GROUP_PARTITION,
)
GROUP_LAG_SUM = Metric(
    "kafka_consumergroup_lag_sum",
    Kind.GAUGE,
    "Records of a topic that a group has yet to read.",
    _GROUP_TOPIC,
)
GROUP_MEMBERS = Metric(
    "kafka_consumergroup_members", Kind.GAUGE, "Members of a group.", ("consumergroup",)
)

EXPORTER_METRICS = (
    BROKERS,
    BROKER_INFO,
    TOPIC_PARTITIONS,
    CURRENT_OFFSET,
    OLDEST_OFFSET,
    LEADER,
    REPLICAS,
    IN_SYNC_REPLICAS,
    LEADER_IS_PREFERRED,
    UNDER_REPLICATED,
    GROUP_CURRENT_OFFSET,
    GROUP_CURRENT_OFFSET_SUM,
    GROUP_LAG,
    GROUP_LAG_SUM,
    GROUP_MEMBERS,
)
