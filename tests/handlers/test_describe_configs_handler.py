"""DescribeConfigs: which rows a request gets, and what it hears of what has no configs."""

from collections.abc import Callable, Sequence

import pytest
from handler_calls import Node

from anabranch.config.branch_settings import COMMIT_SOURCE_CONFIG, FIXED_CONFIGS
from anabranch.config.definitions import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC, BROKER, GROUP = 2, 4, 32


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
    """A null and an empty list of keys give all configs but those for tests or branch topics."""
    node.create_topic("t")
    names = {row.name for row in describe(node, TOPIC, "t", keys).configs}
    shown = {name for name, setting in TOPIC_SETTINGS.items() if not setting.internal}
    assert names == shown - FIXED_CONFIGS - {COMMIT_SOURCE_CONFIG}


def test_this_broker(node: Node) -> None:
    """The broker's own number describes it; fixed settings are read-only."""
    rows = {row.name: row for row in describe(node, BROKER, "1").configs}
    assert rows["node.id"].read_only
    assert rows["log.dirs"].config_source == 4
    assert not rows["log.retention.ms"].read_only
    shown = {name for name, setting in BROKER_SETTINGS.items() if not setting.internal}
    assert shown <= rows.keys()


@pytest.mark.parametrize("version", range(1, 5))
def test_one_config_of_a_group(node: Node, version: int) -> None:
    """A group's own value has a source of its own; the group need not exist."""
    node.broker.group_configs.set("g", {"consumer.session.timeout.ms": "50000"})
    keys = ["consumer.session.timeout.ms"]
    assert describe(node, GROUP, "g", keys, version=version).configs == [
        DescribeConfigsResourceResult(
            name="consumer.session.timeout.ms",
            value="50000",
            config_source=8,
            config_type=3 if version >= 3 else 0,
        )
    ]


def test_a_group_that_sets_nothing(make_node: Callable[..., Node]) -> None:
    """Every config is shown, with the broker's value and what stands behind it."""
    node = make_node("group.consumer.session.timeout.ms=46000")
    rows = describe(node, GROUP, "absent", synonyms=True, documentation=True).configs
    by_name = {row.name: row for row in rows}
    assert by_name.keys() == GROUP_SETTINGS.keys()
    assert not any(row.read_only for row in rows)
    session = by_name["consumer.session.timeout.ms"]
    assert (session.value, session.config_source) == ("46000", 4)
    name = "group.consumer.session.timeout.ms"
    assert session.synonyms == [
        DescribeConfigsSynonym(name=name, value="46000", source=4),
        DescribeConfigsSynonym(name=name, value="45000", source=5),
    ]
    assert session.documentation == GROUP_SETTINGS["consumer.session.timeout.ms"].documentation
    budget = by_name["consumer.heartbeat.rate.budget"]
    assert (budget.value, budget.config_source) == ("500", 5)


def test_a_group_above_what_was_altered(node: Node) -> None:
    """A group's value stands before the broker's, which stands before that of all brokers."""
    node.broker.set_broker_configs("", {"group.consumer.assignment.interval.ms": "70"})
    node.broker.set_broker_configs("1", {"group.consumer.assignment.interval.ms": "80"})
    node.broker.group_configs.set("g", {"consumer.assignment.interval.ms": "90"})
    (row,) = describe(node, GROUP, "g", ["consumer.assignment.interval.ms"], synonyms=True).configs
    assert [(one.value, one.source) for one in row.synonyms] == [
        ("90", 8),
        ("80", 2),
        ("70", 3),
        ("50", 5),
    ]


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
        (GROUP, "", ErrorCode.INVALID_REQUEST, "Group name must not be empty"),
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
