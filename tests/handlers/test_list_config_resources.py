"""ListConfigResources: which resources a request hears of."""

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def listed(node: Node, *types: int, version: int = 1) -> list[tuple[int, str]]:
    answer = node.call(ListConfigResourcesRequest(resource_types=list(types)), version)
    assert answer.error_code == ErrorCode.NONE
    return [(one.resource_type, one.resource_name) for one in answer.config_resources]


@pytest.fixture
def furnished(node: Node) -> Node:
    node.create_topic("b", retention_ms="1")
    node.create_topic("a")
    node.broker.group_configs.set("g", {"consumer.session.timeout.ms": "50000"})
    return node


def test_all_types(furnished: Node) -> None:
    """No type asks for all: groups that set something, this broker, every topic."""
    everything = [(GROUP, "g"), (BROKER, "1"), (TOPIC, "a"), (TOPIC, "b")]
    assert listed(furnished) == everything
    assert listed(furnished, TOPIC, GROUP, BROKER, GROUP) == everything


def test_some_types(furnished: Node) -> None:
    """Only what is asked for is listed; loggers and client metrics have no configs here."""
    assert listed(furnished, GROUP) == [(GROUP, "g")]
    assert listed(furnished, BROKER_LOGGER, CLIENT_METRICS) == []


def test_a_group_without_configs_is_not_listed(furnished: Node) -> None:
    """A group goes from the list with its last config."""
    furnished.broker.group_configs.set("g", {})
    assert listed(furnished, GROUP) == []


def test_version_0_asks_for_client_metrics(furnished: Node) -> None:
    """It was made for nothing else."""
    assert listed(furnished, version=0) == []


def test_an_unknown_type(node: Node) -> None:
    """A type that this version does not have is UNSUPPORTED_VERSION, as in Kafka."""
    answer = node.call(ListConfigResourcesRequest(resource_types=[TOPIC, 3]), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.config_resources == []
