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
)
