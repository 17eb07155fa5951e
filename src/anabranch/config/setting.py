"""What a setting is: a name, a type, a default, a rule, a sentence.

Values live in three forms. Text is what a file, a variable or a client gives; a parsed `Value`
is what the broker computes with; rendered text is what DescribeConfigs answers. `parse` and
`render` are the only ways between them, so that all three spell a value alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum

SetValue = bool | int | float | str | tuple[str, ...]
Value = SetValue | None
"""None is a setting without a default that nobody set; no text is parsed to it."""


class ConfigType(IntEnum):
    """Kafka's types of settings, with the numbers that DescribeConfigs sends."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Scope(Enum):
    """Which resource a setting belongs to."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"


class DynamicMode(Enum):
    """Whether a broker setting can be changed while the broker runs, and for how many brokers."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Rule:
    """Which values are valid: `check` answers why a value is not, `text` says it on the page."""

    check: Callable[[Value], str | None]
    text: str


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting behind one of a topic or a group, times `factor` for other units."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table."""

    name: str
    type: ConfigType
    default: Value
    documentation: str
    scope: Scope
    subject: str
    importance: Importance = Importance.MEDIUM
    dynamic: DynamicMode = DynamicMode.READ_ONLY
    rule: Rule | None = None
    synonyms: tuple[Synonym, ...] = ()
    aliases: tuple[str, ...] = ()
    internal: bool = False
    """For tests: left out of the page and, unless it is set, of DescribeConfigs."""
    ours: bool = False
    """Apache Kafka has no such setting."""

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD


class InvalidValueError(ValueError):
    """A value that its setting cannot take; `reason` says why, without the name and the value."""

    def __init__(self, setting: Setting, text: str, reason: str) -> None:
        shown = "[hidden]" if setting.sensitive else text
        super().__init__(f"Invalid value {shown} for configuration {setting.name}: {reason}")
        self.setting = setting
        self.text = shown
        self.reason = reason


_INTEGER_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def parse(setting: Setting, text: str) -> SetValue:
    """Turn text into a checked value, with the trimming and the number ranges of Kafka's types."""
    value = _parse_type(setting, text)
    if setting.rule is not None:
        reason = setting.rule.check(value)
        if reason is not None:
            raise InvalidValueError(setting, text, reason)
    return value


def _parse_type(setting: Setting, text: str) -> SetValue:
    trimmed = text.strip()
    kind = setting.type
    if kind in _INTEGER_BITS:
        return _parse_integer(setting, text, trimmed)
    if kind is ConfigType.BOOLEAN:
        lowered = trimmed.lower()
        if lowered not in ("true", "false"):
            raise InvalidValueError(setting, text, "Expected value to be either true or false")
        return lowered == "true"
    if kind is ConfigType.DOUBLE:
        return _parse_double(setting, text, trimmed)
    if kind is ConfigType.LIST:
        return tuple(part.strip() for part in trimmed.split(",")) if trimmed else ()
    return trimmed


def _parse_integer(setting: Setting, text: str, trimmed: str) -> int:
    digits = trimmed[1:] if trimmed[:1] in ("-", "+") else trimmed
    # int() alone would also take "1_000" and digits of other scripts, which Kafka refuses. The
    # length check keeps a megabyte of digits from being converted at all.
    if digits.isascii() and digits.isdigit() and len(digits) <= 19:
        value = int(trimmed)
        limit = 1 << (_INTEGER_BITS[setting.type] - 1)
        if -limit <= value < limit:
            return value
    raise InvalidValueError(setting, text, f"Not a number of type {setting.type.name}")


def _parse_double(setting: Setting, text: str, trimmed: str) -> float:
    try:
        value = float(trimmed) if "_" not in trimmed else float("nan")
    except ValueError:
        value = float("nan")
    if value != value:
        raise InvalidValueError(setting, text, "Not a number of type DOUBLE")
    return value


def render(value: Value) -> str | None:
    """Spell a value as Kafka does in DescribeConfigs: lists joined by commas, booleans lower."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
