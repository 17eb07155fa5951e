"""The broker's settings as they were given at the start, each with where it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from anabranch.config.definitions import ALIASES, BROKER_SETTINGS
from anabranch.config.setting import SetValue, Value


class Layer(IntEnum):
    """Where a value can come from; a higher layer overrules a lower one."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    OVERRIDE = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """The layer of a value, and in words the file, the variable or the option that gave it."""

    layer: Layer
    place: str

    def __str__(self) -> str:
        return self.place


DEFAULT_ORIGIN = Origin(Layer.DEFAULT, "default")


class ConfigError(Exception):
    """Settings that the broker cannot start with, one sentence for each problem."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value that somebody gave, as written and as understood."""

    text: str
    value: SetValue
    origin: Origin


@dataclass(frozen=True, slots=True)
class Settings:
    """Typed access to the settings of one broker. They do not change while it runs; what
    clients alter is kept apart and layered over them (see `layers`)."""

    given: Mapping[str, GivenValue] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """Probable mistakes: names that neither this broker nor Kafka knows, lines given twice."""
    infos: tuple[str, ...] = ()
    """Settings of Kafka that have no effect here."""

    def value(self, name: str) -> Value:
        name = ALIASES.get(name, name)
        given = self.given.get(name)
        return BROKER_SETTINGS[name].default if given is None else given.value

    def source(self, name: str) -> Origin:
        given = self.given.get(ALIASES.get(name, name))
        return DEFAULT_ORIGIN if given is None else given.origin

    def is_set(self, name: str) -> bool:
        """Whether anybody gave the setting, even if they gave its default."""
        return ALIASES.get(name, name) in self.given

    def get_int(self, name: str) -> int:
        value = self.value(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise TypeError(f"{name} is {value!r}, not an integer")

    def get_float(self, name: str) -> float:
        value = self.value(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise TypeError(f"{name} is {value!r}, not a number")

    def get_bool(self, name: str) -> bool:
        value = self.value(name)
        if isinstance(value, bool):
            return value
        raise TypeError(f"{name} is {value!r}, not a boolean")

    def get_str(self, name: str) -> str:
        value = self.value(name)
        if isinstance(value, str):
            return value
        raise TypeError(f"{name} is {value!r}, not a string")

    def get_optional_str(self, name: str) -> str | None:
        """The string, or None for a setting without a default that nobody set."""
        return None if self.value(name) is None else self.get_str(name)

    def get_list(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        if isinstance(value, tuple):
            return value
        raise TypeError(f"{name} is {value!r}, not a list")

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The data folders: `log.dirs`, or else `log.dir`."""
        return self.get_list("log.dir" if self.value("log.dirs") is None else "log.dirs")
