"""Making topics for tests and changing settings, through the raw client."""

from collections.abc import Mapping

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.wire.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from support.raw_client import RawClient

_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> bytes:
    """Create a topic and return its id."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
    )
    with RawClient(bootstrap) as client:
        response = client.send(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[wanted]))
    (made,) = response.topics
    assert made.error_code == ErrorCode.NONE, f"{made.error_code}: {made.error_message}"
    topic_id: bytes = made.topic_id
    return topic_id


def alter_topic(bootstrap: str, name: str, configs: Mapping[str, str]) -> None:
    """Set settings of a topic."""
    _alter(bootstrap, _TOPIC_RESOURCE, name, configs)


def alter_brokers(bootstrap: str, configs: Mapping[str, str]) -> None:
    """Set settings of all brokers of the cluster."""
    _alter(bootstrap, _BROKER_RESOURCE, "", configs)


def _alter(bootstrap: str, kind: int, name: str, configs: Mapping[str, str]) -> None:
    changes = [IncrementalAlterableConfig(name=one, value=value) for one, value in configs.items()]
    resource = IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=changes
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    with RawClient(bootstrap) as client:
        (answer,) = client.send(INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    assert answer.error_code == ErrorCode.NONE, f"{answer.error_code}: {answer.error_message}"
