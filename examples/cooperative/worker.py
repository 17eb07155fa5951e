"""A worker that handles orders, each customer's in order: start it as often as you like.

    python examples/cooperative/worker.py [--bootstrap-server HOST:PORT] [--topic orders]
        [--group billing] [--work-ms 10] [--concurrency 16]

It prints what it does once a second, and stops in order with Ctrl-C or SIGTERM.
"""

import argparse
import asyncio
import contextlib
import os

from anabranch.client import ConsumerRecord, CooperativeConsumer


class Worker:
    """Handles orders, and counts them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._handled = 0
        self._customers: set[bytes | None] = set()

    async def handle(self, record: ConsumerRecord) -> None:
        """The work itself: here it only takes its time."""
        await asyncio.sleep(self._options.work_ms / 1000)
        self._handled += 1
        self._customers.add(record.key)

    async def run(self) -> None:
        options = self._options
        consumer = CooperativeConsumer(
            bootstrap_servers=options.bootstrap_server, group_id=options.group
        )
        async with consumer:
            consumer.subscribe([options.topic])
            telling = asyncio.create_task(self._tell(consumer))
            await consumer.run(self.handle, concurrency=options.concurrency)
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
        print(f"handled {self._handled} orders of {len(self._customers)} customers")

    async def _tell(self, consumer: CooperativeConsumer) -> None:
        before = 0
        while True:
            await asyncio.sleep(1)
            progress = consumer.progress()
            ranges = ", ".join(str(one.key_range) for one in progress.ranges) or "nothing yet"
            print(
                f"{self._handled - before}/s, {progress.lag_records} to do, of {ranges}", flush=True
            )
            before = self._handled


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    address = os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "localhost:9092")
    parser.add_argument("--bootstrap-server", default=address)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="billing")
    parser.add_argument("--work-ms", type=float, default=10)
    parser.add_argument("--concurrency", type=int, default=16)
    asyncio.run(Worker(parser.parse_args()).run())


if __name__ == "__main__":
    main()
