"""A Kafka consumer that shares partitions with others by key range.

    from anabranch.client import CooperativeConsumer

    async with CooperativeConsumer(group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        await consumer.run(handle, concurrency=64)

See docs/cooperative-client.md. Layers: `records`, `errors`, `settings` and `progress` are what an
application sees beside `consumer` and `blocking`; `range_work`, `work_queues`, `workload`,
`holdings`, `acks`, `fetch_plan`, `timing` and `ordering` decide and do nothing else; `connection`,
`cluster`, `membership`, `starting_points`, `hand_over`, `fetching`, `committing` and `workers` act
on the state in `core`.
"""

from anabranch.client.blocking import SyncCooperativeConsumer
from anabranch.client.consumer import CooperativeConsumer
from anabranch.client.errors import (
    BrokerConnectionError,
    BrokerError,
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
    ProtocolError,
    RangeFetchNotAllowedError,
    RequestTimedOutError,
    RetriableBrokerError,
    RetriableError,
    TopicAuthorizationError,
)
from anabranch.client.progress import ConsumerProgress, RangeProgress
from anabranch.client.records import (
    ConsumerRecord,
    FencingToken,
    KeyRange,
    TopicPartition,
    record_for_tests,
)
from anabranch.client.settings import ConsumerOptions, ConsumerSettings
from anabranch.client.timing import Backoff
from anabranch.client.workers import RejectRecord, RetryRecord

__all__ = [
    "Backoff",
    "BrokerConnectionError",
    "BrokerError",
    "CallbackError",
    "CommitFailedError",
    "ConfigurationError",
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
    "FencedError",
    "FencingToken",
    "GroupAuthorizationError",
    "IndividualCommitLimitError",
    "IndividualCommitNotAllowedError",
    "KeyRange",
    "MissingCodecError",
    "NoOffsetError",
    "ProtocolError",
    "RangeFetchNotAllowedError",
    "RangeProgress",
    "RejectRecord",
    "RequestTimedOutError",
    "RetriableBrokerError",
    "RetriableError",
    "RetryRecord",
    "SyncCooperativeConsumer",
    "TopicAuthorizationError",
    "TopicPartition",
    "record_for_tests",
]
