"""What changes a shard of transactions: the records that `replay` takes.

`TransactionWritten` is durable, Kafka's only type of `__transaction_state`; `SinkWritten` is one of
ours beside it. `MarkersProgressed` is soft: after a restart all markers of a decided transaction
are written again, which does no harm.
"""

from dataclasses import dataclass
from typing import ClassVar

from anabranch.coordinator.transaction.sink_state import Sink
from anabranch.coordinator.transaction.state import TopicPartition, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionWritten:
    """A transactional id as it is now, or None when it is forgotten."""

    is_durable: ClassVar[bool] = True
    transactional_id: str
    transaction: Transaction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersProgressed:
    """The partitions that a decided transaction's marker is still missing in."""

    is_durable: ClassVar[bool] = False
    transactional_id: str
    missing: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkWritten:
    """A sink as it is now, or None when it is forgotten."""

    is_durable: ClassVar[bool] = True
    sink_id: str
    sink: Sink | None


TransactionRecord = TransactionWritten | MarkersProgressed | SinkWritten
