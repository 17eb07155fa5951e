"""The settings of a topic, each with the broker settings it takes its default from.

A topic that does not set one of these gets the value of the first broker setting in `synonyms`
that is set, or else the default. Where one topic setting has exactly one broker setting, that
broker setting is made from the same line (see `log_settings`), so the two cannot disagree.
"""

from anabranch.config.rules import at_least, between, between_or, list_of, one_of
from anabranch.config.setting import (
    ConfigType,
    DynamicMode,
    Importance,
    Rule,
    Scope,
    Setting,
    Synonym,
    Value,
)

LONG_MAX = (1 << 63) - 1
MS_PER_MINUTE = 60_000
MS_PER_HOUR = 3_600_000
MS_PER_DAY = 24 * MS_PER_HOUR
MIB = 1024 * 1024

RETENTION = "Retention and compaction"
SEGMENTS = "Segments and indexes"
FLUSHING = "Flushing to disk"
MESSAGES = "Messages"
REPLICATION = "Replication"
TIERED_STORAGE = "Tiered storage"


def _topic(
    subject: str,
    name: str,
    kind: ConfigType,
    default: Value,
    rule: Rule | None,
    synonyms: str | tuple[Synonym, ...],
    documentation: str,
    *,
    importance: Importance = Importance.MEDIUM,
    internal: bool = False,
    ours: bool = False,
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        documentation=documentation,
        scope=Scope.TOPIC,
        subject=subject,
        importance=importance,
        dynamic=DynamicMode.CLUSTER_WIDE,
        rule=rule,
        synonyms=(Synonym(synonyms),) if isinstance(synonyms, str) else synonyms,
        internal=internal,
        ours=ours,
    )


def _throttled_replicas(value: Value) -> str | None:
    assert isinstance(value, tuple)
    if value == ("*",):
        return None
    for part in value:
        partition, colon, broker = part.partition(":")
        if part and not (colon and partition.isdecimal() and broker.isdecimal()):
            return (
                "the list must be the literal '*' or name replicas in the form "
                "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
            )
    return None


def _no_remote_storage(value: Value) -> str | None:
    if value is False:
        return None
    return (
        "this broker has no tiered storage and keeps every segment in its log directory; leave "
        "the setting out, and bound the log with retention.ms and retention.bytes"
    )


_THROTTLED = Rule(_throttled_replicas, "`*`, or partition:broker pairs")

_RETENTION_SETTINGS = (
    _topic(
        RETENTION,
        "cleanup.policy",
        ConfigType.LIST,
        ("delete",),
        list_of("compact", "delete"),
        "log.cleanup.policy",
        "What happens to old segments: `delete` drops them by time and size, `compact` keeps the "
        "latest record of each key, both together do both, and an empty list keeps everything.",
    ),
    _topic(
        RETENTION,
        "retention.ms",
        ConfigType.LONG,
        7 * MS_PER_DAY,
        at_least(-1),
        (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MS_PER_MINUTE),
            Synonym("log.retention.hours", MS_PER_HOUR),
        ),
        "How long a segment is kept after its newest record before `delete` drops it; -1 keeps it "
        "for ever.",
    ),
    _topic(
        RETENTION,
        "retention.bytes",
        ConfigType.LONG,
        -1,
        None,
        "log.retention.bytes",
        "How large one partition may grow before `delete` drops its oldest segments; -1 sets no "
        "limit.",
        importance=Importance.HIGH,
    ),
    _topic(
        RETENTION,
        "delete.retention.ms",
        ConfigType.LONG,
        MS_PER_DAY,
        at_least(0),
        "log.cleaner.delete.retention.ms",
        "How long compaction keeps a tombstone, which is how long a consumer that reads from the "
        "start may take and still see every deletion.",
    ),
    _topic(
        RETENTION,
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        0.5,
        between(0, 1),
        "log.cleaner.min.cleanable.ratio",
        "The share of a compacted log that must be uncompacted before compaction rewrites it; "
        "lower keeps fewer stale records and writes more.",
    ),
    _topic(
        RETENTION,
        "min.compaction.lag.ms",
        ConfigType.LONG,
        0,
        at_least(0),
        "log.cleaner.min.compaction.lag.ms",
        "How long a record stays safe from compaction.",
    ),
    _topic(
        RETENTION,
        "max.compaction.lag.ms",
        ConfigType.LONG,
        LONG_MAX,
        at_least(1),
        "log.cleaner.max.compaction.lag.ms",
        "How long a record may stay uncompacted, whatever the dirty ratio says.",
    ),
    _topic(
        RETENTION,
        "file.delete.delay.ms",
        ConfigType.LONG,
        60_000,
        at_least(0),
        "log.segment.delete.delay.ms",
        "How long the files of a dropped segment stay on disk under another name before they are "
        "removed.",
    ),
)

_SEGMENT_SETTINGS = (
    _topic(
        SEGMENTS,
        "segment.bytes",
        ConfigType.INT,
        1024 * MIB,
        at_least(MIB),
        "log.segment.bytes",
        "How large a segment may grow before the log starts the next one; retention and "
        "compaction work on whole segments.",
        importance=Importance.HIGH,
    ),
    _topic(
        SEGMENTS,
        "internal.segment.bytes",
        ConfigType.INT,
        None,
        at_least(1),
        "internal.segment.bytes",
        "Overrules `segment.bytes` without its minimum, so that tests can roll segments quickly.",
        internal=True,
    ),
    _topic(
        SEGMENTS,
        "segment.ms",
        ConfigType.LONG,
        7 * MS_PER_DAY,
        at_least(1),
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", MS_PER_HOUR)),
        "How old a segment may become before the log starts the next one even if it is not full.",
    ),
    _topic(
        SEGMENTS,
        "segment.jitter.ms",
        ConfigType.LONG,
        0,
        at_least(0),
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", MS_PER_HOUR)),
        "Accepted and shown, without effect: in Kafka it is taken off `segment.ms` at random, so "
        "that partitions do not all roll at once.",
    ),
    _topic(
        SEGMENTS,
        "segment.index.bytes",
        ConfigType.INT,
        10 * MIB,
        at_least(4),
        "log.index.size.max.bytes",
        "How large an index file may grow; a full index also starts the next segment.",
    ),
    _topic(
        SEGMENTS,
        "index.interval.bytes",
        ConfigType.INT,
        4096,
        at_least(0),
        "log.index.interval.bytes",
        "How many bytes of log lie between two index entries; fewer make seeks more exact and "
        "indexes larger.",
    ),
    _topic(
        SEGMENTS,
        "preallocate",
        ConfigType.BOOLEAN,
        False,
        None,
        "log.preallocate",
        "Accepted and shown, without effect: in Kafka it gives a new segment file its full size "
        "at once.",
    ),
)

_FLUSH_SETTINGS = (
    _topic(
        FLUSHING,
        "flush.on.acks.all",
        ConfigType.BOOLEAN,
        False,
        None,
        "flush.on.acks.all",
        "Whether a produce request with `acks=all` is answered only after its records were "
        "fsynced; requests that wait at the same time share one fsync.",
        importance=Importance.HIGH,
        ours=True,
    ),
    _topic(
        FLUSHING,
        "flush.messages",
        ConfigType.LONG,
        LONG_MAX,
        at_least(1),
        "log.flush.interval.messages",
        "How many records may be appended to a partition before it is fsynced.",
        importance=Importance.HIGH,
    ),
    _topic(
        FLUSHING,
        "flush.ms",
        ConfigType.LONG,
        LONG_MAX,
        at_least(0),
        (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        "How long a record may stay in the page cache before its partition is fsynced.",
    ),
)

_MESSAGE_SETTINGS = (
    _topic(
        MESSAGES,
        "max.message.bytes",
        ConfigType.INT,
        MIB + 12,
        at_least(0),
        "message.max.bytes",
        "The largest record batch a producer may send, measured after compression.",
        importance=Importance.HIGH,
    ),
    _topic(
        MESSAGES,
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        "Whether records keep the producer's timestamp or get the time of their append.",
    ),
    _topic(
        MESSAGES,
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        LONG_MAX,
        at_least(0),
        "log.message.timestamp.before.max.ms",
        "How far a producer's timestamp may lie in the past before its batch is refused; unused "
        "with `LogAppendTime`.",
    ),
    _topic(
        MESSAGES,
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        MS_PER_HOUR,
        at_least(0),
        "log.message.timestamp.after.max.ms",
        "How far a producer's timestamp may lie in the future before its batch is refused; unused "
        "with `LogAppendTime`.",
    ),
    _topic(
        MESSAGES,
        "compression.type",
        ConfigType.STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
        "How batches are compressed on disk: `producer` keeps each as it came and costs nothing, "
        "any other value makes the broker recompress.",
        importance=Importance.HIGH,
    ),
    _topic(
        MESSAGES,
        "compression.gzip.level",
        ConfigType.INT,
        -1,
        between_or(1, 9, -1),
        "compression.gzip.level",
        "The level when the broker itself compresses with gzip; -1 is zlib's own default.",
    ),
    _topic(
        MESSAGES,
        "compression.lz4.level",
        ConfigType.INT,
        9,
        between(1, 17),
        "compression.lz4.level",
        "The level when the broker itself compresses with lz4.",
    ),
    _topic(
        MESSAGES,
        "compression.zstd.level",
        ConfigType.INT,
        3,
        between(-131072, 22),
        "compression.zstd.level",
        "The level when the broker itself compresses with zstd.",
    ),
)

_REPLICATION_SETTINGS = (
    _topic(
        REPLICATION,
        "min.insync.replicas",
        ConfigType.INT,
        1,
        at_least(1),
        "min.insync.replicas",
        "How many replicas must have a record before `acks=all` is answered; this broker is the "
        "only replica, so anything above 1 makes such requests fail.",
        importance=Importance.HIGH,
    ),
    _topic(
        REPLICATION,
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        None,
        "unclean.leader.election.enable",
        "Accepted and reported so that Kafka's tools work; with one replica there is no election.",
        importance=Importance.HIGH,
    ),
    _topic(
        REPLICATION,
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        _THROTTLED,
        (),
        "Accepted and reported so that Kafka's tools work; with one replica nothing is copied "
        "between brokers.",
    ),
    _topic(
        REPLICATION,
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        _THROTTLED,
        (),
        "Accepted and reported so that Kafka's tools work; with one replica nothing is copied "
        "between brokers.",
    ),
)

_NO_TIERED_STORAGE = (
    "Accepted and reported so that the settings of a topic can be copied from Kafka; there is no "
    "tiered storage, so it has no effect."
)

_TIERED_STORAGE_SETTINGS = (
    _topic(
        TIERED_STORAGE,
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        False,
        Rule(_no_remote_storage, "`false`"),
        (),
        "There is no tiered storage, so only `false` is accepted.",
    ),
    _topic(
        TIERED_STORAGE,
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        False,
        None,
        (),
        _NO_TIERED_STORAGE,
    ),
    _topic(
        TIERED_STORAGE,
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        False,
        None,
        (),
        _NO_TIERED_STORAGE,
    ),
    _topic(
        TIERED_STORAGE,
        "local.retention.ms",
        ConfigType.LONG,
        -2,
        at_least(-2),
        "log.local.retention.ms",
        _NO_TIERED_STORAGE,
    ),
    _topic(
        TIERED_STORAGE,
        "local.retention.bytes",
        ConfigType.LONG,
        -2,
        at_least(-2),
        "log.local.retention.bytes",
        _NO_TIERED_STORAGE,
    ),
)

TOPIC_SETTING_LINES: tuple[Setting, ...] = (
    *_RETENTION_SETTINGS,
    *_SEGMENT_SETTINGS,
    *_FLUSH_SETTINGS,
    *_MESSAGE_SETTINGS,
    *_REPLICATION_SETTINGS,
    *_TIERED_STORAGE_SETTINGS,
)
