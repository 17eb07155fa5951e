"""aiokafka behind the interface of `stock_clients`: each client has a loop in its own thread."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import aiokafka
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from support.stock_clients import (
    EARLIEST,
    LATEST,
    TIMEOUT_S,
    Delivery,
    ProducerSettings,
    Received,
    ToSend,
    closing,
    missing,
)

T = TypeVar("T")


class LoopThread:
    """An event loop that runs while the test does other things."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = TIMEOUT_S) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def make(self, factory: Callable[[], T]) -> T:
        """Construct something that wants to find a running loop."""

        async def construct() -> T:
            return factory()

        return self.run(construct())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()


class AiokafkaProducer:
    def __init__(self, bootstrap: str, settings: ProducerSettings) -> None:
        self.thread = LoopThread()
        self.inner = self.thread.make(
            lambda: aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if settings.codec == "none" else settings.codec,
                enable_idempotence=settings.idempotent,
                acks=settings.acks,
                linger_ms=settings.linger_ms,
                max_request_size=settings.request_max_bytes,
                max_batch_size=64 * 1024,
                request_timeout_ms=settings.delivery_timeout_ms,
                retry_backoff_ms=20,
            )
        )
        self.thread.run(self.inner.start())

    def send(self, topic: str, records: Sequence[ToSend]) -> list[Delivery]:
        return self.thread.run(self._send(topic, records))

    async def _send(self, topic: str, records: Sequence[ToSend]) -> list[Delivery]:
        futures = [
            await self.inner.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        deliveries = []
        for done in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(done, KafkaError):
                deliveries.append(Delivery(error_code=done.errno))
            elif isinstance(done, BaseException):
                raise done
            elif done is None:  # acks=0: nobody said
                deliveries.append(Delivery())
            else:
                deliveries.append(Delivery(done.offset, done.timestamp))
        return deliveries

    def partition_count(self, topic: str) -> int:
        return len(self.thread.run(self.inner.partitions_for(topic)))

    def close(self) -> None:
        try:
            self.thread.run(self.inner.stop())
        finally:
            self.thread.close()


class AiokafkaConsumer:
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        fetch_wait_ms: int = 100,
        partition_fetch_bytes: int = 1024 * 1024,
    ) -> None:
        self._topic = topic
        self._kept: list[Received] = []
        self._partitions = [TopicPartition(topic, partition) for partition in starts]
        self.thread = LoopThread()
        self.inner = self.thread.make(
            lambda: aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                auto_offset_reset="none",
                enable_auto_commit=False,
                fetch_max_wait_ms=fetch_wait_ms,
                max_partition_fetch_bytes=partition_fetch_bytes,
                retry_backoff_ms=20,
            )
        )
        self.thread.run(self._start(topic, starts))

    async def _start(self, topic: str, starts: Mapping[int, int]) -> None:
        await self.inner.start()
        self.inner.assign(self._partitions)
        for partition, start in starts.items():
            place = TopicPartition(topic, partition)
            if start == EARLIEST:
                await self.inner.seek_to_beginning(place)
            elif start == LATEST:
                await self.inner.seek_to_end(place)
            else:
                self.inner.seek(place, start)

    def take(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Received]:
        return self.thread.run(self._take(count, timeout_s), timeout_s + 5)

    async def _take(self, count: int, timeout_s: float) -> list[Received]:
        deadline = self.thread.loop.time() + timeout_s
        while len(self._kept) < count:
            if self.thread.loop.time() > deadline:
                raise missing(count, self._kept)
            for messages in (await self.inner.getmany(timeout_ms=500)).values():
                self._kept.extend(map(_received, messages))
        taken, self._kept = self._kept[:count], self._kept[count:]
        return taken

    def wait_for_start(self) -> None:
        for partition in self._partitions:
            self.thread.run(self.inner.position(partition))

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(self._topic, partition)
        found = self.thread.run(self.inner.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else int(found.offset)

    def offset_range(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, partition)
        return (
            self.thread.run(self.inner.beginning_offsets([place]))[place],
            self.thread.run(self.inner.end_offsets([place]))[place],
        )

    def close(self) -> None:
        try:
            self.thread.run(self.inner.stop())
        finally:
            self.thread.close()


def _received(message: Any) -> Received:
    return Received(
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        is_log_append_time=message.timestamp_type == 1,
    )


class Aiokafka:
    """aiokafka."""

    name = "aiokafka"

    def has_codec(self, codec: str) -> bool:
        return True

    @contextlib.contextmanager
    def producer(self, bootstrap: str, **settings: Any) -> Iterator[AiokafkaProducer]:
        with closing(AiokafkaProducer(bootstrap, ProducerSettings(**settings))) as producer:
            yield producer

    @contextlib.contextmanager
    def consumer(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        **settings: int,
    ) -> Iterator[AiokafkaConsumer]:
        with closing(AiokafkaConsumer(bootstrap, topic, starts, **settings)) as consumer:
            yield consumer
