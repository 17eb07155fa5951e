"""The embedded engine: logs and cluster metadata in folders of this machine.

The metadata store says which topics exist; the folders hold their logs. A topic is written to the
store before its folders are made, and removed from the store before its folders go, so after a
crash in between the store is right: missing folders are made at start, and folders that the store
does not know are set aside as `<name>-stray`, never deleted.
"""

import contextlib
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from anabranch.engine.log_directory import DirectoryError, LogDirectory
from anabranch.engine.metadata_store import FILE_NAME, MetadataStore, StoredTopic
from anabranch.log.checkpoints import read_topic_id, sync_folder
from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog, remove_folder
from anabranch.model.errors import KafkaError
from anabranch.model.topics import format_topic_id
from anabranch.observe import logs

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"

LogConfigOf = Callable[[StoredTopic], LogConfig]


class EmbeddedEngine:
    """Open log directories and the metadata store in the first of them."""

    def __init__(self, log_dirs: list[Path], *, cluster_id: str | None = None) -> None:
        self.directories: list[LogDirectory] = []
        store: MetadataStore | None = None
        try:
            for path in log_dirs:
                self.directories.append(LogDirectory(path))
            _check_metadata_is_first(log_dirs)
            self.store = store = MetadataStore(log_dirs[0])
            self.cluster_id = self._settle_cluster_id(cluster_id)
            self.leader_epoch = self.store.count_start()
        except BaseException as error:
            if store is not None:
                store.close()
            for directory in self.directories:
                directory.close(clean=directory.was_clean)
            if isinstance(error, sqlite3.Error):
                raise DirectoryError(
                    f"The metadata in {log_dirs[0] / FILE_NAME} cannot be used: {error}. "
                    "Make the disk writable and give it room, or restore the file."
                ) from error
            raise
        self.logs: dict[tuple[str, int], PartitionLog] = {}
        self._directory_of: dict[PartitionLog, LogDirectory] = {}

    def _settle_cluster_id(self, wanted: str | None) -> str:
        kept = self.store.get("cluster.id")
        if kept is None:
            kept = wanted or format_topic_id(uuid.uuid4().bytes)
            self.store.put("cluster.id", kept)
        elif wanted is not None and wanted != kept:
            raise DirectoryError(
                f"The log directory {self.directories[0].path} belongs to cluster {kept}, but "
                f"cluster.id is {wanted}. Remove the setting, or use another directory."
            )
        return kept

    # Opening --------------------------------------------------------------------------------

    def open_logs(self, config_of: LogConfigOf, now_ms: int) -> list[StoredTopic]:
        """Open the log of every partition of every topic, recovering what needs it.

        DirectoryError, with everything given back, when one of them cannot be opened.
        """
        try:
            return self._open_logs(config_of, now_ms)
        except BaseException:
            self._give_back(now_ms)
            raise

    def _open_logs(self, config_of: LogConfigOf, now_ms: int) -> list[StoredTopic]:
        topics = self.store.topics()
        found = self._scan({topic.topic_id: topic for topic in topics})
        made: list[PartitionLog] = []
        for topic in topics:
            if not topic.has_logs:
                continue
            config = config_of(topic)
            for partition in range(topic.partitions):
                # Checkpoints speak only of a folder that is there: a new one starts at 0.
                is_found = (topic.name, partition) in found
                directory = found.get((topic.name, partition)) or self._emptiest_directory()
                try:
                    log = self._open_log(
                        topic, partition, config, directory, now_ms, with_checkpoints=is_found
                    )
                except (KafkaError, OSError) as error:
                    reason = error.message if isinstance(error, KafkaError) else str(error)
                    raise DirectoryError(
                        f"The log {topic.name}-{partition} in {directory.path} cannot be opened: "
                        f"{reason}. Repair it, or move its folder away to start without it."
                    ) from error
                if not is_found:
                    made.append(log)
        self._sync_names(made)
        return topics

    def _scan(self, known: dict[bytes, StoredTopic]) -> dict[tuple[str, int], LogDirectory]:
        """Find the partition folders; finish deletions, set strays aside."""
        found: dict[tuple[str, int], LogDirectory] = {}
        for directory in self.directories:
            for folder in sorted(p for p in directory.path.iterdir() if p.is_dir()):
                if folder.name.endswith(DELETE_SUFFIX):
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                name, _, number = folder.name.rpartition("-")
                if not number.isdecimal() or folder.name.endswith(STRAY_SUFFIX):
                    continue
                topic_id = read_topic_id(folder)
                topic = known.get(topic_id) if topic_id is not None else None
                is_ours = topic is not None and topic.name == name
                if not is_ours and topic_id is not None:
                    _set_aside(folder)
                elif (name, int(number)) in found:
                    raise DirectoryError(
                        f"{folder.name} is in {found[name, int(number)].path} and in "
                        f"{directory.path}. Move the one that is not wanted out of log.dirs."
                    )
                else:
                    found[name, int(number)] = directory
        return found

    def _open_log(
        self,
        topic: StoredTopic,
        partition: int,
        config: LogConfig,
        directory: LogDirectory,
        now_ms: int,
        *,
        with_checkpoints: bool = False,
    ) -> PartitionLog:
        key = (topic.name, partition)
        recovery_point = directory.recovery_points.get(key, 0) if with_checkpoints else 0
        log_start_offset = directory.log_start_offsets.get(key, 0) if with_checkpoints else 0
        log = PartitionLog.open(
            directory.path / f"{topic.name}-{partition}",
            topic=topic.name,
            partition=partition,
            topic_id=topic.topic_id,
            config=config,
            leader_epoch=self.leader_epoch,
            clean=directory.was_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
        )
        self.logs[key] = log
        self._directory_of[log] = directory
        return log

    def _emptiest_directory(self) -> LogDirectory:
        if len(self.directories) == 1:
            return self.directories[0]
        counts = {directory.path: 0 for directory in self.directories}
        for directory in self._directory_of.values():
            counts[directory.path] += 1
        return min(self.directories, key=lambda directory: counts[directory.path])

    # Topics come and go -----------------------------------------------------------------------

    def create_logs(
        self, topic: StoredTopic, partitions: range, config: LogConfig, now_ms: int
    ) -> list[PartitionLog]:
        """Make the folders of new partitions; all of them, or none when the disk refuses."""
        made: list[PartitionLog] = []
        for partition in partitions:
            directory = self._emptiest_directory()
            folder = directory.path / f"{topic.name}-{partition}"
            try:
                if folder.exists():
                    # The store did not know this partition, so what lies there is something else.
                    _set_aside(folder)
                made.append(self._open_log(topic, partition, config, directory, now_ms))
            except BaseException:
                self.discard_logs(made)
                remove_folder(folder)  # of the one that did not come to be
                raise
        try:
            self._sync_names(made)
        except BaseException:
            self.discard_logs(made)
            raise
        return made

    def _sync_names(self, made: Iterable[PartitionLog]) -> None:
        """Make the names of new folders durable, all at once; their files go with a first flush."""
        for path in {self._directory_of[log].path for log in made}:
            sync_folder(path)

    def discard_logs(self, logs: Iterable[PartitionLog]) -> None:
        """Undo `create_logs`, as far as the disk lets it."""
        for log in logs:
            self.remove_log(log)
            folder = log.folder
            with contextlib.suppress(KafkaError):
                folder = log.delete()
            remove_folder(folder)

    def remove_log(self, log: PartitionLog) -> LogDirectory:
        """Forget a log; its files are the caller's to delete."""
        del self.logs[log.topic, log.partition]
        return self._directory_of.pop(log)

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        return self._directory_of[log]

    # Checkpoints and the end ------------------------------------------------------------------

    def write_checkpoints(self) -> None:
        """Write down how far each log is on disk and where it starts."""
        for directory in self.directories:
            self._write_checkpoints(directory)

    def _write_checkpoints(self, directory: LogDirectory) -> None:
        mine = {key: log for key, log in self.logs.items() if self._directory_of[log] is directory}
        directory.write_checkpoints(
            {key: log.recovery_point for key, log in mine.items()},
            {key: log.log_start_offset for key, log in mine.items()},
        )

    def _give_back(self, now_ms: int) -> None:
        """Let go of everything after a start that failed; the next one checks the logs."""
        for log in self.logs.values():
            log.close(now_ms)
        self.store.close()
        for directory in self.directories:
            directory.close(clean=False)

    def close(self, now_ms: int) -> None:
        """Close every log in order and mark the directories clean.

        DirectoryError when a directory could not be, for want of room for example; everything is
        closed then too, and the next start checks the logs of that directory.
        """
        unclean: dict[LogDirectory, str] = {}
        for log, directory in self._directory_of.items():
            if not log.close(now_ms):
                unclean[directory] = f"{log.folder.name} failed"
        for directory in self.directories:
            try:
                self._write_checkpoints(directory)
            except OSError as error:
                unclean.setdefault(directory, str(error))
        self.store.close()
        for directory in self.directories:
            try:
                directory.close(clean=directory not in unclean)
            except OSError as error:
                unclean[directory] = str(error)
        for directory, reason in unclean.items():
            raise DirectoryError(
                f"The log directory {directory.path} could not be closed in order: {reason}. "
                "Its logs are checked at the next start."
            )


def _check_metadata_is_first(log_dirs: list[Path]) -> None:
    """Refuse to begin a new cluster where the metadata of an old one lies in another directory.

    Without it, all topics would be gone and all their folders strays, because somebody changed
    the order of `log.dirs`.
    """
    if (log_dirs[0] / FILE_NAME).exists():
        return
    for path in log_dirs[1:]:
        if (path / FILE_NAME).exists():
            raise DirectoryError(
                f"The metadata of these log directories is in {path}, not in {log_dirs[0]}. "
                f"Name {path} first in log.dirs."
            )


def _set_aside(folder: Path) -> None:
    """Rename a folder that the store does not know; nothing is deleted that may be wanted."""
    aside = folder.with_name(f"{folder.name[:200]}.{uuid.uuid4().hex}{STRAY_SUFFIX}")
    os.rename(folder, aside)
    logs.warning("log.stray", folder=folder.name, moved_to=aside.name)
