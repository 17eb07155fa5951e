"""The broker's settings of transactions, under Kafka's names."""

from anabranch.config.rules import at_least, between
from anabranch.config.setting import (
    ConfigType,
    DynamicMode,
    Importance,
    Rule,
    Scope,
    Setting,
    Value,
)

TRANSACTIONS = "Transactions"

PARTITION_VERIFICATION = "transaction.partition.verification.enable"
TWO_PHASE_COMMIT = "transaction.two.phase.commit.enable"

_SHORT_MAX = (1 << 15) - 1


def _transaction(
    name: str,
    default: Value,
    rule: Rule | None,
    documentation: str,
    *,
    kind: ConfigType = ConfigType.INT,
    importance: Importance = Importance.HIGH,
    dynamic: DynamicMode = DynamicMode.READ_ONLY,
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        documentation=documentation,
        scope=Scope.BROKER,
        subject=TRANSACTIONS,
        importance=importance,
        dynamic=dynamic,
        rule=rule,
    )


TRANSACTION_SETTING_LINES: tuple[Setting, ...] = (
    _transaction(
        "transaction.max.timeout.ms",
        900_000,
        at_least(1),
        "The longest time that a producer may ask for its transactions to stay open; one that "
        "asks for more is refused.",
    ),
    _transaction(
        "transactional.id.expiration.ms",
        604_800_000,
        at_least(1),
        "How long a transactional id is remembered after it was last used; not while it has a "
        "transaction open.",
    ),
    _transaction(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        at_least(1),
        "How often expired transactional ids are looked for.",
        importance=Importance.LOW,
    ),
    _transaction(
        "transaction.state.log.num.partitions",
        50,
        between(1, _SHORT_MAX),
        "The number of partitions of `__transaction_state`, the journal of all transactions; it "
        "counts when the topic is created and must not be changed afterwards.",
    ),
    _transaction(
        "transaction.state.log.segment.bytes",
        104_857_600,
        at_least(1_048_576),
        "The size of a segment of `__transaction_state`; small ones let compaction keep up.",
    ),
    _transaction(
        PARTITION_VERIFICATION,
        True,
        None,
        "Whether a transactional batch is taken only when its partition was added to the "
        "transaction before. It keeps late messages of clients older than Kafka 4 from opening a "
        "transaction that nobody ends.",
        kind=ConfigType.BOOLEAN,
        importance=Importance.LOW,
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
    _transaction(
        TWO_PHASE_COMMIT,
        False,
        None,
        "Whether producers may take part in a two-phase commit (KIP-939): no time ends their "
        "transactions, and readers of committed records wait for as long. Exactly-once sinks do "
        "not need it.",
        kind=ConfigType.BOOLEAN,
        importance=Importance.LOW,
    ),
    _transaction(
        "transaction.prepared.retention.ms",
        86_400_000,
        at_least(1),
        "How long a transaction that is prepared for a batch of a sink waits for it before it is "
        "aborted. Readers of committed records wait for as long.",
        kind=ConfigType.LONG,
        importance=Importance.MEDIUM,
    ),
    _transaction(
        "transaction.sink.expiration.ms",
        2_592_000_000,
        at_least(1),
        "How long the last batch of a sink is remembered. A batch that is run again later than "
        "that is written again.",
        kind=ConfigType.LONG,
        importance=Importance.MEDIUM,
    ),
)
