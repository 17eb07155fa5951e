"""One stock consumer in a process of its own, telling what happens to it as JSON lines.

    python member.py CLIENT BOOTSTRAP GROUP TOPIC [OPTION=VALUE ...]

CLIENT is confluent, kafka-python or aiokafka. Options:

    instance                  static membership under this name
    strategy                  an assignor's name
    session_ms, heartbeat_ms  timing of the classic protocol
    pause_at, die_at          stop (SIGSTOP) or die (SIGKILL) between processing that many records
                              and the commit of the last of them
    group_protocol            confluent: "consumer" for the protocol of KIP-848, whose timing and
                              assignors are the broker's: session_ms, heartbeat_ms and strategy do
                              not count then
    remote_assignor           confluent with group_protocol=consumer: the broker's assignor to use

Every record is "processed" (told) and then committed at once, synchronously, so that the committed
offset never runs ahead of what was told, and nothing is in doubt when partitions are given back.
Who is refused a commit drops the rest of the batch: it may be someone else's by now. SIGTERM closes
the consumer in order. The times told are those of one clock for all processes of the machine.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

_stopping = False
_processed = 0


def tell(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), **facts})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tell_partitions(event: str, partitions: Iterable[Any]) -> None:
    tell(event, partitions=sorted(p.partition for p in partitions))


def stop(*_: object) -> None:
    global _stopping
    _stopping = True


def process(partition: int, offset: int, options: dict[str, str]) -> None:
    """Process a record, and have the accident that was asked for before it can be committed."""
    global _processed
    tell("record", partition=partition, offset=offset)
    _processed += 1
    if _processed == int(options.get("pause_at", "0")):
        tell("pausing")
        os.kill(os.getpid(), signal.SIGSTOP)
    if _processed == int(options.get("die_at", "0")):
        tell("dying")
        os.kill(os.getpid(), signal.SIGKILL)


def error_name(error: BaseException) -> str:
    """Kafka's name of a broker's answer, also when the client wrapped it; else the class's name."""
    inner = error.__cause__ or (error.args[0] if error.args else None)
    for candidate in (error, inner):
        if getattr(candidate, "errno", None) is not None:
            return str(getattr(candidate, "message", candidate))
    return type(error).__name__


# librdkafka ---------------------------------------------------------------------------------------


def confluent_config(bootstrap: str, group: str, options: dict[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    if "instance" in options:
        config["group.instance.id"] = options["instance"]
    if options.get("group_protocol", "classic") == "consumer":
        # librdkafka refuses the classic protocol's settings together with this one.
        config["group.protocol"] = "consumer"
        if "remote_assignor" in options:
            config["group.remote.assignor"] = options["remote_assignor"]
    else:
        config["session.timeout.ms"] = int(options.get("session_ms", "20000"))
        config["heartbeat.interval.ms"] = int(options.get("heartbeat_ms", "200"))
        config["partition.assignment.strategy"] = options.get("strategy", "range")
    return config


def run_confluent(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(confluent_config(bootstrap, group, options))
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: tell_partitions("assigned", partitions),
        on_revoke=lambda _, partitions: tell_partitions("revoked", partitions),
        on_lost=lambda _, partitions: tell_partitions("lost", partitions),
    )
    while not _stopping:
        message = consumer.poll(0.05)
        if message is None or message.error():
            continue
        process(message.partition(), message.offset(), options)
        try:
            consumer.commit(message, asynchronous=False)
            tell("committed", partition=message.partition(), offset=message.offset() + 1)
        except KafkaException as error:
            tell("refused", error=error.args[0].name())
    tell("closing")
    consumer.close()


# kafka-python -------------------------------------------------------------------------------------


def run_kafka_python(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    import kafka
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import CommitFailedError, KafkaError, RebalanceInProgressError

    strategies = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(options.get("session_ms", "20000")),
        heartbeat_interval_ms=int(options.get("heartbeat_ms", "200")),
        partition_assignment_strategy=[strategies[options.get("strategy", "range")]],
        group_instance_id=options.get("instance"),
    )

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            tell_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            tell_partitions("revoked", revoked)

        def on_partitions_lost(self, lost: Any) -> None:
            tell_partitions("lost", lost)

    def commit(partition: Any, end: int) -> None:
        while True:
            try:
                consumer.commit({partition: kafka.OffsetAndMetadata(end, "", -1)})
            except (CommitFailedError, RebalanceInProgressError):
                raise
            except KafkaError as error:  # such as a lost connection, which it leaves to its users
                tell("failed", error=error_name(error))
            else:
                tell("committed", partition=partition.partition, offset=end)
                return

    consumer.subscribe([topic], listener=Listener())
    while not _stopping:
        # Long, because kafka-python 3.0 forgets a join that ends between two polls and asks for
        # another one, which is a rebalance that nobody needed.
        batches = consumer.poll(timeout_ms=1000)
        try:
            for partition, records in batches.items():
                for record in records:
                    process(record.partition, record.offset, options)
                    commit(partition, record.offset + 1)
        except (CommitFailedError, RebalanceInProgressError) as error:
            tell("refused", error=error_name(error))
    tell("closing")
    consumer.close()


# aiokafka -----------------------------------------------------------------------------------------


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
        session_timeout_ms=int(options.get("session_ms", "20000")),
        heartbeat_interval_ms=int(options.get("heartbeat_ms", "200")),
        partition_assignment_strategy=[strategies[options.get("strategy", "range")]],
        group_instance_id=options.get("instance"),
    )
    # This client rebalances in the background, between any two awaits of the application; its
    # documentation says to let the listener wait until the batch in hand is done.
    working = asyncio.Lock()

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            tell_partitions("assigned", assigned)

        async def on_partitions_revoked(self, revoked: Any) -> None:
            async with working:
                tell_partitions("revoked", revoked)

    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not _stopping:
        batches = await consumer.getmany(timeout_ms=50)
        async with working:
            try:
                for partition, records in batches.items():
                    for record in records:
                        process(record.partition, record.offset, options)
                        await consumer.commit({partition: record.offset + 1})
                        tell("committed", partition=record.partition, offset=record.offset + 1)
            except KafkaError as error:
                tell("refused", error=error_name(error))
    tell("closing")
    await consumer.stop()


def main() -> None:
    client, bootstrap, group, topic, *rest = sys.argv[1:]
    options = dict(option.split("=", 1) for option in rest)
    signal.signal(signal.SIGTERM, stop)
    tell("started")
    try:
        if client == "confluent":
            run_confluent(bootstrap, group, topic, options)
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
