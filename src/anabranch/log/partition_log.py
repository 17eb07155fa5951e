"""The log of one partition: append, read, roll, flush, and what is asked about it.

Everything here runs on the event loop and nothing waits, except where a docstring says that it may
run in a thread. `append` is the broker's hottest path: the header is unpacked once, the CRC is
computed in C, offset and leader epoch are patched in the receive buffer, and the bytes go to the
file in one system call; nothing below the batch header is looked at.

Rules:
- what `append` returned is in the file, whole; what it raised for left no trace;
- `log_end_offset` moves only after the write, and readers never see beyond it;
- a log that cannot tell what its file holds (a failed sync, a failed cut) is `failed` and refuses
  every append until it is opened again, which recovers it.
"""

import contextlib
import logging
import os
import shutil
import struct
import uuid
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from anabranch.log import append_checks, lookups
from anabranch.log.append_checks import PRODUCER_CODEC, check_header
from anabranch.log.checkpoints import write_leader_epochs
from anabranch.log.flush import FlushJob, NoRoomForEpochsError
from anabranch.log.log_config import LogConfig
from anabranch.log.lookups import TimestampOffset
from anabranch.log.producer_state import (
    ProducerDescription,
    snapshot_path,
    write_snapshot,
)
from anabranch.log.recovery import LoadedLog, load_log
from anabranch.log.segment import RELATIVE_OFFSET_MAX, Segment, write_rest
from anabranch.log.transactions import TRANSACTION_INDEX_SUFFIX, write_aborted
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.control_records import read_marker
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    read_header,
)

if TYPE_CHECKING:
    from anabranch.log.slot_index import SlotIndexes

_LOG = logging.getLogger(__name__)

_pack_start = struct.Struct(">qii").pack_into  # base offset, batch length, leader epoch
_pwrite = os.pwrite

_NO_BYTES = memoryview(b"")
DELETED_FOLDER_SUFFIX: Final = "-delete"


class AppendInfo(NamedTuple):
    """Where a batch went. A duplicate went nowhere: the offsets are those of the first time."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    is_duplicate: bool


class PartitionLog:
    """See the module's docstring; made by `PartitionLog.open`."""

    def __init__(
        self,
        loaded: LoadedLog,
        *,
        folder: Path,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        self.folder = folder
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.leader_epoch = leader_epoch
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.segments[-1].next_offset
        self.recovery_point = loaded.recovery_point
        self.last_flush_ms = now_ms
        self.failed: str | None = None
        self.is_closed = False
        self.producer_states = loaded.producer_states
        self.transactions = loaded.producer_states.transactions
        self.leader_epochs = loaded.leader_epochs
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)
        # Which record is in which slot, for the readers of branches; None until there are any.
        self.slot_indexes: SlotIndexes | None = None
        # How often segments were replaced or removed: who works on bytes that were read earlier
        # can tell whether the log still has them.
        self.replacements = 0
        self._segments = loaded.segments
        self._base_offsets = [segment.base_offset for segment in self._segments]
        self._active = self._segments[-1]
        self._unsynced = [s for s in self._segments[:-1] if s.next_offset > self.recovery_point]
        self._unsynced_files = loaded.unsynced_files
        self._folder_is_unsynced = True
        # Where the newest snapshot of the producers on disk tells the whole truth, if anywhere.
        self._snapshot_offset = self.log_end_offset if loaded.has_snapshot else -1

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        leader_epoch: int,
        clean: bool,
        recovery_point: int,
        log_start_offset: int,
        now_ms: int,
    ) -> "PartitionLog":
        """Open the log in `folder`, or make it; recover it unless it was closed in order.

        May run in a thread: nobody else knows the log yet. OSError when the folder is unusable.
        """
        loaded = load_log(
            folder,
            topic_id=topic_id,
            config=config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
        )
        return cls(
            loaded,
            folder=folder,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            config=config,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
        )

    # What a log is

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._codec = append_checks.target_codec(config)
        self._is_log_append_time = config.is_log_append_time
        self._is_plain = not (
            config.is_compacted or self._is_log_append_time or self._codec != PRODUCER_CODEC
        )
        self._roll_ms = config.roll_ms

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last one is active."""
        return self._segments

    @property
    def high_watermark(self) -> int:
        """On one node everything written is visible."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records may read below it: no transaction is open there."""
        if not self.transactions.open:
            return self.log_end_offset
        # Records of a transaction that is open may be deleted like all others.
        first_offset = self.transactions.last_stable_offset(self.log_end_offset)
        return max(first_offset, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    # Appending

    def append(
        self,
        batch: memoryview,
        *,
        now_ms: int,
        is_client: bool = True,
        zstd_allowed: bool = True,
        has_transactional_id: bool = False,
    ) -> AppendInfo:
        """Append the one batch in `batch`, which is patched in place; KafkaError says why not.

        `is_client` false is for the broker's own records: control and transactional batches are
        allowed then, and sequences are not checked. `has_transactional_id` allows a client a
        transactional batch; whoever calls knows that the partition is in its transaction.
        """
        config = self._config
        header = check_header(
            batch, config.max_message_bytes, is_client, zstd_allowed, has_transactional_id
        )
        (
            _, _, _, _, _, attributes, last_offset_delta, base_timestamp, max_timestamp,
            producer_id, producer_epoch, base_sequence, _,
        ) = header  # fmt: skip
        log_append_time_ms = -1
        if not self._is_log_append_time and (
            max_timestamp > now_ms + config.message_timestamp_after_max_ms
            or base_timestamp < now_ms - config.message_timestamp_before_max_ms
        ):
            append_checks.check_timestamps(batch, base_timestamp, max_timestamp, config, now_ms)
        if not self._is_plain or attributes & LOG_APPEND_TIME_FLAG:
            batch = append_checks.rework_batch(
                batch, config, self._codec, now_ms, is_client=is_client
            )
            if self._is_log_append_time:
                max_timestamp = log_append_time_ms = now_ms
        if producer_id >= 0 and is_client:
            duplicate = self.producer_states.check(
                producer_id, producer_epoch, base_sequence, last_offset_delta,
                attributes & TRANSACTIONAL_FLAG,
            )  # fmt: skip
            if duplicate is not None:
                if log_append_time_ms >= 0:
                    log_append_time_ms = duplicate.timestamp
                return AppendInfo(
                    duplicate.first_offset, duplicate.last_offset, log_append_time_ms, True
                )

        first_offset = self.log_end_offset
        last_offset = first_offset + last_offset_delta
        size = len(batch)
        segment = self._active
        position = segment.size_bytes
        if (
            position + size > config.segment_bytes
            or max_timestamp - segment.first_timestamp > self._roll_ms
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.is_index_full
            or self.failed is not None
        ):
            segment = self._make_room(size, max_timestamp, last_offset, now_ms)
            position = segment.size_bytes
        _pack_start(batch, 0, first_offset, size - 12, self.leader_epoch)
        try:
            written = _pwrite(segment.fd, batch, position)
            if written != size:
                write_rest(_pwrite, segment.fd, batch, written, position)
        except OSError as error:
            raise self._cut_back(segment, error) from error

        segment.note_batch(position, size, last_offset, max_timestamp, config.index_interval_bytes)
        segment.size_bytes = position + size
        segment.next_offset = self.log_end_offset = last_offset + 1
        if producer_id >= 0:
            if is_client:
                self.producer_states.record(
                    producer_id, producer_epoch, base_sequence, last_offset_delta, last_offset,
                    max_timestamp, now_ms, attributes & TRANSACTIONAL_FLAG,
                )  # fmt: skip
            else:
                marker = read_marker(batch) if attributes & CONTROL_FLAG else (-1, -1)
                self.producer_states.record_header(read_header(batch), now_ms, marker)
        return AppendInfo(first_offset, last_offset, log_append_time_ms, False)

    def _make_room(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> Segment:
        """The segment to append to: the active one if the coarse test was wrong, or a new one."""
        if self.failed is not None:
            raise self._storage_error(self.failed)
        if size > self._config.segment_bytes:
            raise append_checks.larger_than_segment(size, self._config.segment_bytes)
        if self._active.should_roll(size, max_timestamp, last_offset, now_ms, self._config):
            self.roll(now_ms)
        return self._active

    def _cut_back(self, segment: Segment, error: OSError) -> KafkaError:
        """Remove what a failed write may have left; the log goes on if that works."""
        try:
            os.ftruncate(segment.fd, segment.size_bytes)
        except OSError as second:
            self.failed = f"a write failed ({error}) and cutting it off failed ({second})"
        return self._storage_error(f"the write failed: {error}")

    def _storage_error(self, why: str) -> KafkaError:
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.topic}-{self.partition}: {why}; check the disk under {self.folder}",
        )

    # Rolling

    def maybe_roll(self, now_ms: int) -> bool:
        """Close the active segment if it is too old, whether or not records come."""
        segment = self._active
        is_old = (
            segment.size_bytes > 0
            and now_ms - max(segment.first_timestamp, segment.created_ms) > self._roll_ms
        )
        if is_old:
            self.roll(now_ms)
        return is_old

    def roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin a new one at the log's end; no-op on an empty one.

        KAFKA_STORAGE_ERROR when the disk refuses: the old segment stays active then.
        """
        old = self._active
        if not old.size_bytes and old.base_offset == self.log_end_offset:
            return old
        new = Segment(
            self.folder,
            self.log_end_offset,
            size_bytes=0,
            next_offset=self.log_end_offset,
            created_ms=now_ms,
            index_interval_bytes=self._config.index_interval_bytes,
        )
        try:
            old.seal()
            write_aborted(old, self.transactions)
            write_snapshot(self.folder, self.log_end_offset, self.producer_states, is_synced=False)
            new.open_for_append(self._config, is_new=True)
        except OSError as error:
            raise self._storage_error(f"a new segment could not be begun: {error}") from error
        old.close_writer()
        self._unsynced.append(old)
        self._folder_is_unsynced = True
        self._segments.append(new)
        self._base_offsets.append(new.base_offset)
        self._active = new
        return new

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, min_one_batch: bool = True, upto: int | None = None
    ) -> memoryview:
        """Whole batches of one segment, from the batch that contains `offset` on, without copying.

        No byte at or above offset `upto` (the log's end by default) is included. A first batch
        larger than `max_bytes` is returned whole with `min_one_batch`, else nothing is. Empty at
        the log's end; OFFSET_OUT_OF_RANGE outside of the log.
        """
        if self.is_closed:
            raise self._storage_error("the log is closed")
        log_end_offset = self.log_end_offset
        if upto is None or upto > log_end_offset:
            upto = log_end_offset
        if offset >= upto or offset < self.log_start_offset:
            if self.log_start_offset <= offset <= log_end_offset:
                return _NO_BYTES
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic}-{self.partition} is not in"
                f" [{self.log_start_offset}, {log_end_offset}]",
            )
        try:
            segment = self._active
            if offset >= segment.base_offset:
                return segment.read(offset, max_bytes, upto, min_one_batch=min_one_batch)
            return self._read_sealed(offset, max_bytes, upto, min_one_batch)
        except OSError as error:
            raise self._storage_error(f"reading failed: {error}") from error

    def _read_sealed(
        self, offset: int, max_bytes: int, upto: int, min_one_batch: bool
    ) -> memoryview:
        i = bisect_right(self._base_offsets, offset) - 1
        while True:
            segment = self._segments[i]
            found = segment.read(offset, max_bytes, upto, min_one_batch=min_one_batch)
            # Compaction can empty the end of a segment; the next record is in a later one then.
            i += 1
            if (
                found
                or i == len(self._segments)
                or self._base_offsets[i] >= upto
                or segment.position_of(offset) < segment.size_bytes
            ):
                return found

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is not below `timestamp`, or None."""
        try:
            return lookups.offset_for_timestamp(self._segments, timestamp, self.log_start_offset)
        except OSError as error:
            raise self._storage_error(f"reading failed: {error}") from error

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record with the largest timestamp, or None in an empty log."""
        try:
            return lookups.max_timestamp_offset(self._segments, self.log_start_offset)
        except OSError as error:
            raise self._storage_error(f"reading failed: {error}") from error

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above `epoch`; (-1, -1) if unknown."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def producers(self) -> list[ProducerDescription]:
        return list(self.producer_states.describe())

    def expire_producers(self, now_ms: int) -> int:
        expired = self.producer_states.expire(now_ms, self._config.producer_id_expiration_ms)
        if expired:
            self._snapshot_offset = -1
        return expired

    def close_idle(self) -> None:
        """Drop maps and descriptors of segments that nobody read since the last call."""
        for segment in self._segments:
            segment.close_idle()

    def release_memory(self) -> None:
        """Give mapped pages back to the page cache, so that they do not count as ours."""
        for segment in self._segments:
            segment.release_memory()

    # Shortening

    def delete_records_before(self, offset: int) -> int:
        """Hide records below `offset` (-1: all) and return the new log start offset.

        Retention removes the files that this empties.
        """
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete {self.topic}-{self.partition} up to {offset}: it holds"
                f" [{self.log_start_offset}, {self.high_watermark}]",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_start(offset)
        return self.log_start_offset

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Let `new` take the place of `old`, which must be consecutive and not active.

        Only the list changes; files are the caller's matter. The log start follows the first one.
        """
        gone = set(map(id, old))
        kept = [segment for segment in self._segments if id(segment) not in gone]
        assert kept and kept[-1] is self._active, "the active segment cannot be replaced"
        self._segments = sorted([*kept, *new], key=lambda segment: segment.base_offset)
        self._base_offsets = [segment.base_offset for segment in self._segments]
        self._unsynced = [segment for segment in self._unsynced if id(segment) not in gone]
        for segment in old if not new else ():
            self.transactions.forget_aborted(segment.base_offset, segment.next_offset)
        self.replacements += 1
        if self.slot_indexes is not None:
            self.slot_indexes.forget(old)

    # Flushing

    def begin_flush(self, now_ms: int) -> FlushJob | None:
        """What to sync so that everything up to now is durable; None when nothing is due."""
        if self.unflushed_messages <= 0 or self.failed is not None or self.is_closed:
            return None
        sealed: list[Path] = []
        for segment in self._unsynced:
            sealed += segment.file_paths()
            sealed.append(snapshot_path(self.folder, segment.next_offset))
            if self.transactions.aborted_in(segment.base_offset, segment.next_offset):
                sealed.append(segment.path(TRANSACTION_INDEX_SUFFIX))
        try:
            fd = os.dup(self._active.fd)
        except OSError as error:
            raise self._storage_error(f"the flush could not begin: {error}") from error
        job = FlushJob(
            upto_offset=self.log_end_offset,
            started_ms=now_ms,
            fd=fd,
            folder=self.folder,
            sealed_paths=tuple(sealed),
            written_paths=tuple(self._unsynced_files),
            leader_epochs=self.leader_epochs.unwritten(self.log_end_offset),
            has_new_names=self._folder_is_unsynced,
        )
        self._unsynced = []
        self._unsynced_files = []
        self._folder_is_unsynced = False
        return job

    def end_flush(self, job: FlushJob, error: BaseException | None) -> None:
        """Take note of how `job.run()` ended.

        After a failed sync nobody knows what the disk holds, and a second sync would falsely
        succeed, so the log takes no more until it is recovered. A file beside the records that
        could not be written, the disk being full, is another matter: the recovery point stays
        where it is, and the next flush writes it.
        """
        if isinstance(error, NoRoomForEpochsError):
            self._folder_is_unsynced |= job.has_new_names
            return
        if error is not None:
            self.failed = f"syncing to disk failed ({error})"
            return
        if job.leader_epochs is not None:
            self.leader_epochs.note_written(job.leader_epochs)
        self.recovery_point = max(self.recovery_point, job.upto_offset)
        self.last_flush_ms = max(self.last_flush_ms, job.started_ms)

    def flush(self, now_ms: int) -> None:
        """Flush and wait; for shutdown and tools. KAFKA_STORAGE_ERROR when the disk refuses."""
        job = self.begin_flush(now_ms)
        if job is None:
            return
        try:
            job.run()
        except OSError as error:
            self.end_flush(job, error)
            raise self._storage_error(f"syncing to disk failed: {error}") from error
        self.end_flush(job, None)

    # The end

    def close(self, now_ms: int) -> bool:
        """Flush, bring index files and the producer snapshot up to date, and close the files.

        True when the log may be opened as clean next time; a log that failed may not. May run in
        a thread once nobody uses the log any more.
        """
        is_clean = self.failed is None
        try:
            if is_clean:
                self.flush(now_ms)
                self._active.seal()
                write_aborted(self._active, self.transactions, is_synced=True)
                self._write_checkpoints()
                if self.slot_indexes is not None:
                    self.slot_indexes.write_all()
        except (OSError, KafkaError) as error:
            is_clean = False
            _LOG.error("%s-%d: closing failed: %s", self.topic, self.partition, error)
        finally:
            self._close_files()
        return is_clean

    def _write_checkpoints(self) -> None:
        """Write what the next start wants to read, unless it is there already."""
        epochs = self.leader_epochs.unwritten(self.log_end_offset)
        if epochs is not None:
            write_leader_epochs(self.folder, epochs)
        is_empty = self.log_end_offset == self._segments[0].base_offset
        if not is_empty and self._snapshot_offset != self.log_end_offset:
            write_snapshot(self.folder, self.log_end_offset, self.producer_states)

    def delete(self) -> Path:
        """Close the log and rename its folder out of the way; returns the new path.

        The name tells the next start to remove what is left. `remove_folder` does the slow part
        and may run in a thread.
        """
        self._close_files()
        name = f"{self.folder.name[:200]}.{uuid.uuid4().hex}{DELETED_FOLDER_SUFFIX}"
        renamed = self.folder.with_name(name)
        try:
            os.rename(self.folder, renamed)
        except OSError as error:
            raise self._storage_error(f"the folder could not be removed: {error}") from error
        self.folder = renamed
        return renamed

    def _close_files(self) -> None:
        self.is_closed = True
        if self.failed is None:
            self.failed = "the log is closed"
        for segment in self._segments:
            with contextlib.suppress(OSError):
                segment.close()
        if self.slot_indexes is not None:
            self.slot_indexes.clear()


def remove_folder(folder: Path) -> None:
    """Remove a folder that `delete` renamed. Safe off the event loop; missing files are fine."""
    shutil.rmtree(folder, ignore_errors=True)
