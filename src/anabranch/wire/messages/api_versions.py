"""ApiVersions (key 18): what a broker serves, asked first on every connection.

The response keeps header v0 in all versions, and a request of an unknown version is answered in
version 0, so that a client of any age learns what to ask next (KIP-511). 1 throttle time,
2 responses leave before throttling (KIP-219), 3 flexible, the client's software name and version
(KIP-511) and the cluster's features (KIP-584), 4 a feature's lowest version may be 0
(KAFKA-17011), 5 the cluster and node the client believes it reached (KIP-1242).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int16, Int32, Int64, String, at, struct


@struct
class ApiVersionsRequest:
    client_software_name: String = at("3+", ignorable=True)
    client_software_version: String = at("3+", ignorable=True)
    cluster_id: String | None = at("5+", default=None, ignorable=True)
    node_id: Int32 = at("5+", default=-1, ignorable=True)


@struct
class ApiVersion:
    api_key: Int16 = at("0+")
    min_version: Int16 = at("0+")
    max_version: Int16 = at("0+")


@struct
class SupportedFeatureKey:
    name: String = at("3+")
    min_version: Int16 = at("3+")
    max_version: Int16 = at("3+")


@struct
class FinalizedFeatureKey:
    name: String = at("3+")
    max_version_level: Int16 = at("3+")
    min_version_level: Int16 = at("3+")


@struct
class ApiVersionsResponse:
    error_code: Int16 = at("0+")
    api_keys: list[ApiVersion] = at("0+")
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = at("3+", tag=0, ignorable=True)
    finalized_features_epoch: Int64 = at("3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = at("3+", tag=2, ignorable=True)
    zk_migration_ready: Bool = at("3+", tag=3, ignorable=True)


API_VERSIONS = api(
    18,
    "ApiVersions",
    request=ApiVersionsRequest,
    response=ApiVersionsResponse,
    versions="0-5",
    flexible="3+",
    plain_response_header=True,
)
