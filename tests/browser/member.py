"""One member of a group in a process of its own, which tells what it knows when it is asked.

    python member.py KIND BOOTSTRAP GROUP TOPIC CLIENT_ID

KIND is `classic` or `consumer` (confluent-kafka with that protocol) or `cooperative`. Lines on
stdin: `tell`, `hold` (go on as a member without finishing records), `leave`. Lines on stdout are
JSON: `assigned` and `revoked` with the time of the callback, and `told`.
"""

import asyncio
import json
import queue
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from anabranch.client import ConsumerRecord, CooperativeConsumer

Commands = queue.SimpleQueue[str]


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at": time.time(), **fields}), flush=True)


def listen() -> Commands:
    commands: Commands = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(line.strip())
        commands.put("leave")

    threading.Thread(target=read, daemon=True).start()
    return commands


def next_command(commands: Commands) -> str:
    try:
        return commands.get_nowait()
    except queue.Empty:
        return ""


# Stock ------------------------------------------------------------------------------------------


def stock(kind: str, bootstrap: str, group: str, topic: str, client_id: str) -> None:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": client_id,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "group.protocol": kind,
        "log_level": 0,
    }
    if kind == "classic":
        settings["session.timeout.ms"] = 10_000
    consumer = Consumer(settings)

    def places(partitions: list[TopicPartition]) -> list[list[Any]]:
        return [[one.topic, one.partition] for one in partitions]

    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: say("assigned", partitions=places(partitions)),
        on_revoke=lambda _, partitions: say("revoked", partitions=places(partitions)),
    )
    commands = listen()
    is_held = False
    while (command := next_command(commands)) != "leave":
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            consumer.commit(message, asynchronous=False)
        if command == "hold":
            consumer.pause(consumer.assignment())
            is_held = True
        if command:
            say("told", held=is_held, **stock_facts(consumer))
    consumer.close()


def stock_facts(consumer: Consumer) -> dict[str, Any]:
    assignment = consumer.assignment()
    partitions = []
    for one in consumer.committed(assignment, 30) if assignment else []:
        low, high = consumer.get_watermark_offsets(one, 30)
        partitions.append(
            {
                "topic": one.topic,
                "partition": one.partition,
                "committed": one.offset if one.offset >= 0 else None,
                "low": low,
                "high": high,
            }
        )
    return {"member_id": consumer.memberid(), "partitions": partitions}


# Cooperative ------------------------------------------------------------------------------------


async def cooperative(bootstrap: str, group: str, topic: str, client_id: str) -> None:
    commands = listen()
    is_held = False
    kept: list[ConsumerRecord] = []

    def ranges_of(moved: Any) -> list[list[Any]]:
        return [
            [place.topic, place.partition, one.slots.first, one.slots.end - 1]
            for place, ranges in moved.items()
            for one in ranges
        ]

    async with CooperativeConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id=client_id,
        auto_commit_interval_ms=200,
        rebalance_timeout_ms=10_000,
        on_ranges_assigned=lambda moved: say("assigned", ranges=ranges_of(moved)),
        on_ranges_revoked=lambda moved: say("revoked", ranges=ranges_of(moved)),
    ) as consumer:
        consumer.subscribe([topic])
        while (command := next_command(commands)) != "leave":
            is_held = is_held or command == "hold"
            for record in await consumer.poll(0.05):
                if is_held:
                    kept.append(record)
                else:
                    consumer.ack(record)
            if command:
                if not is_held:
                    await consumer.commit()
                progress = consumer.progress()
                say(
                    "told",
                    held=is_held,
                    member_id=progress.member_id,
                    ranges=[
                        [one.topic, one.partition, *_ends(one.key_range.slots)]
                        for one in progress.ranges
                    ],
                    stable_offsets=[
                        [place.topic, place.partition, offset]
                        for place, offset in progress.stable_offsets.items()
                    ],
                    in_hand=[record.offset for record in kept],
                )
        for record in kept:
            consumer.ack(record)


def _ends(slots: Any) -> tuple[int, int]:
    return slots.first, slots.end - 1


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    if kind == "cooperative":
        asyncio.run(cooperative(*arguments))
    else:
        stock(kind, *arguments)
