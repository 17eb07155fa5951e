"""kafka-python behind the interface of `stock_clients`."""

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    import kafka
    import kafka.codec
    from kafka import TopicPartition
    from kafka.errors import KafkaError

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

QUICK: dict[str, Any] = {
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 100,
    "retry_backoff_ms": 20,
    "metrics_enabled": False,
}


class KafkaPythonProducer:
    def __init__(self, bootstrap: str, settings: ProducerSettings) -> None:
        self.inner = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if settings.codec == "none" else settings.codec,
            enable_idempotence=settings.idempotent,
            acks=settings.acks,
            linger_ms=settings.linger_ms,
            max_request_size=settings.request_max_bytes,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            request_timeout_ms=settings.delivery_timeout_ms // 2,
            **QUICK,
        )

    def send(self, topic: str, records: Sequence[ToSend]) -> list[Delivery]:
        futures = [
            self.inner.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        self.inner.flush(TIMEOUT_S)
        deliveries = []
        for future in futures:
            try:
                done = future.get(timeout=TIMEOUT_S)
                deliveries.append(Delivery(done.offset, done.timestamp))
            except KafkaError as error:
                deliveries.append(Delivery(error_code=error.errno))
        return deliveries

    def partition_count(self, topic: str) -> int:
        return len(self.inner.partitions_for(topic) or ())

    def close(self) -> None:
        self.inner.close(timeout=1)


class KafkaPythonConsumer:
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
        self.inner = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_wait_ms=fetch_wait_ms,
            max_partition_fetch_bytes=partition_fetch_bytes,
            **QUICK,
        )
        self._partitions = [TopicPartition(topic, partition) for partition in starts]
        self.inner.assign(self._partitions)
        for partition, start in starts.items():
            place = TopicPartition(topic, partition)
            if start == EARLIEST:
                self.inner.seek_to_beginning(place)
            elif start == LATEST:
                self.inner.seek_to_end(place)
            else:
                self.inner.seek(place, start)

    def take(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Received]:
        deadline = time.monotonic() + timeout_s
        while len(self._kept) < count:
            if time.monotonic() > deadline:
                raise missing(count, self._kept)
            for messages in self.inner.poll(timeout_ms=500).values():
                self._kept.extend(map(_received, messages))
        taken, self._kept = self._kept[:count], self._kept[count:]
        return taken

    def wait_for_start(self) -> None:
        for partition in self._partitions:
            self.inner.position(partition, timeout_ms=int(TIMEOUT_S * 1000))

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(self._topic, partition)
        found = self.inner.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else int(found.offset)

    def offset_range(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, partition)
        return (
            self.inner.beginning_offsets([place])[place],
            self.inner.end_offsets([place])[place],
        )

    def close(self) -> None:
        self.inner.close()


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


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"

    def has_codec(self, codec: str) -> bool:
        # Snappy and zstd come from python-snappy and zstandard, if they are installed.
        return codec == "none" or bool(getattr(kafka.codec, f"has_{codec}")())

    @contextlib.contextmanager
    def producer(self, bootstrap: str, **settings: Any) -> Iterator[KafkaPythonProducer]:
        with closing(KafkaPythonProducer(bootstrap, ProducerSettings(**settings))) as producer:
            yield producer

    @contextlib.contextmanager
    def consumer(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        **settings: int,
    ) -> Iterator[KafkaPythonConsumer]:
        with closing(KafkaPythonConsumer(bootstrap, topic, starts, **settings)) as consumer:
            yield consumer
