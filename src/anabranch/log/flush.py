"""Making a log durable without making the event loop wait.

A flush has three parts: the loop collects what to sync (`PartitionLog.begin_flush`), a thread
makes the system calls (`FlushJob.run`), the loop moves the recovery point (`end_flush`). Appends
go on in between; they belong to the next flush.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from anabranch.log.checkpoints import sync_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushJob:
    """The files that make everything below `upto_offset` durable once they are synced."""

    upto_offset: int
    started_ms: int
    fd: int
    """A duplicate of the active segment's descriptor, so that a roll or close cannot take it."""
    sealed_paths: tuple[Path, ...] = ()
    """Files of segments that were sealed since the last flush."""
    folder: Path | None = None
    """Set when files were created, because their names must become durable too."""

    def run(self) -> None:
        """Sync everything; OSError when the disk refuses. Safe off the event loop, call once."""
        try:
            for path in self.sealed_paths:
                _sync_path(path)
            os.fdatasync(self.fd)
            if self.folder is not None:
                with contextlib.suppress(FileNotFoundError):  # the topic was deleted meanwhile
                    sync_folder(self.folder)
        finally:
            os.close(self.fd)


def _sync_path(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # retention or compaction removed it since; nothing is left to make durable
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
