"""The broker's settings of the log: defaults for topics, and what keeps all logs in order.

A broker setting that is nothing but the default of one topic setting is made from that topic
setting. The times that have several spellings (`log.retention.ms`, `.minutes`, `.hours`) are
written out: their more exact spellings have no default, so that the coarser ones can speak.
"""

from dataclasses import replace

from anabranch.config.rules import at_least, at_least_or_unlimited
from anabranch.config.setting import (
    ConfigType,
    DynamicMode,
    Importance,
    Rule,
    Scope,
    Setting,
    Value,
)
from anabranch.config.topic_settings import (
    FLUSHING,
    LONG_MAX,
    RETENTION,
    SEGMENTS,
    TOPIC_SETTING_LINES,
)


def _log(
    subject: str,
    name: str,
    kind: ConfigType,
    default: Value,
    rule: Rule | None,
    documentation: str,
    *,
    importance: Importance = Importance.MEDIUM,
    dynamic: DynamicMode = DynamicMode.READ_ONLY,
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        documentation=documentation,
        scope=Scope.BROKER,
        subject=subject,
        importance=importance,
        dynamic=dynamic,
        rule=rule,
    )


def _default_of(topic: Setting) -> Setting:
    """The broker setting that says what topics get that do not set `topic` themselves."""
    return replace(
        topic,
        name=topic.synonyms[0].name,
        scope=Scope.BROKER,
        synonyms=(),
        documentation=f"{topic.documentation} Default of the topic setting `{topic.name}`.",
    )


# Kafka lets clients change only the most exact spelling of each time while the broker runs.
_TIME_SETTINGS = (
    _log(
        RETENTION,
        "log.retention.ms",
        ConfigType.LONG,
        None,
        at_least_or_unlimited(1),
        "How long a segment is kept after its newest record, in milliseconds; -1 keeps it for "
        "ever. Without it `log.retention.minutes` counts, and then `log.retention.hours`. "
        "Default of the topic setting `retention.ms`.",
        importance=Importance.HIGH,
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
    _log(
        RETENTION,
        "log.retention.minutes",
        ConfigType.INT,
        None,
        at_least_or_unlimited(1),
        "The same in minutes; unused when `log.retention.ms` is set.",
        importance=Importance.HIGH,
    ),
    _log(
        RETENTION,
        "log.retention.hours",
        ConfigType.INT,
        168,
        at_least_or_unlimited(1),
        "The same in hours; unused when `log.retention.ms` or `log.retention.minutes` is set.",
        importance=Importance.HIGH,
    ),
    _log(
        SEGMENTS,
        "log.roll.ms",
        ConfigType.LONG,
        None,
        at_least(1),
        "How old a segment may become before the log starts the next one, in milliseconds. "
        "Without it `log.roll.hours` counts. Default of the topic setting `segment.ms`.",
        importance=Importance.HIGH,
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
    _log(
        SEGMENTS,
        "log.roll.hours",
        ConfigType.INT,
        168,
        at_least(1),
        "The same in hours; unused when `log.roll.ms` is set.",
        importance=Importance.HIGH,
    ),
    _log(
        SEGMENTS,
        "log.roll.jitter.ms",
        ConfigType.LONG,
        None,
        at_least(0),
        "The most that is taken off the age of a segment at random, in milliseconds. Without it "
        "`log.roll.jitter.hours` counts. Default of the topic setting `segment.jitter.ms`.",
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
    _log(
        SEGMENTS,
        "log.roll.jitter.hours",
        ConfigType.INT,
        0,
        at_least(0),
        "The same in hours; unused when `log.roll.jitter.ms` is set.",
    ),
    _log(
        FLUSHING,
        "log.flush.interval.ms",
        ConfigType.LONG,
        None,
        at_least(0),
        "How long a record may stay in the page cache before its partition is fsynced. Without "
        "it `log.flush.scheduler.interval.ms` counts. Default of the topic setting `flush.ms`.",
        importance=Importance.HIGH,
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
    _log(
        FLUSHING,
        "log.flush.scheduler.interval.ms",
        ConfigType.LONG,
        LONG_MAX,
        at_least(1),
        "How often the broker looks for partitions whose `flush.ms` has passed. The default "
        "means never: records reach the disk when the operating system writes them.",
        importance=Importance.HIGH,
    ),
)

_HOUSEKEEPING_SETTINGS = (
    _log(
        FLUSHING,
        "log.flush.offset.checkpoint.interval.ms",
        ConfigType.INT,
        60_000,
        at_least(0),
        "How often the broker notes up to where each log is on disk; recovery after a crash "
        "starts reading there.",
    ),
    _log(
        RETENTION,
        "log.retention.check.interval.ms",
        ConfigType.LONG,
        300_000,
        at_least(1),
        "How often the broker looks for segments that retention lets go.",
    ),
    _log(
        RETENTION,
        "log.cleaner.enable",
        ConfigType.BOOLEAN,
        True,
        None,
        "Whether logs with `cleanup.policy=compact` are compacted at all.",
    ),
    _log(
        RETENTION,
        "log.cleaner.backoff.ms",
        ConfigType.LONG,
        15_000,
        at_least(0),
        "How long compaction rests when it found no log worth rewriting.",
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
)

_WRITTEN_OUT = _TIME_SETTINGS + _HOUSEKEEPING_SETTINGS
_WRITTEN_OUT_NAMES = {setting.name for setting in _WRITTEN_OUT}

LOG_SETTING_LINES: tuple[Setting, ...] = (
    *(
        _default_of(topic)
        for topic in TOPIC_SETTING_LINES
        if topic.synonyms and topic.synonyms[0].name not in _WRITTEN_OUT_NAMES
    ),
    *_WRITTEN_OUT,
)
