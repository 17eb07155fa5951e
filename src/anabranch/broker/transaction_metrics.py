"""What is counted of transactions."""

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionMetrics:
    """Counters of all shards together."""

    markers_written: int = 0
    markers_failed: int = 0
    timed_out: int = 0
