"""ListConfigResources (74), versions 0-1: what has configs (KIP-714, KIP-1142).

Version 0 asks for client metrics only. Every topic and this broker are listed, and of groups those
that set something for themselves, whether they exist or not. Client metrics and loggers have no
configs here, so there are none to list.
"""

from collections.abc import Iterable

from anabranch.broker.broker import Broker
from anabranch.handlers.config_resources import ResourceType
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def handle(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    served = set(ResourceType) if context.version > 0 else {ResourceType.CLIENT_METRICS}
    asked = set(request.resource_types) or served
    if not asked <= served:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(asked, reverse=True)
            for name in _names(broker, kind)
        ]
    )


def _names(broker: Broker, resource_type: int) -> Iterable[str]:
    if resource_type == ResourceType.GROUP:
        return broker.group_configs.group_ids()
    if resource_type == ResourceType.BROKER:
        return (str(broker.node_id),)
    if resource_type == ResourceType.TOPIC:
        return sorted(topic.name for topic in broker.topics)
    return ()


ROUTE = route(LIST_CONFIG_RESOURCES, "0-1", handle)
