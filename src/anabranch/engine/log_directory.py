"""One log directory: its lock, its identity, its checkpoints.

A directory belongs to one running broker: the lock file makes a second one fail at once instead of
damaging the logs. The clean-shutdown marker is removed when the directory is opened and written
again when it was closed in order, so its absence means that the logs have to be checked.
"""

import fcntl
import os
from pathlib import Path

from anabranch.log.checkpoints import (
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    mark_clean_shutdown,
    read_offsets,
    take_clean_shutdown,
    write_offsets,
)

Offsets = dict[tuple[str, int], int]


class DirectoryError(Exception):
    """A log directory that cannot be used, with a sentence that says why."""


class LogDirectory:
    """An open log directory, locked for this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DirectoryError(
                f"The log directory {path} cannot be used: {error.strerror}. "
                "Choose another one with log.dirs."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DirectoryError(
                f"The log directory {path} is in use by another broker. "
                "Stop that one, or choose another directory with log.dirs."
            ) from None
        self.was_clean = take_clean_shutdown(path)
        self.recovery_points = read_offsets(path, RECOVERY_POINTS)
        self.log_start_offsets = read_offsets(path, LOG_START_OFFSETS)
        self.cleaner_offsets = read_offsets(path, CLEANER_OFFSETS)

    def write_checkpoints(self, recovery_points: Offsets, log_start_offsets: Offsets) -> None:
        write_offsets(self.path, RECOVERY_POINTS, recovery_points)
        write_offsets(self.path, LOG_START_OFFSETS, log_start_offsets)

    def write_cleaner_offsets(self, offsets: Offsets) -> None:
        self.cleaner_offsets = offsets
        write_offsets(self.path, CLEANER_OFFSETS, offsets)

    def close(self, *, clean: bool) -> None:
        """Give the directory back; `clean` when every log in it was closed in order."""
        if clean:
            mark_clean_shutdown(self.path)
        os.close(self._lock)
