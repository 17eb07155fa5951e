"""Making a log durable without making the event loop wait.

A flush has three parts: the loop collects what to sync (`PartitionLog.begin_flush`), a thread
makes the system calls (`FlushJob.run`), the loop moves the recovery point (`end_flush`). Appends
go on in between; they belong to the next flush.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from anabranch.log.checkpoints import sync_folder, write_leader_epochs
from anabranch.log.leader_epochs import Entries


class NoRoomForEpochsError(OSError):
    """The records are on disk; the file of leader epochs beside them could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushJob:
    """The files that make everything below `upto_offset` durable once they are synced."""

    upto_offset: int
    started_ms: int
    fd: int
    """A duplicate of the active segment's descriptor, so that a roll or close cannot take it."""
    folder: Path
    sealed_paths: tuple[Path, ...] = ()
    """Files of segments that were sealed since the last flush."""
    written_paths: tuple[Path, ...] = ()
    """Small files that were written without a sync when the log was made."""
    leader_epochs: Entries | None = None
    """What the file of leader epochs should say, when it does not."""
    has_new_names: bool = False
    """Whether files were created, because their names must become durable too."""

    def run(self) -> None:
        """Sync everything; OSError when the disk refuses. Safe off the event loop, call once.

        NoRoomForEpochsError when only the last step failed, which can be tried again.
        """
        try:
            for path in self.written_paths:
                _sync_path(path, os.fsync)
            for path in self.sealed_paths:
                _sync_path(path, os.fdatasync)
            os.fdatasync(self.fd)
            with contextlib.suppress(FileNotFoundError):  # the topic was deleted meanwhile
                if self.leader_epochs is not None:
                    self._write_epochs(self.leader_epochs)
                if self.has_new_names:
                    sync_folder(self.folder)
        finally:
            os.close(self.fd)

    def _write_epochs(self, entries: Entries) -> None:
        try:
            write_leader_epochs(self.folder, entries)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise NoRoomForEpochsError(*error.args) from error


def _sync_path(path: Path, sync: Callable[[int], None]) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # retention or compaction removed it since; nothing is left to make durable
    try:
        sync(fd)
    finally:
        os.close(fd)
