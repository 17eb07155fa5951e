"""Changing configs: what a client may set on a topic or a broker, and what a change amounts to.

All functions are pure: they take the configs there are and return the configs there would be, or
raise the error that the client will see. Codes and reasons are Kafka's, because its tools show
them to people who know them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeVar

from anabranch.config.definitions import (
    ALIASES,
    BROKER_SETTINGS,
    TABLES,
    TOPIC_ALIASES,
    TOPIC_SETTINGS,
    nearest_name,
)
from anabranch.config.ignored import is_ignored
from anabranch.config.layers import (
    TopicOverrides,
    effective_topic_value,
    for_log,
    overlay_topic_values,
    resolve_topic_values,
    topic_defaults,
)
from anabranch.config.setting import (
    ConfigType,
    DynamicMode,
    InvalidValueError,
    Scope,
    Setting,
    Value,
    parse,
    render,
)
from anabranch.model.errors import ErrorCode, KafkaError

__all__ = [
    "AlterOperation",
    "AlterType",
    "TopicOverrides",
    "apply_operations",
    "effective_topic_value",
    "for_log",
    "name_hint",
    "overlay_topic_values",
    "parse_or_refuse",
    "resolve_topic_values",
    "topic_defaults",
    "validate_broker_configs",
    "validate_topic_configs",
    "with_own_names",
]

_TEXT_LIMIT = 32767
"""The longest value that Kafka keeps."""


class AlterType(IntEnum):
    """The operations of IncrementalAlterConfigs, with their numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterOperation:
    """One change as a client asks for it; `type` is a number because it may be none we know."""

    name: str
    type: int
    value: str | None


T = TypeVar("T")


def with_own_names(configs: Mapping[str, T]) -> dict[str, T]:
    """What a topic would set, each setting under the name that is kept."""
    return {TOPIC_ALIASES.get(name, name): value for name, value in configs.items()}


def validate_topic_configs(
    configs: Mapping[str, str | None], defaults: Mapping[str, Value] | None = None
) -> None:
    """Check what a topic would set for itself, when it is created or altered.

    `defaults` are the values it would get otherwise (see `topic_defaults`); without them Kafka's
    own defaults stand in for those settings that are compared with each other.
    """
    values: dict[str, Value] = {}
    absent = sorted(name for name, text in configs.items() if text is None)
    if absent:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(absent)}",
        )
    for name, text in configs.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Unknown topic config name: {name}{name_hint(name, TOPIC_SETTINGS)}",
            )
        values[name] = parse_or_refuse(setting, text or "", ErrorCode.INVALID_CONFIG)
    _check_compaction_lags(values, defaults or {})


def _check_compaction_lags(values: Mapping[str, Value], defaults: Mapping[str, Value]) -> None:
    least_name, most_name = "min.compaction.lag.ms", "max.compaction.lag.ms"
    least, most = (
        values.get(name, defaults.get(name, TOPIC_SETTINGS[name].default))
        for name in (least_name, most_name)
    )
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting {least_name} ({least}) > {most_name} ({most})",
        )


def validate_broker_configs(configs: Mapping[str, str], *, per_broker: bool) -> None:
    """Check what clients would have altered on this broker, or (`per_broker=False`) on all.

    Kafka answers INVALID_REQUEST where it answers INVALID_CONFIG for topics, and so do we.
    """
    fixed = sorted(name for name in configs if _is_fixed(name))
    if fixed:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: [{', '.join(fixed)}]. "
            "Set them where the broker is started, and restart it.",
        )
    for name, text in configs.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unknown broker config name: {name}{name_hint(name, BROKER_SETTINGS)}",
            )
        parse_or_refuse(setting, text, ErrorCode.INVALID_REQUEST)
    if not per_broker:
        single = sorted(
            name for name in configs if BROKER_SETTINGS[name].dynamic is DynamicMode.PER_BROKER
        )
        if single:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Cannot update these configs at default cluster level, broker id must be "
                f"specified: [{', '.join(single)}]",
            )


def _is_fixed(name: str) -> bool:
    setting = BROKER_SETTINGS.get(ALIASES.get(name, name))
    if setting is None:
        # A setting of Kafka that has no effect here cannot be altered to any effect either.
        return is_ignored(name)
    return setting.dynamic is DynamicMode.READ_ONLY


def apply_operations(
    current: Mapping[str, str], operations: Sequence[AlterOperation], scope: Scope
) -> dict[str, str]:
    """The configs after an IncrementalAlterConfigs; `current` is left as it is.

    The result still has to be validated as a whole.
    """
    table = TABLES[scope]
    if scope is Scope.TOPIC:
        operations = [
            replace(operation, name=TOPIC_ALIASES.get(operation.name, operation.name))
            for operation in operations
        ]
    names = [operation.name for operation in operations]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    absent = [op.name for op in operations if op.type != AlterType.DELETE and op.value is None]
    if absent:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(absent)}"
        )
    result = dict(current)
    for operation in operations:
        if operation.type == AlterType.SET:
            result[operation.name] = operation.value or ""
        elif operation.type == AlterType.DELETE:
            result.pop(operation.name, None)
        elif operation.type in (AlterType.APPEND, AlterType.SUBTRACT):
            result[operation.name] = _alter_list(result, operation, table)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation.type}")
    return result


def _alter_list(
    current: Mapping[str, str], operation: AlterOperation, table: Mapping[str, Setting]
) -> str:
    """Append to or subtract from a list; one that is not set starts as the default."""
    setting = table.get(operation.name)
    if setting is None or setting.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {AlterType(operation.type).name} to key {operation.name} because its type is "
            "not LIST.",
        )
    text = current.get(operation.name)
    if text is None:
        text = render(setting.default) or ""
    parts = [part for part in _split(text) if part]
    changed = _split(operation.value or "")
    if operation.type == AlterType.APPEND:
        parts += [part for part in dict.fromkeys(changed) if part not in parts]
    else:
        parts = [part for part in parts if part not in changed]
    return ",".join(parts)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def parse_or_refuse(setting: Setting, text: str, code: ErrorCode) -> Value:
    """The value that a client's text stands for, or the error that the client will see."""
    if len(text) > _TEXT_LIMIT:
        raise KafkaError(
            code,
            f"The value of {setting.name} has {len(text)} characters, and no configuration value "
            f"may have more than {_TEXT_LIMIT}.",
        )
    try:
        return parse(setting, text)
    except InvalidValueError as error:
        raise KafkaError(code, str(error)) from None


def name_hint(name: str, table: dict[str, Setting]) -> str:
    """The end of a sentence about a name that does not exist."""
    other = ALIASES.get(name)
    nearest = other if other in table else nearest_name(name, table)
    return f". Did you mean {nearest}?" if nearest else ""
