"""AlterConfigs (33), versions 0-2: replace all configs of topics, groups or the broker (KIP-133).

Versions differ only in their encoding. What is not named returns to its default, so clients had
better use IncrementalAlterConfigs.
"""

from collections.abc import Mapping

from anabranch.broker.broker import Broker
from anabranch.handlers.config_changes import Change, ResourceChange, alter_resources
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.alter_configs import (
    ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def handle(
    broker: Broker, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    outcomes = alter_resources(
        broker,
        (
            ResourceChange(
                one.resource_type, one.resource_name, _replacing(one.configs), is_replacement=True
            )
            for one in request.resources
        ),
        validate_only=request.validate_only,
    )
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one, error in zip(request.resources, outcomes, strict=True)
        ]
    )


def _replacing(configs: list[AlterableConfig]) -> Change:
    def change(present: Mapping[str, str]) -> dict[str, str]:
        names = [config.name for config in configs]
        if len(set(names)) != len(names):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        absent = [config.name for config in configs if config.value is None]
        if absent:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(absent)}"
            )
        return {config.name: config.value or "" for config in configs}

    return change


ROUTE = route(ALTER_CONFIGS, "0-2", handle)
