"""AlterConfigs and IncrementalAlterConfigs: what changes, what is refused, what follows."""

from collections.abc import Callable
from typing import Any

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from anabranch.wire.messages.incremental_alter_configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

TOPIC, BROKER, GROUP = 2, 4, 32
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
Outcome = tuple[int, str | None]


def replace(
    node: Node,
    kind: int,
    name: str,
    *configs: tuple[str, str | None],
    validate_only: bool = False,
    version: int = 2,
) -> Outcome:
    """AlterConfigs of one resource: its error and message."""
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key, value=value) for key, value in configs],
    )
    request = AlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return only_outcome(node.call(request, version), kind, name)


def alter(
    node: Node,
    kind: int,
    name: str,
    *operations: tuple[int, str, str | None],
    validate_only: bool = False,
    version: int = 1,
) -> Outcome:
    """IncrementalAlterConfigs of one resource: its error and message."""
    request = IncrementalAlterConfigsRequest(
        resources=[incremental(kind, name, *operations)], validate_only=validate_only
    )
    return only_outcome(node.call(request, version), kind, name)


def incremental(
    kind: int, name: str, *operations: tuple[int, str, str | None]
) -> IncrementalAlterConfigsResource:
    return IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
            for operation, key, value in operations
        ],
    )


def only_outcome(response: Any, kind: int, name: str) -> Outcome:
    (answer,) = response.responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer.error_code, answer.error_message


@pytest.mark.parametrize("version", range(3))
def test_replacing_forgets_what_is_not_named(node: Node, version: int) -> None:
    """AlterConfigs leaves only what it names, and the logs and the store follow."""
    topic = node.create_topic("t", retention_ms="1000", preallocate="true")
    assert replace(node, TOPIC, "t", ("retention.ms", "2000"), version=version) == (0, None)
    assert topic.configs == {"retention.ms": "2000"}
    assert topic.partitions[0].log.config.retention_ms == 2000
    assert node.broker.engine.store.topics()[0].configs == {"retention.ms": "2000"}


@pytest.mark.parametrize("version", range(2))
def test_operations_change_only_what_they_name(node: Node, version: int) -> None:
    """SET, DELETE, APPEND and SUBTRACT act on the topic's own configs, lists on their default."""
    topic = node.create_topic("t", retention_ms="1000", preallocate="true")
    outcome = alter(
        node,
        TOPIC,
        "t",
        (OPERATION_SET, "segment.ms", "5"),
        (OPERATION_DELETE, "preallocate", None),
        (OPERATION_APPEND, "cleanup.policy", "compact"),
        version=version,
    )
    assert outcome == (0, None)
    assert topic.configs == {
        "retention.ms": "1000",
        "segment.ms": "5",
        "cleanup.policy": "delete,compact",
    }
    assert topic.partitions[0].log.config.cleanup_policy == {"delete", "compact"}
    assert alter(node, TOPIC, "t", (OPERATION_SUBTRACT, "cleanup.policy", "delete")) == (0, None)
    assert topic.configs["cleanup.policy"] == "compact"


def test_validate_only_changes_nothing(node: Node) -> None:
    """A check answers as the change would and leaves topic and broker as they are."""
    topic = node.create_topic("t")
    assert replace(node, TOPIC, "t", ("retention.ms", "1"), validate_only=True) == (0, None)
    set_one = (OPERATION_SET, "retention.ms", "1")
    assert alter(node, TOPIC, "t", set_one, validate_only=True) == (0, None)
    code, _ = alter(node, TOPIC, "t", (OPERATION_SET, "retention.ms", "x"), validate_only=True)
    assert code == ErrorCode.INVALID_CONFIG
    set_broker = (OPERATION_SET, "log.retention.ms", "1")
    assert alter(node, BROKER, "1", set_broker, validate_only=True) == (0, None)
    assert topic.configs == {}
    assert node.broker.engine.store.broker_configs() == {}


@pytest.mark.parametrize(
    ("kind", "name", "operation", "code", "message"),
    [
        (
            TOPIC,
            "t",
            (OPERATION_SET, "retention.ms", "soon"),
            ErrorCode.INVALID_CONFIG,
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        (
            TOPIC,
            "t",
            (OPERATION_SET, "retention.ms", None),
            ErrorCode.INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        (
            TOPIC,
            "t",
            (OPERATION_APPEND, "retention.ms", "1"),
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            TOPIC,
            "t",
            (9, "retention.ms", "1"),
            ErrorCode.INVALID_REQUEST,
            "Unknown operations type 9",
        ),
        (
            TOPIC,
            "absent",
            (OPERATION_SET, "retention.ms", "1"),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "There is no topic 'absent'.",
        ),
        (
            TOPIC,
            "",
            (OPERATION_SET, "retention.ms", "1"),
            ErrorCode.INVALID_REQUEST,
            "Default topic resources are not allowed.",
        ),
        (
            TOPIC,
            "a b",
            (OPERATION_SET, "retention.ms", "1"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            (
                "Topic name 'a b' is illegal: only ASCII letters, digits, '.', '_' and '-' are "
                "possible."
            ),
        ),
        (
            BROKER,
            "1",
            (OPERATION_SET, "node.id", "2"),
            ErrorCode.INVALID_REQUEST,
            (
                "Cannot update these configs dynamically: [node.id]. "
                "Set them where the broker is started, and restart it."
            ),
        ),
        (
            BROKER,
            "1",
            (OPERATION_SET, "log.retention.ms", "soon"),
            ErrorCode.INVALID_REQUEST,
            "Invalid value soon for configuration log.retention.ms: Not a number of type LONG",
        ),
        (
            BROKER,
            "5",
            (OPERATION_SET, "log.retention.ms", "1"),
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 or empty string, but received 5",
        ),
        (
            BROKER,
            "1",
            (OPERATION_SET, "group.consumer.assignment.interval.ms", "15001"),
            ErrorCode.INVALID_REQUEST,
            (
                "group.consumer.assignment.interval.ms must be in the range 0 to 15000 inclusive. "
                "group.consumer.min.assignment.interval.ms and "
                "group.consumer.max.assignment.interval.ms of the broker set it."
            ),
        ),
        (
            GROUP,
            "",
            (OPERATION_SET, SESSION, "45000"),
            ErrorCode.INVALID_REQUEST,
            "Default group resources are not allowed.",
        ),
        (
            GROUP,
            "g",
            (OPERATION_SET, "consumer.session.timeout", "45000"),
            ErrorCode.INVALID_CONFIG,
            (
                "Unknown group config name: consumer.session.timeout. "
                "Did you mean consumer.session.timeout.ms?"
            ),
        ),
        (
            GROUP,
            "g",
            (OPERATION_SET, SESSION, "long"),
            ErrorCode.INVALID_CONFIG,
            f"Invalid value long for configuration {SESSION}: Not a number of type INT",
        ),
        (
            GROUP,
            "g",
            (OPERATION_SET, SESSION, "44999"),
            ErrorCode.INVALID_CONFIG,
            (
                f"{SESSION} must be in the range 45000 to 60000 inclusive. "
                "group.consumer.min.session.timeout.ms and group.consumer.max.session.timeout.ms "
                "of the broker set it."
            ),
        ),
        (
            GROUP,
            "g",
            (OPERATION_SET, "consumer.heartbeat.rate.budget", "-1"),
            ErrorCode.INVALID_CONFIG,
            (
                "Invalid value -1 for configuration consumer.heartbeat.rate.budget: "
                "Value must be at least 0"
            ),
        ),
        (
            GROUP,
            "g",
            (OPERATION_APPEND, "log.cleanup.policy", "compact"),
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key log.cleanup.policy because its type is not LIST.",
        ),
        (
            GROUP,
            "g",
            (OPERATION_APPEND, SESSION, "45000"),
            ErrorCode.INVALID_CONFIG,
            f"Can't APPEND to key {SESSION} because its type is not LIST.",
        ),
        (
            8,
            "1",
            (OPERATION_SET, "root", "DEBUG"),
            ErrorCode.INVALID_REQUEST,
            "Log levels cannot be described or altered on this broker.",
        ),
        (
            77,
            "x",
            (OPERATION_SET, "a", "b"),
            ErrorCode.INVALID_REQUEST,
            "Unknown resource type 77.",
        ),
    ],
)
def test_what_is_wrong_is_said(
    node: Node,
    kind: int,
    name: str,
    operation: tuple[int, str, str | None],
    code: ErrorCode,
    message: str,
) -> None:
    """Each mistake has Kafka's code and a sentence, and changes nothing."""
    topic = node.create_topic("t")
    assert alter(node, kind, name, operation) == (code, message)
    assert topic.configs == {}
    assert node.broker.engine.store.broker_configs() == {}
    assert node.broker.engine.store.group_configs() == {}


def test_replacing_refuses_what_operations_refuse(node: Node) -> None:
    """AlterConfigs checks names twice and null values before it changes anything."""
    topic = node.create_topic("t", retention_ms="1")
    twice = (("retention.ms", "1"), ("retention.ms", "2"))
    invalid = ErrorCode.INVALID_REQUEST
    assert replace(node, TOPIC, "t", *twice) == (invalid, "Error due to duplicate config keys")
    assert replace(node, TOPIC, "t", ("retention.ms", None)) == (
        invalid,
        "Null value not supported for : retention.ms",
    )
    assert topic.configs == {"retention.ms": "1"}


def test_each_resource_for_itself(node: Node) -> None:
    """A resource that is there twice is refused both times; the others change."""
    a, b = node.create_topic("a"), node.create_topic("b")
    change = (OPERATION_SET, "retention.ms", "1")
    resources = [
        incremental(TOPIC, "a", change),
        incremental(TOPIC, "b", change),
        incremental(TOPIC, "a", change),
        incremental(TOPIC, "absent", change),
    ]
    answers = node.call(IncrementalAlterConfigsRequest(resources=resources)).responses
    once = "Each resource must appear at most once."
    assert [(r.resource_name, r.error_code, r.error_message) for r in answers] == [
        ("a", ErrorCode.INVALID_REQUEST, once),
        ("b", 0, None),
        ("a", ErrorCode.INVALID_REQUEST, once),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no topic 'absent'."),
    ]
    assert (a.configs, b.configs) == ({}, {"retention.ms": "1"})


@pytest.mark.parametrize("name", ["1", ""])
def test_broker_configs_reach_the_topics(make_node: Callable[..., Node], name: str) -> None:
    """An altered broker setting is the new default of topics at once and after a restart."""
    node = make_node()
    topic = node.create_topic("t")
    assert alter(node, BROKER, name, (OPERATION_SET, "log.retention.ms", "1234")) == (0, None)
    assert topic.partitions[0].log.config.retention_ms == 1234
    assert node.broker.get_int("log.retention.ms") == 1234
    node.close()
    again = make_node()
    assert again.broker.topics.get("t").partitions[0].log.config.retention_ms == 1234
    assert alter(again, BROKER, name, (OPERATION_DELETE, "log.retention.ms", None)) == (0, None)
    assert again.broker.topics.get("t").partitions[0].log.config.retention_ms == 604_800_000
    assert again.broker.engine.store.broker_configs() == {}


def test_replacing_broker_configs(node: Node) -> None:
    """AlterConfigs of a broker forgets what it does not name."""
    assert replace(node, BROKER, "1", ("log.retention.ms", "5"), ("log.roll.ms", "9")) == (0, None)
    assert replace(node, BROKER, "01", ("log.roll.ms", "8")) == (0, None)
    assert node.broker.engine.store.broker_configs() == {"1": {"log.roll.ms": "8"}}
    assert node.broker.dynamic_configs.per_broker == {"log.roll.ms": "8"}


@pytest.mark.parametrize("version", range(2))
def test_group_configs(make_node: Callable[..., Node], version: int) -> None:
    """What a group sets counts at once and after a restart, until it is deleted."""
    node = make_node()
    change = (OPERATION_SET, SESSION, "50000"), (OPERATION_SET, HEARTBEAT, "6000")
    assert alter(node, GROUP, "g", *change, version=version) == (0, None)
    assert alter(node, GROUP, "g", (OPERATION_DELETE, HEARTBEAT, None), version=version)[0] == 0
    assert node.broker.group_configs.effective("g").session_timeout_ms == 50_000
    assert node.broker.group_configs.effective("g").heartbeat_interval_ms == 5_000
    assert node.broker.group_configs.effective("other").session_timeout_ms == 45_000
    node.close()
    again = make_node()
    assert again.broker.group_configs.configs_of("g") == {SESSION: "50000"}
    assert again.broker.group_configs.effective("g").session_timeout_ms == 50_000
    assert alter(again, GROUP, "g", (OPERATION_DELETE, SESSION, None)) == (0, None)
    assert again.broker.group_configs.effective("g").session_timeout_ms == 45_000
    assert again.broker.engine.store.group_configs() == {}


def test_replacing_group_configs(node: Node) -> None:
    """AlterConfigs is served for groups too, as in Kafka, and forgets what it does not name."""
    assert replace(node, GROUP, "g", (SESSION, "50000"), (HEARTBEAT, "6000")) == (0, None)
    assert replace(node, GROUP, "g", (HEARTBEAT, "7000")) == (0, None)
    assert node.broker.engine.store.group_configs() == {"g": {HEARTBEAT: "7000"}}


def test_checking_group_configs_changes_nothing(node: Node) -> None:
    """validate_only answers as the change would, tells nobody and keeps nothing."""
    told: list[str] = []
    node.broker.group_configs.on_change = told.append
    good, bad = (OPERATION_SET, SESSION, "50000"), (OPERATION_SET, SESSION, "1")
    assert alter(node, GROUP, "g", good, validate_only=True) == (0, None)
    assert alter(node, GROUP, "g", bad, validate_only=True)[0] == ErrorCode.INVALID_CONFIG
    assert (told, node.broker.group_configs.group_ids()) == ([], [])


def test_a_session_of_a_group_is_longer_than_its_heartbeats(make_node: Callable[..., Node]) -> None:
    """Where the bounds allow both, one of the two is compared with the broker's other."""
    node = make_node(
        "group.consumer.min.session.timeout.ms=1000",
        "group.consumer.max.heartbeat.interval.ms=50000",
    )
    session = f"{SESSION} must be greater than {HEARTBEAT}"
    refused = ErrorCode.INVALID_CONFIG
    assert alter(node, GROUP, "g", (OPERATION_SET, SESSION, "5000")) == (
        refused,
        f"{session}, and 5000 is not greater than 5000.",
    )
    assert alter(node, GROUP, "g", (OPERATION_SET, HEARTBEAT, "45000"))[0] == refused
    both = (OPERATION_SET, SESSION, "50001"), (OPERATION_SET, HEARTBEAT, "50000")
    assert alter(node, GROUP, "g", *both) == (0, None)


def test_store_that_refuses(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that cannot be written down is KAFKA_STORAGE_ERROR and does not count."""
    topic = node.create_topic("t")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.broker.engine.store, "set_topic_configs", full)
    monkeypatch.setattr(node.broker.engine.store, "set_broker_configs", full)
    monkeypatch.setattr(node.broker.engine.store, "set_group_configs", full)
    storage_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert alter(node, TOPIC, "t", (OPERATION_SET, "retention.ms", "1"))[0] == storage_error
    assert alter(node, BROKER, "", (OPERATION_SET, "log.retention.ms", "1"))[0] == storage_error
    assert alter(node, GROUP, "g", (OPERATION_SET, SESSION, "50000"))[0] == storage_error
    assert topic.configs == {}
    assert topic.partitions[0].log.config.retention_ms == 604_800_000
    assert node.broker.group_configs.configs_of("g") == {}
