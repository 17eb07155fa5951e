"""Committing offsets for a group that has no members."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from anabranch.cli.connection import result_of
from anabranch.cli.errors import kafka_error_of, refusal
from anabranch.cli.groups.lookup import TopicPartitionKey
from anabranch.cli.options import Connection

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient


def commit_offsets(
    admin: "AdminClient",
    connection: Connection,
    group: str,
    offsets: Mapping[TopicPartitionKey, int],
    *,
    failure: str,
) -> "dict[TopicPartitionKey, KafkaError]":
    """Commit; the partitions that were refused, or a CliError that says `failure` when all were."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    request = ConsumerGroupTopicPartitions(
        group,
        [TopicPartition(topic, partition, at) for (topic, partition), at in offsets.items()],
    )
    future = admin.alter_consumer_group_offsets([request], request_timeout=connection.timeout_s)[
        group
    ]
    try:
        answered = result_of(future, connection).topic_partitions or []
    except KafkaException as exception:
        raise refusal(failure, kafka_error_of(exception)) from exception
    return {(tp.topic, tp.partition): tp.error for tp in answered if tp.error is not None}
