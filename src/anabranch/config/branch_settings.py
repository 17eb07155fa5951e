"""Settings of branch topics: of the topic that is branched, of the branch topic, of the broker.

What decides a record's slot belongs to the source topic, because all its branch topics, and the
slot index beside its segments, must agree on it.
"""

from anabranch.config.rules import at_least, between, one_of
from anabranch.config.setting import (
    ConfigType,
    DynamicMode,
    Importance,
    Rule,
    Scope,
    Setting,
    Value,
)

BRANCHES = "Branch topics"

BRANCHES_MAX = 1024
MIB = 1024 * 1024
_HEADER_NAME_MAX = 255


def _line(
    scope: Scope,
    name: str,
    kind: ConfigType,
    default: Value,
    rule: Rule | None,
    documentation: str,
    *,
    dynamic: DynamicMode = DynamicMode.CLUSTER_WIDE,
    aliases: tuple[str, ...] = (),
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        documentation=documentation,
        scope=scope,
        subject=BRANCHES,
        importance=Importance.MEDIUM,
        dynamic=dynamic,
        rule=rule,
        aliases=aliases,
        ours=True,
    )


def _header_name(value: Value) -> str | None:
    assert isinstance(value, str)
    if len(value.encode()) <= _HEADER_NAME_MAX:
        return None
    return f"the name of a header may have at most {_HEADER_NAME_MAX} bytes here"


BRANCH_TOPIC_SETTING_LINES: tuple[Setting, ...] = (
    _line(
        Scope.TOPIC,
        "branch.null.key",
        ConfigType.STRING,
        "unordered",
        one_of("unordered", "ordered"),
        "Where records without a key go when the topic is branched: `unordered` spreads them in "
        "blocks of 64 offsets, `ordered` keeps them all in the first branch, in order. It cannot "
        "change while the topic has branch topics.",
    ),
    _line(
        Scope.TOPIC,
        "branch.ordering.key.header",
        ConfigType.STRING,
        "",
        Rule(_header_name, f"at most {_HEADER_NAME_MAX} bytes"),
        "A record header whose value takes the place of the key when the topic is branched; "
        "records without it go by their key, and empty means that all do. It cannot change while "
        "the topic has branch topics.",
    ),
    _line(
        Scope.TOPIC,
        "branch.index.build",
        ConfigType.STRING,
        "read",
        one_of("read", "append"),
        "When the slots of a branched topic's records are computed: with the first filtered "
        "`read`, or soon after each `append`, off the event loop.",
    ),
    _line(
        Scope.TOPIC,
        "branch.source.topic",
        ConfigType.STRING,
        None,
        None,
        "Makes a new topic a branch topic: its partitions are the branches of this topic's. Only "
        "when a topic is created, by `anabranch topics branch` or any admin client; `kafka-topics` "
        "refuses names that it does not know.",
        dynamic=DynamicMode.READ_ONLY,
    ),
    _line(
        Scope.TOPIC,
        "branch.source.topic.id",
        ConfigType.STRING,
        None,
        None,
        "The id of the source of a branch topic; set by the broker.",
        dynamic=DynamicMode.READ_ONLY,
    ),
    _line(
        Scope.TOPIC,
        "branch.source.partitions",
        ConfigType.INT,
        None,
        None,
        "How many partitions the source had when the branch topic was made; set by the broker. "
        "Branch number r * this + p is range r of partition p.",
        dynamic=DynamicMode.READ_ONLY,
    ),
    _line(
        Scope.TOPIC,
        "branch.ranges",
        ConfigType.INT,
        None,
        None,
        "Into how many key ranges a branch topic cuts each partition; set by the broker.",
        dynamic=DynamicMode.READ_ONLY,
    ),
    _line(
        Scope.TOPIC,
        "branch.commit.source",
        ConfigType.BOOLEAN,
        False,
        None,
        "Whether the progress that a group makes on a branch topic is also committed as its offset "
        "on the source topic, so that it can go back to the plain topic without replay.",
    ),
)

# What decides a record's slot, and so must not change under the consumers of branch topics.
SLOT_CONFIGS = ("branch.null.key", "branch.ordering.key.header")
# Settings of a topic that is branched; its branch topics follow them.
SOURCE_CONFIGS = (*SLOT_CONFIGS, "branch.index.build")
# What a branch topic is: decided when it is created, and never altered.
FIXED_CONFIGS = frozenset(
    line.name for line in BRANCH_TOPIC_SETTING_LINES if line.dynamic is DynamicMode.READ_ONLY
)
# What is left of a branch topic's own for its users to set.
COMMIT_SOURCE_CONFIG = "branch.commit.source"

BRANCH_BROKER_SETTING_LINES: tuple[Setting, ...] = (
    _line(
        Scope.BROKER,
        "branch.cache.max.bytes",
        ConfigType.LONG,
        200 * MIB,
        at_least(0),
        "Memory for records that were sorted into branches and wait for the fetches of the other "
        "branches, and for slot indexes. What is in use at the moment comes on top.",
        aliases=("max.bytes.key.range.cache",),
    ),
    _line(
        Scope.BROKER,
        "branch.scan.max.bytes",
        ConfigType.INT,
        8 * MIB,
        at_least(1),
        "How much of a log one fetch of a branch looks through for records of its range before it "
        "answers with none; the next fetch goes on from there.",
    ),
    _line(
        Scope.BROKER,
        "branch.fetch.linger.ms",
        ConfigType.INT,
        30,
        between(0, 10_000),
        "How long new records of a branched topic wait for more after its branches were last "
        "served, so that busy branches cost fewer requests. Records that arrive after a pause are "
        "served at once; 0 serves all at once.",
    ),
    _line(
        Scope.BROKER,
        "branch.ranges.per.partition",
        ConfigType.INT,
        8,
        between(1, BRANCHES_MAX),
        "Key ranges of each partition in a branch topic that is created without a number of "
        "partitions.",
    ),
)
