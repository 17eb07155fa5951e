"""What a partition remembers of each idempotent producer, and its snapshot file.

A producer numbers its records per partition. Keeping the epoch and the last five batches of each
producer id (five, because clients keep at most five requests in flight) is enough to answer a
repeated batch with its original offsets and to refuse a gap.

The rules, as in Kafka's ProducerStateManager:
- a producer id that is not known may start at any sequence (its state may have expired);
- the same epoch must go on with the next sequence; 0 follows 2^31 - 1;
- a batch equal in first and last sequence to one of the five is a duplicate, not an error;
- a lower epoch is fenced; a higher one must start at sequence 0.

The snapshot is Kafka's file, version 1. It holds the last batch of each producer only, so opening
a log reads the headers of its last few batches again to know the other four.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from anabranch.log.checkpoints import write_atomically
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import BatchHeader

BATCHES_KEPT: Final = 5
SEQUENCE_MASK: Final = 0x7FFFFFFF
SNAPSHOT_SUFFIX: Final = ".snapshot"

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_CRC_START = 6  # the CRC covers everything after itself


class ProducerBatch(NamedTuple):
    """One appended batch, as needed to recognise it when it is sent again."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_seen_ms",
        "last_timestamp",
        "next_sequence",
        "producer_epoch",
    )

    def __init__(self, producer_epoch: int, last_seen_ms: int) -> None:
        self.producer_epoch = producer_epoch
        self.batches: deque[ProducerBatch] = deque(maxlen=BATCHES_KEPT)
        self.next_sequence = 0
        self.last_timestamp = -1
        # The broker's clock at the last append. Kafka expires by the records' own timestamps,
        # which forgets a producer of old records while it is still writing.
        self.last_seen_ms = last_seen_ms
        self.coordinator_epoch = -1
        self.current_txn_first_offset = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription:
    """One line of a DescribeProducers answer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


class ProducerStates:
    """The producers of one partition. Only the event loop touches it."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}

    def check(
        self, producer_id: int, producer_epoch: int, base_sequence: int, last_offset_delta: int
    ) -> ProducerBatch | None:
        """None when the batch may be appended, the earlier batch when it is a duplicate.

        Anything else is a KafkaError; nothing is changed here.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        if producer_epoch == entry.producer_epoch:
            if base_sequence == entry.next_sequence:
                return None
            last_sequence = (base_sequence + last_offset_delta) & SEQUENCE_MASK
            for batch in entry.batches:
                if batch[0] == base_sequence and batch[1] == last_sequence:
                    return batch
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} epoch {producer_epoch} sent sequence {base_sequence},"
                f" expected {entry.next_sequence}; records before it are missing",
            )
        if producer_epoch < entry.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} sent epoch {producer_epoch} but a newer one wrote with"
                f" epoch {entry.producer_epoch}; this producer instance must stop",
            )
        if base_sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} began epoch {producer_epoch} with sequence"
                f" {base_sequence}; a new epoch must begin at 0",
            )
        return None

    def record(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        last_offset: int,
        timestamp: int,
        now_ms: int,
    ) -> None:
        """Remember a batch that was appended."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_epoch, now_ms)
        elif producer_epoch != entry.producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches.clear()
        last_sequence = (base_sequence + last_offset_delta) & SEQUENCE_MASK
        entry.batches.append(
            ProducerBatch(
                base_sequence,
                last_sequence,
                last_offset - last_offset_delta,
                last_offset,
                timestamp,
            )
        )
        entry.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        entry.last_timestamp = timestamp
        entry.last_seen_ms = now_ms

    def record_header(self, header: BatchHeader, now_ms: int) -> None:
        """Remember a batch found in the log while opening it, or appended by the broker itself."""
        if header.producer_id < 0:
            return
        if header.is_control:
            self._record_marker(header, now_ms)
        else:
            self.record(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta,
                header.last_offset,
                header.max_timestamp,
                now_ms,
            )

    def _record_marker(self, header: BatchHeader, now_ms: int) -> None:
        """A transaction marker carries no sequence; a newer epoch in it forgets the batches."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = ProducerEntry(header.producer_epoch, now_ms)
            self.entries[header.producer_id] = entry
        elif header.producer_epoch != entry.producer_epoch:
            entry.producer_epoch = header.producer_epoch
            entry.batches.clear()
            entry.next_sequence = 0
        entry.last_timestamp = header.max_timestamp
        entry.last_seen_ms = now_ms

    def recall_header(self, header: BatchHeader) -> None:
        """Put back a batch older than the one a snapshot holds; call with the newest first."""
        entry = self.entries.get(header.producer_id)
        if (
            entry is None
            or header.is_control
            or header.producer_epoch != entry.producer_epoch
            or not entry.batches
            or len(entry.batches) == BATCHES_KEPT
            or header.last_offset >= entry.batches[0].first_offset
            or (header.last_sequence + 1) & SEQUENCE_MASK != entry.batches[0].first_sequence
        ):
            return
        entry.batches.appendleft(
            ProducerBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        )

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were silent for `expiration_ms`; returns how many."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.current_txn_first_offset < 0 and now_ms - entry.last_seen_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)

    def describe(self) -> Iterator[ProducerDescription]:
        for producer_id, entry in sorted(self.entries.items()):
            yield ProducerDescription(
                producer_id=producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_first_offset=entry.current_txn_first_offset,
            )

    def last_data_offsets(self) -> dict[int, int]:
        """The last data offset of each producer, which compaction must keep a batch for."""
        return {
            producer_id: entry.batches[-1].last_offset
            for producer_id, entry in self.entries.items()
            if entry.batches
        }


def encode_snapshot(states: ProducerStates) -> bytes:
    """The producers as Kafka's `.snapshot` file holds them."""
    rows = []
    for producer_id, entry in states.entries.items():
        last = entry.batches[-1] if entry.batches else None
        rows.append(
            _SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                last.last_sequence if last else -1,
                last.last_offset if last else -1,
                last.last_offset - last.first_offset if last else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        )
    content = bytearray(_SNAPSHOT_HEADER.size) + b"".join(rows)
    _SNAPSHOT_HEADER.pack_into(content, 0, _SNAPSHOT_VERSION, 0, len(rows))
    crc = crc32c(memoryview(content)[_CRC_START:])
    _SNAPSHOT_HEADER.pack_into(content, 0, _SNAPSHOT_VERSION, crc, len(rows))
    return bytes(content)


def decode_snapshot(content: bytes, now_ms: int) -> ProducerStates | None:
    """The producers in a snapshot file, or None when it is damaged."""
    if len(content) < _SNAPSHOT_HEADER.size:
        return None
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(content)
    expected_size = _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size
    if version != _SNAPSHOT_VERSION or len(content) != expected_size:
        return None
    if crc32c(memoryview(content)[_CRC_START:]) != crc:
        return None
    states = ProducerStates()
    for row in _SNAPSHOT_ENTRY.iter_unpack(memoryview(content)[_SNAPSHOT_HEADER.size :]):
        (producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, _, _) = row
        entry = states.entries[producer_id] = ProducerEntry(epoch, now_ms)
        entry.last_timestamp = timestamp
        entry.coordinator_epoch, entry.current_txn_first_offset = row[6:]
        if last_offset >= 0:
            first_sequence = (last_sequence - offset_delta) & SEQUENCE_MASK
            entry.batches.append(
                ProducerBatch(
                    first_sequence,
                    last_sequence,
                    last_offset - offset_delta,
                    last_offset,
                    timestamp,
                )
            )
            entry.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
    return states


def snapshot_path(folder: Path, offset: int) -> Path:
    return folder / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def write_snapshot(
    folder: Path, offset: int, states: ProducerStates, *, is_synced: bool = True
) -> None:
    """Write the state of all producers below `offset`."""
    write_atomically(snapshot_path(folder, offset), encode_snapshot(states), is_synced=is_synced)


def load_snapshot(path: Path, now_ms: int) -> ProducerStates | None:
    try:
        return decode_snapshot(path.read_bytes(), now_ms)
    except FileNotFoundError:
        return None
