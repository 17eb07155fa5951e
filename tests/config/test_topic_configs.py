"""Configs of topics and brokers: which value counts, what may be set, and what a change does."""

import pytest

from anabranch.config.branch_settings import FIXED_CONFIGS
from anabranch.config.definitions import BROKER_SETTINGS, TOPIC_SETTINGS
from anabranch.config.layers import DynamicConfigs, effective_broker_value
from anabranch.config.load import Settings, load_settings
from anabranch.config.setting import DynamicMode, Scope, render
from anabranch.config.topic_config import (
    AlterOperation,
    AlterType,
    apply_operations,
    effective_topic_value,
    resolve_topic_values,
    topic_defaults,
    validate_broker_configs,
    validate_topic_configs,
)
from anabranch.model.errors import ErrorCode, KafkaError

NOTHING = DynamicConfigs()


def settings(*overrides: str) -> Settings:
    return load_settings(environ={}, overrides=overrides)


def retention_ms(*overrides: str, dynamic: DynamicConfigs = NOTHING) -> object:
    return effective_topic_value(settings(*overrides), dynamic, {}, "retention.ms")


def test_the_default_counts_when_nobody_says_anything() -> None:
    """Hours are the only spelling of retention with a default."""
    assert retention_ms() == 7 * 24 * 3_600_000


def test_the_most_exact_spelling_counts() -> None:
    """Milliseconds before minutes before hours, each brought to milliseconds."""
    assert retention_ms("log.retention.hours=2") == 7_200_000
    assert retention_ms("log.retention.hours=2", "log.retention.minutes=3") == 180_000
    assert (
        retention_ms("log.retention.hours=2", "log.retention.minutes=3", "log.retention.ms=4") == 4
    )


def test_unlimited_is_unlimited_in_any_unit() -> None:
    """-1 hours is not -3600000 milliseconds."""
    assert retention_ms("log.retention.hours=-1") == -1


def test_layers_come_in_kafkas_order() -> None:
    """Topic > altered for this broker > altered for all > given at the start > default."""
    given = settings("log.retention.ms=1")
    all_brokers = DynamicConfigs(cluster_default={"log.retention.ms": "2"})
    this_broker = DynamicConfigs({"log.retention.ms": "3"}, all_brokers.cluster_default)
    name = "retention.ms"
    assert effective_topic_value(given, NOTHING, {}, name) == 1
    assert effective_topic_value(given, all_brokers, {}, name) == 2
    assert effective_topic_value(given, this_broker, {}, name) == 3
    assert effective_topic_value(given, this_broker, {name: "4"}, name) == 4


def test_a_broker_value_has_layers_too() -> None:
    """The same order without a topic, under either name."""
    given = settings("max.connections=1", "broker.id=9")
    dynamic = DynamicConfigs({"max.connections": "3"}, {"max.connections": "2"})
    assert effective_broker_value(given, NOTHING, "max.connections") == 1
    assert effective_broker_value(given, dynamic, "max.connections") == 3
    assert effective_broker_value(given, NOTHING, "broker.id") == 9


def test_resolved_values_are_whole_and_typed() -> None:
    """The log gets every topic setting, parsed, and nothing for tests or of branch topics."""
    values = resolve_topic_values(
        settings("log.roll.hours=1", "flush.on.acks.all=true"),
        NOTHING,
        {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.25"},
    )
    assert values.keys() == TOPIC_SETTINGS.keys() - FIXED_CONFIGS - {"internal.segment.bytes"}
    assert values["segment.ms"] == 3_600_000
    assert values["flush.on.acks.all"] is True
    assert values["cleanup.policy"] == ("compact", "delete")
    assert values["min.cleanable.dirty.ratio"] == 0.25
    assert values["segment.bytes"] == 1 << 30


TIERED_STORAGE = {
    "remote.storage.enable": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "local.retention.ms": "-2",
    "local.retention.bytes": "-2",
}


def test_settings_of_tiered_storage_can_be_copied() -> None:
    """The configs of a topic of a Kafka cluster are taken as they are, whatever has no effect."""
    validate_topic_configs(TIERED_STORAGE)
    validate_topic_configs(
        TIERED_STORAGE | {"remote.log.copy.disable": "true", "local.retention.ms": "1000"}
    )
    for name, text in TIERED_STORAGE.items():
        assert render(effective_topic_value(settings(), NOTHING, {}, name)) == text


def test_tiered_storage_itself_is_refused() -> None:
    """Who asks for it is told that there is none, not that a word is wrong."""
    with pytest.raises(KafkaError) as caught:
        validate_topic_configs({"remote.storage.enable": "true"})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert caught.value.message == (
        "Invalid value true for configuration remote.storage.enable: this broker has no tiered"
        " storage and keeps every segment in its log directory; leave the setting out, and bound"
        " the log with retention.ms and retention.bytes"
    )
    with pytest.raises(KafkaError, match="Value must be at least -2"):
        validate_topic_configs({"local.retention.ms": "-3"})


def test_segments_can_be_small_in_tests() -> None:
    """`internal.segment.bytes` overrules the size of segments without its minimum."""
    assert (
        resolve_topic_values(settings(), NOTHING, {"internal.segment.bytes": "100"})[
            "segment.bytes"
        ]
        == 100
    )
    given = settings("internal.segment.bytes=200")
    assert resolve_topic_values(given, NOTHING, {})["segment.bytes"] == 200


def test_a_setting_of_another_version_is_passed_over() -> None:
    """A stored topic with a setting that is gone can still be opened."""
    values = resolve_topic_values(settings(), NOTHING, {"gone.setting": "1"})
    assert "gone.setting" not in values


def refusal(code: ErrorCode, configs: dict[str, str | None]) -> str:
    with pytest.raises(KafkaError) as caught:
        validate_topic_configs(configs)
    assert caught.value.code is code
    return caught.value.message


def test_valid_topic_configs_pass() -> None:
    """What Kafka's tools send is accepted, an empty cleanup policy included."""
    validate_topic_configs({})
    validate_topic_configs({"cleanup.policy": "", "retention.ms": "-1", "preallocate": "true"})
    validate_topic_configs({"internal.segment.bytes": "10"})


def test_bad_topic_configs_are_refused_in_kafkas_words() -> None:
    """Unknown names, null values and bad values are INVALID_CONFIG."""
    invalid = ErrorCode.INVALID_CONFIG
    assert refusal(invalid, {"retention": "1"}).startswith("Unknown topic config name: retention")
    assert "Did you mean retention.ms?" in refusal(invalid, {"retention.m": "1"})
    assert refusal(invalid, {"segment.ms": None, "flush.ms": None}) == (
        "Null value not supported for topic configs: flush.ms,segment.ms"
    )
    assert refusal(invalid, {"retention.ms": "-5"}) == (
        "Invalid value -5 for configuration retention.ms: Value must be at least -1"
    )
    assert "has 40000 characters" in refusal(invalid, {"cleanup.policy": "x" * 40_000})


def test_compaction_lags_are_compared() -> None:
    """The least may not exceed the most, wherever either comes from."""
    assert refusal(
        ErrorCode.INVALID_CONFIG, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}
    ) == ("conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (4)")
    defaults = topic_defaults(settings("log.cleaner.max.compaction.lag.ms=4"), NOTHING)
    validate_topic_configs({"min.compaction.lag.ms": "5"})
    with pytest.raises(KafkaError):
        validate_topic_configs({"min.compaction.lag.ms": "5"}, defaults)


def broker_refusal(configs: dict[str, str], *, per_broker: bool = True) -> str:
    with pytest.raises(KafkaError) as caught:
        validate_broker_configs(configs, per_broker=per_broker)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return caught.value.message


def test_dynamic_broker_configs_pass() -> None:
    """Settings that Kafka lets clients alter can be altered for one broker and for all."""
    for per_broker in (True, False):
        validate_broker_configs(
            {"log.retention.ms": "5", "message.max.bytes": "7", "max.connections": "9"},
            per_broker=per_broker,
        )


def test_read_only_broker_configs_are_refused_in_kafkas_words() -> None:
    """What takes a restart cannot be altered, under any of its names."""
    assert broker_refusal({"num.partitions": "3", "broker.id": "1"}).startswith(
        "Cannot update these configs dynamically: [broker.id, num.partitions]"
    )
    assert "[log.retention.hours]" in broker_refusal({"log.retention.hours": "3"})
    assert "[num.io.threads]" in broker_refusal({"num.io.threads": "3"})


def test_other_bad_broker_configs_are_refused() -> None:
    """Unknown names and bad values."""
    assert "Did you mean max.connections?" in broker_refusal({"max.connection": "3"})
    assert "Did you mean branch.cache.max.bytes?" in broker_refusal(
        {"max.bytes.key.range.cache": "3"}
    )
    assert broker_refusal({"max.connections": "-3"}) == (
        "Invalid value -3 for configuration max.connections: Value must be at least 0"
    )
    # A setting that may be unset is unset with DELETE; empty is no number.
    assert "Not a number of type LONG" in broker_refusal({"log.retention.ms": ""})


def test_a_setting_of_one_broker_cannot_be_set_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's third kind of setting, of which the table has none yet."""
    from dataclasses import replace

    listeners = replace(BROKER_SETTINGS["listeners"], dynamic=DynamicMode.PER_BROKER)
    monkeypatch.setitem(BROKER_SETTINGS, "listeners", listeners)
    validate_broker_configs({"listeners": "A://:1"}, per_broker=True)
    message = broker_refusal({"listeners": "A://:1"}, per_broker=False)
    assert message.endswith("broker id must be specified: [listeners]")


def alter(
    current: dict[str, str], *operations: tuple[str, int, str | None], scope: Scope = Scope.TOPIC
) -> dict[str, str]:
    return apply_operations(current, [AlterOperation(*op) for op in operations], scope)


def test_set_and_delete() -> None:
    """SET replaces, DELETE falls back, and what is not named stays."""
    current = {"retention.ms": "1", "flush.ms": "2"}
    changed = alter(
        current, ("retention.ms", 0, "9"), ("flush.ms", 1, None), ("preallocate", 1, "")
    )
    assert changed == {"retention.ms": "9"}
    assert current == {"retention.ms": "1", "flush.ms": "2"}


def test_append_and_subtract_on_a_list() -> None:
    """APPEND adds what is missing, SUBTRACT takes away, and an unset list starts as the default."""
    name = "cleanup.policy"
    assert alter({}, (name, AlterType.APPEND, "compact")) == {name: "delete,compact"}
    assert alter({name: "compact"}, (name, AlterType.APPEND, "compact, delete,delete")) == {
        name: "compact,delete"
    }
    assert alter({name: "compact,delete"}, (name, AlterType.SUBTRACT, "delete")) == {
        name: "compact"
    }
    assert alter({}, (name, AlterType.SUBTRACT, "delete,absent")) == {name: ""}
    assert alter(
        {"log.cleanup.policy": ""}, ("log.cleanup.policy", 2, "delete"), scope=Scope.BROKER
    ) == {"log.cleanup.policy": "delete"}


@pytest.mark.parametrize(
    ("operations", "code", "message"),
    [
        (
            [("retention.ms", 2, "1")],
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            [("no.such", 3, "1")],
            ErrorCode.INVALID_CONFIG,
            "Can't SUBTRACT to key no.such because its type is not LIST.",
        ),
        (
            [("flush.ms", 0, "1"), ("flush.ms", 1, None)],
            ErrorCode.INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
        (
            [("flush.ms", 0, None), ("cleanup.policy", 2, None)],
            ErrorCode.INVALID_REQUEST,
            "Null value not supported for : flush.ms, cleanup.policy",
        ),
        ([("flush.ms", 7, "1")], ErrorCode.INVALID_REQUEST, "Unknown operations type 7"),
    ],
)
def test_operations_that_make_no_sense(
    operations: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    """Each mistake in a request has Kafka's code and words."""
    with pytest.raises(KafkaError) as caught:
        alter({}, *operations)
    assert (caught.value.code, caught.value.message) == (code, message)
