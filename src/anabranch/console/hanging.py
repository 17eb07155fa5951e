"""Transactions that are open in a partition and that no coordinator will end (KIP-664).

Readers of committed records do not get past them. `anabranch transactions find-hanging` asks
for the same over the wire.
"""

import asyncio
from dataclasses import dataclass

from anabranch.broker.broker import Broker
from anabranch.model.errors import KafkaError

_SLICE = 1_000
_PATIENCE = "transaction.max.timeout.ms"


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int | None

    @property
    def remedy(self) -> str:
        """The command that ends it."""
        return (
            f"anabranch transactions abort --topic {self.topic} --partition {self.partition} "
            f"--start-offset {self.start_offset}"
        )


async def find_hanging(broker: Broker) -> list[HangingTransaction]:
    """All of them; none while a coordinator cannot say what it has open."""
    try:
        alive = {
            (one.producer_id, place)
            for one in broker.transactions.all_transactions()
            for place in one.partitions
        }
    except KafkaError:
        return []
    before_ms = broker.now_ms() - broker.get_int(_PATIENCE)
    found: list[HangingTransaction] = []
    seen = 0
    for topic in list(broker.topics):
        if topic.source is not None:
            continue  # its transactions are the source's
        for partition in topic.partitions:
            seen += 1
            if not seen % _SLICE:
                await asyncio.sleep(0)
            log = partition.log
            for producer_id, first_offset in list(log.transactions.open.items()):
                entry = log.producer_states.entries.get(producer_id)
                last_ms = entry.last_timestamp if entry is not None else -1
                is_old = last_ms < before_ms
                if is_old and (producer_id, (topic.name, partition.index)) not in alive:
                    found.append(
                        HangingTransaction(
                            topic.name,
                            partition.index,
                            producer_id,
                            entry.producer_epoch if entry is not None else -1,
                            first_offset,
                            last_ms if last_ms >= 0 else None,
                        )
                    )
    return found
