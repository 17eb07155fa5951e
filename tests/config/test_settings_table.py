"""The table of settings is whole: every line is usable, consistent and in one place."""

import pytest

from anabranch.config.definitions import (
    ALIASES,
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_ALIASES,
    TOPIC_SETTINGS,
    nearest_name,
)
from anabranch.config.setting import ConfigType, InvalidValueError, Setting, parse, render

EVERY_SETTING = [
    *BROKER_SETTINGS.values(),
    *TOPIC_SETTINGS.values(),
    *GROUP_SETTINGS.values(),
]


@pytest.mark.parametrize("setting", EVERY_SETTING, ids=lambda s: f"{s.scope.value}:{s.name}")
def test_a_default_survives_being_rendered_and_parsed(setting: Setting) -> None:
    """Every default is valid and is spelled in a way that reads back as itself."""
    text = render(setting.default)
    if text is None:
        return
    assert parse(setting, text) == setting.default
    assert type(parse(setting, text)) is type(setting.default)


@pytest.mark.parametrize("setting", EVERY_SETTING, ids=lambda s: f"{s.scope.value}:{s.name}")
def test_a_setting_has_a_sentence(setting: Setting) -> None:
    """Every setting is documented, in whole sentences."""
    assert setting.documentation.endswith(".")
    assert setting.documentation[0].isupper()


@pytest.mark.parametrize(
    "topic", [*TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values()], ids=lambda s: s.name
)
def test_a_topic_default_is_the_broker_default(topic: Setting) -> None:
    """A setting of a topic or group and those of the broker behind it agree on type and default."""
    for synonym in topic.synonyms:
        broker = BROKER_SETTINGS[synonym.name]
        if synonym.factor == 1:
            assert broker.type is topic.type
    if topic.synonyms:
        defaults = [
            value * synonym.factor if isinstance(value, int) else value
            for synonym in topic.synonyms
            if (value := BROKER_SETTINGS[synonym.name].default) is not None
        ]
        assert defaults[:1] == ([] if topic.default is None else [topic.default])


def test_names_are_unique() -> None:
    """No line of the table is lost to another line of the same name."""
    from anabranch.config.branch_settings import (
        BRANCH_BROKER_SETTING_LINES,
        BRANCH_TOPIC_SETTING_LINES,
    )
    from anabranch.config.broker_settings import BROKER_SETTING_LINES
    from anabranch.config.console_settings import CONSOLE_SETTING_LINES
    from anabranch.config.consumer_group_settings import (
        CONSUMER_GROUP_SETTING_LINES,
        GROUP_RESOURCE_SETTING_LINES,
    )
    from anabranch.config.cooperative_settings import (
        COOPERATIVE_BROKER_SETTING_LINES,
        COOPERATIVE_GROUP_SETTING_LINES,
        COOPERATIVE_TOPIC_SETTING_LINES,
    )
    from anabranch.config.group_settings import GROUP_SETTING_LINES
    from anabranch.config.log_settings import LOG_SETTING_LINES
    from anabranch.config.metrics_settings import METRICS_SETTING_LINES
    from anabranch.config.topic_settings import TOPIC_SETTING_LINES
    from anabranch.config.transaction_settings import TRANSACTION_SETTING_LINES

    lines = (
        BROKER_SETTING_LINES,
        LOG_SETTING_LINES,
        GROUP_SETTING_LINES,
        METRICS_SETTING_LINES,
        CONSOLE_SETTING_LINES,
        TRANSACTION_SETTING_LINES,
        CONSUMER_GROUP_SETTING_LINES,
        BRANCH_BROKER_SETTING_LINES,
        COOPERATIVE_BROKER_SETTING_LINES,
    )
    assert len(BROKER_SETTINGS) == sum(map(len, lines))
    group_lines = (GROUP_RESOURCE_SETTING_LINES, COOPERATIVE_GROUP_SETTING_LINES)
    assert len(GROUP_SETTINGS) == sum(map(len, group_lines))
    topic_lines = (TOPIC_SETTING_LINES, BRANCH_TOPIC_SETTING_LINES, COOPERATIVE_TOPIC_SETTING_LINES)
    assert len(TOPIC_SETTINGS) == sum(map(len, topic_lines))
    assert not ALIASES.keys() & BROKER_SETTINGS.keys()
    assert not TOPIC_ALIASES.keys() & TOPIC_SETTINGS.keys()


# Read in the sources of Apache Kafka 4.x, so that an edit of our table cannot move them unseen.
KAFKA_DEFAULTS = {
    "message.max.bytes": 1048588,
    "log.segment.bytes": 1073741824,
    "log.retention.hours": 168,
    "log.index.size.max.bytes": 10485760,
    "log.cleaner.delete.retention.ms": 86400000,
    "log.message.timestamp.after.max.ms": 3600000,
    "log.flush.interval.messages": 9223372036854775807,
    "socket.request.max.bytes": 104857600,
    "fetch.max.bytes": 57671680,
    "connections.max.idle.ms": 600000,
    "producer.id.expiration.ms": 86400000,
    "compression.lz4.level": 9,
    "compression.zstd.level": 3,
    "compression.gzip.level": -1,
    "group.consumer.session.timeout.ms": 45000,
    "group.consumer.min.session.timeout.ms": 45000,
    "group.consumer.max.session.timeout.ms": 60000,
    "group.consumer.heartbeat.interval.ms": 5000,
    "group.consumer.min.heartbeat.interval.ms": 5000,
    "group.consumer.max.heartbeat.interval.ms": 15000,
    "group.consumer.max.size": 2147483647,
    "group.consumer.assignors": ("uniform", "range"),
    "group.consumer.migration.policy": "bidirectional",
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.max.assignment.interval.ms": 15000,
    "group.consumer.regex.refresh.interval.ms": 600000,
}


@pytest.mark.parametrize(("name", "default"), KAFKA_DEFAULTS.items())
def test_defaults_are_kafkas(name: str, default: object) -> None:
    """Settings that clients depend on have the defaults of Apache Kafka 4."""
    assert BROKER_SETTINGS[name].default == default


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", "week", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("segment.bytes", "1048575", "Value must be at least 1048576"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("min.cleanable.dirty.ratio", "half", "Not a number of type DOUBLE"),
        ("cleanup.policy", "shred", "String must be one of: compact, delete"),
        ("cleanup.policy", "delete,delete", "values must not be duplicated"),
        (
            "compression.type",
            "brotli",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("compression.zstd.level", "23", "Value must be no more than 22"),
    ],
)
def test_a_bad_value_is_refused_with_kafkas_reason(name: str, text: str, reason: str) -> None:
    """A value out of type or range is refused, and the reason is Kafka's."""
    with pytest.raises(InvalidValueError) as caught:
        parse(TOPIC_SETTINGS[name], text)
    assert str(caught.value) == f"Invalid value {text} for configuration {name}: {reason}"


def test_text_is_trimmed_and_lists_are_split() -> None:
    """Blanks around a value and around commas are no part of it."""
    assert parse(TOPIC_SETTINGS["retention.ms"], " +42 ") == 42
    assert parse(TOPIC_SETTINGS["preallocate"], " TRUE ") is True
    assert parse(TOPIC_SETTINGS["cleanup.policy"], " compact , delete ") == ("compact", "delete")
    assert parse(TOPIC_SETTINGS["cleanup.policy"], "") == ()


@pytest.mark.parametrize("text", ["*", "0:1", "0:1,1:2", ""])
def test_throttled_replicas_take_kafkas_forms(text: str) -> None:
    """The lists that reassignment tools write are accepted."""
    parse(TOPIC_SETTINGS["leader.replication.throttled.replicas"], text)


@pytest.mark.parametrize("text", ["0", "a:b", "*,0:1", "0:1;1:2"])
def test_throttled_replicas_refuse_other_forms(text: str) -> None:
    """What is neither `*` nor pairs of numbers is refused."""
    with pytest.raises(InvalidValueError):
        parse(TOPIC_SETTINGS["leader.replication.throttled.replicas"], text)


def test_a_typo_finds_its_name() -> None:
    """The nearest name is offered, and nothing when nothing is near."""
    assert nearest_name("num.partition", BROKER_SETTINGS) == "num.partitions"
    assert nearest_name("NUM.PARTITIONS", BROKER_SETTINGS) == "num.partitions"
    assert nearest_name("colour", BROKER_SETTINGS) is None


def test_type_numbers_are_kafkas() -> None:
    """DescribeConfigs sends these numbers."""
    assert [kind.value for kind in ConfigType] == list(range(1, 10))
    assert ConfigType.LIST == 7
