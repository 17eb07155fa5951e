"""Removing old segments: by age, by size, and below the log start offset.

`deletable_segments` decides and changes nothing. `remove_segments` takes the segments out of the
log on the event loop and renames their files; unlinking them, which can take long for large
files, is left to `FileRemoval.run` in a thread. Readers that still hold slices keep the bytes.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anabranch.log.checkpoints import sync_folder
from anabranch.log.partition_log import PartitionLog
from anabranch.log.producer_state import snapshot_path
from anabranch.log.recovery import DELETED_SUFFIX
from anabranch.log.segment import SLOTS_SUFFIX, Segment
from anabranch.log.transactions import TRANSACTION_INDEX_SUFFIX
from anabranch.model.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class FileRemoval:
    """Files that belong to no log any more."""

    paths: tuple[Path, ...] = ()
    synced_first: Path | None = None
    """A folder whose renames must be durable before the files go."""

    def run(self) -> None:
        """Unlink the files. Safe off the event loop; a restart removes what is left."""
        if self.synced_first is not None:
            sync_folder(self.synced_first)
        for path in self.paths:
            with contextlib.suppress(OSError):
                os.unlink(path)


def deletable_segments(log: PartitionLog, now_ms: int) -> list[Segment]:
    """The oldest segments that may go now, as Kafka decides it.

    The active segment is among them only when all others are and it is itself too old; an empty
    active one never is. A segment with a timestamp in the future stays until that time has passed.
    """
    config = log.config
    segments = log.segments
    by_policy = config.is_deleted_by_retention
    excess_bytes = log.size_bytes - config.retention_bytes
    if not by_policy or config.retention_bytes < 0:
        excess_bytes = -1
    by_time = by_policy and config.retention_ms >= 0
    deletable: list[Segment] = []
    for segment in segments:
        is_active = segment is segments[-1]
        if is_active and not segment.size_bytes:
            break
        if not (
            (not is_active and segment.next_offset <= log.log_start_offset)
            or excess_bytes >= segment.size_bytes
            or (by_time and now_ms - segment.largest_timestamp() > config.retention_ms)
        ):
            break
        excess_bytes -= segment.size_bytes
        deletable.append(segment)
    return deletable


def remove_segments(log: PartitionLog, segments: Sequence[Segment], now_ms: int) -> FileRemoval:
    """Take the log's oldest `segments` out of it; the log start offset follows.

    When the active one is among them, a new one is begun first.
    """
    if not segments:
        return FileRemoval()
    if segments[-1] is log.segments[-1]:
        log.roll(now_ms)
    log.replace_segments(segments, [])
    log.delete_records_before(max(log.log_start_offset, log.segments[0].base_offset))
    snapshots = [snapshot_path(log.folder, segment.base_offset) for segment in segments]
    try:
        return retire_files(segments, snapshots)
    except OSError as error:
        # The log goes on without them; the log start offset keeps them out at the next start.
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"old segments of {log.folder} could not be removed ({error}); check the disk",
        ) from error


def retire_files(segments: Sequence[Segment], others: Sequence[Path] = ()) -> FileRemoval:
    """Close the segments and give their files names that no start will load."""
    renamed = []
    for segment in segments:
        segment.close()
        optional = (SLOTS_SUFFIX, TRANSACTION_INDEX_SUFFIX)
        others = [*segment.file_paths(), *map(segment.path, optional), *others]
    for path in others:
        target = path.with_name(path.name + DELETED_SUFFIX)
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, target)
            renamed.append(target)
    return FileRemoval(tuple(renamed))


def apply_retention(log: PartitionLog, now_ms: int) -> None:
    """Decide, remove and unlink in one go; for tests and tools that have no loop to spare."""
    remove_segments(log, deletable_segments(log, now_ms), now_ms).run()
