"""A Kafka consumer that shares partitions with others by key range.

    from anabranch.client import CooperativeConsumer

    async with CooperativeConsumer(group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        await consumer.run(handle, concurrency=64)

See docs/cooperative-client.md. Layers: `records`, `errors`, `settings` and `progress` are what an
application sees beside `consumer` and `blocking`; `group_view`, `stable_hold` and `group_progress`
tell how far a group is, also without a consumer; `range_work`, `work_queues`, `workload`,
`holdings`, `acks`, `fetch_plan`, `timing`, `ordering`, `partitioner` and `outbox` decide and do
nothing else; `connection`, `cluster`, `membership`, `starting_points`, `hand_over`, `fetching`,
`committing` and `workers` act on the state in `core`. `transactional_producer` writes, and needs
nothing of a consumer; `transaction_acks` and `transaction_loop` are where both meet.
"""

from anabranch.client.blocking import SyncCooperativeConsumer
from anabranch.client.blocking_producer import SyncTransaction, SyncTransactionalProducer
from anabranch.client.consumer import CooperativeConsumer
from anabranch.client.errors import (
    BrokerConnectionError,
    BrokerError,
    BufferFullError,
    CallbackError,
    CommitFailedError,
    ConfigurationError,
    ConsumerClosedError,
    ConsumerError,
    ConsumerStateError,
    CooperationNotSupportedError,
    CorruptRecordsError,
    FencedError,
    GroupAuthorizationError,
    IndividualCommitLimitError,
    IndividualCommitNotAllowedError,
    MissingCodecError,
    NoOffsetError,
    ProducerFencedError,
    ProtocolError,
    RangeFetchNotAllowedError,
    RequestTimedOutError,
    RetriableBrokerError,
    RetriableError,
    TopicAuthorizationError,
    TransactionAbortedError,
    TransactionUncertainError,
)
from anabranch.client.group_progress import group_progress, group_progress_sync
from anabranch.client.group_view import (
    DivertedKey,
    GroupProgress,
    GroupRange,
    Handover,
    HotRange,
    OldestRecord,
    PartitionProgress,
    RetriedRecord,
)
from anabranch.client.producer_settings import ProducerOptions, ProducerSettings
from anabranch.client.progress import ConsumerProgress, RangeProgress
from anabranch.client.records import (
    ConsumerRecord,
    FencingToken,
    KeyRange,
    TopicPartition,
    record_for_tests,
)
from anabranch.client.settings import ConnectionOptions, ConsumerOptions, ConsumerSettings
from anabranch.client.stable_hold import explain_stable_offset
from anabranch.client.timing import Backoff
from anabranch.client.transaction_acks import TransactionAcks
from anabranch.client.transaction_loop import Outputs
from anabranch.client.transactional_producer import Transaction, TransactionalProducer
from anabranch.client.workers import RejectRecord, RetryRecord

__all__ = [
    "Backoff",
    "BrokerConnectionError",
    "BrokerError",
    "BufferFullError",
    "CallbackError",
    "CommitFailedError",
    "ConfigurationError",
    "ConnectionOptions",
    "ConsumerClosedError",
    "ConsumerError",
    "ConsumerOptions",
    "ConsumerProgress",
    "ConsumerRecord",
    "ConsumerSettings",
    "ConsumerStateError",
    "CooperationNotSupportedError",
    "CooperativeConsumer",
    "CorruptRecordsError",
    "DivertedKey",
    "FencedError",
    "FencingToken",
    "GroupAuthorizationError",
    "GroupProgress",
    "GroupRange",
    "Handover",
    "HotRange",
    "IndividualCommitLimitError",
    "IndividualCommitNotAllowedError",
    "KeyRange",
    "MissingCodecError",
    "NoOffsetError",
    "OldestRecord",
    "Outputs",
    "PartitionProgress",
    "ProducerFencedError",
    "ProducerOptions",
    "ProducerSettings",
    "ProtocolError",
    "RangeFetchNotAllowedError",
    "RangeProgress",
    "RejectRecord",
    "RequestTimedOutError",
    "RetriableBrokerError",
    "RetriableError",
    "RetriedRecord",
    "RetryRecord",
    "SyncCooperativeConsumer",
    "SyncTransaction",
    "SyncTransactionalProducer",
    "TopicAuthorizationError",
    "TopicPartition",
    "Transaction",
    "TransactionAbortedError",
    "TransactionAcks",
    "TransactionUncertainError",
    "TransactionalProducer",
    "explain_stable_offset",
    "group_progress",
    "group_progress_sync",
    "record_for_tests",
]
