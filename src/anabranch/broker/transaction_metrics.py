"""What is counted of transactions."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from anabranch.coordinator.transaction.state import Transaction, TransactionState
from anabranch.observe import metrics as m

# The states that an id can be in; the other two are names only.
_KEPT = tuple(
    state
    for state in TransactionState
    if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
)


@dataclass(slots=True)
class TransactionMetrics:
    """Counters of all shards together."""

    markers_written: int = 0
    markers_failed: int = 0
    timed_out: int = 0
    batches_committed: int = 0
    batches_replayed: int = 0

    def collect(
        self, transactions: Iterable[Transaction], now_ms: int
    ) -> Iterator[tuple[m.Metric, m.Values]]:
        """What was counted, and the transactions as they are now."""
        states: Counter[TransactionState] = Counter()
        oldest_ms = now_ms
        prepared = 0
        for transaction in transactions:
            states[transaction.state] += 1
            prepared += transaction.is_prepared
            if not transaction.state.is_idle:
                oldest_ms = min(oldest_ms, transaction.start_timestamp_ms)
        yield m.TRANSACTIONS, {(state.value,): states[state] for state in _KEPT}
        yield m.TRANSACTION_OLDEST_SECONDS, {(): (now_ms - oldest_ms) / 1000}
        yield (
            m.TRANSACTION_MARKERS,
            {("written",): self.markers_written, ("failed",): self.markers_failed},
        )
        yield m.TRANSACTION_TIMEOUTS, {(): self.timed_out}
        yield m.TRANSACTIONS_PREPARED, {(): prepared}
        yield (
            m.SINK_BATCHES,
            {("committed",): self.batches_committed, ("replayed",): self.batches_replayed},
        )
