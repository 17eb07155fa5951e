"""TxnOffsetCommit (key 28): offsets that are committed with a transaction (KIP-98).

1 responses leave before throttling (KIP-219), 2 leader epochs (KIP-320), 3 flexible, and the
consumer is named, so that it can be fenced (KIP-447), 4 TRANSACTION_ABORTABLE may be answered
(KIP-890), 5 the group need not have been added to the transaction before (KIP-890), 6 topic ids
instead of names, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH may be answered (KIP-1319).

Private tag 10000 of a partition, from version 3 on: individual commits that count when the
transaction is committed, and what became of each (see docs/reference/wire-extensions.md).
"""

from anabranch.wire.api import api
from anabranch.wire.messages.cooperation import IndividualCommit, IndividualCommitAnswer
from anabranch.wire.schema import Int16, Int32, Int64, String, Uuid, at, struct


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: Int32 = at("0+")
    committed_offset: Int64 = at("0+")
    committed_leader_epoch: Int32 = at("2+", default=-1, ignorable=True)
    committed_metadata: String | None = at("0+")
    individual: IndividualCommit | None = at("3+", tag=10_000, nullable="none", default=None)


@struct
class TxnOffsetCommitRequestTopic:
    name: String = at("0-5", ignorable=True)
    topic_id: Uuid = at("6+", ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = at("0+")


@struct
class TxnOffsetCommitRequest:
    transactional_id: String = at("0+")
    group_id: String = at("0+")
    producer_id: Int64 = at("0+")
    producer_epoch: Int16 = at("0+")
    generation_id: Int32 = at("3+", default=-1)
    member_id: String = at("3+")
    group_instance_id: String | None = at("3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = at("0+")


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: Int32 = at("0+")
    error_code: Int16 = at("0+")
    individual: IndividualCommitAnswer | None = at("3+", tag=10_000, nullable="none", default=None)


@struct
class TxnOffsetCommitResponseTopic:
    name: String = at("0-5", ignorable=True)
    topic_id: Uuid = at("6+", ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = at("0+")


@struct
class TxnOffsetCommitResponse:
    throttle_time_ms: Int32 = at("0+")
    topics: list[TxnOffsetCommitResponseTopic] = at("0+")


TXN_OFFSET_COMMIT = api(
    28,
    "TxnOffsetCommit",
    request=TxnOffsetCommitRequest,
    response=TxnOffsetCommitResponse,
    versions="0-6",
    flexible="3+",
)
