"""One stock consumer in a process of its own that works on every record and keeps a history.

    python branch_worker.py CLIENT BOOTSTRAP GROUP TOPIC HISTORY [OPTION=VALUE ...]

CLIENT is confluent, kafka-python or aiokafka; HISTORY is the file for one JSON line per event.
It subscribes when it reads a line from stdin, so that its start-up is nobody's waiting time, and
leaves in order on SIGTERM. Options:

    work_ms                   how long a record takes
    fetch_bytes               how much of a partition to fetch at once
    fetch_wait_ms             how long a fetch may wait for records
    session_ms, heartbeat_ms  timing of the classic protocol, whose assignor is `roundrobin`
    protocol                  confluent: "consumer" for the protocol of KIP-848

It is an ordinary consumer: records are worked on one after the other in the order they come, and
their offsets are committed, with waiting, after every 50 and before partitions are given back. A
record is told when it is begun and when it is done, straight to the file, so that what a killed
worker had in hand is known. The times told are those of one clock for all processes of the machine.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

COMMIT_EVERY = 50
# What may be carried over of late wake-ups: more would be a worker that does nothing for a while.
LATE_MAX_S = 0.02

_stopping = False
_history = -1


def tell(event: str, **facts: Any) -> None:
    os.write(
        _history, (json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n").encode()
    )


def tell_partitions(event: str, partitions: Iterable[Any]) -> None:
    tell(event, partitions=sorted(p.partition for p in partitions))


def stop(*_: object) -> None:
    global _stopping
    _stopping = True


class Work:
    """Takes a fixed time for each record, whatever the operating system makes of sleeping.

    A sleeper wakes up late: by some 0.1 ms on an idle machine, which is 5 % of 2 ms, and by more on
    a busy one. That is the machine's doing and no work, so each record's lateness is taken off the
    sleep of the next. Fetching and committing are not work either, and nothing is taken off for
    them: they are what the broker is measured by.
    """

    def __init__(self, work_ms: float) -> None:
        self._work_s = work_ms / 1000
        self._late_s = 0.0
        self._began_at = 0.0

    def begin(self, partition: int, offset: int, key: bytes | None) -> float:
        """Begin a record; returns how long to sleep."""
        tell("start", partition=partition, offset=offset, key=(key or b"").decode())
        self._began_at = time.monotonic()
        return max(0.0, self._work_s - self._late_s)

    def end(self, partition: int, offset: int) -> None:
        took_s = time.monotonic() - self._began_at
        self._late_s = min(max(0.0, self._late_s + took_s - self._work_s), LATE_MAX_S)
        tell("done", partition=partition, offset=offset)


# librdkafka ---------------------------------------------------------------------------------------


class ConfluentWorker:
    def __init__(self, bootstrap: str, group: str, options: dict[str, str]) -> None:
        from confluent_kafka import Consumer

        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": int(options["fetch_bytes"]),
            "fetch.wait.max.ms": int(options["fetch_wait_ms"]),
            # It would have everything in a queue in the order that it came, some partitions first.
            "queued.min.messages": COMMIT_EVERY,
            "fetch.queue.backoff.ms": 20,
            "log_level": 0,
        }
        if options.get("protocol") == "consumer":
            config["group.protocol"] = "consumer"
        else:
            config["session.timeout.ms"] = int(options["session_ms"])
            config["heartbeat.interval.ms"] = int(options["heartbeat_ms"])
            config["partition.assignment.strategy"] = "roundrobin"
        self._work = Work(float(options["work_ms"]))
        self._uncommitted: dict[tuple[str, int], int] = {}
        self._since_commit = 0
        self._consumer = Consumer(config)

    def run(self, topic: str) -> None:
        tell("joining")
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: tell_partitions("assigned", partitions),
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        while not _stopping:
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._process(message)
            if message is None or self._since_commit >= COMMIT_EVERY:
                self._commit()
        self._commit()
        tell("closing")
        self._consumer.close()

    def _process(self, message: Any) -> None:
        place = message.partition(), message.offset()
        time.sleep(self._work.begin(*place, message.key()))
        self._work.end(*place)
        self._uncommitted[message.topic(), message.partition()] = message.offset() + 1
        self._since_commit += 1

    def _on_revoke(self, _: Any, partitions: list[Any]) -> None:
        self._commit()
        tell_partitions("revoked", partitions)
        self._forget(partitions)

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        tell_partitions("lost", partitions)
        self._forget(partitions)

    def _forget(self, partitions: list[Any]) -> None:
        for partition in partitions:
            self._uncommitted.pop((partition.topic, partition.partition), None)

    def _commit(self) -> None:
        """Commit what was done; what is refused is tried again as long as it is ours."""
        from confluent_kafka import KafkaException, TopicPartition

        self._since_commit = 0
        if not self._uncommitted:
            return
        ends = [TopicPartition(t, p, end) for (t, p), end in self._uncommitted.items()]
        tell("committing", offsets={p.partition: p.offset for p in ends})
        try:
            answers = self._consumer.commit(offsets=ends, asynchronous=False)
        except KafkaException as error:
            tell("refused", error=error.args[0].name())
            return
        refused = [str(answer.error) for answer in answers if answer.error is not None]
        if refused:
            tell("refused", error=refused[0])
        else:
            tell("committed", offsets={p.partition: p.offset for p in ends})
            self._uncommitted.clear()


# kafka-python -------------------------------------------------------------------------------------


def run_kafka_python(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    import kafka
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import KafkaError

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=int(options["fetch_bytes"]),
        fetch_max_wait_ms=int(options["fetch_wait_ms"]),
        session_timeout_ms=int(options["session_ms"]),
        heartbeat_interval_ms=int(options["heartbeat_ms"]),
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    )
    work = Work(float(options["work_ms"]))

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            tell_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            tell_partitions("revoked", revoked)

        def on_partitions_lost(self, lost: Any) -> None:
            tell_partitions("lost", lost)

    sys.stdin.readline()
    tell("joining")
    consumer.subscribe([topic], listener=Listener())
    while not _stopping:
        # Long, because kafka-python 3.0 forgets a join that ends between two polls and asks for
        # another one, which is a rebalance that nobody needed.
        batches = consumer.poll(timeout_ms=1000, max_records=COMMIT_EVERY)
        for records in batches.values():
            for record in records:
                time.sleep(work.begin(record.partition, record.offset, record.key))
                work.end(record.partition, record.offset)
        ends = {partition: records[-1].offset + 1 for partition, records in batches.items()}
        if not ends:
            continue
        tell("committing", offsets={p.partition: end for p, end in ends.items()})
        try:
            consumer.commit({p: kafka.OffsetAndMetadata(end, "", -1) for p, end in ends.items()})
        except KafkaError as error:
            tell("refused", error=repr(error))
        else:
            tell("committed", offsets={p.partition: end for p, end in ends.items()})
    tell("closing")
    consumer.close()


# aiokafka -----------------------------------------------------------------------------------------


async def run_aiokafka(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=int(options["fetch_bytes"]),
        fetch_max_wait_ms=int(options["fetch_wait_ms"]),
        session_timeout_ms=int(options["session_ms"]),
        heartbeat_interval_ms=int(options["heartbeat_ms"]),
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    )
    work = Work(float(options["work_ms"]))
    # This client rebalances in the background, between any two awaits of the application; its
    # documentation says to let the listener wait until the batch in hand is done.
    working = asyncio.Lock()

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            tell_partitions("assigned", assigned)

        async def on_partitions_revoked(self, revoked: Any) -> None:
            async with working:
                tell_partitions("revoked", revoked)

    sys.stdin.readline()
    tell("joining")
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not _stopping:
        batches = await consumer.getmany(timeout_ms=50, max_records=COMMIT_EVERY)
        if not batches:
            continue
        async with working:
            for records in batches.values():
                for record in records:
                    await asyncio.sleep(work.begin(record.partition, record.offset, record.key))
                    work.end(record.partition, record.offset)
            ends = {partition: records[-1].offset + 1 for partition, records in batches.items()}
            tell("committing", offsets={p.partition: end for p, end in ends.items()})
            try:
                await consumer.commit(ends)
            except KafkaError as error:
                tell("refused", error=repr(error))
            else:
                tell("committed", offsets={p.partition: end for p, end in ends.items()})
    tell("closing")
    await consumer.stop()


def main() -> None:
    global _history
    client, bootstrap, group, topic, history, *rest = sys.argv[1:]
    options = dict(option.split("=", 1) for option in rest)
    _history = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    signal.signal(signal.SIGTERM, stop)
    try:
        if client == "confluent":
            worker = ConfluentWorker(bootstrap, group, options)
            sys.stdin.readline()
            worker.run(topic)
        elif client == "kafka-python":
            run_kafka_python(bootstrap, group, topic, options)
        else:
            asyncio.run(run_aiokafka(bootstrap, group, topic, options))
    except Exception as error:
        tell("crashed", error=repr(error))
        raise
    tell("closed")


if __name__ == "__main__":
    main()
