"""What AlterConfigs and IncrementalAlterConfigs share: from one resource to the change of it.

The two differ only in how they say what the configs shall be, which each passes in as a function
from the present configs to the new ones.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from anabranch.broker.branch_topics import (
    altered_branch_configs,
    check_plain_configs,
    check_source_configs,
    shown_configs,
)
from anabranch.broker.broker import Broker
from anabranch.broker.topics import Topic
from anabranch.config.group_config import check_altered_bounds, validate_group_configs
from anabranch.config.topic_config import (
    validate_broker_configs,
    validate_topic_configs,
    with_own_names,
)
from anabranch.handlers.config_resources import ResourceType, check_broker_name, unserved_type
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.topics import check_topic_name

# From the configs a resource sets now to those it shall set.
Change = Callable[[Mapping[str, str]], dict[str, str]]


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """What one resource of a request asks for."""

    resource_type: int
    resource_name: str
    change: Change
    # Whether the change says all that shall be set, or only what is different.
    is_replacement: bool


def alter_resources(
    broker: Broker, resources: Iterable[ResourceChange], *, validate_only: bool
) -> list[KafkaError | None]:
    """Alter each resource, or only check that it could be; None for each that went well."""
    asked = list(resources)
    counts = Counter((one.resource_type, one.resource_name) for one in asked)
    outcomes: list[KafkaError | None] = []
    for one in asked:
        try:
            if counts[one.resource_type, one.resource_name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            _alter(broker, one, validate_only)
            outcomes.append(None)
        except KafkaError as error:
            outcomes.append(error)
    return outcomes


def _alter(broker: Broker, one: ResourceChange, validate_only: bool) -> None:
    if one.resource_type == ResourceType.TOPIC:
        _alter_topic(broker, one, validate_only)
    elif one.resource_type == ResourceType.BROKER:
        _alter_broker(broker, one, validate_only)
    elif one.resource_type == ResourceType.GROUP:
        _alter_group(broker, one, validate_only)
    else:
        raise unserved_type(one.resource_type)


def _alter_topic(broker: Broker, one: ResourceChange, validate_only: bool) -> None:
    if not one.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(one.resource_name)
    topic = broker.topics.get(one.resource_name)
    configs = with_own_names(one.change(_present_configs(topic)))
    validate_topic_configs(configs, broker.topic_defaults)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{one.resource_name}'."
        )
    if topic.source is not None:
        configs = altered_branch_configs(
            topic, configs, broker.topic_defaults, is_replacement=one.is_replacement
        )
    else:
        check_plain_configs(topic.name, configs)
        check_source_configs(topic, configs, broker.topic_defaults)
    if topic.is_internal and configs.get("cleanup.policy", "").strip() != "compact":
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{topic.name} must have cleanup.policy=compact: the broker keeps its groups there, "
            "and anything else would lose some. Set it together with the other configs.",
        )
    if not validate_only and configs != topic.configs:
        broker.topics.set_configs(topic, configs)


def _present_configs(topic: Topic | None) -> Mapping[str, str]:
    """What a change of a topic's configs starts from: what DescribeConfigs shows."""
    if topic is None:
        return {}
    return shown_configs(topic) if topic.source is not None else topic.configs


def _alter_broker(broker: Broker, one: ResourceChange, validate_only: bool) -> None:
    check_broker_name(broker, one.resource_name)
    dynamic = broker.dynamic_configs
    is_per_broker = bool(one.resource_name)
    present = dynamic.per_broker if is_per_broker else dynamic.cluster_default
    configs = one.change(present)
    validate_broker_configs(configs, per_broker=is_per_broker)
    check_altered_bounds(configs, broker.get_int)
    if not validate_only and configs != present:
        broker.set_broker_configs(str(broker.node_id) if is_per_broker else "", configs)


def _alter_group(broker: Broker, one: ResourceChange, validate_only: bool) -> None:
    """A group need not exist to have configs, as in Kafka."""
    group_id = one.resource_name
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    present = broker.group_configs.configs_of(group_id)
    configs = one.change(present)
    validate_group_configs(configs, broker.get_int)
    if not validate_only and configs != present:
        broker.group_configs.set(group_id, configs)
