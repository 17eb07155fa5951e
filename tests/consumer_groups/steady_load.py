"""A producer that writes at an even rate to some topics until it is told to stop."""

import threading
import time
from collections import defaultdict

from confluent_kafka import KafkaError, Message, Producer

_TICK_S = 0.02
# Long enough for the broker to be down in the meantime.
_PATIENCE_S = 60


class SteadyLoad:
    """Records to all partitions in turn; what was delivered is known by partition."""

    def __init__(self, bootstrap: str, rate_per_s: int) -> None:
        # The number of records of each partition "topic-number".
        self.delivered: dict[str, int] = defaultdict(int)
        self.failures: list[str] = []
        self._per_tick = max(1, round(rate_per_s * _TICK_S))
        self._partitions: list[tuple[str, int]] = []
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": _PATIENCE_S * 1000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, topic: str, partitions: range) -> None:
        self._producer.list_topics(topic, _PATIENCE_S)  # now it knows of them
        with self._lock:
            self._partitions += [(topic, partition) for partition in partitions]

    def drop(self, topic: str) -> None:
        """Write nothing more to a topic, and forget what was."""
        with self._lock:
            self._partitions = [p for p in self._partitions if p[0] != topic]
            assert self._producer.flush(_PATIENCE_S) == 0
            for partition in [p for p in self.delivered if p.rpartition("-")[0] == topic]:
                del self.delivered[partition]

    @property
    def partitions(self) -> set[str]:
        return {f"{topic}-{partition}" for topic, partition in self._partitions}

    def stop(self) -> None:
        """Write nothing more, and wait until everything has its answer."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(_PATIENCE_S) == 0
        assert self.failures == []

    def abandon(self) -> None:
        """End without waiting for answers: the test is over."""
        self._stopping.set()

    def _run(self) -> None:
        number = 0
        due_s = time.monotonic()
        while not self._stopping.is_set():
            with self._lock:
                for _ in range(self._per_tick if self._partitions else 0):
                    topic, partition = self._partitions[number % len(self._partitions)]
                    self._producer.produce(
                        topic, b"%d" % number, partition=partition, on_delivery=self._answered
                    )
                    number += 1
                self._producer.poll(0)
            due_s += _TICK_S
            self._stopping.wait(max(0.0, due_s - time.monotonic()))

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.delivered[f"{message.topic()}-{message.partition()}"] += 1
