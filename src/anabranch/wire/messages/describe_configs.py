"""DescribeConfigs (key 32): the configs of topics, brokers and groups (KIP-133).

1 the source of a value and its synonyms (KIP-226), 2 responses leave before throttling (KIP-219),
3 types and documentation (KIP-569), 4 flexible.
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int8, Int16, Int32, String, at, struct


@struct
class DescribeConfigsResource:
    resource_type: Int8 = at("0+")
    resource_name: String = at("0+")
    configuration_keys: list[String] | None = at("0+", default=None)


@struct
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = at("0+")
    include_synonyms: Bool = at("1+")
    include_documentation: Bool = at("3+")


@struct
class DescribeConfigsSynonym:
    name: String = at("1+")
    value: String | None = at("1+", default=None)
    source: Int8 = at("1+")


@struct
class DescribeConfigsResourceResult:
    name: String = at("0+")
    value: String | None = at("0+", default=None)
    read_only: Bool = at("0+")
    config_source: Int8 = at("1+", default=-1, ignorable=True)
    is_sensitive: Bool = at("0+")
    synonyms: list[DescribeConfigsSynonym] = at("1+", ignorable=True)
    config_type: Int8 = at("3+", ignorable=True)
    documentation: String | None = at("3+", default=None, ignorable=True)


@struct
class DescribeConfigsResult:
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)
    resource_type: Int8 = at("0+")
    resource_name: String = at("0+")
    configs: list[DescribeConfigsResourceResult] = at("0+")


@struct
class DescribeConfigsResponse:
    throttle_time_ms: Int32 = at("0+")
    results: list[DescribeConfigsResult] = at("0+")


DESCRIBE_CONFIGS = api(
    32,
    "DescribeConfigs",
    request=DescribeConfigsRequest,
    response=DescribeConfigsResponse,
    versions="1-4",
    flexible="4+",
)
