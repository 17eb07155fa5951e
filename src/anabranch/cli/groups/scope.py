"""Which partitions a command is about: `--topic orders --topic payments:0,1`."""

import re
from typing import TYPE_CHECKING

import click

from anabranch.cli.cluster import require_partitions
from anabranch.cli.groups.lookup import TopicPartitionKey

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

_PARTITIONS = re.compile(r"\d+(?:,\d+)*")

# A topic's partitions; an empty set means all of them.
Scope = dict[str, set[int]]


def parse_topics(given: tuple[str, ...]) -> Scope:
    """The values of --topic; a usage error for what is no TOPIC[:PARTITION,...]."""
    scope: Scope = {}
    for text in given:
        topic, colon, partitions = text.partition(":")
        if not topic or (colon and not _PARTITIONS.fullmatch(partitions)):
            raise click.UsageError(f"--topic takes a topic, or topic:0,1, got {text!r}")
        numbers = {int(number) for number in partitions.split(",")} if colon else set()
        if topic in scope and (not numbers or not scope[topic]):
            raise click.UsageError(f"--topic names {topic!r} twice")
        scope[topic] = scope.get(topic, set()) | numbers
    return scope


def partitions_of(metadata: "ClusterMetadata", scope: Scope) -> list[TopicPartitionKey]:
    """Every partition that is meant; CliError when there is no such topic or partition."""
    return sorted(
        (topic, partition)
        for topic, numbers in scope.items()
        for partition in require_partitions(metadata, topic, numbers)
    )
