"""What a sink is: its last batch, and which of the batch's transactions are still to be committed.

A sink belongs to the shard of its id, its transactions to the shards of theirs. That a batch is
committed is decided by one record of the sink, which lists the transactions. They are committed
after it, each by the shard that it belongs to, and then the list is dropped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from anabranch.coordinator.transaction.state import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A transaction as a batch names it: with the producer that it was prepared by."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    sink_id: str
    last_batch_id: int
    # When the last batch was committed.
    last_update_timestamp_ms: int
    # Those of its batches that are not known to be committed in their own shards.
    pending: tuple[Listed, ...] = ()


def listed(transaction: Transaction) -> Listed:
    """A transaction as a batch would name it now."""
    return Listed(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
    )


def committed(
    sink: Sink | None, sink_id: str, batch_id: int, batch: Iterable[Listed], now_ms: int
) -> Sink:
    """Another batch is committed; what is pending of earlier ones stays so."""
    pending = () if sink is None else sink.pending
    last_ms = now_ms if sink is None else max(now_ms, sink.last_update_timestamp_ms)
    return Sink(
        sink_id=sink_id,
        last_batch_id=batch_id,
        last_update_timestamp_ms=last_ms,
        pending=(*pending, *batch),
    )


def without(sink: Sink, ended: frozenset[Listed]) -> Sink:
    """Some of the transactions are committed in their own shards."""
    return replace(sink, pending=tuple(one for one in sink.pending if one not in ended))
