"""Records that keep coming while members come and go."""

from __future__ import annotations

import threading
import time

from confluent_kafka import KafkaError, Message, Producer

from member_history import Partition


class Traffic:
    """Records that keep coming, one after the other in each partition, until `stop`."""

    def __init__(self, bootstrap_servers: str, period_seconds: float) -> None:
        # Idempotent: a restart of the broker must neither lose a record nor double it.
        settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True}
        self._producer = Producer({**settings, "log_level": 0})
        self._period_seconds = period_seconds
        self._problems: list[str] = []
        self._stopping = threading.Event()
        # When each record of a partition was there to be fetched.
        self.acknowledged: dict[Partition, list[float]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, topic: str, partitions: int) -> None:
        """The topic has traffic from now on."""
        added: dict[Partition, list[float]] = {(topic, number): [] for number in range(partitions)}
        self.acknowledged = self.acknowledged | added

    def _run(self) -> None:
        while not self._stopping.wait(self._period_seconds):
            for topic, number in self.acknowledged:
                self._producer.produce(
                    topic, b"record", partition=number, on_delivery=self._delivered
                )
            self._producer.poll(0.01)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._problems.append(str(error))
        else:
            partition = (message.topic() or "", message.partition() or 0)
            self.acknowledged[partition].append(time.monotonic())

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()

    def stop(self) -> dict[Partition, int]:
        """Every record has been acknowledged; returns how many there are in each partition."""
        self.end()
        left = self._producer.flush(60)
        assert not left and not self._problems, f"{left} records left, {self._problems[:3]}"
        return {partition: len(times) for partition, times in self.acknowledged.items()}
