"""DescribeCluster: one broker that is its own controller."""

from collections.abc import Callable

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_cluster import (
    ENDPOINT_CONTROLLERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

# Create, alter, describe, cluster action, describe and alter configs, idempotent write.
ALL_OPERATIONS = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12


@pytest.mark.parametrize("version", range(3))
def test_one_broker(make_node: Callable[..., Node], version: int) -> None:
    """Id, controller and the address of the listener that was asked on."""
    node = make_node("cluster.id=tests", "node.id=7", "broker.rack=r1")
    assert node.call(DescribeClusterRequest(), version) == DescribeClusterResponse(
        cluster_id="tests",
        controller_id=7,
        brokers=[DescribeClusterBroker(broker_id=7, host="kafka.example", port=9092, rack="r1")],
    )


def test_operations_when_asked_for(node: Node) -> None:
    """Without an authorizer everything is allowed, and said so only on request."""
    answer = node.call(DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert answer.cluster_authorized_operations == ALL_OPERATIONS
    assert node.call(DescribeClusterRequest()).cluster_authorized_operations == -(1 << 31)


@pytest.mark.parametrize(
    ("endpoint_type", "code", "message"),
    [
        (
            ENDPOINT_CONTROLLERS,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            (
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint "
                "of type CONTROLLER. Ask for brokers: this one is its own controller."
            ),
        ),
        (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 9."),
    ],
)
def test_other_endpoints(node: Node, endpoint_type: int, code: ErrorCode, message: str) -> None:
    """Controllers cannot be asked for here, nor what does not exist."""
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    assert node.call(request) == DescribeClusterResponse(error_code=code, error_message=message)
