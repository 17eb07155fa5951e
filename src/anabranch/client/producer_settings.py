"""The settings of a transactional producer: Kafka's names, and sensible defaults."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

from anabranch.client.errors import ConfigurationError
from anabranch.client.settings import (
    ConnectionSettings,
    check_security_protocol,
    check_settings,
)
from anabranch.wire.compression import CODEC_NAMES

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class ProducerOptions(TypedDict, total=False):
    """What `TransactionalProducer(...)` takes as keyword arguments; see `ProducerSettings`."""

    bootstrap_servers: str | Sequence[str]
    transactional_id: str
    client_id: str
    security_protocol: Literal["PLAINTEXT", "SSL"]
    ssl_context: ssl.SSLContext | None
    transaction_timeout_ms: int
    compression_type: Compression
    batch_size: int
    linger_ms: int
    buffer_memory: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ConnectionSettings):
    """How a transactional producer behaves."""

    transactional_id: str
    """Who this producer is, also after a restart: whoever starts under the same id aborts what the
    one before left open, and fences it."""
    transaction_timeout_ms: int = 60_000
    """How long a transaction may be open before the broker aborts it."""
    compression_type: Compression = "none"
    batch_size: int = 256 * 1024
    """Bytes of one batch of records, before compression; a larger record goes alone."""
    linger_ms: int = 5
    """How long records wait for others before they are sent; a commit does not wait."""
    buffer_memory: int = 32 * 1024 * 1024
    """Bytes of records that wait to be sent; beyond it `send` raises BufferFullError."""
    delivery_timeout_ms: int = 120_000
    """How long to try, through broken connections and restarts of the broker."""
    retry_backoff_ms: int = 50

    def __post_init__(self) -> None:
        check_settings(self, _POSITIVE)
        if self.linger_ms < 0:
            raise ConfigurationError("linger_ms must not be negative")
        if not self.transactional_id:
            raise ConfigurationError("transactional_id must not be empty")
        if self.compression_type not in CODEC_NAMES:
            known = ", ".join(CODEC_NAMES)
            raise ConfigurationError(
                f"compression_type is one of {known}, not {self.compression_type!r}"
            )
        check_security_protocol(self.security_protocol)
        if not self.servers:
            raise ConfigurationError("bootstrap_servers names no broker")

    @property
    def group_id(self) -> str | None:
        """A producer is in no group."""
        return None

    @property
    def codec(self) -> int:
        return CODEC_NAMES.index(self.compression_type)


_POSITIVE = (
    "transaction_timeout_ms",
    "batch_size",
    "buffer_memory",
    "delivery_timeout_ms",
    "request_timeout_ms",
    "retry_backoff_ms",
    "retry_backoff_max_ms",
    "metadata_max_age_ms",
)


def producer_settings_of(options: Mapping[str, Any]) -> ProducerSettings:
    """The settings with these options; ConfigurationError names one that does not exist."""
    unknown = sorted(options.keys() - {field.name for field in fields(ProducerSettings)})
    if unknown:
        raise ConfigurationError(f"unknown settings: {', '.join(unknown)}")
    if "transactional_id" not in options:
        raise ConfigurationError("a transactional producer needs a transactional_id")
    return ProducerSettings(**options)
