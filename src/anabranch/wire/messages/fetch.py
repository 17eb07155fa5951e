"""Fetch (key 1): read record batches from partitions.

Version 4 is the first that can carry record batches of format v2 (KIP-98), with isolation levels
and aborted transactions. 5 log start offsets (KIP-107), 6 KAFKA_STORAGE_ERROR may be answered
(KIP-112), 7 fetch sessions (KIP-227), 8 responses leave before throttling (KIP-219), 9 leader
epochs fence the request (KIP-320), 10 zstd may be answered (KIP-110), 11 racks and preferred
replicas (KIP-392), 12 flexible, divergence is found by the last fetched epoch (KIP-595), 13 topic
ids instead of names (KIP-516), 14 OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405), 15 replica state
instead of replica id (KIP-903), 16 leader hints (KIP-951), 17 the replica's directory (KIP-853),
18 the replica's high watermark (KIP-1166).
"""

from anabranch.wire.api import api
from anabranch.wire.messages.cooperation import RangeCut, RangeFetch, RangeFetchAnswer
from anabranch.wire.schema import (
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Uuid,
    at,
    struct,
)

# What a replica that does not report its high watermark is taken to have.
HIGH_WATERMARK_NOT_REPORTED = (1 << 63) - 1


@struct
class ReplicaState:
    replica_id: Int32 = at("15+", default=-1)
    replica_epoch: Int64 = at("15+", default=-1)


@struct
class FetchPartition:
    partition: Int32 = at("0+")
    current_leader_epoch: Int32 = at("9+", default=-1, ignorable=True)
    fetch_offset: Int64 = at("0+")
    last_fetched_epoch: Int32 = at("12+", default=-1)
    log_start_offset: Int64 = at("5+", default=-1, ignorable=True)
    partition_max_bytes: Int32 = at("0+")
    replica_directory_id: Uuid = at("17+", tag=0, ignorable=True)
    high_watermark: Int64 = at("18+", tag=1, default=HIGH_WATERMARK_NOT_REPORTED, ignorable=True)
    range_fetch: RangeFetch | None = at("12+", tag=10_000, nullable="none", default=None)
    range_cut: RangeCut | None = at("12+", tag=10_001, nullable="none", default=None)


@struct
class FetchTopic:
    topic: String = at("0-12", ignorable=True)
    topic_id: Uuid = at("13+", ignorable=True)
    partitions: list[FetchPartition] = at("0+")


@struct
class ForgottenTopic:
    topic: String = at("7-12", ignorable=True)
    topic_id: Uuid = at("13+", ignorable=True)
    partitions: list[Int32] = at("7+")


@struct
class FetchRequest:
    cluster_id: String | None = at("12+", tag=0, default=None, ignorable=True)
    replica_id: Int32 = at("0-14", default=-1)
    replica_state: ReplicaState | None = at("15+", tag=1, nullable="none", default=None)
    max_wait_ms: Int32 = at("0+")
    min_bytes: Int32 = at("0+")
    max_bytes: Int32 = at("3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: Int8 = at("4+", ignorable=True)
    session_id: Int32 = at("7+", ignorable=True)
    session_epoch: Int32 = at("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = at("0+")
    forgotten_topics_data: list[ForgottenTopic] = at("7+")
    rack_id: String = at("11+", ignorable=True)


@struct
class FetchEpochEndOffset:
    epoch: Int32 = at("12+", default=-1)
    end_offset: Int64 = at("12+", default=-1)


@struct
class FetchLeaderIdAndEpoch:
    leader_id: Int32 = at("12+", default=-1)
    leader_epoch: Int32 = at("12+", default=-1)


@struct
class SnapshotId:
    end_offset: Int64 = at("12+", default=-1)
    epoch: Int32 = at("12+", default=-1)


@struct
class AbortedTransaction:
    producer_id: Int64 = at("4+")
    first_offset: Int64 = at("4+")


@struct
class PartitionData:
    partition_index: Int32 = at("0+")
    error_code: Int16 = at("0+")
    high_watermark: Int64 = at("0+")
    last_stable_offset: Int64 = at("4+", default=-1, ignorable=True)
    log_start_offset: Int64 = at("5+", default=-1, ignorable=True)
    diverging_epoch: FetchEpochEndOffset | None = at("12+", tag=0, nullable="none", default=None)
    # A hint: Kafka's table refuses to drop it, here an older client simply does not get it.
    current_leader: FetchLeaderIdAndEpoch | None = at(
        "12+", tag=1, nullable="none", default=None, ignorable=True
    )
    snapshot_id: SnapshotId | None = at("12+", tag=2, nullable="none", default=None)
    aborted_transactions: list[AbortedTransaction] | None = at("4+", default=None, ignorable=True)
    preferred_read_replica: Int32 = at("11+", default=-1)
    records: Records | None = at("0+")
    range_fetch: RangeFetchAnswer | None = at("12+", tag=10_000, nullable="none", default=None)


@struct
class FetchableTopicResponse:
    topic: String = at("0-12", ignorable=True)
    topic_id: Uuid = at("13+", ignorable=True)
    partitions: list[PartitionData] = at("0+")


@struct
class FetchNodeEndpoint:
    node_id: Int32 = at("16+")
    host: String = at("16+")
    port: Int32 = at("16+")
    rack: String | None = at("16+", default=None)


@struct
class FetchResponse:
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    error_code: Int16 = at("7+", ignorable=True)
    session_id: Int32 = at("7+")
    responses: list[FetchableTopicResponse] = at("0+")
    node_endpoints: list[FetchNodeEndpoint] = at("16+", tag=0, ignorable=True)


FETCH = api(
    1,
    "Fetch",
    request=FetchRequest,
    response=FetchResponse,
    versions="4-18",
    flexible="12+",
)
