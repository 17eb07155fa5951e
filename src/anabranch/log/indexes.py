"""The offset and time index of a segment: sorted arrays in memory, Kafka's bytes on disk.

Offset index, 8 bytes an entry: the last offset of a batch (relative to the segment's base) and
the file position where that batch begins. Time index, 12 bytes an entry: the largest timestamp
so far and the last offset of the batch that holds it. Both are sparse, an entry for every
`index.interval.bytes` of batches, and both can be rebuilt from the segment, so they are written
without syncing and checked when they are loaded.
"""

import os
import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from struct import Struct
from typing import Final

OFFSET_ENTRY_SIZE: Final = 8
TIME_ENTRY_SIZE: Final = 12
_TIME_ENTRY = Struct(">qi")


class OffsetIndex:
    """Where to start looking for an offset."""

    __slots__ = ("_written", "positions", "relative_offsets")

    def __init__(self) -> None:
        self.relative_offsets: array[int] = array("i")
        self.positions: array[int] = array("i")
        self._written = 0  # entries that the file holds

    def append(self, relative_offset: int, position: int) -> None:
        self.relative_offsets.append(relative_offset)
        self.positions.append(position)

    def floor_position(self, relative_offset: int) -> int:
        """The position of a batch at or before the one that contains the offset."""
        i = bisect_right(self.relative_offsets, relative_offset)
        return self.positions[i - 1] if i else 0

    def floor_edge(self, position: int) -> int:
        """The largest indexed batch start that is not after `position`."""
        i = bisect_right(self.positions, position)
        return self.positions[i - 1] if i else 0

    def write(self, path: Path) -> None:
        """Bring the file up to date; only entries that it does not hold yet are written."""
        if self._written == len(self.positions) and self._written:
            return
        flat: array[int] = array("i", bytes(8 * (len(self.positions) - self._written)))
        flat[0::2] = self.relative_offsets[self._written :]
        flat[1::2] = self.positions[self._written :]
        if sys.byteorder == "little":
            flat.byteswap()
        _write_at(path, flat.tobytes(), self._written * OFFSET_ENTRY_SIZE)
        self._written = len(self.positions)


class TimeIndex:
    """Where to start looking for a timestamp."""

    __slots__ = ("_written", "relative_offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps: array[int] = array("q")
        self.relative_offsets: array[int] = array("i")
        self._written = 0

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry unless it would not be later than the last one."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.relative_offsets.append(relative_offset)

    def floor_offset(self, timestamp: int) -> int:
        """A relative offset before which every record is older than `timestamp`."""
        i = bisect_left(self.timestamps, timestamp)
        return self.relative_offsets[i - 1] if i else 0

    def write(self, path: Path) -> None:
        if self._written == len(self.timestamps) and self._written:
            return
        content = b"".join(
            map(
                _TIME_ENTRY.pack,
                self.timestamps[self._written :],
                self.relative_offsets[self._written :],
            )
        )
        _write_at(path, content, self._written * TIME_ENTRY_SIZE)
        self._written = len(self.timestamps)


def load_offset_index(path: Path, log_size_bytes: int) -> OffsetIndex | None:
    """The index in `path`, or None when it is missing or does not fit the segment."""
    content = _read(path)
    if content is None or len(content) % OFFSET_ENTRY_SIZE:
        return None
    flat: array[int] = array("i")
    flat.frombytes(content)
    if sys.byteorder == "little":
        flat.byteswap()
    index = OffsetIndex()
    index.relative_offsets = flat[0::2]
    index.positions = flat[1::2]
    index._written = len(index.positions)
    if index._written and not (
        index.positions[0] >= 0
        and index.positions[-1] < log_size_bytes
        and index.relative_offsets[0] >= 0
        and _is_rising(index.positions)
        and _is_rising(index.relative_offsets)
    ):
        return None
    return index


def load_time_index(path: Path) -> TimeIndex | None:
    """The index in `path`, or None when it is missing or out of order."""
    content = _read(path)
    if content is None or len(content) % TIME_ENTRY_SIZE:
        return None
    index = TimeIndex()
    for timestamp, relative_offset in _TIME_ENTRY.iter_unpack(content):
        index.timestamps.append(timestamp)
        index.relative_offsets.append(relative_offset)
    index._written = len(index.timestamps)
    if not _is_rising(index.timestamps) or (index._written and min(index.relative_offsets) < 0):
        return None
    return index


def read_last_time_entry(path: Path) -> tuple[int, int] | None:
    """The last (timestamp, relative offset) of a time index file, without loading the rest."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        if size < TIME_ENTRY_SIZE or size % TIME_ENTRY_SIZE:
            return None
        timestamp, relative = _TIME_ENTRY.unpack(os.pread(fd, TIME_ENTRY_SIZE, size - 12))
        return timestamp, relative
    finally:
        os.close(fd)


def _is_rising(values: "array[int]") -> bool:
    """Whether each value exceeds the one before: sorted, and no two alike."""
    as_list = values.tolist()
    return as_list == sorted(as_list) and len(set(as_list)) == len(as_list)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write_at(path: Path, content: bytes, position: int) -> None:
    """Let the file hold `content` at `position` and nothing after it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, position)
        while content:
            written = os.pwrite(fd, content, position)
            content, position = content[written:], position + written
    finally:
        os.close(fd)
