"""DescribeConfigs (32), versions 1-4: the configs of topics, groups and this broker.

Version notes: 1 sources and synonyms; 3 types and documentation. The broker resource with an empty
name holds what was altered for all brokers. A group need not exist to have configs. Client metrics
and loggers have none here and are refused, each for itself. A branch topic shows the configs of its
source, which hold for its records, as read-only ones beside its own.
"""

from anabranch.broker.branch_topics import shown_configs
from anabranch.broker.broker import Broker
from anabranch.config.describe import (
    ConfigRow,
    describe_branch_topic,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from anabranch.handlers.config_resources import ResourceType, check_broker_name, unserved_type
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.topics import check_topic_name
from anabranch.wire.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(
    broker: Broker, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            result.configs = [_config(row, request) for row in _rows(broker, resource)]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _rows(broker: Broker, resource: DescribeConfigsResource) -> list[ConfigRow]:
    # An empty list of keys asks for all of them, like none.
    names = frozenset(resource.configuration_keys or ()) or None
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        topic = broker.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
        if topic.source is not None:
            shown = shown_configs(topic)
            return describe_branch_topic(broker.settings, broker.dynamic_configs, shown, names)
        return describe_topic(broker.settings, broker.dynamic_configs, topic.configs, names)
    if resource.resource_type == ResourceType.BROKER:
        check_broker_name(broker, name)
        if not name:
            return describe_cluster_default(broker.dynamic_configs, names)
        return describe_broker(broker.settings, broker.dynamic_configs, names)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        own = broker.group_configs.configs_of(name)
        return describe_group(broker.settings, broker.dynamic_configs, own, names)
    raise unserved_type(resource.resource_type)


def _config(row: ConfigRow, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    result = DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.read_only,
        config_source=row.source,
        is_sensitive=row.sensitive,
        config_type=row.type,
    )
    if request.include_synonyms:
        result.synonyms = [
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in row.synonyms
        ]
    if request.include_documentation:
        result.documentation = row.documentation
    return result


ROUTE = route(DESCRIBE_CONFIGS, "1-4", handle)
