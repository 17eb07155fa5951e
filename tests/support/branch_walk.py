"""Stock consumers that walk a topic to its end, however few records they find on the way.

A walk is over when the client itself knows that it is: librdkafka reports the end of a partition,
the others have a position that reaches it. Where records were filtered out, a client comes to its
end only if the broker moves its position over them; one that it leaves behind walks for ever.
"""

import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import confluent_kafka
import kafka
from confluent_kafka import KafkaError, KafkaException

from support import aiokafka_client, confluent_client, kafka_python_client
from support.aiokafka_client import LoopThread
from support.stock_clients import EARLIEST, LATEST, TIMEOUT_S, Received, closing, missing

T = TypeVar("T")
TAKE_S = 15.0
"""How long to wait for records that are there: less than the longest wait of a fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkSettings:
    """What the tests set of a consumer, under one name for all clients."""

    starts: Mapping[int, int] | None = None
    """Where to begin, by partition; without, the consumer subscribes as a member of a group."""
    group: str = "walkers"
    fetch_wait_ms: int = 100
    fetch_min_bytes: int = 1
    partition_fetch_bytes: int = 1024 * 1024
    isolation: str = "read_uncommitted"


class Walker(Protocol):
    """A consumer of one topic."""

    def walk(self, ends: Mapping[int, int]) -> list[Received]:
        """What comes until the client is at these ends; AssertionError when it does not get there.

        The ends are the offsets that follow the last record of each partition.
        """

    def take(self, count: int) -> list[Received]:
        """The next `count` records; AssertionError when they do not come in time."""

    def lag(self, partition: int) -> int:
        """How far the client believes to be behind the end."""

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time; None when there is none."""

    def commit(self, ends: Mapping[int, int]) -> None:
        """Commit these offsets for its group."""


class _Deadline:
    """Says what is missing when a walk takes too long."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self._ends = ends
        self._at = time.monotonic() + TIMEOUT_S

    def check(self, positions: Mapping[int, int | None], count: int) -> None:
        if time.monotonic() > self._at:
            behind = {p: (positions.get(p), e) for p, e in self._ends.items()}
            behind = {p: pair for p, pair in behind.items() if (pair[0] or 0) < pair[1]}
            raise AssertionError(
                f"the walk hangs after {count} records; position and end by partition: {behind}"
            )


def _take(poll: Callable[[], list[Received]], count: int) -> list[Received]:
    """Poll for so many records, and no more than there are."""
    deadline = time.monotonic() + TAKE_S
    found: list[Received] = []
    while len(found) < count:
        if time.monotonic() > deadline:
            raise missing(count, found)
        found += poll()
    return found


# librdkafka -----------------------------------------------------------------------------------


class ConfluentWalker:
    def __init__(self, bootstrap: str, topic: str, settings: WalkSettings) -> None:
        self._topic = topic
        self._ends_seen: dict[int, int] = {}
        self.inner = confluent_kafka.Consumer(
            {
                **confluent_client.QUICK,
                "bootstrap.servers": bootstrap,
                "group.id": settings.group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": settings.isolation,
                "fetch.wait.max.ms": settings.fetch_wait_ms,
                "fetch.min.bytes": settings.fetch_min_bytes,
                "fetch.message.max.bytes": settings.partition_fetch_bytes,
                "fetch.error.backoff.ms": 20,
                "fetch.queue.backoff.ms": 20,
            }
        )
        if settings.starts is None:
            self.inner.subscribe([topic])
        else:
            self.inner.assign(
                [confluent_kafka.TopicPartition(topic, p, at) for p, at in settings.starts.items()]
            )

    def walk(self, ends: Mapping[int, int]) -> list[Received]:
        deadline = _Deadline(ends)
        found: list[Received] = []
        while any(self._ends_seen.get(p, -1) < end for p, end in ends.items()):
            deadline.check(self._ends_seen, len(found))
            found += self._poll()
        return found

    def _poll(self) -> list[Received]:
        message = self.inner.poll(0.5)
        if message is None:
            return []
        error = message.error()
        if error is None:
            return [_of_confluent(message)]
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        self._ends_seen[message.partition()] = message.offset()
        return []

    def take(self, count: int) -> list[Received]:
        return _take(self._poll, count)

    def lag(self, partition: int) -> int:
        place = confluent_kafka.TopicPartition(self._topic, partition)
        _, end = self.inner.get_watermark_offsets(place, cached=True)
        return int(end) - int(self.inner.position([place])[0].offset)

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        asked = [confluent_kafka.TopicPartition(self._topic, partition, timestamp_ms)]
        offset = self.inner.offsets_for_times(asked, timeout=TIMEOUT_S)[0].offset
        return None if offset == confluent_kafka.OFFSET_END else int(offset)

    def commit(self, ends: Mapping[int, int]) -> None:
        offsets = [confluent_kafka.TopicPartition(self._topic, p, end) for p, end in ends.items()]
        for done in self.inner.commit(offsets=offsets, asynchronous=False):
            assert done.error is None, done.error

    def close(self) -> None:
        self.inner.close()


# kafka-python ---------------------------------------------------------------------------------


class KafkaPythonWalker:
    def __init__(self, bootstrap: str, topic: str, settings: WalkSettings) -> None:
        self._topic = topic
        self.inner = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=settings.group if settings.starts is None else None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=settings.isolation,
            fetch_max_wait_ms=settings.fetch_wait_ms,
            fetch_min_bytes=settings.fetch_min_bytes,
            max_partition_fetch_bytes=settings.partition_fetch_bytes,
            **kafka_python_client.QUICK,
        )
        if settings.starts is None:
            self.inner.subscribe([topic])
            return
        self.inner.assign([self._place(partition) for partition in settings.starts])
        for partition, start in settings.starts.items():
            if start == EARLIEST:
                self.inner.seek_to_beginning(self._place(partition))
            elif start == LATEST:
                self.inner.seek_to_end(self._place(partition))
            else:
                self.inner.seek(self._place(partition), start)

    def _place(self, partition: int) -> Any:
        return kafka.TopicPartition(self._topic, partition)

    def positions(self) -> dict[int, int | None]:
        return {place.partition: self.inner.position(place) for place in self.inner.assignment()}

    def walk(self, ends: Mapping[int, int]) -> list[Received]:
        deadline = _Deadline(ends)
        found: list[Received] = []
        positions: dict[int, int | None] = {}
        while any((positions.get(p) or 0) < end for p, end in ends.items()):
            deadline.check(positions, len(found))
            found += self._poll()
            positions = self.positions()
        return found

    def _poll(self) -> list[Received]:
        batches = self.inner.poll(timeout_ms=500).values()
        return [_of_python(message) for messages in batches for message in messages]

    def take(self, count: int) -> list[Received]:
        return _take(self._poll, count)

    def lag(self, partition: int) -> int:
        place = self._place(partition)
        return int(self.inner.highwater(place) - self.inner.position(place))

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        place = self._place(partition)
        found = self.inner.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else int(found.offset)

    def commit(self, ends: Mapping[int, int]) -> None:
        offsets = {self._place(p): kafka.OffsetAndMetadata(end, "", -1) for p, end in ends.items()}
        self.inner.commit(offsets)

    def close(self) -> None:
        self.inner.close()


# aiokafka -------------------------------------------------------------------------------------


class AiokafkaWalker:
    def __init__(self, bootstrap: str, topic: str, settings: WalkSettings) -> None:
        self._topic = topic
        self.thread = LoopThread()
        self.inner = self.thread.make(
            lambda: aiokafka_client.aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=settings.group if settings.starts is None else None,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level=settings.isolation,
                fetch_max_wait_ms=settings.fetch_wait_ms,
                fetch_min_bytes=settings.fetch_min_bytes,
                max_partition_fetch_bytes=settings.partition_fetch_bytes,
                retry_backoff_ms=20,
            )
        )
        self.thread.run(self._start(settings.starts))

    def _place(self, partition: int) -> Any:
        return aiokafka_client.TopicPartition(self._topic, partition)

    async def _start(self, starts: Mapping[int, int] | None) -> None:
        if starts is None:
            self.inner.subscribe([self._topic])
        await self.inner.start()
        if starts is None:
            return
        self.inner.assign([self._place(partition) for partition in starts])
        for partition, start in starts.items():
            if start == EARLIEST:
                await self.inner.seek_to_beginning(self._place(partition))
            elif start == LATEST:
                await self.inner.seek_to_end(self._place(partition))
            else:
                self.inner.seek(self._place(partition), start)

    async def _positions(self) -> dict[int, int | None]:
        places = self.inner.assignment()
        return {place.partition: await self.inner.position(place) for place in places}

    def positions(self) -> dict[int, int | None]:
        return self._run(self._positions())

    def walk(self, ends: Mapping[int, int]) -> list[Received]:
        return self._run(self._walk(ends))

    async def _walk(self, ends: Mapping[int, int]) -> list[Received]:
        deadline = _Deadline(ends)
        found: list[Received] = []
        positions: dict[int, int | None] = {}
        while any((positions.get(p) or 0) < end for p, end in ends.items()):
            deadline.check(positions, len(found))
            found += await self._poll()
            positions = await self._positions()
        return found

    async def _poll(self) -> list[Received]:
        batches = (await self.inner.getmany(timeout_ms=100)).values()
        return [_of_python(message) for messages in batches for message in messages]

    def take(self, count: int) -> list[Received]:
        return _take(lambda: self._run(self._poll()), count)

    def lag(self, partition: int) -> int:
        position = self.positions()[partition]
        assert position is not None
        return int(self.inner.highwater(self._place(partition)) - position)

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        place = self._place(partition)
        found = self._run(self.inner.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else int(found.offset)

    def commit(self, ends: Mapping[int, int]) -> None:
        self._run(self.inner.commit({self._place(p): end for p, end in ends.items()}))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.thread.run(work, TIMEOUT_S + 10)

    def close(self) -> None:
        try:
            self.thread.run(self.inner.stop())
        finally:
            self.thread.close()


def _of_confluent(message: Any) -> Received:
    kind, timestamp_ms = message.timestamp()
    return Received(
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=timestamp_ms,
        is_log_append_time=kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME,
    )


def _of_python(message: Any) -> Received:
    """The other two clients name the parts of a record alike."""
    return Received(
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        is_log_append_time=message.timestamp_type == 1,
    )


_WALKERS = {
    "confluent-kafka": ConfluentWalker,
    "kafka-python": KafkaPythonWalker,
    "aiokafka": AiokafkaWalker,
}
CLIENTS = tuple(_WALKERS)


@contextlib.contextmanager
def walker(client: str, bootstrap: str, topic: str, **settings: Any) -> Iterator[Any]:
    """A consumer of one topic for the length of a `with` block."""
    made = _WALKERS[client](bootstrap, topic, WalkSettings(**settings))
    with closing(made):
        yield made
