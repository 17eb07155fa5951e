"""One segment: a file of batches, its two indexes, and the memory map that readers slice.

Reading never copies. The whole segment is mapped read-only once; a fetch is a memoryview slice of
the map, and the slice keeps the map alive for as long as the socket needs it. The active segment
still grows, so its map is made over the size it may reach: the file is extended, mapped and cut
back, after which the map follows the file as it grows (Linux checks the file size when a page is
touched, not when it is mapped). Two rules come with that: nothing beyond `size_bytes` is ever
touched, and a file is never cut below bytes that were handed out. Where the file system refuses,
the map covers the present size and is renewed as the file grows, or reads use pread.

Finding a position takes the sparse index and a short walk over batch headers; a consumer that
reads on from where its last read ended is recognised by that offset and needs neither.
"""

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from anabranch.log.indexes import (
    OFFSET_ENTRY_SIZE,
    OffsetIndex,
    TimeIndex,
    load_offset_index,
    load_time_index,
    read_last_time_entry,
)
from anabranch.log.log_config import LogConfig
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import HEADER_SIZE, BatchHeader, read_header

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
SLOTS_SUFFIX: Final = ".slots"
"""The slot index, which only segments of branched topics have; see `slot_index`."""

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
READ_AHEAD_BYTES: Final = 8 * 1024 * 1024
# Pages read through a map count as this process's memory until they are let go, though they are
# only the page cache's; after so many bytes they are, which costs a minor fault on the next touch.
_TOUCHED_BYTES_MAX = 32 * 1024 * 1024
_HINTS_MAX = 256
_LENGTH_PREFIX_SIZE = 12
_BATCH_LENGTH_MIN = HEADER_SIZE - _LENGTH_PREFIX_SIZE
_WALK = Struct(">qi11xi")  # base offset, batch length, last offset delta
_walk = _WALK.unpack_from
_NO_BYTES = memoryview(b"")


class Slice(NamedTuple):
    """Whole batches of a segment; the next batch, if there is one, is not below `next_offset`."""

    next_offset: int
    batches: memoryview


class Segment:
    """The batches from `base_offset` on, up to `next_offset` (exclusive).

    The newest segment of a log is active: it has a writable `fd` and grows. All others are
    immutable and open their files when they are first read.
    """

    __slots__ = (
        "_advised_from",
        "_advised_upto",
        "_capacity_bytes",
        "_file_time_ms",
        "_hints",
        "_index_interval_bytes",
        "_map",
        "_mapped_bytes",
        "_offset_index",
        "_time_index",
        "_touched_bytes",
        "_view",
        "_was_read",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "fd",
        "first_timestamp",
        "folder",
        "index_entries_max",
        "is_active",
        "is_index_full",
        "max_timestamp",
        "next_offset",
        "offset_of_max_timestamp",
        "size_bytes",
    )

    def __init__(
        self,
        folder: Path,
        base_offset: int,
        *,
        size_bytes: int,
        next_offset: int,
        created_ms: int,
        index_interval_bytes: int = 4096,
    ) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.fd = -1
        self.is_active = False
        self.index_entries_max = 2**31
        self.is_index_full = False
        # The largest timestamp and the last offset of the batch that has it; for a segment found
        # on disk it is read from the time index when `largest_timestamp` first needs it.
        self.max_timestamp = -1
        self.offset_of_max_timestamp = -1
        self.first_timestamp = -1  # of the first batch: decides when the segment is too old
        self.bytes_since_index = 0
        self._file_time_ms: int | None = None
        self._index_interval_bytes = index_interval_bytes
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._capacity_bytes = 0
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._mapped_bytes = -1
        self._hints: dict[int, int] = {}
        self._was_read = False
        self._touched_bytes = 0  # read through the map since its pages were last let go
        self._advised_from = 0
        self._advised_upto = 0

    # Files

    def path(self, suffix: str = LOG_SUFFIX) -> Path:
        return self.folder / f"{self.base_offset:020d}{suffix}"

    def open_for_append(self, config: LogConfig, *, is_new: bool) -> None:
        """Become the active segment: a writable file, and room to grow."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0)
        self.fd = os.open(self.path(), flags, 0o644)
        self.is_active = True
        self._capacity_bytes = config.segment_bytes
        self.index_entries_max = config.segment_index_bytes // OFFSET_ENTRY_SIZE
        if is_new:
            self._offset_index = OffsetIndex()
            self._time_index = TimeIndex()

    def seal(self) -> None:
        """Bring the index files up to date and stop growing."""
        self.finish_time_index()
        self.write_indexes()

    def finish_time_index(self) -> None:
        """Give the largest timestamp its entry; retention of a closed segment goes by the last."""
        self.time_index.maybe_append(
            self.max_timestamp, max(self.offset_of_max_timestamp - self.base_offset, 0)
        )

    def should_roll(
        self, size: int, max_timestamp: int, last_offset: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Whether a batch is to go to a new segment."""
        if not self.size_bytes:
            # An empty segment can be too old to take a batch only by the reach of its offsets.
            return last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        if self.first_timestamp >= 0 and max_timestamp >= 0:
            age_ms = max_timestamp - self.first_timestamp
        else:
            age_ms = now_ms - self.created_ms
        return (
            self.size_bytes + size > config.segment_bytes
            or self.is_index_full
            or age_ms > config.roll_ms
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        )

    def close_writer(self) -> None:
        """Give up the writable file after `seal`; the map stays for readers."""
        self.is_active = False
        if self._view is None:
            self._mapped_bytes = -1  # reads by pread used the descriptor that closes now
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def write_indexes(self) -> None:
        self.offset_index.write(self.path(INDEX_SUFFIX))
        self.time_index.write(self.path(TIME_INDEX_SUFFIX))

    def file_paths(self) -> list[Path]:
        return [self.path(suffix) for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)]

    def close(self) -> None:
        """Close the files and drop the map. Slices that are out keep the map alive."""
        self.close_writer()
        self._drop_map()

    @property
    def is_mapped(self) -> bool:
        """Whether somebody has read it lately; a map takes a descriptor."""
        return self._map is not None

    def close_idle(self) -> bool:
        """Drop map and indexes of a segment that was not read since the last call."""
        if self._was_read:
            self._was_read = False
            return False
        self._drop_map()
        if not self.is_active:
            self._offset_index = None
            self._time_index = None
            self._hints.clear()
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
        return True

    def release_memory(self) -> None:
        """Let the mapped pages go; they stay in the page cache and come back when touched."""
        self._touched_bytes = 0
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    # Indexes

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def _load_indexes(self) -> None:
        offset_index = load_offset_index(self.path(INDEX_SUFFIX), self.size_bytes)
        time_index = load_time_index(self.path(TIME_INDEX_SUFFIX))
        if offset_index is None or time_index is None:
            self.rebuild_indexes()
            self.write_indexes()
        else:
            self._offset_index, self._time_index = offset_index, time_index

    def adopt_indexes(
        self, offset_index: OffsetIndex, time_index: TimeIndex, bytes_since_index: int
    ) -> None:
        """Take indexes that were loaded and found right."""
        self._offset_index, self._time_index = offset_index, time_index
        self.bytes_since_index = bytes_since_index
        if time_index.timestamps:
            self.max_timestamp = time_index.timestamps[-1]
            self.offset_of_max_timestamp = self.base_offset + time_index.relative_offsets[-1]

    def rebuild_indexes(self) -> None:
        """Make both indexes anew from the batch headers; what lies in the files is ignored."""
        self.reset_indexes()
        position = 0
        while position < self.size_bytes:
            header = self.header_at(position)
            self.note_batch(
                position, header.size_bytes, header.last_offset, header.max_timestamp,
                self._index_interval_bytes,
            )  # fmt: skip
            position += header.size_bytes
        self.finish_time_index()

    def reset_indexes(self) -> None:
        self._offset_index = OffsetIndex()
        self._time_index = TimeIndex()
        self.max_timestamp = -1
        self.offset_of_max_timestamp = -1
        self.first_timestamp = -1
        self.bytes_since_index = 0

    def note_batch(
        self, position: int, size: int, last_offset: int, timestamp: int, interval_bytes: int
    ) -> None:
        """Account for a batch at `position`: timestamps, and an index entry where one is due."""
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.offset_of_max_timestamp = last_offset
        if position == 0:
            self.first_timestamp = timestamp
        if self.bytes_since_index > interval_bytes:
            self.add_index_entries(last_offset, position)
        self.bytes_since_index += size

    def add_index_entries(self, last_offset: int, position: int) -> None:
        """Index the batch at `position`, whose timestamp is already accounted for."""
        base_offset = self.base_offset
        index = self.offset_index
        index.append(last_offset - base_offset, position)
        self.is_index_full = len(index.positions) >= self.index_entries_max
        self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp - base_offset)
        self.bytes_since_index = 0

    def largest_timestamp(self) -> int:
        """The largest timestamp, or when the file was last written if no record has one."""
        if self.max_timestamp < 0 and not self.is_active:
            last = read_last_time_entry(self.path(TIME_INDEX_SUFFIX))
            if last is not None:
                self.max_timestamp = last[0]
                self.offset_of_max_timestamp = self.base_offset + last[1]
        if self.max_timestamp >= 0:
            return self.max_timestamp
        if self._file_time_ms is None or self.is_active:
            self._file_time_ms = os.stat(self.path()).st_mtime_ns // 1_000_000
        return self._file_time_ms

    # Reading

    def read(self, offset: int, max_bytes: int, upto: int, *, min_one_batch: bool) -> memoryview:
        """Whole batches from the one that contains `offset` on, all below offset `upto`.

        Empty when no batch here reaches `offset` (compaction leaves such gaps).
        """
        size = self.size_bytes
        if size > self._mapped_bytes:
            self._remap()
        self._was_read = True
        hints = self._hints
        position = hints.get(offset)
        if position is None:
            position = self.position_of(offset)
        if upto >= self.next_offset:
            upto = self.next_offset
            end = size
        else:
            end = self.position_of(upto)
        if end - position > max_bytes:
            end, upto = self._last_edge(position, position + max_bytes, min_one_batch)
        if end <= position:
            return _NO_BYTES
        if len(hints) > _HINTS_MAX:
            hints.clear()
        hints[upto] = end
        if not self.is_active:
            self._read_ahead(position, end)
        view = self._view
        if view is None:
            return memoryview(_pread_exactly(self.fd, end - position, position))
        self._touched_bytes += end - position
        if self._touched_bytes > _TOUCHED_BYTES_MAX:
            self.release_memory()
        return view[position:end]

    def position_of(self, offset: int) -> int:
        """Where the first batch begins whose last offset is not below `offset`."""
        if offset >= self.next_offset:
            return self.size_bytes
        position = self.offset_index.floor_position(offset - self.base_offset)
        size = self.size_bytes
        while position < size:
            base_offset, length, delta = self._peek(position)
            if base_offset + delta >= offset:
                break
            position += _LENGTH_PREFIX_SIZE + length
        return position

    def header_at(self, position: int) -> BatchHeader:
        self._peek(position)
        if self._view is not None:
            return read_header(self._view, position)
        return read_header(_pread_exactly(self.fd, HEADER_SIZE, position))

    def batch_at(self, position: int) -> memoryview:
        """The whole batch at `position`."""
        length = self._peek(position)[1]
        return self.slice(position, position + _LENGTH_PREFIX_SIZE + length)

    def slice(self, position: int, end: int) -> memoryview:
        if end > self._mapped_bytes:
            self._remap()
        if self._view is None:
            return memoryview(_pread_exactly(self.fd, end - position, position))
        return self._view[position:end]

    def slices(self, offset: int, slice_bytes: int, max_bytes: int) -> list["Slice"]:
        """Consecutive slices of whole batches from the one that contains `offset` on.

        They are for somebody who reads the segment from end to end: some `max_bytes` in slices of
        some `slice_bytes`, a batch at least in each; empty behind the last batch.
        """
        self._was_read = True
        position = self.position_of(offset)
        first, limit = position, min(position + max_bytes, self.size_bytes)
        slices: list[Slice] = []
        while position < limit:
            if self.size_bytes - position <= slice_bytes:
                end, next_offset = self.size_bytes, self.next_offset
            else:
                end, next_offset = self._last_edge(position, position + slice_bytes, True)
            slices.append(Slice(next_offset, self.slice(position, end)))
            position = end
        if slices and not self.is_active:
            self._read_ahead(first, position)
        self._touched_bytes += position - first
        if self._touched_bytes > _TOUCHED_BYTES_MAX:
            self.release_memory()
        return slices

    def _last_edge(self, position: int, limit: int, min_one_batch: bool) -> tuple[int, int]:
        """The end of the last whole batch before `limit`, and the offset that follows it.

        An index entry near the limit is taken as it is: at most an index interval less is
        returned, and no header is walked.
        """
        edge = self.offset_index.floor_edge(limit)
        if edge > position:
            return edge, self._peek(edge)[0]
        edge = position
        next_offset = 0
        while True:
            base_offset, length, delta = self._peek(edge)
            next_edge = edge + _LENGTH_PREFIX_SIZE + length
            is_first = edge == position
            if next_edge > limit and not (is_first and min_one_batch):
                return edge, next_offset
            edge, next_offset = next_edge, base_offset + delta + 1
            if edge >= limit:
                return edge, next_offset

    def _peek(self, position: int) -> tuple[int, int, int]:
        """Base offset, length and last offset delta of the batch at `position`.

        The bytes were checked when they were written or recovered; a length that cannot be right
        means the disk changed them since, and walking on could loop or leave the file.
        """
        left = self.size_bytes - position
        if left >= HEADER_SIZE:
            if self.size_bytes > self._mapped_bytes:
                self._remap()
            if self._view is not None:
                found = _walk(self._view, position)
            else:
                found = _WALK.unpack(_pread_exactly(self.fd, _WALK.size, position))
            if _BATCH_LENGTH_MIN <= found[1] <= left - _LENGTH_PREFIX_SIZE:
                return found
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.path()} is damaged at byte {position}; stop the broker without a clean"
            " shutdown mark to have the log recovered",
        )

    # The map

    def _remap(self) -> None:
        """Map the file up to where it may grow, or up to its end, or else not at all."""
        self._drop_map()
        size = self.size_bytes
        was_open = self.fd >= 0
        if not was_open:
            self.fd = os.open(self.path(), os.O_RDONLY | os.O_CLOEXEC)
        mapped = None
        if self.is_active:
            if size >= self._capacity_bytes:
                self._capacity_bytes = 2 * size  # segment.bytes was raised since the file was made
            mapped = _map_growing(self.fd, size, self._capacity_bytes)
        if mapped is None and size:
            with contextlib.suppress(OSError, ValueError):
                mapped = mmap.mmap(self.fd, size, access=mmap.ACCESS_READ)
        self._mapped_bytes = size  # without a map: asked and refused at this size
        if mapped is not None:
            self._map = mapped
            self._view = memoryview(mapped)
            self._mapped_bytes = len(mapped)
            if not was_open:
                os.close(self.fd)  # the map holds its own descriptor
                self.fd = -1

    def _drop_map(self) -> None:
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._map is not None:
            # Slices may still wait in a socket's queue; the last of them to go unmaps.
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None
        self._mapped_bytes = -1
        self._advised_from = self._advised_upto = 0

    def _read_ahead(self, position: int, end: int) -> None:
        """Ask the kernel for the bytes to come, so that sending them does not wait for a disk."""
        wanted = min(end + READ_AHEAD_BYTES // 2, self.size_bytes)
        if self._map is None or (self._advised_from <= position and wanted <= self._advised_upto):
            return
        start = position & -mmap.PAGESIZE
        if self._advised_from <= position <= self._advised_upto:
            start = self._advised_upto & -mmap.PAGESIZE
        else:
            self._advised_from = start
        self._advised_upto = min(end + READ_AHEAD_BYTES, self.size_bytes)
        self._map.madvise(mmap.MADV_WILLNEED, start, self._advised_upto - start)


def _map_growing(fd: int, size: int, capacity_bytes: int) -> mmap.mmap | None:
    """A map that stays valid while the file grows from `size` to `capacity_bytes`."""
    try:
        os.ftruncate(fd, capacity_bytes)
        try:
            return mmap.mmap(fd, capacity_bytes, access=mmap.ACCESS_READ)
        finally:
            os.ftruncate(fd, size)
    except (OSError, ValueError):
        return None


def _pread_exactly(fd: int, size: int, position: int) -> bytes:
    content = os.pread(fd, size, position)
    while len(content) < size:
        more = os.pread(fd, size - len(content), position + len(content))
        if not more:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"a segment file ends before byte {position + size}"
            )
        content += more
    return content


def write_rest(
    pwrite: Callable[[int, memoryview, int], int],
    fd: int,
    batch: memoryview,
    written: int,
    position: int,
) -> None:
    """Go on after a short write, which a disk that is filling up can cause."""
    while written < len(batch):
        count = pwrite(fd, batch[written:], position + written)
        if count == 0:
            raise OSError("the disk takes no more bytes")
        written += count
