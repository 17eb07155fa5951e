"""Producers that write numbered records until they are told to stop, and keep what was answered."""

import contextlib
import threading
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka

from support.aiokafka_client import AiokafkaProducer
from support.confluent_client import QUICK
from support.kafka_python_client import KafkaPythonProducer
from support.stock_clients import ProducerSettings

# Long enough for twenty restarts of the broker: no record may time out.
PATIENCE_MS = 150_000
_OUTSTANDING_MAX = 150


def value_of(producer: int, number: int) -> bytes:
    """A record's value: who wrote it, its number, and some weight."""
    return b"%d:%d:" % (producer, number) + b"." * (number * 37 % 200)


def read_value(value: bytes) -> tuple[int, int]:
    producer, number, _ = value.split(b":")
    return int(producer), int(number)


class ProducerLoad:
    """One producer in a thread: record n goes to partition n modulo the partitions."""

    def __init__(self, number: int, topic: str, partitions: int) -> None:
        self.number = number
        self.topic = topic
        self.partitions = partitions
        self.sent = 0
        self.acked: dict[int, dict[int, int]] = defaultdict(dict)  # partition: {offset: record}
        self.acked_count = 0
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send nothing new and wait until everything sent has its answer."""
        self._stopping.set()
        self._thread.join(PATIENCE_MS / 1000)
        assert not self._thread.is_alive(), f"producer {self.number} did not come to an end"

    def abandon(self) -> None:
        """End without waiting for answers, because the test failed already."""
        self._is_abandoned = True
        self._stopping.set()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self.sent - self.acked_count - len(self.failures) < _OUTSTANDING_MAX:
                    self._send(self.sent % self.partitions, self.sent)
                    self.sent += 1
                    self._turn()
                else:
                    self._wait()
            if not self._is_abandoned:
                self._finish()
        except Exception as error:
            self.failures.append(repr(error))

    def note(self, partition: int, number: int, offset: int) -> None:
        """An answer came."""
        self.acked[partition][offset] = number
        self.acked_count += 1

    @abstractmethod
    def _send(self, partition: int, number: int) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    def _turn(self) -> None:
        """Let the client call back."""

    def _wait(self) -> None:
        time.sleep(0.001)


@contextlib.contextmanager
def running(loads: Sequence[ProducerLoad]) -> Iterator[None]:
    """Let the producers write during a `with` block, and wait for their answers at its end."""
    for load in loads:
        load.start()
    try:
        yield
        for load in loads:
            load.stop()
    except BaseException:
        for load in loads:
            load.abandon()
        raise


class ConfluentLoad(ProducerLoad):
    """librdkafka."""

    def __init__(
        self, number: int, bootstrap: str, topic: str, partitions: int, **settings: Any
    ) -> None:
        super().__init__(number, topic, partitions)
        self._producer = confluent_kafka.Producer(
            {
                **QUICK,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 3,
                "message.timeout.ms": PATIENCE_MS,
                **settings,
            }
        )

    def _send(self, partition: int, number: int) -> None:
        def answered(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(f"record {number}: {error}")
            else:
                self.note(partition, number, message.offset())

        self._producer.produce(
            self.topic, value_of(self.number, number), partition=partition, on_delivery=answered
        )

    def _turn(self) -> None:
        self._producer.poll(0)

    def _wait(self) -> None:
        self._producer.poll(0.01)

    def _finish(self) -> None:
        self._producer.flush(PATIENCE_MS / 1000)


_SETTINGS = ProducerSettings(idempotent=True, linger_ms=3, delivery_timeout_ms=PATIENCE_MS)


class KafkaPythonLoad(ProducerLoad):
    """kafka-python."""

    def __init__(self, number: int, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(number, topic, partitions)
        self._producer = KafkaPythonProducer(bootstrap, _SETTINGS)

    def _send(self, partition: int, number: int) -> None:
        future = self._producer.inner.send(
            self.topic, value_of(self.number, number), partition=partition
        )
        future.add_callback(lambda done: self.note(partition, number, done.offset))
        future.add_errback(lambda error: self.failures.append(f"record {number}: {error!r}"))

    def _finish(self) -> None:
        self._producer.inner.flush(PATIENCE_MS / 1000)
        self._producer.close()


class AiokafkaLoad(ProducerLoad):
    """aiokafka."""

    def __init__(self, number: int, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(number, topic, partitions)
        self._producer = AiokafkaProducer(bootstrap, _SETTINGS)

    def _send(self, partition: int, number: int) -> None:
        self._producer.thread.run(self._send_one(partition, number), PATIENCE_MS / 1000)

    async def _send_one(self, partition: int, number: int) -> None:
        future = await self._producer.inner.send(
            self.topic, value_of(self.number, number), partition=partition
        )

        def answered(done: Any) -> None:
            if done.exception() is not None:
                self.failures.append(f"record {number}: {done.exception()!r}")
            else:
                self.note(partition, number, done.result().offset)

        future.add_done_callback(answered)

    def _finish(self) -> None:
        self._producer.thread.run(self._producer.inner.flush(), PATIENCE_MS / 1000)
        self._producer.close()
