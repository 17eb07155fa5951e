"""Calls about branch topics: what clients ask, and the code and text they get."""

from typing import Any

from handler_calls import Node

from anabranch.broker.topics import Topic
from anabranch.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from anabranch.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from anabranch.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from anabranch.wire.messages.incremental_alter_configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

TOPIC = 2
SOURCE, BRANCHED = "orders", "orders.by-key"
Outcome = tuple[int, str | None]


def asking(
    name: str = BRANCHED,
    partitions: int = -1,
    configs: dict[str, str | None] | None = None,
    *,
    source: str | None = SOURCE,
    factor: int = -1,
    broker_ids: list[list[int]] | None = None,
) -> CreatableTopic:
    """A topic to create; with a source, a branch topic."""
    given = dict(configs or {})
    if source is not None:
        given["branch.source.topic"] = source
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in enumerate(broker_ids or [])
        ],
        configs=[CreatableTopicConfig(name=key, value=text) for key, text in given.items()],
    )


def create(
    node: Node, *topics: CreatableTopic, validate_only: bool = False, version: int = 7
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    results: list[CreatableTopicResult] = node.call(request, version).topics
    return results


def create_outcome(node: Node, topic: CreatableTopic, **more: Any) -> Outcome:
    """Error and message of one topic's creation."""
    (result,) = create(node, topic, **more)
    return result.error_code, result.error_message


def found(node: Node, name: str) -> Topic:
    topic = node.broker.topics.get(name)
    assert topic is not None
    return topic


def grow(
    node: Node, *counts: tuple[str, int], validate_only: bool = False
) -> list[tuple[str, int, str | None]]:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count) for name, count in counts],
        validate_only=validate_only,
    )
    return [(r.name, r.error_code, r.error_message) for r in node.call(request).results]


def delete(node: Node, *names: "str | bytes") -> list[tuple[str | None, int, str | None]]:
    """Delete topics by name or id: name, error and message of each."""
    asked = [
        DeleteTopicState(name=name) if isinstance(name, str) else DeleteTopicState(topic_id=name)
        for name in names
    ]
    responses = node.call(DeleteTopicsRequest(topics=asked)).responses
    return [(r.name, r.error_code, r.error_message) for r in responses]


def described(node: Node, name: str, *keys: str) -> dict[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name=name, configuration_keys=list(keys) or None
    )
    (result,) = node.call(DescribeConfigsRequest(resources=[resource])).results
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


def alter(
    node: Node,
    name: str,
    *operations: tuple[int, str, str | None],
    validate_only: bool = False,
) -> Outcome:
    """IncrementalAlterConfigs of one topic."""
    resource = IncrementalAlterConfigsResource(
        resource_type=TOPIC,
        resource_name=name,
        configs=[
            IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
            for operation, key, value in operations
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = node.call(request).responses
    return response.error_code, response.error_message


def replace(node: Node, name: str, configs: dict[str, str]) -> Outcome:
    """AlterConfigs of one topic, which says all that shall be set."""
    resource = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=name,
        configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
    )
    (response,) = node.call(AlterConfigsRequest(resources=[resource])).responses
    return response.error_code, response.error_message
