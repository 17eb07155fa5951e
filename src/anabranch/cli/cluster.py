"""What several commands ask a cluster: which topics, which offsets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from anabranch.cli.connection import result_of
from anabranch.cli.errors import CliError, kafka_error_of, refusal
from anabranch.cli.options import Connection

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata


def require_topics(metadata: "ClusterMetadata", names: Iterable[str]) -> None:
    """CliError when one of the topics is not there, with the nearest name that is."""
    for name in names:
        if name in metadata.topics:
            continue
        from difflib import get_close_matches

        near = get_close_matches(name, metadata.topics, n=1)
        raise CliError(
            f"There is no topic {name!r}",
            "the broker does not know it",
            f"did you mean {near[0]!r}?" if near else "see `anabranch topics list`",
        )


def offset_ranges(
    admin: "AdminClient", connection: Connection, partitions: list[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """First offset and next offset of each partition."""
    from confluent_kafka.admin import OffsetSpec

    starts = list_offsets(admin, connection, partitions, OffsetSpec.earliest())
    ends = list_offsets(admin, connection, partitions, OffsetSpec.latest())
    return {key: (starts[key], ends[key]) for key in partitions}


def list_offsets(
    admin: "AdminClient", connection: Connection, partitions: list[tuple[str, int]], spec: Any
) -> dict[tuple[str, int], int]:
    """The offset of each partition that `spec` means; -1 where there is none."""
    from confluent_kafka import KafkaException, TopicPartition

    if not partitions:
        return {}
    # The published type stubs lag behind the library here.
    futures = cast(Any, admin).list_offsets(
        {TopicPartition(topic, partition): spec for topic, partition in partitions},
        request_timeout=connection.timeout_s,
    )
    try:
        return {
            (tp.topic, tp.partition): result_of(future, connection).offset
            for tp, future in futures.items()
        }
    except KafkaException as exception:
        raise refusal("Cannot list offsets", kafka_error_of(exception)) from exception


def topic_summary(metadata: "ClusterMetadata", name: str) -> dict[str, Any]:
    """One topic's line in a list."""
    topic = metadata.topics.get(name)
    partitions = {} if topic is None else topic.partitions
    replicas = [len(partition.replicas) for partition in partitions.values()]
    return {
        "topic": name,
        "partitions": len(partitions) or None,
        "replication_factor": replicas[0] if replicas else None,
    }


def topic_id_text(topic_id: object) -> str:
    """A topic id as Kafka writes it: librdkafka uses the other base64 alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_")
