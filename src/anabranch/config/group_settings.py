"""The broker's settings of consumer groups and committed offsets, under Kafka's names."""

from anabranch.config.rules import at_least, between
from anabranch.config.setting import ConfigType, Importance, Rule, Scope, Setting

GROUPS = "Consumer groups"

_INT_MAX = (1 << 31) - 1
_SHORT_MAX = (1 << 15) - 1


def _group(
    name: str,
    default: int,
    rule: Rule,
    documentation: str,
    importance: Importance = Importance.MEDIUM,
) -> Setting:
    return Setting(
        name=name,
        type=ConfigType.INT,
        default=default,
        documentation=documentation,
        scope=Scope.BROKER,
        subject=GROUPS,
        importance=importance,
        rule=rule,
    )


GROUP_SETTING_LINES: tuple[Setting, ...] = (
    _group(
        "group.initial.rebalance.delay.ms",
        3000,
        at_least(0),
        "How long the first rebalance of an empty group waits for more members, and again as long "
        "whenever another one came; fewer rebalances at the start for a later first assignment.",
    ),
    _group(
        "group.min.session.timeout.ms",
        6000,
        at_least(1),
        "The shortest session timeout that a member of a classic group may ask for.",
    ),
    _group(
        "group.max.session.timeout.ms",
        1_800_000,
        at_least(1),
        "The longest session timeout that a member of a classic group may ask for.",
    ),
    _group(
        "group.max.size",
        _INT_MAX,
        at_least(1),
        "How many members a classic group may have.",
    ),
    _group(
        "offset.metadata.max.bytes",
        4096,
        at_least(0),
        "The longest text that a client may store beside a committed offset.",
        Importance.HIGH,
    ),
    _group(
        "offsets.retention.minutes",
        10_080,
        at_least(1),
        "How long committed offsets are kept after their group became empty, or, where a group "
        "has no members by design or dropped the topic, after the commit.",
        Importance.HIGH,
    ),
    _group(
        "offsets.retention.check.interval.ms",
        600_000,
        at_least(1),
        "How often expired offsets are looked for.",
        Importance.HIGH,
    ),
    _group(
        "offsets.topic.num.partitions",
        50,
        between(1, _SHORT_MAX),
        "The number of partitions of `__consumer_offsets`, the journal of all groups; it counts "
        "when the topic is created and must not be changed afterwards.",
        Importance.HIGH,
    ),
    _group(
        "offsets.topic.segment.bytes",
        104_857_600,
        at_least(1_048_576),
        "The size of a segment of `__consumer_offsets`; small ones let compaction keep up.",
        Importance.HIGH,
    ),
)
