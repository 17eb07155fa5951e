"""DescribeCluster (60), versions 0-2: the cluster's id, controller and brokers (KIP-700).

Version notes: 1 asks for brokers or for controllers (KIP-919); 2 may include fenced brokers, of
which there are none.
"""

from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, route
from anabranch.model.authorization import CLUSTER_OPERATIONS, operations_bits
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_cluster import (
    DESCRIBE_CLUSTER,
    ENDPOINT_BROKERS,
    ENDPOINT_CONTROLLERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def handle(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type != ENDPOINT_BROKERS:
        is_known = request.endpoint_type == ENDPOINT_CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if is_known
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an "
            "endpoint of type CONTROLLER. Ask for brokers: this one is its own controller."
            if is_known
            else f"Unsupported endpoint type {request.endpoint_type}.",
        )
    host, port = broker.endpoint(context.listener)
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=[
            DescribeClusterBroker(broker_id=broker.node_id, host=host, port=port, rack=broker.rack)
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations_bits(CLUSTER_OPERATIONS)
    return response


ROUTE = route(DESCRIBE_CLUSTER, "0-2", handle)
