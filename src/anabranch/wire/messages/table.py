"""All APIs this broker can read and write, by key."""

from anabranch.wire.api import Api
from anabranch.wire.messages.add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from anabranch.wire.messages.add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from anabranch.wire.messages.alter_configs import ALTER_CONFIGS
from anabranch.wire.messages.api_versions import API_VERSIONS
from anabranch.wire.messages.consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from anabranch.wire.messages.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from anabranch.wire.messages.create_partitions import CREATE_PARTITIONS
from anabranch.wire.messages.create_topics import CREATE_TOPICS
from anabranch.wire.messages.delete_groups import DELETE_GROUPS
from anabranch.wire.messages.delete_records import DELETE_RECORDS
from anabranch.wire.messages.delete_topics import DELETE_TOPICS
from anabranch.wire.messages.describe_cluster import DESCRIBE_CLUSTER
from anabranch.wire.messages.describe_configs import DESCRIBE_CONFIGS
from anabranch.wire.messages.describe_groups import DESCRIBE_GROUPS
from anabranch.wire.messages.describe_log_dirs import DESCRIBE_LOG_DIRS
from anabranch.wire.messages.describe_producers import DESCRIBE_PRODUCERS
from anabranch.wire.messages.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from anabranch.wire.messages.describe_transactions import DESCRIBE_TRANSACTIONS
from anabranch.wire.messages.end_txn import END_TXN
from anabranch.wire.messages.fetch import FETCH
from anabranch.wire.messages.find_coordinator import FIND_COORDINATOR
from anabranch.wire.messages.heartbeat import HEARTBEAT
from anabranch.wire.messages.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID
from anabranch.wire.messages.join_group import JOIN_GROUP
from anabranch.wire.messages.leave_group import LEAVE_GROUP
from anabranch.wire.messages.list_config_resources import LIST_CONFIG_RESOURCES
from anabranch.wire.messages.list_groups import LIST_GROUPS
from anabranch.wire.messages.list_offsets import LIST_OFFSETS
from anabranch.wire.messages.list_transactions import LIST_TRANSACTIONS
from anabranch.wire.messages.metadata import METADATA
from anabranch.wire.messages.offset_commit import OFFSET_COMMIT
from anabranch.wire.messages.offset_delete import OFFSET_DELETE
from anabranch.wire.messages.offset_fetch import OFFSET_FETCH
from anabranch.wire.messages.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from anabranch.wire.messages.produce import PRODUCE
from anabranch.wire.messages.sync_group import SYNC_GROUP
from anabranch.wire.messages.txn_offset_commit import TXN_OFFSET_COMMIT
from anabranch.wire.messages.write_txn_markers import WRITE_TXN_MARKERS

APIS: dict[int, Api] = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        DESCRIBE_GROUPS,
        LIST_GROUPS,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        INIT_PRODUCER_ID,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        END_TXN,
        WRITE_TXN_MARKERS,
        TXN_OFFSET_COMMIT,
        DESCRIBE_TRANSACTIONS,
        LIST_TRANSACTIONS,
        OFFSET_FOR_LEADER_EPOCH,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        DESCRIBE_LOG_DIRS,
        CREATE_PARTITIONS,
        DELETE_GROUPS,
        INCREMENTAL_ALTER_CONFIGS,
        OFFSET_DELETE,
        DESCRIBE_CLUSTER,
        DESCRIBE_PRODUCERS,
        CONSUMER_GROUP_HEARTBEAT,
        CONSUMER_GROUP_DESCRIBE,
        LIST_CONFIG_RESOURCES,
        DESCRIBE_TOPIC_PARTITIONS,
    )
}
