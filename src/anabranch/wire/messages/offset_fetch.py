"""OffsetFetch (key 9): how far groups have read.

Up to version 7 one group is asked for and its topics stand in the request and the response
themselves; from version 8 on each group has its own topics and its own error. Version 0 is gone
from Kafka 4, where it meant offsets in ZooKeeper; its layout is that of version 1.

1 offsets of the coordinator, 2 null topics ask for all of them, a top-level error (KIP-88),
3 throttle time (KIP-124), 4 responses leave before throttling (KIP-219), 5 leader epochs (KIP-320),
6 flexible, 7 offsets of open transactions can be refused (KIP-447), 8 many groups (KIP-709),
9 member and member epoch (KIP-848), 10 topic ids instead of names (KIP-848).

A tag of our own, from version 8 on, asks how far groups are with the sources of branch topics, and
another one answers: only who asks gets it, since there are clients that stumble over tags they do
not know.
"""

from anabranch.wire.api import api
from anabranch.wire.messages.cooperation import IndividualProgress
from anabranch.wire.schema import Bool, Int16, Int32, Int64, String, Uuid, at, struct

# The offset of a partition that has none.
NO_OFFSET = -1


@struct
class OffsetFetchRequestTopic:
    name: String = at("0-7")
    partition_indexes: list[Int32] = at("0-7")


@struct
class OffsetFetchRequestTopics:
    name: String = at("8-9", ignorable=True)
    topic_id: Uuid = at("10+", ignorable=True)
    partition_indexes: list[Int32] = at("8+")


@struct
class OffsetFetchRequestGroup:
    group_id: String = at("8+")
    member_id: String | None = at("9+", default=None, ignorable=True)
    member_epoch: Int32 = at("9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = at("8+")


@struct
class BranchProgressQuestion:
    """About these branch topics, or all that a group committed on.

    With `planned_ranges` it is about one topic, a branch topic or a plain one: where each of so
    many ranges of its partitions would begin.
    """

    topics: list[String] = at("8+")
    planned_ranges: Int32 = at("8+")


@struct
class OffsetFetchRequest:
    group_id: String = at("0-7")
    topics: list[OffsetFetchRequestTopic] | None = at("0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = at("8+")
    require_stable: Bool = at("7+")
    branch_progress: BranchProgressQuestion | None = at(
        "8+", tag=10_000, nullable="none", default=None
    )
    # Whether individual commits are wanted too.
    with_individual: Bool = at("8+", tag=10_001)


@struct
class OffsetFetchResponsePartition:
    partition_index: Int32 = at("0-7")
    committed_offset: Int64 = at("0-7")
    committed_leader_epoch: Int32 = at("5-7", default=-1, ignorable=True)
    metadata: String | None = at("0-7")
    error_code: Int16 = at("0-7")


@struct
class OffsetFetchResponseTopic:
    name: String = at("0-7")
    partitions: list[OffsetFetchResponsePartition] = at("0-7")


@struct
class OffsetFetchResponsePartitions:
    partition_index: Int32 = at("8+")
    committed_offset: Int64 = at("8+")
    committed_leader_epoch: Int32 = at("8+", default=-1, ignorable=True)
    metadata: String | None = at("8+")
    error_code: Int16 = at("8+")
    individual: IndividualProgress | None = at("8+", tag=10_000, nullable="none", default=None)


@struct
class OffsetFetchResponseTopics:
    name: String = at("8-9", ignorable=True)
    topic_id: Uuid = at("10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = at("8+")


@struct
class PlannedRange:
    start_offset: Int64 = at("8+")
    replayed_records: Int64 = at("8+")


@struct
class BranchProgressPartition:
    """A partition of a source topic, as far as a group came by way of a branch topic."""

    topic: String = at("8+")
    source_topic: String = at("8+")
    source_partition: Int32 = at("8+")
    ranges: Int32 = at("8+")
    committed_ranges: Int32 = at("8+")
    stable_offset: Int64 = at("8+")
    log_start_offset: Int64 = at("8+")
    high_watermark: Int64 = at("8+")
    unprocessed_records: Int64 = at("8+")
    planned_ranges: list[PlannedRange] = at("8+")


@struct
class BranchProgressAnswer:
    error_code: Int16 = at("8+")
    error_message: String | None = at("8+", default=None)
    partitions: list[BranchProgressPartition] = at("8+")


@struct
class OffsetFetchResponseGroup:
    group_id: String = at("8+")
    topics: list[OffsetFetchResponseTopics] = at("8+")
    error_code: Int16 = at("8+")
    branch_progress: BranchProgressAnswer | None = at(
        "8+", tag=10_000, nullable="none", default=None
    )


@struct
class OffsetFetchResponse:
    throttle_time_ms: Int32 = at("3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = at("0-7")
    error_code: Int16 = at("2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = at("8+")


OFFSET_FETCH = api(
    9,
    "OffsetFetch",
    request=OffsetFetchRequest,
    response=OffsetFetchResponse,
    versions="0-10",
    flexible="6+",
)
