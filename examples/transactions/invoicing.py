"""Writes an invoice for each order, exactly once: start it as often as you like, and kill it.

    python examples/transactions/invoicing.py --name NAME [--bootstrap-server HOST:PORT]
        [--work-ms 5] [--concurrency 16]

Each running process needs a name of its own; one that is started again has the name it had. It
reads `orders`, whose values are amounts in cents, and writes to `invoices`. It stops in order with
Ctrl-C or SIGTERM, and kill -9 does no harm either, to it or to the broker.
"""

import argparse
import asyncio
import contextlib

from anabranch.client import (
    ConsumerRecord,
    CooperativeConsumer,
    Outputs,
    ProducerFencedError,
    TransactionalProducer,
)

VAT_PERCENT = 19


class Invoicing:
    """Handles orders, and counts them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._handled = 0

    async def handle(self, order: ConsumerRecord, outputs: Outputs) -> None:
        """The invoice and the fact that the order is done count together, or not at all."""
        await asyncio.sleep(self._options.work_ms / 1000)
        net_cents = int(order.value or b"0")
        gross_cents = net_cents + net_cents * VAT_PERCENT // 100
        invoice = b"order %d: %d cents" % (order.offset, gross_cents)
        outputs.send("invoices", invoice, key=order.key)
        self._handled += 1

    async def run(self) -> None:
        options = self._options
        async with (
            TransactionalProducer(
                bootstrap_servers=options.bootstrap_server,
                transactional_id=f"invoicing-{options.name}",
            ) as producer,
            CooperativeConsumer(
                bootstrap_servers=options.bootstrap_server, group_id="invoicing"
            ) as consumer,
        ):
            consumer.subscribe(["orders"])
            telling = asyncio.create_task(self._tell(consumer))
            try:
                await consumer.run_in_transactions(
                    self.handle, producer, concurrency=options.concurrency
                )
            except ProducerFencedError:
                print(f"another process has the name {options.name}")
            finally:
                telling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await telling
        print(f"handled {self._handled} orders")

    async def _tell(self, consumer: CooperativeConsumer) -> None:
        before = 0
        while True:
            await asyncio.sleep(1)
            left = consumer.progress().lag_records
            print(f"{self._handled - before}/s, {left} to do", flush=True)
            before = self._handled


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--bootstrap-server", default="localhost:9092")
    parser.add_argument("--work-ms", type=float, default=5)
    parser.add_argument("--concurrency", type=int, default=16)
    asyncio.run(Invoicing(parser.parse_args()).run())


if __name__ == "__main__":
    main()
