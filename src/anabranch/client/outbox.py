"""Records that are to be written, until a request has them. Pure.

They come in the order of `send`, and within a partition they leave in it. Which partition a record
goes to is chosen when the number of the topic's partitions is known (`place`), so that a topic
that nobody has asked about yet does not hold up the application. `take_batches` gives one batch of
each partition at a time, because the next one may only go when it is known what became of the one
before: so nothing is ever out of order, whatever is tried again.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from anabranch.branch._kernels import crc32c
from anabranch.client.errors import ConfigurationError
from anabranch.client.partitioner import StickyPartitions, partition_of_key
from anabranch.client.records import Headers, TopicPartition
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch

# Lengths, deltas and attributes of a record, at most.
_RECORD_OVERHEAD_BYTES = 36


class Outgoing(NamedTuple):
    """A record to be written."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    headers: Headers
    timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        headers = sum(len(name) * 4 + len(value or b"") + 10 for name, value in self.headers)
        return _RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + headers


class Outbox:
    """What waits to be sent."""

    def __init__(self, batch_size: int, random_below: Callable[[int], int]) -> None:
        self._batch_size = batch_size
        self._sticky = StickyPartitions(random_below)
        self._unplaced: list[Outgoing] = []
        self._placed: dict[TopicPartition, deque[Outgoing]] = {}
        self._sizes: dict[TopicPartition, int] = {}
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._unplaced or self._placed)

    def add(self, record: Outgoing) -> None:
        self._unplaced.append(record)
        self.size_bytes += record.size_bytes

    def clear(self) -> None:
        self._unplaced.clear()
        self._placed.clear()
        self._sizes.clear()
        self.size_bytes = 0

    @property
    def topics(self) -> set[str]:
        """Topics whose number of partitions has to be known."""
        return {record.topic for record in self._unplaced}

    def place(self, partitions: Mapping[str, int]) -> None:
        """Choose partitions; `partitions` says how many each topic has."""
        unplaced, self._unplaced = self._unplaced, []
        for record in unplaced:
            count = partitions[record.topic]
            place = TopicPartition(record.topic, self._partition_of(record, count))
            self._placed.setdefault(place, deque()).append(record)
            size_bytes = self._sizes.get(place, 0) + record.size_bytes
            if record.key is None and size_bytes >= self._batch_size:
                self._sticky.batch_is_full(record.topic, count)
            self._sizes[place] = size_bytes
        # A batch that is sent is as good as a full one.
        for topic in {record.topic for record in unplaced if record.key is None}:
            self._sticky.batch_is_full(topic, partitions[topic])

    def _partition_of(self, record: Outgoing, count: int) -> int:
        if record.partition is not None:
            if not 0 <= record.partition < count:
                raise ConfigurationError(
                    f"{record.topic} has no partition {record.partition}: it has {count}"
                )
            return record.partition
        if record.key is not None:
            return partition_of_key(record.key, count)
        return self._sticky.partition(record.topic, count)

    def take_batches(self) -> dict[TopicPartition, list[Outgoing]]:
        """The next batch of each partition."""
        taken = {place: self._take_batch(records) for place, records in self._placed.items()}
        for place, batch in taken.items():
            size_bytes = sum(record.size_bytes for record in batch)
            self.size_bytes -= size_bytes
            self._sizes[place] -= size_bytes
            if not self._placed[place]:
                del self._placed[place], self._sizes[place]
        return taken

    def _take_batch(self, records: deque[Outgoing]) -> list[Outgoing]:
        batch = [records.popleft()]
        size_bytes = batch[0].size_bytes
        while records and size_bytes + records[0].size_bytes <= self._batch_size:
            size_bytes += records[0].size_bytes
            batch.append(records.popleft())
        return batch


def encode_batch(
    records: list[Outgoing], *, producer_id: int, producer_epoch: int, sequence: int, codec: int
) -> bytes:
    """A batch of a transaction, as a Produce request has it."""
    return build_batch(
        [
            Record(number, one.timestamp_ms, one.key, one.value, one.headers)
            for number, one in enumerate(records)
        ],
        base_offset=0,
        partition_leader_epoch=-1,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        codec=codec,
        attributes=TRANSACTIONAL_FLAG,
        checksum=crc32c,
    )
