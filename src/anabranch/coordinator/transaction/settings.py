"""What the transaction coordinator needs to know of the broker's settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Kafka's names and defaults."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 7 * 24 * 3600 * 1000
    # Work that was not done, such as markers that cannot be written, is tried again after so long.
    retry_ms: int = 100
