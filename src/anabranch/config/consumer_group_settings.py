"""Settings of groups under the consumer protocol (KIP-848), for the broker and for one group.

Names, defaults and bounds are Kafka's, with one exception: `group.consumer.assignment.interval.ms`
is shorter here. What a group may set for itself has the broker's setting behind it, whose name is
the same with `group.` in front; both are made from one line, so that they cannot disagree.
"""

from dataclasses import dataclass

from anabranch.config.rules import at_least, distinct, list_of, one_of_any_case
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

CONSUMER_GROUPS = "Consumer protocol"
GROUP_PREFIX = "group."
PROTOCOLS = "group.coordinator.rebalance.protocols"
MIGRATION_POLICY = "group.consumer.migration.policy"

_INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class BoundedSetting:
    """A broker setting with the two that bound it, and the name under which a group sets it."""

    name: str
    least: str
    most: str

    @property
    def group_name(self) -> str:
        return self.name.removeprefix(GROUP_PREFIX)


SESSION_TIMEOUT = BoundedSetting(
    "group.consumer.session.timeout.ms",
    "group.consumer.min.session.timeout.ms",
    "group.consumer.max.session.timeout.ms",
)
HEARTBEAT_INTERVAL = BoundedSetting(
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.min.heartbeat.interval.ms",
    "group.consumer.max.heartbeat.interval.ms",
)
ASSIGNMENT_INTERVAL = BoundedSetting(
    "group.consumer.assignment.interval.ms",
    "group.consumer.min.assignment.interval.ms",
    "group.consumer.max.assignment.interval.ms",
)
BOUNDED_SETTINGS = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)

HEARTBEAT_RATE_BUDGET = "group.consumer.heartbeat.rate.budget"


def _consumer(
    name: str,
    default: Value,
    rule: Rule,
    documentation: str,
    *,
    kind: ConfigType = ConfigType.INT,
    dynamic: DynamicMode = DynamicMode.READ_ONLY,
    ours: bool = False,
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        documentation=documentation,
        scope=Scope.BROKER,
        subject=CONSUMER_GROUPS,
        dynamic=dynamic,
        rule=rule,
        ours=ours,
    )


def _protocols(value: Value) -> str | None:
    reason = _KNOWN_PROTOCOLS.check(value)
    if reason is None and isinstance(value, tuple) and "classic" not in value:
        return "Disabling the 'classic' protocol is not supported"
    return reason


_KNOWN_PROTOCOLS = list_of("classic", "consumer", "share", "streams")

_TIMING_LINES = (
    _consumer(
        SESSION_TIMEOUT.name,
        45_000,
        at_least(1),
        "How long a member may be silent before it is taken out of its group. A group can set it "
        "for itself with `consumer.session.timeout.ms`.",
    ),
    _consumer(
        SESSION_TIMEOUT.least,
        45_000,
        at_least(1),
        "The shortest session timeout that may be set for the broker or for a group.",
    ),
    _consumer(
        SESSION_TIMEOUT.most,
        60_000,
        at_least(1),
        "The longest session timeout that may be set for the broker or for a group.",
    ),
    _consumer(
        HEARTBEAT_INTERVAL.name,
        5000,
        at_least(1),
        "How long a member is told to wait between two heartbeats while it neither owes nor "
        "awaits a partition. As long as `group.consumer.heartbeat.rate.budget` allows more, the "
        "wait is shorter. A group can set it for itself with `consumer.heartbeat.interval.ms`.",
    ),
    _consumer(
        HEARTBEAT_INTERVAL.least,
        5000,
        at_least(1),
        "The shortest heartbeat interval that may be set for the broker or for a group.",
    ),
    _consumer(
        HEARTBEAT_INTERVAL.most,
        15_000,
        at_least(1),
        "The longest heartbeat interval that may be set for the broker or for a group.",
    ),
    _consumer(
        HEARTBEAT_RATE_BUDGET,
        500,
        at_least(0),
        "How many heartbeats per second all members of the broker together are asked for while "
        "nothing moves: the fewer members there are, the sooner each of them hears of a change. 0 "
        "turns it off, so that `group.consumer.heartbeat.interval.ms` is constant as in Kafka. A "
        "group can set it for itself with `consumer.heartbeat.rate.budget`.",
        dynamic=DynamicMode.CLUSTER_WIDE,
        ours=True,
    ),
    _consumer(
        "group.consumer.heartbeat.fast.interval.ms",
        50,
        at_least(1),
        "How long a member is at least told to wait between two heartbeats, which is when it has "
        "just come to owe or await a partition. Without a heartbeat rate budget it has no effect.",
        dynamic=DynamicMode.CLUSTER_WIDE,
        ours=True,
    ),
    _consumer(
        ASSIGNMENT_INTERVAL.name,
        50,
        at_least(0),
        "How long after a new target assignment of a group the next one waits, so that members "
        "who come or go together share one; 0 does not wait. Kafka's default is 1000; it is "
        "shorter here because a target takes microseconds and is made by a timer, not by whichever "
        "heartbeat comes next. A group can set it for itself with `consumer.assignment.interval.ms`"
        ".",
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
    _consumer(
        ASSIGNMENT_INTERVAL.least,
        0,
        at_least(0),
        "The shortest assignment interval that may be set for the broker or for a group; the "
        "default gives way to it.",
    ),
    _consumer(
        ASSIGNMENT_INTERVAL.most,
        15_000,
        at_least(0),
        "The longest assignment interval that may be set for the broker or for a group; the "
        "default gives way to it.",
    ),
    _consumer(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        at_least(10_000),
        "How often subscriptions by regular expression are resolved again even if no topic came "
        "or went; one that came or went counts at once.",
    ),
)

_GROUP_LINES = (
    _consumer(
        PROTOCOLS,
        ("classic", "consumer"),
        Rule(_protocols, "`classic`, and any of `consumer`, `share`, `streams`"),
        "The protocols that groups may use. Leaving out `consumer` turns off "
        "ConsumerGroupHeartbeat, so that clients with `group.protocol=consumer` are refused. "
        "`share` and `streams` are accepted without effect.",
        kind=ConfigType.LIST,
    ),
    _consumer(
        "group.consumer.max.size",
        _INT_MAX,
        at_least(1),
        "How many members a group under the consumer protocol may have.",
    ),
    _consumer(
        "group.consumer.assignors",
        ("uniform", "range"),
        distinct(may_be_empty=False),
        "The assignors that members may ask for; the first is that of a group whose members ask "
        "for none. `uniform` and `range` are built in, also under the names of Kafka's classes; "
        "others come with installed packages. Those that share partitions by key range, "
        "`line-cut`, `key-range-round-robin` and `key-range-range`, may always be asked for; the "
        "first of them that is named here is that of groups that share, else `line-cut`.",
        kind=ConfigType.LIST,
    ),
    _consumer(
        MIGRATION_POLICY,
        "bidirectional",
        one_of_any_case("bidirectional", "upgrade", "downgrade", "disabled"),
        "Which groups with members may change their protocol: from classic to consumer "
        "(`upgrade`), back (`downgrade`), both (`bidirectional`) or neither (`disabled`). A group "
        "without members always may.",
        kind=ConfigType.STRING,
    ),
)

CONSUMER_GROUP_SETTING_LINES: tuple[Setting, ...] = (*_GROUP_LINES, *_TIMING_LINES)
"""The broker's."""


def _of_one_group(name: str, documentation: str) -> Setting:
    """A group's setting from the broker's line behind it."""
    line = next(setting for setting in _TIMING_LINES if setting.name == name)
    return Setting(
        name=name.removeprefix(GROUP_PREFIX),
        type=line.type,
        default=line.default,
        documentation=documentation,
        scope=Scope.GROUP,
        subject=CONSUMER_GROUPS,
        importance=Importance.MEDIUM,
        dynamic=DynamicMode.CLUSTER_WIDE,
        rule=line.rule,
        synonyms=(Synonym(name),),
        ours=line.ours,
    )


GROUP_RESOURCE_SETTING_LINES: tuple[Setting, ...] = (
    _of_one_group(
        SESSION_TIMEOUT.name,
        "How long a member of the group may be silent before it is taken out. It must lie between "
        f"`{SESSION_TIMEOUT.least}` and `{SESSION_TIMEOUT.most}`, and above the heartbeat interval "
        "of the group.",
    ),
    _of_one_group(
        HEARTBEAT_INTERVAL.name,
        "How long a member of the group is told to wait between two heartbeats while it neither "
        f"owes nor awaits a partition. It must lie between `{HEARTBEAT_INTERVAL.least}` and "
        f"`{HEARTBEAT_INTERVAL.most}`, and below the session timeout of the group.",
    ),
    _of_one_group(
        HEARTBEAT_RATE_BUDGET,
        f"What counts for the members of the group instead of `{HEARTBEAT_RATE_BUDGET}`: more asks "
        "them for heartbeats more often, and 0 keeps them to their heartbeat interval.",
    ),
    _of_one_group(
        ASSIGNMENT_INTERVAL.name,
        "How long after a new target assignment of the group the next one waits. It must lie "
        f"between `{ASSIGNMENT_INTERVAL.least}` and `{ASSIGNMENT_INTERVAL.most}`.",
    ),
)
"""A group's own."""
