"""Making topics for tests, through the raw client."""

from collections.abc import Mapping

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from support.raw_client import RawClient


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
