"""Which of several values counts: a resource's own, one that a client altered, the file's, or none.

The order is Kafka's: the own value of the topic or group, then what was altered for this broker,
then what was altered for all brokers, then what the broker was started with, then the default. A
setting with several broker settings behind it asks all of them within each layer. Everything that
needs a value of a topic or group, and DescribeConfigs, which shows the whole list, goes through
here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from anabranch.config.definitions import ALIASES, BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS
from anabranch.config.setting import Scope, Setting, SetValue, Synonym, Value, parse, render
from anabranch.config.settings import Settings

TopicOverrides = Mapping[str, str]
"""What one topic sets for itself, as the client spelled it."""

GroupOverrides = Mapping[str, str]
"""What one group sets for itself, as the client spelled it."""


class ConfigSource(IntEnum):
    """Kafka's numbers for where a value comes from."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


_OWN_SOURCES = {
    Scope.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    Scope.GROUP: ConfigSource.DYNAMIC_GROUP_CONFIG,
}


@dataclass(frozen=True, slots=True)
class DynamicConfigs:
    """What clients altered while the broker runs, by setting, as they spelled it."""

    per_broker: Mapping[str, str] = field(default_factory=dict)
    cluster_default: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayeredValue:
    """One of the values that a setting has; the first in its list is the one that counts."""

    name: str
    text: str
    source: ConfigSource


def broker_values(
    settings: Settings, dynamic: DynamicConfigs, names: Iterable[str]
) -> list[LayeredValue]:
    """All values of some broker settings, those of a stronger layer first."""
    names = tuple(names)
    values = [
        LayeredValue(name, layer[name], source)
        for layer, source in (
            (dynamic.per_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (dynamic.cluster_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        )
        for name in names
        if name in layer
    ]
    values += [
        LayeredValue(name, given.text, ConfigSource.STATIC_BROKER_CONFIG)
        for name in names
        if (given := settings.given.get(name)) is not None
    ]
    values += [
        LayeredValue(name, default, ConfigSource.DEFAULT_CONFIG)
        for name in names
        if (default := render(BROKER_SETTINGS[name].default)) is not None
    ]
    return values


def resource_values(
    settings: Settings, dynamic: DynamicConfigs, overrides: Mapping[str, str], setting: Setting
) -> list[LayeredValue]:
    """All values of a setting of a topic or group, the one that counts first."""
    values = broker_values(settings, dynamic, (synonym.name for synonym in setting.synonyms))
    own = overrides.get(setting.name)
    if own is not None:
        text = render(parse(setting, own)) or ""
        values.insert(0, LayeredValue(setting.name, text, _OWN_SOURCES[setting.scope]))
    return values


def effective_broker_value(settings: Settings, dynamic: DynamicConfigs, name: str) -> Value:
    """The value of a broker setting with what clients altered taken into account."""
    name = ALIASES.get(name, name)
    for layer in (dynamic.per_broker, dynamic.cluster_default):
        if name in layer:
            return parse(BROKER_SETTINGS[name], layer[name])
    return settings.value(name)


def effective_topic_value(
    settings: Settings, dynamic: DynamicConfigs, overrides: TopicOverrides, name: str
) -> Value:
    """The value of a topic setting for a topic with these overrides."""
    setting = TOPIC_SETTINGS[name]
    return _counting_value(setting, resource_values(settings, dynamic, overrides, setting))


def effective_group_value(
    settings: Settings, dynamic: DynamicConfigs, overrides: GroupOverrides, name: str
) -> Value:
    """The value of a group setting for a group with these overrides, as it was set."""
    setting = GROUP_SETTINGS[name]
    return _counting_value(setting, resource_values(settings, dynamic, overrides, setting))


def _counting_value(setting: Setting, values: list[LayeredValue]) -> Value:
    if not values:
        return setting.default
    first = values[0]
    if first.source is _OWN_SOURCES[setting.scope]:
        return parse(setting, first.text)
    value = parse(BROKER_SETTINGS[first.name], first.text)
    return _convert(value, next(s for s in setting.synonyms if s.name == first.name))


def _convert(value: Value, synonym: Synonym) -> Value:
    """Bring a broker's value to the unit of the topic setting. -1 is no limit in any unit."""
    if synonym.factor == 1 or not isinstance(value, int) or value < 0:
        return value
    return value * synonym.factor


def topic_defaults(settings: Settings, dynamic: DynamicConfigs) -> dict[str, Value]:
    """The values of a topic that sets nothing for itself."""
    return {name: effective_topic_value(settings, dynamic, {}, name) for name in TOPIC_SETTINGS}


def overlay_topic_values(
    defaults: Mapping[str, Value], overrides: TopicOverrides
) -> dict[str, Value]:
    """The values of a topic, from `topic_defaults`; cheap enough for thousands of topics."""
    values = dict(defaults)
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        # A topic may still carry a setting that another version of the broker knew.
        if setting is not None:
            values[name] = parse(setting, text)
    return values


def resolve_topic_values(
    settings: Settings, dynamic: DynamicConfigs, overrides: TopicOverrides
) -> dict[str, SetValue]:
    """What the log of a topic is configured with: every topic setting, parsed.

    `internal.segment.bytes` has done its work here: it is gone, and `segment.bytes` has its value.
    """
    return for_log(overlay_topic_values(topic_defaults(settings, dynamic), overrides))


def for_log(values: Mapping[str, Value]) -> dict[str, SetValue]:
    """Drop what is not set, and let `internal.segment.bytes` overrule `segment.bytes`."""
    resolved = {name: value for name, value in values.items() if value is not None}
    small_segment = resolved.pop("internal.segment.bytes", None)
    if small_segment is not None:
        resolved["segment.bytes"] = small_segment
    return resolved
