"""Records for groups of member processes, and whether they kept flowing."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer
from member_process import MemberProcess, Partition, partitions_of

# The least part of its records that a partition without a change of owner goes on delivering.
UNMOVED_SHARE = 0.95
_PERIOD_SECONDS = 0.1


class Traffic:
    """Records that keep coming, one after the other in each partition, until `stop`."""

    def __init__(self, bootstrap_servers: str) -> None:
        # Idempotent: a restart of the broker must neither lose a record nor double it.
        settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True}
        self._producer = Producer({**settings, "log_level": 0})
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
        while not self._stopping.wait(_PERIOD_SECONDS):
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


class Flow:
    """Partitions that keep their owner from now until `check` must keep their pace."""

    def __init__(self, members: Sequence[MemberProcess], traffic: Traffic) -> None:
        self._owners = {partition: member for member in members for partition in member.owned}
        self._traffic = traffic
        self._began = time.monotonic()

    def check(self) -> str:
        """Hold what was processed against what had arrived by then, and say it in a line."""
        time.sleep(1)
        began, ended = self._began, time.monotonic()
        unmoved = {p: m for p, m in self._owners.items() if _held(m, p, began, ended)}
        assert unmoved, "every partition has changed its owner"
        arrivals = self._traffic.acknowledged
        arrived = sum(began <= at < ended for partition in unmoved for at in arrivals[partition])
        times: dict[Partition, list[float]] = {partition: [] for partition in unmoved}
        for member in {member.name: member for member in unmoved.values()}.values():
            for event in member.of("processed", after=began):
                for partition in partitions_of(event):
                    if partition in unmoved and event["at"] < ended:
                        times[partition].append(event["at"])
        processed = sum(map(len, times.values()))
        pauses = (b - a for each in times.values() for a, b in itertools.pairwise(each))
        found = (
            f"{len(unmoved)} unmoved partitions delivered {processed} of {arrived} records in "
            f"{ended - began:.1f} s, longest pause {max(pauses, default=0.0) * 1000:.0f} ms"
        )
        assert processed >= UNMOVED_SHARE * arrived, found
        return found


def _held(member: MemberProcess, partition: Partition, began: float, ended: float) -> bool:
    """Whether it was the owner all the time."""
    spans = [span for span in member.spans() if span.partition == partition]
    return any(span.began <= began and span.ended >= ended for span in spans)
