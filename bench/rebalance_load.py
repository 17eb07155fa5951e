"""Records at a steady rate for all partitions of a topic, from a process of its own.

Run as a program this file is that process: `BOOTSTRAP_SERVERS TOPIC PARTITIONS RECORDS_PER_SECOND`;
it ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import sys
import time
from collections.abc import AsyncIterator
from itertools import cycle
from pathlib import Path

from confluent_kafka import Producer

_TICK_S = 0.01


def produce(bootstrap_servers: str, topic: str, partition_count: int, rate: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    partitions = cycle(range(partition_count))
    value = b"x" * 100
    began_s = time.monotonic()
    sent = 0
    while not select.select([sys.stdin], [], [], _TICK_S)[0]:
        due = int((time.monotonic() - began_s) * rate)
        for _ in range(due - sent):
            producer.produce(topic, value, partition=next(partitions))
        sent = max(due, sent)
        producer.poll(0)
    producer.flush(5)


@contextlib.asynccontextmanager
async def steady_load(
    bootstrap_servers: str, topic: str, partition_count: int, records_per_second: int
) -> AsyncIterator[None]:
    """Produce for the time of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).resolve()),
        bootstrap_servers,
        topic,
        str(partition_count),
        str(records_per_second),
        stdin=asyncio.subprocess.PIPE,
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    produce(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
