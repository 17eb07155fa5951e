"""confluent-kafka (librdkafka) behind the interface of `stock_clients`."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

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

_STARTS = {EARLIEST: confluent_kafka.OFFSET_BEGINNING, LATEST: confluent_kafka.OFFSET_END}
# Reconnects quickly, so that tests with restarts do not wait for the client's patience: a new
# bootstrap after losing the only broker would take seconds.
QUICK = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


class ConfluentProducer:
    def __init__(self, bootstrap: str, settings: ProducerSettings) -> None:
        self.inner = confluent_kafka.Producer(
            {
                **QUICK,
                "bootstrap.servers": bootstrap,
                "compression.type": settings.codec,
                "enable.idempotence": settings.idempotent,
                "acks": settings.acks,
                "linger.ms": settings.linger_ms,
                "message.max.bytes": settings.request_max_bytes,
                "message.timeout.ms": settings.delivery_timeout_ms,
            }
        )

    def send(self, topic: str, records: Sequence[ToSend]) -> list[Delivery]:
        deliveries: list[Delivery | None] = [None] * len(records)

        def done(place: int, error: Any, message: Any) -> None:
            if error is not None:
                deliveries[place] = Delivery(error_code=error.code())
            else:
                deliveries[place] = Delivery(message.offset(), message.timestamp()[1])

        for i, record in enumerate(records):
            timestamp = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            self.inner.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                headers=list(record.headers),
                on_delivery=lambda error, message, i=i: done(i, error, message),
                **timestamp,
            )
            self.inner.poll(0)
        left = self.inner.flush(TIMEOUT_S)
        assert not left, f"{left} records were neither delivered nor refused"
        return [delivery for delivery in deliveries if delivery is not None]

    def partition_count(self, topic: str) -> int:
        return len(self.inner.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)

    def close(self) -> None:
        self.inner.flush(1)


class ConfluentConsumer:
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        fetch_wait_ms: int = 100,
        partition_fetch_bytes: int = 1024 * 1024,
    ) -> None:
        self._topic = topic
        self._starts = starts
        self._kept: list[Received] = []
        self.inner = confluent_kafka.Consumer(
            {
                **QUICK,
                "bootstrap.servers": bootstrap,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": fetch_wait_ms,
                "fetch.message.max.bytes": partition_fetch_bytes,
                "fetch.error.backoff.ms": 20,
                "fetch.queue.backoff.ms": 20,
            }
        )
        self.inner.assign(
            [TopicPartition(topic, p, _STARTS.get(at, at)) for p, at in starts.items()]
        )

    def take(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Received]:
        deadline = time.monotonic() + timeout_s
        while len(self._kept) < count:
            if time.monotonic() > deadline:
                raise missing(count, self._kept)
            self._poll()
        taken, self._kept = self._kept[:count], self._kept[count:]
        return taken

    def wait_for_start(self) -> None:
        """Only an assignment at the end can be waited for: librdkafka reports that it got there."""
        waiting = {p for p, start in self._starts.items() if start == LATEST}
        deadline = time.monotonic() + TIMEOUT_S
        while waiting:
            assert time.monotonic() < deadline, f"the end of {waiting} was not reached"
            waiting.discard(self._poll())

    def _poll(self) -> int | None:
        """Keep what one poll brings; a partition whose end was reached is returned."""
        message = self.inner.poll(0.5)
        if message is None:
            return None
        error = message.error()
        if error is None:
            self._kept.append(_received(message))
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            return int(message.partition())
        elif not error.retriable() and error.code() not in _PASSING:
            raise KafkaException(error)
        return None

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        asked = [TopicPartition(self._topic, partition, timestamp_ms)]
        found = self.inner.offsets_for_times(asked, timeout=TIMEOUT_S)[0]
        if found.error is not None:
            raise KafkaException(found.error)
        return None if found.offset == confluent_kafka.OFFSET_END else int(found.offset)

    def offset_range(self, partition: int) -> tuple[int, int]:
        low, high = self.inner.get_watermark_offsets(
            TopicPartition(self._topic, partition), timeout=TIMEOUT_S
        )
        return low, high

    def close(self) -> None:
        self.inner.close()


# Reported while the broker is away; the consumer goes on by itself.
_PASSING = (
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    confluent_kafka.KafkaError._TRANSPORT,
)


def _received(message: Any) -> Received:
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


class ConfluentKafka:
    """librdkafka."""

    name = "confluent-kafka"

    def has_codec(self, codec: str) -> bool:
        return True

    @contextlib.contextmanager
    def producer(self, bootstrap: str, **settings: Any) -> Iterator[ConfluentProducer]:
        with closing(ConfluentProducer(bootstrap, ProducerSettings(**settings))) as producer:
            yield producer

    @contextlib.contextmanager
    def consumer(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        **settings: int,
    ) -> Iterator[ConfluentConsumer]:
        with closing(ConfluentConsumer(bootstrap, topic, starts, **settings)) as consumer:
            yield consumer
