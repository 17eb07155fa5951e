"""What several commands ask a cluster: which topics, which offsets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from anabranch.cli.connection import result_of
from anabranch.cli.errors import CliError, kafka_error_of, refusal
from anabranch.cli.options import Connection

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
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


def require_partitions(
    metadata: "ClusterMetadata", topic: str, partitions: Iterable[int]
) -> list[int]:
    """These partitions of the topic, or all when there are none; CliError for one it lacks."""
    require_topics(metadata, [topic])
    present = sorted(metadata.topics[topic].partitions)
    wanted = sorted(set(partitions))
    for partition in wanted:
        if partition not in present:
            raise CliError(
                f"Topic {topic!r} has no partition {partition}",
                f"its partitions are 0 to {len(present) - 1}",
                "choose one of them",
            )
    return wanted or present


def offset_ranges(
    admin: "AdminClient", connection: Connection, partitions: list[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """First offset and next offset of each partition."""
    from confluent_kafka.admin import OffsetSpec

    starts = list_offsets(admin, connection, partitions, OffsetSpec.earliest())
    ends = list_offsets(admin, connection, partitions, OffsetSpec.latest())
    return {key: (starts[key], ends[key]) for key in partitions}


def known_offset_ranges(
    admin: "AdminClient",
    connection: Connection,
    metadata: "ClusterMetadata",
    partitions: Iterable[tuple[str, int]],
) -> dict[tuple[str, int], tuple[int, int]]:
    """First offset and next offset of those partitions that are there and have a leader."""
    from confluent_kafka.admin import OffsetSpec

    present = [
        (topic, partition)
        for topic, partition in sorted(set(partitions))
        if topic in metadata.topics and partition in metadata.topics[topic].partitions
    ]
    starts = _listed(admin, connection, present, OffsetSpec.earliest())
    ends = _listed(admin, connection, present, OffsetSpec.latest())
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for key in present:
        start, end = starts[key], ends[key]
        if isinstance(start, int) and isinstance(end, int):
            ranges[key] = (start, end)
    return ranges


def list_offsets(
    admin: "AdminClient", connection: Connection, partitions: list[tuple[str, int]], spec: Any
) -> dict[tuple[str, int], int]:
    """The offset of each partition that `spec` means; -1 where there is none."""
    offsets: dict[tuple[str, int], int] = {}
    for key, offset in _listed(admin, connection, partitions, spec).items():
        if not isinstance(offset, int):
            raise refusal("Cannot list offsets", offset)
        offsets[key] = offset
    return offsets


def _listed(
    admin: "AdminClient", connection: Connection, partitions: list[tuple[str, int]], spec: Any
) -> "dict[tuple[str, int], int | KafkaError]":
    """The offset of each partition, or why there is no answer for it."""
    from confluent_kafka import KafkaException, TopicPartition

    if not partitions:
        return {}
    # The published type stubs lag behind the library here.
    futures = cast(Any, admin).list_offsets(
        {TopicPartition(topic, partition): spec for topic, partition in partitions},
        request_timeout=connection.timeout_s,
    )
    answers: dict[tuple[str, int], int | KafkaError] = {}
    for tp, future in futures.items():
        try:
            answers[(tp.topic, tp.partition)] = result_of(future, connection).offset
        except KafkaException as exception:
            answers[(tp.topic, tp.partition)] = kafka_error_of(exception)
    return answers


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
