"""Reading the settings: defaults, then a properties file, the environment, and overrides.

Each layer overrules the one before it, and each value remembers where it came from. Everything
that is wrong is collected and reported at once, so that a user need not start the broker once
per mistake.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

from anabranch.config.consumer_group_bounds import conflicts, settle_bounds
from anabranch.config.definitions import (
    ALIASES,
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    nearest_name,
)
from anabranch.config.ignored import UNPROTECTED, is_ignored
from anabranch.config.listeners import resolve_listeners
from anabranch.config.serve_flags import SERVE_FLAGS
from anabranch.config.setting import ConfigType, InvalidValueError, Setting, parse, render
from anabranch.config.settings import ConfigError, GivenValue, Layer, Origin, Settings

__all__ = ["ConfigError", "Layer", "Origin", "Settings", "environment_name", "load_settings"]

# Variables that Kafka's scripts and images read for themselves. They are not settings, and
# whoever swaps the image keeps them around. Compiled at first use: most brokers start without.
_SCRIPT_VARIABLES = (
    r"KAFKA_(OPTS|HEAP_OPTS|GC_LOG_OPTS|JVM_\w+|JMX_\w+|LOG4J\w*|TOOLS_LOG4J\w*|VERSION"
    r"|SCALA_VERSION|HOME|DEBUG)"
)
# Kubernetes sets these for every Service whose name starts with "kafka".
_KUBERNETES_VARIABLES = (
    r"KAFKA_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)"
)

_TYPE_WORDS = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a string",
    ConfigType.INT: "a whole number of 32 bits",
    ConfigType.SHORT: "a whole number of 16 bits",
    ConfigType.LONG: "a whole number of 64 bits",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list with commas between",
    ConfigType.CLASS: "the name of a class",
    ConfigType.PASSWORD: "a secret",
}


@dataclass(slots=True)
class _Findings:
    """What the layers said, in their order, and what was wrong with it."""

    texts: dict[str, tuple[str, Origin]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)


def load_settings(
    *,
    properties_path: str | PathLike[str] | None = None,
    environ: Mapping[str, str],
    overrides: Sequence[str] = (),
) -> Settings:
    """Read all layers; raises `ConfigError` when the broker cannot start with them.

    `overrides` are `name=value`, where the name may also be a flag of `anabranch serve`.
    """
    findings = _Findings()
    if properties_path is not None:
        pairs = _read_properties(properties_path, findings)
        _add_layer(findings, pairs, Layer.FILE)
    _add_layer(findings, _environment_pairs(environ), Layer.ENVIRONMENT)
    _add_layer(findings, _override_pairs(overrides, findings), Layer.OVERRIDE)

    given: dict[str, GivenValue] = {}
    for name, (text, origin) in findings.texts.items():
        setting = BROKER_SETTINGS[name]
        try:
            given[name] = GivenValue(text, parse(setting, text), origin)
        except InvalidValueError as error:
            findings.problems.append(_explain(setting, error, origin))
    if findings.problems:
        raise ConfigError(*findings.problems)

    settle_bounds(given)
    settings = Settings(given, tuple(findings.warnings), tuple(findings.infos))
    _check_together(settings)
    return settings


def environment_name(name: str) -> str:
    """The variable that gives a setting, in the spelling of Kafka's official image."""
    spelled = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return "KAFKA_" + spelled.upper()


def _setting_name(variable: str) -> str:
    """The setting that a variable gives: the way back from `environment_name`."""
    spelled = variable.removeprefix("KAFKA_").lower().replace("_", ".")
    return spelled.replace("...", "-").replace("..", "_")


def _environment_pairs(environ: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    for variable in sorted(environ):
        if variable == "CLUSTER_ID":
            # The official image takes the cluster id under this name.
            yield "cluster.id", environ[variable], variable
        elif (
            variable.startswith("KAFKA_")
            and not re.fullmatch(_SCRIPT_VARIABLES, variable)
            and not re.fullmatch(_KUBERNETES_VARIABLES, variable)
        ):
            yield _setting_name(variable), environ[variable], variable


def _override_pairs(
    overrides: Sequence[str], findings: _Findings
) -> Iterable[tuple[str, str, str]]:
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            findings.problems.append(
                f"--override {override!r} is not a setting, because it has no '=' after a name. "
                "Write it as --override num.partitions=3."
            )
            continue
        name = name.strip()
        if name in SERVE_FLAGS:
            yield SERVE_FLAGS[name], text, name
        else:
            yield name, text, "--override"


def _read_properties(
    path: str | PathLike[str], findings: _Findings
) -> Iterable[tuple[str, str, str]]:
    from javaproperties import InvalidUEscapeError, KeyValue, parse  # only a file pays for it

    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}. "
            "Give the path of a properties file, or none to start with the defaults."
        ) from None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        # Java's own reading of a properties file. UTF-8 is tried first because that is what
        # editors write today, and ASCII is the same in both.
        text = content.decode("latin-1")
    pairs: dict[str, tuple[str, str, str]] = {}
    try:
        for item in parse(text):
            if not isinstance(item, KeyValue):
                continue
            if item.key in pairs:
                findings.warnings.append(
                    f"{path}: {item.key} is there twice; the last one counts. Remove the other."
                )
            pairs[item.key] = (item.key, item.value, str(path))
    except InvalidUEscapeError as error:
        raise ConfigError(
            f"{path} has a broken escape: {error}. Write \\u and four hexadecimal digits, or "
            "double the backslash."
        ) from None
    return pairs.values()


def _add_layer(findings: _Findings, pairs: Iterable[tuple[str, str, str]], layer: Layer) -> None:
    written: dict[str, tuple[str, str]] = {}
    for key, text, place in pairs:
        name = ALIASES.get(key, key)
        if name in BROKER_SETTINGS:
            other_key, other_text = written.get(name, (key, text))
            if other_key != key and other_text.strip() != text.strip():
                findings.problems.append(
                    f"{place}: {key}={text} contradicts {other_key}={other_text}, because they "
                    f"are two names of one setting. Keep {name} and remove the other."
                )
            written[name] = (key, text)
            if text.strip() or BROKER_SETTINGS[name].default is not None:
                findings.texts[name] = (text, Origin(layer, place))
            elif layer is not Layer.ENVIRONMENT:
                # Empty is how a later layer takes back what an earlier one set. A variable may
                # also be empty because a compose file passes on what nobody set.
                findings.texts.pop(name, None)
        elif key in TOPIC_SETTINGS:
            findings.warnings.append(_about_topic_setting(key, place))
        elif key in UNPROTECTED and text.strip():
            findings.warnings.append(
                f"{place}: {key} has no effect here, so every client may do everything. Keep the "
                "listeners on a network you trust."
            )
        elif is_ignored(key):
            findings.infos.append(f"{place}: {key} is a setting of Kafka that has no effect here.")
        else:
            nearest = nearest_name(key, BROKER_SETTINGS)
            advice = f"Did you mean {nearest}?" if nearest else "It has no effect."
            findings.warnings.append(f"{place}: {key} is not a setting. {advice}")


def _about_topic_setting(key: str, place: str) -> str:
    synonyms = TOPIC_SETTINGS[key].synonyms
    advice = (
        f"Its default for all topics is set with {synonyms[0].name}."
        if synonyms
        else "Set it on the topic."
    )
    return f"{place}: {key} is a setting of topics and has no effect on a broker. {advice}"


def _explain(setting: Setting, error: InvalidValueError, origin: Origin) -> str:
    """What, why, next step."""
    takes = _TYPE_WORDS[setting.type]
    if setting.rule is not None:
        takes += f": {setting.rule.text}"
    default = render(setting.default)
    advice = f"It takes {takes}" + (f". The default is {default}." if default else ".")
    return f"{origin}: {setting.name}={error.text} cannot be used: {error.reason}. {advice}"


def _check_together(settings: Settings) -> None:
    """Values that are each valid and contradict each other."""
    problems: list[str] = []
    try:
        # Only the mistakes matter here; the host name, which may be slow to find out, does not.
        resolve_listeners(settings, hostname=lambda: "localhost")
    except ConfigError as error:
        problems += error.problems
    queued = settings.get_int("queued.max.request.bytes")
    largest = settings.get_int("socket.request.max.bytes")
    if 0 < queued < largest:
        problems.append(
            f"{settings.source('queued.max.request.bytes')}: queued.max.request.bytes={queued} is "
            f"less than socket.request.max.bytes={largest}, so the largest request could never "
            "be read. Raise the first or lower the second."
        )
    least = settings.get_int("log.cleaner.min.compaction.lag.ms")
    most = settings.get_int("log.cleaner.max.compaction.lag.ms")
    if least > most:
        problems.append(
            f"{settings.source('log.cleaner.min.compaction.lag.ms')}: "
            f"log.cleaner.min.compaction.lag.ms={least} is more than "
            f"log.cleaner.max.compaction.lag.ms={most}, so no record could ever be compacted in "
            "time. Lower the first or raise the second."
        )
    problems += conflicts(settings)
    if problems:
        raise ConfigError(*problems)
