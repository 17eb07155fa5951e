"""OffsetCommit (key 8): store how far a group has read.

Versions 0 and 1 are gone from Kafka 4; they are read here because clients of that age still
exist. Version 0 names neither a member nor a generation, as a commit from outside a group does.

1 generation, member and a commit timestamp, 2 a retention of the client's own instead of the
timestamp, 3 throttle time (KIP-124), 4 responses leave before throttling (KIP-219), 5 the
retention is the broker's again (KIP-211), 6 leader epochs (KIP-320), 7 static members (KIP-345),
8 flexible, 9 a member epoch may stand for the generation, GROUP_ID_NOT_FOUND and
STALE_MEMBER_EPOCH may be answered (KIP-848), 10 topic ids instead of names (KIP-848).
"""

from anabranch.wire.api import api
from anabranch.wire.messages.cooperation import (
    Decisions,
    DecisionsAnswer,
    IndividualCommit,
    IndividualCommitAnswer,
)
from anabranch.wire.schema import Int16, Int32, Int64, String, Uuid, at, struct


@struct
class OffsetCommitRequestPartition:
    partition_index: Int32 = at("0+")
    committed_offset: Int64 = at("0+")
    committed_leader_epoch: Int32 = at("6+", default=-1, ignorable=True)
    commit_timestamp: Int64 = at("1", default=-1)
    committed_metadata: String | None = at("0+")
    individual: IndividualCommit | None = at("8+", tag=10_000, nullable="none", default=None)
    decisions: Decisions | None = at("8+", tag=10_001, nullable="none", default=None)


@struct
class OffsetCommitRequestTopic:
    name: String = at("0-9", ignorable=True)
    topic_id: Uuid = at("10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = at("0+")


@struct
class OffsetCommitRequest:
    group_id: String = at("0+")
    generation_id_or_member_epoch: Int32 = at("1+", default=-1, ignorable=True)
    member_id: String = at("1+", ignorable=True)
    group_instance_id: String | None = at("7+", default=None)
    retention_time_ms: Int64 = at("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = at("0+")


@struct
class OffsetCommitResponsePartition:
    partition_index: Int32 = at("0+")
    error_code: Int16 = at("0+")
    individual: IndividualCommitAnswer | None = at("8+", tag=10_000, nullable="none", default=None)
    decisions: DecisionsAnswer | None = at("8+", tag=10_001, nullable="none", default=None)


@struct
class OffsetCommitResponseTopic:
    name: String = at("0-9", ignorable=True)
    topic_id: Uuid = at("10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = at("0+")


@struct
class OffsetCommitResponse:
    throttle_time_ms: Int32 = at("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = at("0+")


OFFSET_COMMIT = api(
    8,
    "OffsetCommit",
    request=OffsetCommitRequest,
    response=OffsetCommitResponse,
    versions="0-10",
    flexible="8+",
)
