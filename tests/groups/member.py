"""One stock consumer in a process of its own, telling what happens to it as JSON lines.

    python member.py CLIENT BOOTSTRAP GROUP TOPIC [OPTION=VALUE ...]

CLIENT is confluent, kafka-python or aiokafka. Options: instance (static membership), strategy (an
assignor's name), session_ms, heartbeat_ms, pause_at (confluent: stop the process, as SIGSTOP would,
between processing that many records and the commit of the last).

Every record is "processed" (told) and then committed at once, synchronously, so that the committed
offset never runs ahead of what was told. SIGTERM closes the consumer in order.
"""

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

_stopping = False


def tell(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), **facts})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def stop(*_: object) -> None:
    global _stopping
    _stopping = True


def run_confluent(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    from confluent_kafka import Consumer, KafkaException

    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": int(options.get("session_ms", "6000")),
        "heartbeat.interval.ms": int(options.get("heartbeat_ms", "200")),
        "partition.assignment.strategy": options.get("strategy", "range"),
        "log_level": 0,
    }
    if "instance" in options:
        config["group.instance.id"] = options["instance"]
    consumer = Consumer(config)

    def told(event: str) -> Any:
        def callback(_: Any, partitions: list[Any]) -> None:
            tell(event, partitions=[p.partition for p in partitions])

        return callback

    consumer.subscribe(
        [topic], on_assign=told("assigned"), on_revoke=told("revoked"), on_lost=told("lost")
    )
    seen = 0
    while not _stopping:
        message = consumer.poll(0.05)
        if message is None or message.error():
            continue
        tell("record", partition=message.partition(), offset=message.offset())
        seen += 1
        if seen == int(options.get("pause_at", "0")):
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            consumer.commit(message, asynchronous=False)
            tell("committed", partition=message.partition(), offset=message.offset() + 1)
        except KafkaException as error:
            tell("refused", error=error.args[0].name())
    consumer.close()


def run_kafka_python(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import KafkaError

    strategies = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(options.get("session_ms", "6000")),
        heartbeat_interval_ms=int(options.get("heartbeat_ms", "200")),
        partition_assignment_strategy=[strategies[options.get("strategy", "range")]],
    )

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            tell("assigned", partitions=sorted(p.partition for p in assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            tell("revoked", partitions=sorted(p.partition for p in revoked))

    consumer.subscribe([topic], listener=Listener())
    while not _stopping:
        for partition, records in consumer.poll(timeout_ms=50).items():
            for record in records:
                tell("record", partition=record.partition, offset=record.offset)
            end = records[-1].offset + 1
            try:
                consumer.commit({partition: kafka.OffsetAndMetadata(end, "", -1)})
                tell("committed", partition=partition.partition, offset=end)
            except KafkaError as error:
                tell("refused", error=type(error).__name__)
    consumer.close()


async def run_aiokafka(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    strategies = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(options.get("session_ms", "6000")),
        heartbeat_interval_ms=int(options.get("heartbeat_ms", "200")),
        partition_assignment_strategy=[strategies[options.get("strategy", "range")]],
        group_instance_id=options.get("instance"),
    )

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            tell("assigned", partitions=sorted(p.partition for p in assigned))

        async def on_partitions_revoked(self, revoked: Any) -> None:
            tell("revoked", partitions=sorted(p.partition for p in revoked))

    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not _stopping:
        for partition, records in (await consumer.getmany(timeout_ms=50)).items():
            for record in records:
                tell("record", partition=record.partition, offset=record.offset)
            try:
                await consumer.commit({partition: records[-1].offset + 1})
                tell("committed", partition=partition.partition, offset=records[-1].offset + 1)
            except KafkaError as error:
                tell("refused", error=type(error).__name__)
    await consumer.stop()


def main() -> None:
    client, bootstrap, group, topic, *rest = sys.argv[1:]
    options = dict(option.split("=", 1) for option in rest)
    signal.signal(signal.SIGTERM, stop)
    tell("started")
    if client == "confluent":
        run_confluent(bootstrap, group, topic, options)
    elif client == "kafka-python":
        run_kafka_python(bootstrap, group, topic, options)
    else:
        asyncio.run(run_aiokafka(bootstrap, group, topic, options))
    tell("closed")


if __name__ == "__main__":
    main()
