"""Which topics are branch topics, and what their partitions are; no other broker has any."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch.branch.layout import BranchLayout
from anabranch.branch.slots import slots_of_branch
from anabranch.cli.errors import CliError
from anabranch.cli.groups.consumer_details import can_ask
from anabranch.cli.options import Connection
from anabranch.cli.raw_client import first_client
from anabranch.model.units import SlotRange
from anabranch.wire.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

_SOURCE = "branch.source.topic"
_SOURCE_PARTITIONS = "branch.source.partitions"
_RANGES = "branch.ranges"
_TOPIC_RESOURCE = 2


@dataclass(frozen=True, slots=True)
class BranchTopic:
    """A topic that shows `layout.ranges` key ranges of each partition of another one."""

    name: str
    source: str
    layout: BranchLayout

    def place_of(self, partition: int) -> tuple[int, SlotRange]:
        """Which partition of the source, and which slots of it, a partition stands for."""
        branch = self.layout.branch_at(partition)
        return branch.partition, slots_of_branch(branch.range_index, self.layout.ranges)


def branch_topic_of(name: str, configs: Mapping[str, str | None]) -> BranchTopic | None:
    """What a topic's settings say about its branches; None for a topic that has none."""
    source, partitions, ranges = (
        configs.get(config) for config in (_SOURCE, _SOURCE_PARTITIONS, _RANGES)
    )
    if not source or not partitions or not ranges:
        return None
    return BranchTopic(name, source, BranchLayout(int(partitions), int(ranges)))


def find_branch_topics(
    connection: Connection, metadata: "ClusterMetadata"
) -> dict[str, BranchTopic]:
    """All branch topics by name; none where the way to the broker is not one of this broker's."""
    if not can_ask(connection):
        return {}
    configs = _asked_configs(connection, sorted(metadata.topics))
    found = (branch_topic_of(name, given) for name, given in configs.items())
    return {topic.name: topic for topic in found if topic is not None}


def _asked_configs(connection: Connection, names: list[str]) -> dict[str, dict[str, str | None]]:
    """The few settings that matter, which librdkafka would fetch with all others."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE,
                resource_name=name,
                configuration_keys=[_SOURCE, _SOURCE_PARTITIONS, _RANGES],
            )
            for name in names
        ]
    )
    answer = _first_answer(connection, request) if request.resources else None
    # A topic that may not be looked into is shown as any other.
    return {
        result.resource_name: {config.name: config.value for config in result.configs}
        for result in (answer.results if answer is not None else ())
        if not result.error_code
    }


def _first_answer(connection: Connection, request: DescribeConfigsRequest) -> Any:
    """What one of the bootstrap servers says: whoever listed the topics can be asked again.

    None when no one answers: to know the branch topics is good, but not what the command is for.
    """
    with contextlib.suppress(CliError), first_client(connection) as client:
        return client.send(DESCRIBE_CONFIGS, request)
    return None
