"""What DescribeConfigs answers: a row for each setting, with every value that stands behind it."""

from collections.abc import Collection
from dataclasses import dataclass

from anabranch.config.branch_settings import COMMIT_SOURCE_CONFIG, FIXED_CONFIGS
from anabranch.config.definitions import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS
from anabranch.config.layers import (
    ConfigSource,
    DynamicConfigs,
    GroupOverrides,
    LayeredValue,
    TopicOverrides,
    broker_values,
    effective_broker_value,
    effective_group_value,
    effective_topic_value,
    resource_values,
)
from anabranch.config.setting import ConfigType, DynamicMode, Setting, render
from anabranch.config.settings import Settings

# Kafka shows the other spellings of a time behind each of them.
_SPELLINGS = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
)


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value that stands behind a setting; hidden when the setting is sensitive."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One setting as DescribeConfigs shows it."""

    name: str
    value: str | None
    read_only: bool
    is_default: bool
    sensitive: bool
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    documentation: str


def describe_topic(
    settings: Settings,
    dynamic: DynamicConfigs,
    overrides: TopicOverrides,
    names: Collection[str] | None = None,
) -> list[ConfigRow]:
    """The configs of a topic; `names` limits the answer, and unknown ones are left out."""
    settable = TOPIC_SETTINGS.keys() - FIXED_CONFIGS - {COMMIT_SOURCE_CONFIG}
    return _topic_rows(settings, dynamic, overrides, settable, settable, names)


def describe_branch_topic(
    settings: Settings,
    dynamic: DynamicConfigs,
    overrides: TopicOverrides,
    names: Collection[str] | None = None,
) -> list[ConfigRow]:
    """The configs of a branch topic; `overrides` are its own and those of its source.

    What holds for the records is the source's, and is shown as what it is there.
    """
    settable = {COMMIT_SOURCE_CONFIG}
    return _topic_rows(settings, dynamic, overrides, TOPIC_SETTINGS, settable, names)


def _topic_rows(
    settings: Settings,
    dynamic: DynamicConfigs,
    overrides: TopicOverrides,
    shown: Collection[str],
    settable: Collection[str],
    names: Collection[str] | None,
) -> list[ConfigRow]:
    rows = []
    for setting in TOPIC_SETTINGS.values():
        if setting.name not in shown or (names is not None and setting.name not in names):
            continue
        values = resource_values(settings, dynamic, overrides, setting)
        if setting.internal and not values:
            continue
        value = render(effective_topic_value(settings, dynamic, overrides, setting.name))
        read_only = setting.name not in settable
        rows.append(_row(setting, setting.name, value, values, read_only=read_only))
    return rows


def describe_group(
    settings: Settings,
    dynamic: DynamicConfigs,
    overrides: GroupOverrides,
    names: Collection[str] | None = None,
) -> list[ConfigRow]:
    """The configs of a group, which need not exist; its values as they were set."""
    rows = []
    for setting in GROUP_SETTINGS.values():
        if names is not None and setting.name not in names:
            continue
        values = resource_values(settings, dynamic, overrides, setting)
        value = render(effective_group_value(settings, dynamic, overrides, setting.name))
        rows.append(_row(setting, setting.name, value, values, read_only=False))
    return rows


def describe_broker(
    settings: Settings, dynamic: DynamicConfigs, names: Collection[str] | None = None
) -> list[ConfigRow]:
    """The configs of this broker."""
    rows = []
    for setting in BROKER_SETTINGS.values():
        value = render(effective_broker_value(settings, dynamic, setting.name))
        for name in (setting.name, *setting.aliases):
            if names is not None and name not in names:
                continue
            values = broker_values(settings, dynamic, _spellings(setting.name))
            # A coarser spelling says nothing about this one while this one is not set.
            while values and values[0].name != setting.name:
                values.pop(0)
            if setting.internal and not values:
                continue
            # What can be altered is altered under its first name.
            read_only = setting.dynamic is DynamicMode.READ_ONLY or name != setting.name
            rows.append(_row(setting, name, value, values, read_only=read_only))
    return rows


def describe_cluster_default(
    dynamic: DynamicConfigs, names: Collection[str] | None = None
) -> list[ConfigRow]:
    """What was altered for all brokers: the answer for a broker without a name."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _row(setting, name, text, [LayeredValue(name, text, source)], read_only=False)
        for name, text in sorted(dynamic.cluster_default.items())
        if (names is None or name in names) and (setting := BROKER_SETTINGS.get(name))
    ]


def _spellings(name: str) -> tuple[str, ...]:
    if name == "log.flush.interval.ms":
        # One way only: the scheduler's interval is a setting of its own.
        return name, "log.flush.scheduler.interval.ms"
    return next((group for group in _SPELLINGS if name in group), (name,))


def _row(
    setting: Setting, name: str, value: str | None, values: list[LayeredValue], *, read_only: bool
) -> ConfigRow:
    hidden = setting.sensitive
    source = values[0].source if values else ConfigSource.DEFAULT_CONFIG
    return ConfigRow(
        name=name,
        value=None if hidden else value,
        read_only=read_only,
        is_default=source is ConfigSource.DEFAULT_CONFIG,
        sensitive=hidden,
        source=source,
        synonyms=tuple(
            ConfigSynonym(
                name if layered.name == setting.name else layered.name,
                None if hidden else layered.text,
                layered.source,
            )
            for layered in values
        ),
        type=setting.type,
        documentation=setting.documentation,
    )
