"""Compaction: keep the last record of each key.

A log has a clean head and a dirty tail; the `cleaner-offset-checkpoint` says where the dirty part
begins. One round reads the dirty part, notes the last offset of every key in it, and writes all
segments up to there again without the records that a later one replaces. As in Kafka:

- records keep their offsets, batches their base and last offset, so there are gaps;
- a record without a value (a tombstone) is kept until `delete.retention.ms` after the round that
  first saw it; the batch remembers that time in place of its base timestamp (KIP-534);
- a batch that loses all its records stays as a header if it is the last of a producer (its
  sequence must not be forgotten) or the last of the round (its offset must not be);
- records of an aborted transaction go, whatever is later, and replace none; what a transaction
  that is open may have written is not looked at;
- a marker stays for `delete.retention.ms` after the round that removed the last record of its
  transaction, so that who has read some of it learns how it ended; longer if it is all that tells
  the producer's epoch. Other control batches stay;
- the active segment is never touched;
- records younger than `min.compaction.lag.ms` are left alone; `min.cleanable.dirty.ratio` decides
  when a round is worth it, `max.compaction.lag.ms` when it is due anyway.

How a round runs: `plan_compaction` on the event loop; `CompactionRound.build_map` and `.clean_next`
in a thread, as they only read immutable files and write new ones; `swap_cleaned` on the loop for
each cleaned segment; at the end the caller stores `end_offset` in the checkpoint. Records are
handled in plain Python, about a microsecond or two each; the `pause` hook is called every two
milliseconds so that the thread does not starve the loop of the interpreter.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, Final

from anabranch.log.log_config import INT64_MAX, LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.log.producer_state import snapshot_path
from anabranch.log.recovery import CLEANED_SUFFIX, SWAP_SUFFIX
from anabranch.log.retention import FileRemoval, retire_files
from anabranch.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment
from anabranch.log.transactions import (
    TRANSACTION_INDEX_SUFFIX,
    AbortedTransaction,
    write_transaction_index,
)
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.control_records import ABORT, COMMIT, read_marker
from anabranch.wire.record_batch import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    crc_ok,
    iter_records,
    read_header,
)

KEYS_MAX: Final = 1_000_000
"""Keys that one round looks at, some 150 MB; a larger dirty part takes several rounds."""

_RELATIVE_OFFSET_MAX = 2**31 - 1
_WORK_SLICE_SECONDS = 0.002
_RECORDS_PER_TICK = 128
_WRITE_BYTES = 1024 * 1024
_DIGEST_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSource:
    """An immutable segment as a round sees it; only its file is read."""

    path: Path
    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What a round will do. `is_due` says whether it is worth doing now."""

    folder: Path
    config: LogConfig
    now_ms: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    sources: tuple[SegmentSource, ...]
    last_data_offsets: dict[int, int]
    marker_epochs: dict[int, int]
    aborted: dict[int, list[AbortedTransaction]]
    """By producer, in the order of their offsets."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        is_worth_it = self.dirty_ratio > self.config.min_cleanable_dirty_ratio
        return self.dirty_bytes > 0 and (self.is_overdue or is_worth_it)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to a transaction that was aborted."""
        if not header.is_transactional or header.producer_id not in self.aborted:
            return False
        aborted = self.aborted[header.producer_id]
        index = bisect_left(aborted, header.base_offset, key=attrgetter("last_offset"))
        return index < len(aborted) and aborted[index].first_offset <= header.base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedSegment:
    """A segment that is written and synced, ready to replace those at `replaces`."""

    segment: Segment
    replaces: tuple[int, ...]
    end_offset: int
    """Up to where the round cleaned."""


def plan_compaction(log: PartitionLog, checkpoint: int | None, now_ms: int) -> CompactionPlan:
    """What could be cleaned now; `checkpoint` is where the last round ended, if there was one."""
    config = log.config
    first_dirty = checkpoint if checkpoint is not None else log.log_start_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    uncleanable = min(log.segments[-1].base_offset, log.last_stable_offset)
    dirty: list[Segment] = []
    sources: list[SegmentSource] = []
    clean_bytes = 0
    youngest_ms = now_ms - config.min_compaction_lag_ms
    for segment in log.segments:
        if segment.base_offset >= uncleanable:
            break
        if segment.next_offset > log.last_stable_offset:
            uncleanable = segment.base_offset
            break
        is_dirty = segment.next_offset > first_dirty
        has_lag = config.min_compaction_lag_ms > 0
        if is_dirty and has_lag and segment.largest_timestamp() > youngest_ms:
            uncleanable = segment.base_offset
            break
        if is_dirty:
            dirty.append(segment)
        else:
            clean_bytes += segment.size_bytes
        sources.append(
            SegmentSource(
                path=segment.path(),
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                size_bytes=segment.size_bytes,
            )
        )
    return CompactionPlan(
        folder=log.folder,
        config=config,
        now_ms=now_ms,
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=max(uncleanable, first_dirty),
        clean_bytes=clean_bytes,
        dirty_bytes=sum(segment.size_bytes for segment in dirty),
        is_overdue=_is_overdue(dirty, config, now_ms),
        sources=tuple(sources),
        last_data_offsets=log.producer_states.last_data_offsets(),
        marker_epochs=log.producer_states.marker_epochs(),
        aborted=_by_producer(log.producer_states.transactions.aborted),
    )


def _by_producer(aborted: Iterable[AbortedTransaction]) -> dict[int, list[AbortedTransaction]]:
    found: dict[int, list[AbortedTransaction]] = {}
    for one in aborted:
        found.setdefault(one.producer_id, []).append(one)
    return found


def _is_overdue(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
    lag_ms = max(config.max_compaction_lag_ms, config.min_compaction_lag_ms)
    if lag_ms >= INT64_MAX:
        return False
    firsts = [segment.header_at(0).max_timestamp for segment in dirty if segment.size_bytes]
    return any(0 < timestamp < now_ms - lag_ms for timestamp in firsts)


@dataclass(slots=True)
class CompactionRound:
    """One round in progress, owned by the thread that runs it between two swaps."""

    plan: CompactionPlan
    pause: Callable[[], None] = lambda: None
    keys_max: int = KEYS_MAX
    end_offset: int = 0
    """The next round's first dirty offset; known after `build_map`."""
    _last_offsets: dict[bytes, int] = field(default_factory=dict)
    _groups: list[list[SegmentSource]] = field(default_factory=list)
    # Producers of whose transaction records were kept since the last marker.
    _writing: set[int] = field(default_factory=set)
    _slice_began: float = 0.0

    def build_map(self) -> None:
        """Note the last offset of every key in the dirty part. Safe off the event loop."""
        self.end_offset = self.plan.first_dirty_offset
        for source in self.plan.sources:
            if source.next_offset > self.plan.first_dirty_offset:
                if not self._map_segment(source):
                    break
                self.end_offset = max(self.end_offset, source.next_offset)
        cleanable = [s for s in self.plan.sources if s.base_offset < self.end_offset]
        self._groups = _group_by_size(cleanable, self.plan.config.segment_bytes)

    def clean_next(self) -> CleanedSegment | None:
        """Write the next cleaned segment, or None when all are. Safe off the event loop."""
        if not self._groups:
            return None
        return self._clean_group(self._groups.pop(0))

    def _map_segment(self, source: SegmentSource) -> bool:
        """False when the map is full; what was noted so far is a round of its own."""
        last_offsets = self._last_offsets
        first_dirty = self.plan.first_dirty_offset
        for header, batch in _read_batches(source):
            if header.last_offset < first_dirty:
                continue
            if header.is_control or self.plan.is_aborted(header):
                self.end_offset = header.next_offset
                continue
            if len(last_offsets) + header.records_count > self.keys_max and last_offsets:
                return False
            for n, record in enumerate(iter_records(batch)):
                if n % _RECORDS_PER_TICK == 0:
                    self._tick()
                if record.key is not None and record.offset >= first_dirty:
                    last_offsets[_map_key(record.key)] = record.offset
            self.end_offset = header.next_offset
        return True

    def _clean_group(self, group: list[SegmentSource]) -> CleanedSegment:
        first, last = group[0], group[-1]
        cleaned = Segment(
            self.plan.folder,
            first.base_offset,
            size_bytes=0,
            next_offset=last.next_offset,
            created_ms=self.plan.now_ms,
            index_interval_bytes=self.plan.config.index_interval_bytes,
        )
        cleaned.reset_indexes()
        path = cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX)
        with path.open("wb", buffering=_WRITE_BYTES) as out:
            for source in group:
                for header, batch in _read_batches(source):
                    self._tick()
                    self._write_retained(out, cleaned, header, batch)
            out.flush()
            os.fsync(out.fileno())
        cleaned.finish_time_index()
        cleaned.offset_index.write(cleaned.path(INDEX_SUFFIX + CLEANED_SUFFIX))
        cleaned.time_index.write(cleaned.path(TIME_INDEX_SUFFIX + CLEANED_SUFFIX))
        self._write_aborted(cleaned)
        # Retention goes by the file's age where records carry no timestamps.
        modified_ns = os.stat(last.path).st_mtime_ns
        os.utime(path, ns=(modified_ns, modified_ns))
        replaces = tuple(source.base_offset for source in group)
        return CleanedSegment(segment=cleaned, replaces=replaces, end_offset=self.end_offset)

    def _write_aborted(self, cleaned: Segment) -> None:
        """Write which aborted transactions the cleaned segment may still have records of.

        Of those that ended below the end of the round nothing is left, here or earlier.
        """
        first_offset = max(cleaned.base_offset, self.end_offset)
        rest = [
            one
            for aborted in self.plan.aborted.values()
            for one in aborted
            if first_offset <= one.last_offset < cleaned.next_offset
        ]
        rest.sort(key=attrgetter("last_offset"))
        path = cleaned.path(TRANSACTION_INDEX_SUFFIX + CLEANED_SUFFIX)
        write_transaction_index(path, rest, is_synced=True)

    def _write_retained(
        self, out: BinaryIO, cleaned: Segment, header: BatchHeader, batch: bytes
    ) -> None:
        retained = self._retain(header, batch)
        if retained is None:
            return
        out.write(retained)
        kept = read_header(retained)
        cleaned.note_batch(
            cleaned.size_bytes,
            len(retained),
            kept.last_offset,
            kept.max_timestamp,
            self.plan.config.index_interval_bytes,
        )
        cleaned.size_bytes += len(retained)

    def _retain(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """The batch without replaced records; the same bytes if it lost none, None if all."""
        if header.base_offset >= self.end_offset:
            return batch
        if header.is_control:
            return self._retain_control(header, batch)
        if self.plan.is_aborted(header):
            return self._empty_batch(header)
        retained = self._retain_records(header, batch)
        if retained is not None and header.is_transactional and read_header(retained).records_count:
            self._writing.add(header.producer_id)
        return retained

    def _retain_control(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """A marker, until nobody can need it any more."""
        if read_marker(batch)[0] not in (ABORT, COMMIT):
            return batch
        has_records = header.producer_id in self._writing
        self._writing.discard(header.producer_id)
        tells_epoch = self.plan.marker_epochs.get(header.producer_id) == header.producer_epoch
        if has_records or tells_epoch or header.next_offset == self.end_offset:
            return batch
        if header.has_delete_horizon:
            return batch if self.plan.now_ms < header.base_timestamp else None
        return build_batch(
            list(iter_records(batch)),
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            partition_leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            attributes=header.attributes | DELETE_HORIZON_FLAG,
            base_timestamp=self.plan.now_ms + self.plan.config.delete_retention_ms,
            max_timestamp=header.max_timestamp if header.is_log_append_time else None,
        )

    def _retain_records(self, header: BatchHeader, batch: bytes) -> bytes | None:
        horizon_ms = header.base_timestamp if header.has_delete_horizon else None
        records: list[Record] = []
        has_tombstone = False
        count = 0
        for record in iter_records(batch):
            count += 1
            if count % _RECORDS_PER_TICK == 0:
                self._tick()
            if self._is_retained(record, horizon_ms):
                records.append(record)
                has_tombstone = has_tombstone or record.value is None
        if not records:
            return self._empty_batch(header)
        needs_horizon = has_tombstone and horizon_ms is None
        if len(records) == count and not needs_horizon:
            return batch
        if needs_horizon:
            horizon_ms = self.plan.now_ms + self.plan.config.delete_retention_ms
        attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)
        if horizon_ms is not None:
            attributes |= DELETE_HORIZON_FLAG
        return build_batch(
            records,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            partition_leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            codec=header.codec,
            attributes=attributes,
            base_timestamp=horizon_ms,
            max_timestamp=header.max_timestamp if header.is_log_append_time else None,
        )

    def _is_retained(self, record: Record, horizon_ms: int | None) -> bool:
        if record.key is None:
            return False  # written before the topic was compacted; no later record can match it
        if record.offset < self._last_offsets.get(_map_key(record.key), -1):
            return False
        return record.value is not None or horizon_ms is None or self.plan.now_ms < horizon_ms

    def _empty_batch(self, header: BatchHeader) -> bytes | None:
        is_last_of_producer = (
            header.producer_id >= 0
            and self.plan.last_data_offsets.get(header.producer_id) == header.last_offset
        )
        if not is_last_of_producer and header.next_offset != self.end_offset:
            return None
        return build_batch(
            [],
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            partition_leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG),
            base_timestamp=header.max_timestamp,
            max_timestamp=header.max_timestamp,
        )

    def _tick(self) -> None:
        if perf_counter() - self._slice_began > _WORK_SLICE_SECONDS:
            self.pause()
            self._slice_began = perf_counter()


def swap_cleaned(log: PartitionLog, cleaned: CleanedSegment) -> FileRemoval | None:
    """Let a cleaned segment replace its sources; on the event loop, only renames.

    A crash between any two of the renames is finished or undone when the log is opened. None when
    a source is gone meanwhile (retention, DeleteRecords, the topic was deleted): the round is void.
    """
    by_base = {segment.base_offset: segment for segment in log.segments}
    olds = [by_base[base] for base in cleaned.replaces if base in by_base]
    new = cleaned.segment
    suffixes = [INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX]
    if new.path(TRANSACTION_INDEX_SUFFIX + CLEANED_SUFFIX).exists():
        suffixes.insert(0, TRANSACTION_INDEX_SUFFIX)
    if log.is_closed or len(olds) != len(cleaned.replaces) or new.folder != log.folder:
        for suffix in suffixes:
            new.path(suffix + CLEANED_SUFFIX).unlink(missing_ok=True)
        return None
    try:
        # The segment itself last: once it is called .swap, the cleaning counts as done.
        for suffix in suffixes:
            os.rename(new.path(suffix + CLEANED_SUFFIX), new.path(suffix + SWAP_SUFFIX))
        snapshots = [snapshot_path(log.folder, segment.base_offset) for segment in olds[1:]]
        removal = retire_files(olds, snapshots)
        for suffix in reversed(suffixes):
            os.rename(new.path(suffix + SWAP_SUFFIX), new.path(suffix))
    except OSError as error:
        log.failed = f"replacing cleaned segments failed ({error})"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.failed) from error
    log.replace_segments(olds, [new])
    log.producer_states.transactions.forget_aborted(
        new.base_offset, min(new.next_offset, cleaned.end_offset)
    )
    return FileRemoval(removal.paths, log.folder)


def compact(log: PartitionLog, checkpoint: int | None, now_ms: int) -> int:
    """A whole round in one go, due or not; for tests and tools. Returns the new checkpoint."""
    plan = plan_compaction(log, checkpoint, now_ms)
    cleaning = CompactionRound(plan)
    cleaning.build_map()
    while (cleaned := cleaning.clean_next()) is not None:
        removal = swap_cleaned(log, cleaned)
        if removal is None:
            return plan.first_dirty_offset
        removal.run()
    return cleaning.end_offset


def _group_by_size(
    sources: Sequence[SegmentSource], segment_bytes: int
) -> list[list[SegmentSource]]:
    """Neighbours that fit into one segment together, so that small remains are joined."""
    groups: list[list[SegmentSource]] = []
    size = 0
    for source in sources:
        if (
            groups
            and size + source.size_bytes <= segment_bytes
            and source.next_offset - groups[-1][0].base_offset <= _RELATIVE_OFFSET_MAX
        ):
            groups[-1].append(source)
            size += source.size_bytes
        else:
            groups.append([source])
            size = source.size_bytes
    return groups


def _read_batches(source: SegmentSource) -> Iterator[tuple[BatchHeader, bytes]]:
    """Each batch of a segment file, checked. Plain reads let the loop run while a disk is slow."""
    left = source.size_bytes
    with source.path.open("rb", buffering=_WRITE_BYTES) as file:
        while left > 0:
            start = file.read(HEADER_SIZE)
            header = read_header(start)
            batch = start + file.read(max(header.size_bytes - HEADER_SIZE, 0))
            if not crc_ok(batch, 0, header.size_bytes):
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{source.path} is damaged at offset {header.base_offset}; it is not compacted",
                )
            yield header, batch
            left -= len(batch)


def _map_key(key: bytes) -> bytes:
    """The key, or a digest of a long one: sixteen bytes do not collide by chance."""
    return key if len(key) <= _DIGEST_SIZE else blake2b(key, digest_size=_DIGEST_SIZE).digest()
