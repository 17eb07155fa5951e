"""AlterConfigs (key 33): replace all configs of a resource at once (KIP-133).

What is not named returns to its default; IncrementalAlterConfigs is the kinder way. 1 responses
leave before throttling (KIP-219), 2 flexible.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int8, Int16, Int32, String, at, struct


@struct
class AlterableConfig:
    name: String = at("0+")
    value: String | None = at("0+", default=None)


@struct
class AlterConfigsResource:
    resource_type: Int8 = at("0+")
    resource_name: String = at("0+")
    configs: list[AlterableConfig] = at("0+")


@struct
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = at("0+")
    validate_only: Bool = at("0+")


@struct
class AlterConfigsResourceResponse:
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)
    resource_type: Int8 = at("0+")
    resource_name: String = at("0+")


@struct
class AlterConfigsResponse:
    throttle_time_ms: Int32 = at("0+")
    responses: list[AlterConfigsResourceResponse] = at("0+")


ALTER_CONFIGS = api(
    33,
    "AlterConfigs",
    request=AlterConfigsRequest,
    response=AlterConfigsResponse,
    versions="0-2",
    flexible="2+",
)
