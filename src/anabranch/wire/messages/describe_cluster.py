"""DescribeCluster (key 60): the cluster's id, controller and brokers (KIP-700).

1 brokers or controllers can be asked for (KIP-919), 2 fenced brokers (KIP-1073).
"""

from anabranch.wire.api import api
from anabranch.wire.messages.metadata import OPERATIONS_NOT_REQUESTED
from anabranch.wire.schema import Bool, Int8, Int16, Int32, String, at, struct

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2


@struct
class DescribeClusterRequest:
    include_cluster_authorized_operations: Bool = at("0+")
    endpoint_type: Int8 = at("1+", default=ENDPOINT_BROKERS)
    include_fenced_brokers: Bool = at("2+")


@struct
class DescribeClusterBroker:
    broker_id: Int32 = at("0+")
    host: String = at("0+")
    port: Int32 = at("0+")
    rack: String | None = at("0+", default=None)
    is_fenced: Bool = at("2+")


@struct
class DescribeClusterResponse:
    throttle_time_ms: Int32 = at("0+")
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)
    endpoint_type: Int8 = at("1+", default=ENDPOINT_BROKERS)
    cluster_id: String = at("0+")
    controller_id: Int32 = at("0+", default=-1)
    brokers: list[DescribeClusterBroker] = at("0+")
    cluster_authorized_operations: Int32 = at("0+", default=OPERATIONS_NOT_REQUESTED)


DESCRIBE_CLUSTER = api(
    60,
    "DescribeCluster",
    request=DescribeClusterRequest,
    response=DescribeClusterResponse,
    versions="0-2",
    flexible="0+",
)
