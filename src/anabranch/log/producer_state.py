"""What a partition remembers of each idempotent producer, and its snapshot file.

A producer numbers its records per partition. Keeping the epoch and the last five batches of each
producer id (five, because clients keep at most five requests in flight) is enough to answer a
repeated batch with its original offsets and to refuse a gap.

The rules, as in Kafka's ProducerStateManager:
- a producer id that is not known may start at any sequence (its state may have expired);
- the same epoch must go on with the next sequence; 0 follows 2^31 - 1;
- a batch equal in first and last sequence to one of the five is a duplicate, not an error, unless
  that one belongs to a transaction that has ended. No producer repeats what it has committed or
  aborted, but one that aborts while it does not know what became of a batch may use its numbers
  again for the next transaction (librdkafka after a lost connection). Kafka answers that the
  records are written, and they are lost; here the producer is told, and aborts;
- a lower epoch is fenced; a higher one must start at sequence 0;
- while a producer's transaction is open, all that it writes belongs to it (KIP-98);
- a marker ends the transaction. One of a newer epoch also ends that of the producer, so what an
  earlier one sends late cannot become part of the next transaction (KIP-890).

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
from anabranch.log.transactions import Transactions
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.control_records import ABORT, COMMIT
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

    __slots__ = ("entries", "transactions")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.transactions = Transactions()

    def check(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        is_transactional: int = False,
    ) -> ProducerBatch | None:
        """None when the batch may be appended, the earlier batch when it is a duplicate.

        Anything else is a KafkaError; nothing is changed here.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        if producer_epoch == entry.producer_epoch:
            if base_sequence == entry.next_sequence:
                if entry.current_txn_first_offset >= 0 and not is_transactional:
                    raise KafkaError(
                        ErrorCode.INVALID_TXN_STATE,
                        f"producer {producer_id} has a transaction open since offset"
                        f" {entry.current_txn_first_offset}; it must end it before it writes"
                        " anything that does not belong to it",
                    )
                return None
            last_sequence = (base_sequence + last_offset_delta) & SEQUENCE_MASK
            for batch in entry.batches:
                if batch[0] == base_sequence and batch[1] == last_sequence:
                    if is_transactional and _has_ended(entry, batch):
                        raise _reused(producer_id, base_sequence)
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
        is_transactional: int = False,
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
        if is_transactional and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = last_offset - last_offset_delta
            self.transactions.begin(producer_id, entry.current_txn_first_offset)

    def record_header(
        self, header: BatchHeader, now_ms: int, marker: tuple[int, int] = (-1, -1)
    ) -> None:
        """Remember a batch found in the log while opening it, or appended by the broker itself.

        Of a marker, `marker` is the type and the coordinator's epoch.
        """
        if header.producer_id < 0:
            return
        if header.is_control:
            self._record_marker(header, now_ms, *marker)
        else:
            self.record(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta,
                header.last_offset,
                header.max_timestamp,
                now_ms,
                header.is_transactional,
            )

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """KafkaError when a marker is of an earlier epoch than what was written."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if producer_epoch < entry.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker of producer {producer_id} has epoch {producer_epoch}, but a newer one"
                f" wrote with epoch {entry.producer_epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the marker of producer {producer_id} is from coordinator epoch"
                f" {coordinator_epoch}, but {entry.coordinator_epoch} wrote already",
            )

    def _record_marker(
        self, header: BatchHeader, now_ms: int, control_type: int, coordinator_epoch: int
    ) -> None:
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
        if control_type not in (ABORT, COMMIT):
            return
        entry.coordinator_epoch = max(entry.coordinator_epoch, coordinator_epoch)
        entry.current_txn_first_offset = -1
        self.transactions.end(header.producer_id, header.last_offset, control_type)

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

    def marker_epochs(self) -> dict[int, int]:
        """The epochs of producers of which only a marker tells, which compaction must keep."""
        return {
            producer_id: entry.producer_epoch
            for producer_id, entry in self.entries.items()
            if not entry.batches
        }


def _has_ended(entry: ProducerEntry, batch: ProducerBatch) -> bool:
    """Whether a batch of a transactional producer is from before its open transaction, if any."""
    first_offset = entry.current_txn_first_offset
    return first_offset < 0 or batch.first_offset < first_offset


def _reused(producer_id: int, base_sequence: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} sent sequence {base_sequence} again, which was that of another"
        " batch in a transaction that has ended; abort the transaction and begin again",
    )


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
    open_since = sorted(
        (entry.current_txn_first_offset, producer_id)
        for producer_id, entry in states.entries.items()
        if entry.current_txn_first_offset >= 0
    )
    for first_offset, producer_id in open_since:
        states.transactions.begin(producer_id, first_offset)
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
