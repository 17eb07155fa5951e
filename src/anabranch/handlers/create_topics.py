"""CreateTopics (19), versions 0-7: make topics.

Version notes: 1 validate only, error messages; 4 partitions and replication factor of -1 take the
broker's defaults (KIP-464); 5 the answer tells partitions and configs (KIP-525); 7 topic ids.
Kafka 4 dropped 0 and 1; old clients still send them, and nothing else is different about them.

A topic with the setting `branch.source.topic` is a branch topic: its partitions are key ranges of
those of its source, and nothing is made on the disk for it.
"""

from collections import Counter

from anabranch.broker.branch_topics import check_plain_configs
from anabranch.broker.broker import Broker
from anabranch.broker.partition_limits import check_request_size, check_room
from anabranch.config.describe import ConfigRow, describe_branch_topic, describe_topic
from anabranch.config.topic_config import validate_topic_configs, with_own_names
from anabranch.engine.metadata_store import BRANCH_SOURCE_CONFIG
from anabranch.handlers.replica_assignments import check_replicas
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.create_topics import (
    CREATE_TOPICS,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from anabranch.wire.schema import ZERO_UUID

_DEFAULT = -1
_METADATA_TOPIC = "__cluster_metadata"


def handle(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    counts = Counter(topic.name for topic in request.topics)
    refusal = _refusal(broker, request)
    # A name that is there twice is answered once, as Kafka does.
    asked = {topic.name: topic for topic in request.topics}
    results = {}
    # The source of a branch topic may be in the same request, before it or behind it.
    for topic in sorted(asked.values(), key=_is_branch_topic):
        name = topic.name
        try:
            if refusal is not None:
                raise refusal
            if counts[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results[name] = _create(broker, topic, validate_only=request.validate_only)
        except KafkaError as error:
            results[name] = CreatableTopicResult(
                name=name, error_code=error.code, error_message=error.message
            )
    return CreateTopicsResponse(topics=[results[name] for name in asked])


def _is_branch_topic(topic: CreatableTopic) -> bool:
    return any(config.name == BRANCH_SOURCE_CONFIG for config in topic.configs)


def _refusal(broker: Broker, request: CreateTopicsRequest) -> KafkaError | None:
    """Why nothing of the request is done, if so: it asks for too many partitions."""
    partitions = sum(_asked_partitions(broker, topic) for topic in request.topics)
    try:
        check_request_size(partitions)
    except KafkaError as error:
        return error
    return None


def _asked_partitions(broker: Broker, topic: CreatableTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions != _DEFAULT:
        return max(0, topic.num_partitions)
    if not _is_branch_topic(topic):
        return broker.get_int("num.partitions")
    source_name = next(c.value or "" for c in topic.configs if c.name == BRANCH_SOURCE_CONFIG)
    source = broker.topics.get(source_name.strip())
    if source is None:
        return 0
    return len(source.partitions) * broker.get_int("branch.ranges.per.partition")


def _create(broker: Broker, topic: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
    if topic.name == _METADATA_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {topic.name} is prohibited."
        )
    broker.topics.check_new_name(topic.name)
    given = with_own_names({config.name: config.value for config in topic.configs})
    validate_topic_configs(given, broker.topic_defaults)
    configs = {name: value for name, value in given.items() if value is not None}
    if topic.assignments:
        count = _assigned_partitions(broker, topic)
    else:
        count = _counted_partitions(broker, topic)
    partitions, rows = _plan(broker, topic.name, count, configs)
    # A topic that is only checked has no id: none was given to anything.
    topic_id = ZERO_UUID
    if not validate_only:
        topic_id = broker.create_topic(topic.name, partitions, configs).topic_id
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(
                name=row.name,
                value=row.value,
                read_only=row.read_only,
                config_source=row.source,
                is_sensitive=row.sensitive,
            )
            for row in sorted(rows, key=lambda row: row.name)
        ],
    )


def _plan(
    broker: Broker, name: str, count: int, configs: dict[str, str]
) -> tuple[int, list[ConfigRow]]:
    """How many partitions a topic would have, and what its configs would be described as."""
    if BRANCH_SOURCE_CONFIG in configs:
        plan = broker.plan_branch_topic(name, count, configs)
        return plan.partitions, describe_branch_topic(
            broker.settings, broker.dynamic_configs, plan.shown_configs
        )
    check_plain_configs(name, configs)
    if count == _DEFAULT:
        count = broker.get_int("num.partitions")
    check_room(len(broker.engine.logs), count)
    return count, describe_topic(broker.settings, broker.dynamic_configs, configs)


def _counted_partitions(broker: Broker, topic: CreatableTopic) -> int:
    """How many partitions a topic asks for by number, its replication factor being possible."""
    factor = topic.replication_factor
    if factor < _DEFAULT or factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < _DEFAULT or topic.num_partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if factor == _DEFAULT:
        factor = broker.get_int("default.replication.factor")
    if factor > 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): there is 1 broker. "
            "Use a replication factor of 1, or -1 for the default.",
        )
    return topic.num_partitions


def _assigned_partitions(broker: Broker, topic: CreatableTopic) -> int:
    """How many partitions a topic gets by a list of their replicas."""
    for value, name in (
        (topic.replication_factor, "replication factor"),
        (topic.num_partitions, "numPartitions"),
    ):
        if value != _DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {name} was not set to -1.",
            )
    seen: dict[int, CreatableReplicaAssignment] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in seen:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Found multiple manual partition assignments for partition "
                f"{assignment.partition_index}.",
            )
        check_replicas(broker, assignment.broker_ids)
        seen[assignment.partition_index] = assignment
    if any(index not in seen for index in range(len(seen))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return len(seen)


ROUTE = route(CREATE_TOPICS, "0-7", handle)
