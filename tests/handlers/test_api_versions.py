"""ApiVersions: what is advertised is what is served."""

from collections.abc import Callable
from typing import Any

import pytest
from handler_calls import LISTENER, Node

from anabranch.handlers.api_versions import unsupported_version_answer
from anabranch.handlers.registry import ROUTES
from anabranch.handlers.route import RequestContext
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from anabranch.wire.messages.table import APIS


def asking(**more: Any) -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="test", client_software_version="1.0", **more)


SERVED = [
    ApiVersion(
        api_key=key,
        min_version=ROUTES[key].advertised.first,
        max_version=ROUTES[key].advertised.last,
    )
    for key in sorted(ROUTES)
]


@pytest.mark.parametrize("version", range(6))
def test_all_routes_are_advertised(node: Node, version: int) -> None:
    """Every route is there with its versions, and nothing else."""
    answer = node.call(asking(), version)
    assert answer.error_code == ErrorCode.NONE
    assert answer.api_keys == SERVED


GROUP_VERSION = SupportedFeatureKey(name="group.version", min_version=0, max_version=1)
TRANSACTION_VERSION = SupportedFeatureKey(name="transaction.version", min_version=0, max_version=2)
COOPERATION = SupportedFeatureKey(name="cooperative.consumption", min_version=1, max_version=1)
SINK_BATCHES = SupportedFeatureKey(name="sink.batches", min_version=1, max_version=1)


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        (3, [COOPERATION, SINK_BATCHES]),
        (4, [GROUP_VERSION, TRANSACTION_VERSION, COOPERATION, SINK_BATCHES]),
        (5, [GROUP_VERSION, TRANSACTION_VERSION, COOPERATION, SINK_BATCHES]),
    ],
)
@pytest.mark.parametrize("is_on", ["true", "false"])
def test_features_that_could_be(
    make_node: Callable[..., Node], version: int, supported: list[Any], is_on: str
) -> None:
    """Kafka's features are offered from version 4 on: older ones cannot read a lowest of 0."""
    node = make_node(f"group.individual.commit.enable={is_on}")
    assert node.call(asking(), version).supported_features == supported


def finalized(name: str, level: int) -> FinalizedFeatureKey:
    return FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)


@pytest.mark.parametrize(("protocols", "level"), [("classic,consumer", 1), ("classic", 0)])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_features_that_are(
    make_node: Callable[..., Node], version: int, protocols: str, level: int
) -> None:
    """Clients see from version 3 on whether the consumer protocol is served, and transactions."""
    node = make_node(f"group.coordinator.rebalance.protocols={protocols}")
    answer = node.call(asking(), version)
    assert answer.finalized_features_epoch == 0
    assert answer.finalized_features == [
        finalized("group.version", level),
        finalized("transaction.version", 2),
        finalized("sink.batches", 1),
        finalized("cooperative.consumption", 1),
    ]


def test_cooperative_consumption_that_is_turned_off(node: Node) -> None:
    """The feature is not finalized while the broker takes no individual commits."""
    names = lambda: [one.name for one in node.call(asking(), 3).finalized_features]  # noqa: E731
    always = ["group.version", "transaction.version", "sink.batches"]
    assert names() == [*always, "cooperative.consumption"]
    node.broker.set_broker_configs("", {"group.individual.commit.enable": "false"})
    assert names() == always
    node.broker.set_broker_configs("", {"group.individual.commit.enable": "true"})
    assert names() == [*always, "cooperative.consumption"]


def test_versions_that_clients_look_for() -> None:
    """The ranges that this broker promises, written out so that none is lost by accident."""
    ranges = {ROUTES[one.api_key].api.name: (one.min_version, one.max_version) for one in SERVED}
    expected = {
        "Produce": (0, 13),
        "Fetch": (4, 18),
        "ListOffsets": (1, 11),
        "Metadata": (0, 13),
        "FindCoordinator": (0, 6),
        "ApiVersions": (0, 5),
        "CreateTopics": (0, 7),
        "DeleteTopics": (1, 6),
        "DeleteRecords": (0, 2),
        "InitProducerId": (0, 6),
        "OffsetForLeaderEpoch": (2, 4),
        "DescribeConfigs": (1, 4),
        "AlterConfigs": (0, 2),
        "DescribeLogDirs": (1, 5),
        "CreatePartitions": (0, 3),
        "IncrementalAlterConfigs": (0, 1),
        "DescribeCluster": (0, 2),
        "DescribeProducers": (0, 0),
        "ConsumerGroupHeartbeat": (0, 1),
        "ConsumerGroupDescribe": (0, 1),
        "ListConfigResources": (0, 1),
        "OffsetCommit": (0, 10),
        "OffsetFetch": (0, 10),
        "DescribeTopicPartitions": (0, 0),
    }
    assert {name: ranges.get(name) for name in expected} == expected


def test_every_served_version_has_codecs() -> None:
    """A route promises no version that its schema table does not have."""
    for key, route in ROUTES.items():
        assert APIS[key] is route.api
        for versions in (route.versions, route.advertised):
            assert versions.first in route.api.versions
            assert versions.last in route.api.versions


@pytest.mark.parametrize("name", ["", "-test", "test-", "te st", "tést", "a\n"])
def test_software_that_has_no_name(node: Node, name: str) -> None:
    """Names and versions of clients are checked from version 3 on (KIP-511)."""
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    assert node.call(request, 3).error_code == ErrorCode.INVALID_REQUEST
    request = ApiVersionsRequest(client_software_name="test", client_software_version=name)
    assert node.call(request, 5).error_code == ErrorCode.INVALID_REQUEST
    assert node.call(request, 2).error_code == 0


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        ("mine", 4, ErrorCode.NONE),
        ("other", 4, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("mine", 5, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, -1, ErrorCode.NONE),
    ],
)
def test_the_wrong_broker(
    make_node: Callable[..., Node], cluster_id: str | None, node_id: int, code: ErrorCode
) -> None:
    """A client that meant another cluster or node must look it up again (KIP-1242)."""
    node = make_node("cluster.id=mine", "node.id=4")
    request = asking(cluster_id=cluster_id, node_id=node_id)
    assert node.call(request, 5).error_code == code
    assert node.call(request, 4).error_code == 0


@pytest.mark.parametrize(("cluster_id", "node_id"), [(None, 1), ("mine", -1)])
def test_half_an_identity(
    make_node: Callable[..., Node], cluster_id: str | None, node_id: int
) -> None:
    """Kafka wants both cluster and node or neither."""
    node = make_node("cluster.id=mine")
    answer = node.call(asking(cluster_id=cluster_id, node_id=node_id), 5)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_errors_come_without_apis(node: Node) -> None:
    """An error has no list in Kafka, except for the versions of ApiVersions itself."""
    assert node.call(ApiVersionsRequest(), 3).api_keys == []


def test_a_client_newer_than_the_broker(node: Node) -> None:
    """It hears UNSUPPORTED_VERSION and which versions of ApiVersions it may ask with."""
    context = RequestContext(99, "tests", "127.0.0.1", LISTENER, node.closed_because.append)
    assert unsupported_version_answer(node.broker, context, None) == ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=5)],
    )
