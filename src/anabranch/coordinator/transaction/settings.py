"""What the transaction coordinator needs to know of the broker's settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Kafka's names and defaults, where Kafka has them."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 7 * 24 * 3600 * 1000
    # Work that was not done, such as markers that cannot be written, is tried again after so long.
    retry_ms: int = 100
    # Whether producers may have transactions that no time ends (KIP-939).
    is_two_phase_commit_enabled: bool = False
    # How long a prepared transaction waits for its batch, and a sink's last batch is remembered.
    prepared_retention_ms: int = 24 * 3600 * 1000
    sink_expiration_ms: int = 30 * 24 * 3600 * 1000
