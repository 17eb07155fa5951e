"""A cooperative member whose outputs and acknowledgements go in transactions; see `worker`.

python rounds_worker.py BOOTSTRAP GROUP TOPIC HISTORY MEMBER INCARNATION WORK_MS
"""

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cooperative"))

from worker import CONCURRENCY, Worker, main

from anabranch.client import ConsumerRecord, Outputs, TransactionalProducer

OUT_SUFFIX = "-out"
TIMEOUT_MS = 10_000
INTERVAL_MS = 50
DAWDLE_S = 0.3


class TransactionalWorker(Worker):
    """Makes one record of each, with the same key."""

    async def _work(self) -> None:
        bootstrap, member = sys.argv[1], sys.argv[5]
        async with TransactionalProducer(
            bootstrap_servers=bootstrap,
            transactional_id=member,
            transaction_timeout_ms=TIMEOUT_MS,
        ) as producer:
            _dawdle(producer)
            await self._consumer.run_in_transactions(
                self._transform, producer, concurrency=CONCURRENCY, interval_ms=INTERVAL_MS
            )

    async def _transform(self, record: ConsumerRecord, outputs: Outputs) -> None:
        outputs.send(f"{record.topic}{OUT_SUFFIX}", record.value, key=record.key)
        # It fails now and then, after it has sent something.
        await self._handle(record)


def _dawdle(producer: TransactionalProducer) -> None:
    """Let time pass between the acknowledgements of a transaction and its end, where a death does
    the most harm."""
    session = producer._session
    commit_offsets = session.commit_offsets

    async def commit_and_wait(*args: Any) -> None:
        await commit_offsets(*args)
        await asyncio.sleep(random.uniform(0, DAWDLE_S))

    session.commit_offsets = commit_and_wait  # type: ignore[method-assign]


if __name__ == "__main__":
    main(TransactionalWorker)
