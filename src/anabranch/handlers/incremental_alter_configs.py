"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to or subtract from configs.

Versions differ only in their encoding (KIP-339). What is not named stays as it is.
"""

from collections.abc import Mapping

from anabranch.broker.broker import Broker
from anabranch.config.setting import Scope
from anabranch.config.topic_config import AlterOperation, apply_operations
from anabranch.handlers.config_changes import Change, ResourceChange, alter_resources
from anabranch.handlers.config_resources import ResourceType
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

_SCOPES: dict[int, Scope] = {ResourceType.TOPIC: Scope.TOPIC, ResourceType.GROUP: Scope.GROUP}


def handle(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    outcomes = alter_resources(
        broker,
        (
            ResourceChange(
                one.resource_type, one.resource_name, _operating(one), is_replacement=False
            )
            for one in request.resources
        ),
        validate_only=request.validate_only,
    )
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one, error in zip(request.resources, outcomes, strict=True)
        ]
    )


def _operating(resource: IncrementalAlterConfigsResource) -> Change:
    scope = _SCOPES.get(resource.resource_type, Scope.BROKER)
    operations = [
        AlterOperation(config.name, config.config_operation, config.value)
        for config in resource.configs
    ]

    def change(present: Mapping[str, str]) -> dict[str, str]:
        return apply_operations(present, operations, scope)

    return change


ROUTE = route(INCREMENTAL_ALTER_CONFIGS, "0-1", handle)
