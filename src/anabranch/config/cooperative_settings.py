"""Settings of cooperative consumption: partitions that members share, record by record.

Three switches have to agree before members share a partition: the broker's, the topic's and the
consumer's own.
"""

from anabranch.config.rules import at_least, between, one_of
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

COOPERATION = "Cooperative consumption"

RANGE_FETCH_CONFIG = "range.fetch.enable"
DELIVERY_LIMIT = "coop.delivery.limit"
DISPOSITION = "coop.disposition"
DLQ_TOPIC = "coop.dlq.topic"
TXN_ORDER = "coop.txn.order"

MIB = 1024 * 1024
_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1
# What one commit may bring, too.
_RANGES_MAX = 1_000_000


def _line(
    name: str,
    kind: ConfigType,
    default: Value,
    rule: Rule | None,
    documentation: str,
    *,
    scope: Scope = Scope.BROKER,
    dynamic: DynamicMode = DynamicMode.CLUSTER_WIDE,
    aliases: tuple[str, ...] = (),
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        documentation=documentation,
        scope=scope,
        subject=COOPERATION,
        importance=Importance.MEDIUM,
        dynamic=dynamic,
        rule=rule,
        aliases=aliases,
        ours=True,
    )


COOPERATIVE_TOPIC_SETTING_LINES: tuple[Setting, ...] = (
    _line(
        RANGE_FETCH_CONFIG,
        ConfigType.BOOLEAN,
        False,
        None,
        "Whether members of a group may share the partitions of the topic by key range: then only "
        "records with the same key are processed in order. When it is turned off, groups still "
        "finish what they have begun with individual commits.",
        scope=Scope.TOPIC,
        aliases=("accept.range.fetch",),
    ),
)

COOPERATIVE_BROKER_SETTING_LINES: tuple[Setting, ...] = (
    _line(
        "group.individual.commit.enable",
        ConfigType.BOOLEAN,
        True,
        None,
        "Whether members of groups may commit records one by one, with gaps, on topics that let "
        f"them (`{RANGE_FETCH_CONFIG}`).",
        aliases=("accept.individual.commit",),
    ),
    _line(
        "individual.commit.log.segment.bytes",
        ConfigType.INT,
        10 * MIB,
        at_least(MIB),
        "The size at which a segment of `__individual_commit_offsets` is closed; of a topic that "
        "is there, its own `segment.bytes` counts.",
        dynamic=DynamicMode.READ_ONLY,
    ),
    _line(
        DELIVERY_LIMIT,
        ConfigType.INT,
        5,
        between(1, _INT_MAX),
        "How often a record is delivered that fails each time. After the last failure it is not "
        "tried again by itself. A group can set it for itself under the same name.",
    ),
    _line(
        "coop.retry.backoff.ms",
        ConfigType.INT,
        1_000,
        at_least(0),
        "How long a record that failed rests before it is tried again; twice as long after each "
        "further failure. A consumer may ask for more.",
    ),
    _line(
        "coop.retry.backoff.max.ms",
        ConfigType.INT,
        900_000,
        at_least(0),
        "The longest that a record rests after a failure, whatever a consumer asks for.",
    ),
    _line(
        "coop.max.window.offsets",
        ConfigType.LONG,
        1_000_000,
        between(1, _LONG_MAX),
        "How far beyond the stable offset of a group and partition records are committed one by "
        "one. Farther ones are refused until the gaps close; commits that close them are taken. "
        "From three quarters of it on, members are shown no new offsets.",
    ),
    _line(
        "coop.max.ranges",
        ConfigType.INT,
        10_000,
        between(1, _RANGES_MAX),
        "How many ranges of records that are done, with gaps between them, are kept for a group "
        "and partition, and how many records that failed. More are refused until there are fewer.",
    ),
    _line(
        "coop.max.state.bytes",
        ConfigType.LONG,
        256 * MIB,
        between(MIB, _LONG_MAX),
        "About how much memory all that groups have done record by record may take on this broker. "
        "Beyond it, individual commits that would add to it are refused; those that close gaps are "
        "taken.",
    ),
    _line(
        "coop.stuck.ms",
        ConfigType.INT,
        300_000,
        at_least(1),
        "How long the oldest record that a member was shown and has not finished may hold back the "
        "stable offset before its key range is taken from the member and given to another one.",
    ),
    _line(
        DISPOSITION,
        ConfigType.STRING,
        "block-key",
        one_of("block-key", "dlq", "dlq-key"),
        "What becomes of a record after its last attempt. `block-key`: it waits, and the records "
        "of its key with it, until somebody decides; others go on. `dlq`: it goes to the "
        "dead-letter topic and counts as done. `dlq-key`: the same, and later records of its key "
        "follow it there until the key is released, so that the order of the key is kept. A group "
        "can set it for itself under the same name.",
    ),
    _line(
        DLQ_TOPIC,
        ConfigType.STRING,
        "",
        None,
        "The topic that records go to which nobody could process; empty for the name of their own "
        "topic with `.dlq` behind it. It is created when it is needed, with as many partitions as "
        "theirs. A group can set it for itself under the same name.",
    ),
    _line(
        TXN_ORDER,
        ConfigType.STRING,
        "any",
        one_of("any", "stable"),
        "In which order individual commits are taken that are part of transactions. `any`: as they "
        "come; each counts when its transaction is committed. `stable`: as KIP-X has it, a commit "
        "waits until the stable offset has come to its first record, for as long as the "
        "transaction may last; it fails at once when the member goes that it waits for. A group "
        "can set it for itself under the same name.",
        aliases=("txn.order",),
    ),
    _line(
        "coop.resplit.enable",
        ConfigType.BOOLEAN,
        True,
        None,
        "Whether key ranges move between the members of a group that share partitions when their "
        "measured load has been uneven for a while.",
    ),
    _line(
        "coop.resplit.interval.ms",
        ConfigType.INT,
        5_000,
        at_least(100),
        "How often the load of members that share partitions is looked at. Ranges move after three "
        "uneven looks in a row.",
    ),
)


def _of_one_group(name: str, documentation: str) -> Setting:
    """A group's setting from the broker's line of the same name."""
    line = next(one for one in COOPERATIVE_BROKER_SETTING_LINES if one.name == name)
    return Setting(
        name=name,
        type=line.type,
        default=line.default,
        documentation=documentation,
        scope=Scope.GROUP,
        subject=COOPERATION,
        importance=Importance.MEDIUM,
        dynamic=DynamicMode.CLUSTER_WIDE,
        rule=line.rule,
        synonyms=(Synonym(name),),
        ours=True,
    )


COOPERATIVE_GROUP_SETTING_LINES: tuple[Setting, ...] = (
    _of_one_group(
        DELIVERY_LIMIT,
        "How often a record is delivered to the group that fails each time.",
    ),
    _of_one_group(
        DISPOSITION,
        "What becomes of a record after its last attempt in the group: `block-key`, `dlq` or "
        "`dlq-key`. Records that wait follow a change.",
    ),
    _of_one_group(
        DLQ_TOPIC,
        "The topic that records go to which the group could not process; empty for the name of "
        "their own topic with `.dlq` behind it.",
    ),
    _of_one_group(
        TXN_ORDER,
        "In which order individual commits of the group are taken that are part of transactions: "
        "`any` or `stable`.",
    ),
)
"""A group's own."""
