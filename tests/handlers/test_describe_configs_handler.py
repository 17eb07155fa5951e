"""DescribeConfigs: which rows a request gets, and what it hears of what has no configs."""

from collections.abc import Callable, Sequence

import pytest
from handler_calls import Node

from anabranch.config.definitions import BROKER_SETTINGS, TOPIC_SETTINGS
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC, BROKER = 2, 4


def describe(
    node: Node,
    kind: int,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(
        resource_type=kind,
        resource_name=name,
        configuration_keys=None if keys is None else list(keys),
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=documentation
    )
    result: DescribeConfigsResult
    (result,) = node.call(request, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", range(1, 5))
def test_one_config_of_a_topic(node: Node, version: int) -> None:
    """Value, source and flags in every version; the type from version 3 on."""
    node.create_topic("t", retention_ms="1000")
    assert describe(node, TOPIC, "t", ["retention.ms"], version=version).configs == [
        DescribeConfigsResourceResult(
            name="retention.ms",
            value="1000",
            config_source=1,
            config_type=5 if version >= 3 else 0,
        )
    ]


def test_synonyms_and_documentation_when_asked_for(make_node: Callable[..., Node]) -> None:
    """Synonyms list every layer, strongest first; the documentation is the table's."""
    node = make_node("log.retention.ms=5000")
    node.create_topic("t", retention_ms="1000")
    (row,) = describe(node, TOPIC, "t", ["retention.ms"], synonyms=True, documentation=True).configs
    assert row.synonyms == [
        DescribeConfigsSynonym(name="retention.ms", value="1000", source=1),
        DescribeConfigsSynonym(name="log.retention.ms", value="5000", source=4),
        DescribeConfigsSynonym(name="log.retention.hours", value="168", source=5),
    ]
    assert row.documentation == TOPIC_SETTINGS["retention.ms"].documentation


@pytest.mark.parametrize("keys", [None, []])
def test_no_keys_ask_for_all(node: Node, keys: list[str] | None) -> None:
    """A null and an empty list of keys give all configs that are not for tests only."""
    node.create_topic("t")
    names = {row.name for row in describe(node, TOPIC, "t", keys).configs}
    assert names == {name for name, setting in TOPIC_SETTINGS.items() if not setting.internal}


def test_this_broker(node: Node) -> None:
    """The broker's own number describes it; fixed settings are read-only."""
    rows = {row.name: row for row in describe(node, BROKER, "1").configs}
    assert rows["node.id"].read_only
    assert rows["log.dirs"].config_source == 4
    assert not rows["log.retention.ms"].read_only
    shown = {name for name, setting in BROKER_SETTINGS.items() if not setting.internal}
    assert shown <= rows.keys()


def test_all_brokers_show_only_what_was_altered(node: Node) -> None:
    """The broker without a name is what was altered for all of them."""
    assert describe(node, BROKER, "").configs == []
    node.broker.set_broker_configs("", {"log.retention.ms": "7"})
    assert describe(node, BROKER, "", synonyms=True).configs == [
        DescribeConfigsResourceResult(
            name="log.retention.ms",
            value="7",
            config_source=3,
            config_type=5,
            synonyms=[DescribeConfigsSynonym(name="log.retention.ms", value="7", source=3)],
        )
    ]


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no topic 'absent'."),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name '' is illegal: it is empty."),
        (
            BROKER,
            "2",
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 or empty string, but received 2",
        ),
        (
            BROKER,
            "one",
            ErrorCode.INVALID_REQUEST,
            "Broker id must be an integer, but it is: one",
        ),
        (
            8,
            "1",
            ErrorCode.INVALID_REQUEST,
            "Log levels cannot be described or altered on this broker.",
        ),
        (
            16,
            "m",
            ErrorCode.INVALID_REQUEST,
            "Client metrics are not available on this broker.",
        ),
        (32, "g", ErrorCode.INVALID_REQUEST, "Groups have no configs on this broker."),
        (3, "x", ErrorCode.INVALID_REQUEST, "Unknown resource type 3."),
    ],
)
def test_what_has_no_configs(
    node: Node, kind: int, name: str, code: ErrorCode, message: str
) -> None:
    """Unknown resources and types are refused with a sentence."""
    assert describe(node, kind, name) == DescribeConfigsResult(
        error_code=code, error_message=message, resource_type=kind, resource_name=name
    )


def test_one_bad_resource_spoils_no_other(node: Node) -> None:
    """Each resource is answered in its place."""
    node.create_topic("t")
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name="absent"),
        DescribeConfigsResource(
            resource_type=TOPIC, resource_name="t", configuration_keys=["preallocate", "unknown"]
        ),
    ]
    absent, present = node.call(DescribeConfigsRequest(resources=resources)).results
    assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(row.name, row.value) for row in present.configs] == [("preallocate", "false")]
