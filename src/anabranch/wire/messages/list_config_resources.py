"""ListConfigResources (key 74): the resources that have configs of their own.

Version 0 was ListClientMetricsResources (KIP-714): it lists client metrics subscriptions and
nothing else. 1 resources of other types, and which of them to list (KIP-1142); a request that
names no type asks for all.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int8, Int16, Int32, String, at, struct

RESOURCE_TYPE_CLIENT_METRICS = 16


@struct
class ListConfigResourcesRequest:
    resource_types: list[Int8] = at("1+")


@struct
class ConfigResource:
    resource_name: String = at("0+")
    resource_type: Int8 = at("1+", default=RESOURCE_TYPE_CLIENT_METRICS, ignorable=True)


@struct
class ListConfigResourcesResponse:
    throttle_time_ms: Int32 = at("0+")
    error_code: Int16 = at("0+")
    config_resources: list[ConfigResource] = at("0+")


LIST_CONFIG_RESOURCES = api(
    74,
    "ListConfigResources",
    request=ListConfigResourcesRequest,
    response=ListConfigResourcesResponse,
    versions="0-1",
    flexible="0+",
)
