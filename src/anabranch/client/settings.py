"""The settings of a consumer: Kafka's names where Kafka has the setting, and sensible defaults."""

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

from anabranch.client.errors import ConfigurationError
from anabranch.client.records import KeyRange, TopicPartition
from anabranch.client.timing import Backoff, lease_clock

KeyRanges = Mapping[TopicPartition, Sequence[KeyRange]]
RangesCallback = Callable[[KeyRanges], Awaitable[None] | None]

_DEFAULT_PORT = 9092
_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


class ConnectionOptions(TypedDict, total=False):
    """How to reach a broker; see `ConsumerSettings`."""

    client_id: str
    security_protocol: Literal["PLAINTEXT", "SSL"]
    ssl_context: ssl.SSLContext | None
    request_timeout_ms: int


class ConsumerOptions(TypedDict, total=False):
    """What `CooperativeConsumer(...)` takes as keyword arguments; see `ConsumerSettings`."""

    bootstrap_servers: str | Sequence[str]
    group_id: str | None
    group_instance_id: str | None
    client_id: str
    security_protocol: Literal["PLAINTEXT", "SSL"]
    ssl_context: ssl.SSLContext | None
    session_timeout_ms: int | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    auto_offset_reset: Literal["earliest", "latest", "none"]
    isolation_level: Literal["read_uncommitted", "read_committed"]
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    buffer_max_records: int
    buffer_max_bytes: int
    auto_commit_interval_ms: int | None
    max_num_ranges_to_commit: int
    commit_max_bytes: int
    corrupt_batches: Literal["fail", "skip"]
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    on_ranges_assigned: RangesCallback | None
    on_ranges_revoked: RangesCallback | None
    on_ranges_lost: RangesCallback | None
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How brokers are reached, by consumers and producers alike."""

    bootstrap_servers: str | Sequence[str] = "localhost:9092"
    """Brokers to begin with, as "host:port,host:port" or a list of "host:port"."""
    client_id: str = "anabranch-client"
    security_protocol: Literal["PLAINTEXT", "SSL"] = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None
    """For SSL; None is the system's trusted authorities, with host names checked."""
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    metadata_max_age_ms: int = 300_000

    @property
    def servers(self) -> list[tuple[str, int]]:
        """Host and port of each broker to begin with."""
        return parse_servers(self.bootstrap_servers)

    @property
    def tls(self) -> ssl.SSLContext | None:
        if self.security_protocol != "SSL":
            return None
        return self.ssl_context or ssl.create_default_context()

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    @property
    def retry_backoff(self) -> Backoff:
        return Backoff(self.retry_backoff_ms / 1000, self.retry_backoff_max_ms / 1000, spread=0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ConnectionSettings):
    """How a consumer behaves."""

    group_id: str | None = None
    """Needed to subscribe and to store progress."""
    group_instance_id: str | None = None
    """A name that outlives the process: whoever comes back under it gets the same ranges."""
    session_timeout_ms: int | None = None
    """The broker decides how long a silent member stays in the group; this can only shorten the
    time after which the member itself stops starting records."""
    rebalance_timeout_ms: int = 60_000
    """How long records that run may take when their range is to be given back."""
    server_assignor: str | None = None
    auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest"
    """Where a group without progress begins. The default skips nothing."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """With read_committed, records of transactions are handed out when they are committed and
    never when they are aborted; all records behind one that is not decided yet wait with it. The
    default, which is Kafka's too, hands out everything at once. All members of a group should
    have the same."""
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1024 * 1024
    buffer_max_records: int = 10_000
    """Records that wait in memory; nothing more is fetched above it."""
    buffer_max_bytes: int = 64 * 1024 * 1024
    auto_commit_interval_ms: int | None = 1000
    """How often progress is stored; None leaves it to `commit()`."""
    max_num_ranges_to_commit: int = 10_000
    """Progress is stored earlier when it takes more ranges of offsets than this to tell it."""
    commit_max_bytes: int = 1_000_000
    corrupt_batches: Literal["fail", "skip"] = "fail"
    """What to do with record batches that cannot be read."""
    on_ranges_assigned: RangesCallback | None = None
    """Called with the key ranges by partition before their first records are handed out."""
    on_ranges_revoked: RangesCallback | None = None
    """Called when nothing of the ranges runs any more, before their progress is stored."""
    on_ranges_lost: RangesCallback | None = None
    """Called when ranges are somebody else's already."""
    clock: Callable[[], float] = lease_clock
    """Seconds that never go back, for leases and rests."""

    def __post_init__(self) -> None:
        check_settings(self, _POSITIVE)
        if self.fetch_max_wait_ms < 0:
            raise ConfigurationError("fetch_max_wait_ms must not be negative")
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            found = self.auto_offset_reset
            raise ConfigurationError(
                f'auto_offset_reset is "earliest", "latest" or "none", not {found!r}'
            )
        if self.isolation_level not in _ISOLATION_LEVELS:
            raise ConfigurationError(
                'isolation_level is "read_uncommitted" or "read_committed", '
                f"not {self.isolation_level!r}"
            )
        if self.corrupt_batches not in ("fail", "skip"):
            raise ConfigurationError(
                f'corrupt_batches is "fail" or "skip", not {self.corrupt_batches!r}'
            )
        check_security_protocol(self.security_protocol)
        if self.group_id == "":
            raise ConfigurationError("group_id must not be empty; leave it out to use no group")
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigurationError("group_instance_id needs a group_id")
        if not self.servers:
            raise ConfigurationError("bootstrap_servers names no broker")

    @property
    def isolation_code(self) -> int:
        """The isolation level as requests have it."""
        return _ISOLATION_LEVELS.index(self.isolation_level)


_POSITIVE = (
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "max_poll_records",
    "fetch_min_bytes",
    "fetch_max_bytes",
    "max_partition_fetch_bytes",
    "buffer_max_records",
    "buffer_max_bytes",
    "auto_commit_interval_ms",
    "max_num_ranges_to_commit",
    "commit_max_bytes",
    "request_timeout_ms",
    "retry_backoff_ms",
    "retry_backoff_max_ms",
    "metadata_max_age_ms",
)


def check_settings(settings: object, positive: Sequence[str]) -> None:
    """ConfigurationError names a setting that must be greater than 0 and is not."""
    for name in positive:
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise ConfigurationError(f"{name} must be greater than 0, not {value}")


def check_security_protocol(protocol: str) -> None:
    if protocol not in ("PLAINTEXT", "SSL"):
        raise ConfigurationError(
            f"security_protocol {protocol!r} is not supported: this client speaks"
            " PLAINTEXT and SSL (TLS, also with client certificates by ssl_context), not SASL"
        )


def settings_of(options: Mapping[str, Any]) -> ConsumerSettings:
    """The settings with these options; ConfigurationError names one that does not exist."""
    known = {field.name for field in fields(ConsumerSettings)}
    unknown = sorted(options.keys() - known)
    if unknown:
        hint = ""
        if any(name.startswith("sasl") for name in unknown):
            hint = "; SASL is not supported by this client, use PLAINTEXT or SSL"
        raise ConfigurationError(f"unknown settings: {', '.join(unknown)}{hint}")
    return ConsumerSettings(**options)


def parse_servers(named: str | Sequence[str]) -> list[tuple[str, int]]:
    """Host and port of each of "host:port,host:port", or of a list of "host:port"."""
    texts = named.split(",") if isinstance(named, str) else named
    return [_host_and_port(text.strip()) for text in texts if text.strip()]


def _host_and_port(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or host.endswith(":"):
        return text, _DEFAULT_PORT
    if not port.isdigit():
        raise ConfigurationError(f"bootstrap_servers: {text!r} is not host:port")
    return host.strip("[]"), int(port)
