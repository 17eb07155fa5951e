"""The small text files beside the segments, in Kafka's formats, written atomically.

Per log dir: `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint` and
`cleaner-offset-checkpoint` (a number for each partition), and `.kafka_cleanshutdown` (its presence
says that the last stop was orderly). Per partition: `leader-epoch-checkpoint` and
`partition.metadata`.

A file is replaced by writing its whole content beside it, syncing that, renaming it over the old
one and syncing the folder: a reader after any crash sees the old content or the new, never a
part. All functions here only make system calls and are safe off the event loop.
"""

import base64
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
TMP_SUFFIX: Final = ".tmp"

_VERSION = "0"

TopicPartition = tuple[str, int]


def sync_folder(folder: Path) -> None:
    """Make renames, creations and removals in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes, *, is_synced: bool = True) -> None:
    """Replace `path` by `content` so that a crash leaves the old or the new content.

    With `is_synced` false that holds for a crash of the process only; the caller syncs later.
    """
    tmp = path.with_name(path.name + TMP_SUFFIX)
    fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        if is_synced:
            os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(tmp)
        raise
    finally:
        os.close(fd)
    os.replace(tmp, path)
    if is_synced:
        sync_folder(path.parent)


def read_offsets(log_dir: Path, name: str) -> dict[TopicPartition, int]:
    """The offset of each partition in a checkpoint file; empty when the file is absent or damaged.

    A damaged checkpoint is treated as none: every use has a safe default (recover from the start,
    clean from the start, begin at the first segment).
    """
    rows = _read_rows(log_dir / name, 3)
    return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}


def write_offsets(log_dir: Path, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    write_atomically(log_dir / name, _rows_content(lines))


def read_leader_epochs(folder: Path) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs, ascending; empty when the file is absent or damaged."""
    rows = [(int(epoch), int(start)) for epoch, start in _read_rows(folder / LEADER_EPOCHS, 2)]
    return rows if rows == sorted(rows) else []


def write_leader_epochs(folder: Path, entries: list[tuple[int, int]]) -> None:
    lines = [f"{epoch} {start}" for epoch, start in entries]
    write_atomically(folder / LEADER_EPOCHS, _rows_content(lines))


def read_topic_id(folder: Path) -> bytes | None:
    """The topic id that the partition's folder was made for, or None when it does not say."""
    try:
        text = (folder / PARTITION_METADATA).read_text("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    encoded = fields.get("topic_id", "")
    try:
        topic_id = base64.urlsafe_b64decode(encoded + "==")
    except ValueError:
        return None
    return topic_id if len(topic_id) == 16 else None


def write_topic_id(folder: Path, topic_id: bytes) -> Path:
    """Say which topic the folder is for; returns the file, which the log's first flush syncs.

    Until then nothing in the folder is durable, and a folder that does not say is nobody else's.
    """
    encoded = base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")
    path = folder / PARTITION_METADATA
    write_atomically(path, f"version: 0\ntopic_id: {encoded}".encode(), is_synced=False)
    return path


def mark_clean_shutdown(log_dir: Path) -> None:
    """Say that every log under `log_dir` was closed in order; call it last."""
    write_atomically(log_dir / CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}')


def take_clean_shutdown(log_dir: Path) -> bool:
    """Whether the last stop was orderly; removes the mark, so a crash from now on is seen."""
    try:
        os.unlink(log_dir / CLEAN_SHUTDOWN)
    except FileNotFoundError:
        return False
    sync_folder(log_dir)
    return True


def _rows_content(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (_VERSION, str(len(lines)), *lines)).encode("utf-8")


def _read_rows(path: Path, columns: int) -> list[list[str]]:
    """The rows of a checkpoint file, or none at all when anything about the file is wrong."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return []
    rows = [line.split() for line in lines[2:]]
    is_sound = (
        len(lines) >= 2
        and lines[0] == _VERSION
        and lines[1].isdecimal()
        and int(lines[1]) == len(rows)
        and all(len(row) == columns and all(map(_is_integer, row[-2:])) for row in rows)
    )
    return rows if is_sound else []


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()
