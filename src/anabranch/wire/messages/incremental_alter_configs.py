"""IncrementalAlterConfigs (key 44): set, delete, append to or subtract from configs (KIP-339).

1 flexible.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int8, Int16, Int32, String, at, struct

OPERATION_SET = 0
OPERATION_DELETE = 1
OPERATION_APPEND = 2
OPERATION_SUBTRACT = 3


@struct
class IncrementalAlterableConfig:
    name: String = at("0+")
    config_operation: Int8 = at("0+")
    value: String | None = at("0+", default=None)


@struct
class IncrementalAlterConfigsResource:
    resource_type: Int8 = at("0+")
    resource_name: String = at("0+")
    configs: list[IncrementalAlterableConfig] = at("0+")


@struct
class IncrementalAlterConfigsRequest:
    resources: list[IncrementalAlterConfigsResource] = at("0+")
    validate_only: Bool = at("0+")


@struct
class IncrementalAlterConfigsResourceResponse:
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)
    resource_type: Int8 = at("0+")
    resource_name: String = at("0+")


@struct
class IncrementalAlterConfigsResponse:
    throttle_time_ms: Int32 = at("0+")
    responses: list[IncrementalAlterConfigsResourceResponse] = at("0+")


INCREMENTAL_ALTER_CONFIGS = api(
    44,
    "IncrementalAlterConfigs",
    request=IncrementalAlterConfigsRequest,
    response=IncrementalAlterConfigsResponse,
    versions="0-1",
    flexible="1+",
)
