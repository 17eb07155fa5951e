"""Up to where each log is compacted, kept in `cleaner-offset-checkpoint` of its directory.

The numbers live on the event loop; the file is written by the background thread, in the order of
the changes. A number must go when its log goes: a new topic of the same name would otherwise take
its first records for compacted ones.
"""

from concurrent.futures import Executor
from pathlib import Path

from anabranch.engine.embedded import EmbeddedEngine
from anabranch.engine.log_directory import LogDirectory, Offsets
from anabranch.log.checkpoints import CLEANER_OFFSETS, write_offsets
from anabranch.log.partition_log import PartitionLog
from anabranch.observe import logs


class CleanerOffsets:
    """The first dirty offset of every log that was compacted."""

    def __init__(self, engine: EmbeddedEngine, background: Executor) -> None:
        self._engine = engine
        self._background = background

    def get(self, log: PartitionLog) -> int | None:
        offsets = self._engine.directory_of(log).cleaner_offsets
        return offsets.get((log.topic, log.partition))

    def set(self, log: PartitionLog, offset: int) -> None:
        directory = self._engine.directory_of(log)
        directory.cleaner_offsets[log.topic, log.partition] = offset
        self._write(directory)

    def forget(self, gone: list[PartitionLog]) -> None:
        """Drop the numbers of logs that are about to be deleted."""
        changed: dict[Path, LogDirectory] = {}
        for log in gone:
            directory = self._engine.directory_of(log)
            if directory.cleaner_offsets.pop((log.topic, log.partition), None) is not None:
                changed[directory.path] = directory
        for directory in changed.values():
            self._write(directory)

    def _write(self, directory: LogDirectory) -> None:
        self._background.submit(_write_file, directory.path, dict(directory.cleaner_offsets))


def _write_file(path: Path, offsets: Offsets) -> None:
    try:
        write_offsets(path, CLEANER_OFFSETS, offsets)
    except OSError as error:
        # An old number only makes the next compaction read more than it had to.
        logs.error("log.cleaner.checkpoint.failed", folder=str(path), reason=str(error))
