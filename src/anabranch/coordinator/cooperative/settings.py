"""The settings of individual commits, as the broker was started with or altered to."""

from dataclasses import dataclass

BLOCK_KEY = "block-key"
DLQ = "dlq"
DLQ_KEY = "dlq-key"

ANY_ORDER = "any"
STABLE_ORDER = "stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeSettings:
    """Limits of what is kept of a partition that is shared, and how failures are retried."""

    max_ranges: int = 10_000
    max_window_offsets: int = 1_000_000
    # What the progress of all groups of the broker may take in memory.
    max_state_bytes: int = 256 * 1024 * 1024
    # How long a record may be with a member that does not finish it.
    stuck_ms: int = 300_000
    delivery_limit: int = 5
    retry_backoff_ms: int = 1_000
    retry_backoff_max_ms: int = 900_000
    # What becomes of a record after its last attempt, and the topic for it if it goes to one.
    disposition: str = BLOCK_KEY
    dlq_topic: str = ""
    # In which order acknowledgements are taken that are part of transactions.
    txn_order: str = ANY_ORDER
