"""The stock Python clients behind one small interface, so that a behaviour is written once.

Nothing here works around a client: each is used as its users would, with its own threads and
retries. Only what a test compares is brought to one form: records, offsets, Kafka's error numbers.
Consumers take partitions by hand; there are no groups.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EARLIEST = -2
LATEST = -1
TIMEOUT_S = 60.0

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class ToSend:
    """A record before it is sent."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = 0
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A record as a consumer got it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    is_log_append_time: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a record: its offset and time, or Kafka's error number."""

    offset: int = -1
    timestamp_ms: int = -1
    error_code: int = 0


class StockProducer(Protocol):
    """A producer that lives for the length of a `with` block."""

    def send(self, topic: str, records: Sequence[ToSend]) -> list[Delivery]:
        """Send the records and wait until every one was delivered or failed."""

    def partition_count(self, topic: str) -> int:
        """How many partitions the client is told of."""


class StockConsumer(Protocol):
    """A consumer of some partitions of one topic."""

    def take(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Received]:
        """The next `count` records; AssertionError when they do not come in time."""

    def wait_for_start(self) -> None:
        """Return when the consumer knows its position in every partition."""

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time; None when there is none."""

    def offset_range(self, partition: int) -> tuple[int, int]:
        """The log's first offset and its end."""


class StockClient(Protocol):
    """One client library."""

    name: str

    def has_codec(self, codec: str) -> bool: ...

    def producer(
        self, bootstrap: str, **settings: Any
    ) -> contextlib.AbstractContextManager[StockProducer]:
        """Settings: codec, idempotent, acks, linger_ms, request_max_bytes."""

    def consumer(
        self, bootstrap: str, topic: str, starts: Mapping[int, int], **settings: Any
    ) -> contextlib.AbstractContextManager[StockConsumer]:
        """`starts` maps partitions to an offset, EARLIEST or LATEST.

        Settings: fetch_wait_ms, partition_fetch_bytes.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """What the tests set of a producer, under one name for all clients."""

    codec: str = "none"
    idempotent: bool = False
    acks: int = -1
    linger_ms: int = 5
    request_max_bytes: int = 8 * 1024 * 1024
    delivery_timeout_ms: int = 30_000


def missing(wanted: int, found: Sequence[Received]) -> AssertionError:
    last = f", the last of them {found[-1]}" if found else ""
    return AssertionError(f"{len(found)} of {wanted} records came in time{last}")


@contextlib.contextmanager
def closing(client: Any) -> Iterator[Any]:
    try:
        yield client
    finally:
        client.close()
