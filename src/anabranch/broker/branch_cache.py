"""Chunks of logs that are sorted into branches, kept for the fetches of the other branches.

A chunk serves all branches of a partition, so at the tail of a log the first consumer pays for the
sorting and the others take what is there. It is not dropped when it was sent: a retried fetch, or
a branch that is a little behind, needs it again. The least recently used go when the limit is
reached; the newest stays, however large it is. When compaction or retention takes segments of a log
away, so do its chunks: what a plain reader does not see any more, nobody shall see.
"""

from bisect import bisect_right
from collections import OrderedDict
from typing import NamedTuple

from anabranch.branch.cuts import CutTable
from anabranch.branch.split import SplitChunk
from anabranch.log.partition_log import PartitionLog


class CachedChunk:
    """A chunk and the first offset that it answers for.

    That may lie before its first batch: compaction leaves gaps, and who reads on from inside a gap
    must find what follows it.
    """

    __slots__ = ("chunk", "first_offset", "key")

    def __init__(self, key: "ChunkKey", first_offset: int, chunk: SplitChunk) -> None:
        self.key = key
        self.first_offset = first_offset
        self.chunk = chunk

    def covers(self, offset: int) -> bool:
        return self.first_offset <= offset < self.chunk.next_offset


class ChunkKey(NamedTuple):
    """Whose chunks: a log, cut into so many equal ranges or by a table."""

    log: PartitionLog
    cuts: int | CutTable


class _Row:
    """The chunks of one key by their first offset, of the log as it was after so many changes."""

    __slots__ = ("chunks", "first_offsets", "replacements")

    def __init__(self, replacements: int) -> None:
        self.replacements = replacements
        self.first_offsets: list[int] = []
        self.chunks: list[CachedChunk] = []


class BranchCache:
    """All cached chunks of a broker; used on the event loop only."""

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        # What slot indexes take of the same limit.
        self._others_bytes = 0
        self._rows: dict[ChunkKey, _Row] = {}
        self._by_use: OrderedDict[CachedChunk, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_use)

    def find(self, key: ChunkKey, offset: int) -> CachedChunk | None:
        """The chunk that says what there is at `offset`."""
        row = self._row(key)
        if row is None:
            return None
        i = bisect_right(row.first_offsets, offset) - 1
        if i < 0 or not row.chunks[i].covers(offset):
            return None
        self._by_use.move_to_end(row.chunks[i])
        return row.chunks[i]

    def next_start(self, key: ChunkKey, offset: int) -> int | None:
        """Where the next chunk after `offset` begins, so that none is sorted twice."""
        row = self._row(key)
        if row is None:
            return None
        i = bisect_right(row.first_offsets, offset)
        return row.first_offsets[i] if i < len(row.first_offsets) else None

    def add(self, key: ChunkKey, offset: int, chunk: SplitChunk, replacements: int) -> CachedChunk:
        """Keep a chunk that was made to answer for `offset`.

        `replacements` is the log's from when it was read: a chunk of segments that are gone is for
        who waited for it and for nobody else.
        """
        cached = CachedChunk(key, min(offset, chunk.first_offset), chunk)
        if replacements != key.log.replacements:
            return cached
        row = self._row(key) or self._rows.setdefault(key, _Row(replacements))
        i = bisect_right(row.first_offsets, cached.first_offset)
        if i and row.first_offsets[i - 1] == cached.first_offset:
            self._forget(row.chunks[i - 1])
            row = self._rows.setdefault(key, row)
            i -= 1
        row.first_offsets.insert(i, cached.first_offset)
        row.chunks.insert(i, cached)
        self._by_use[cached] = None
        self.size_bytes += chunk.size_bytes
        self._shrink()
        return cached

    def set_max_bytes(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._shrink()

    def set_others_bytes(self, size_bytes: int) -> None:
        """Leave so much of the limit to others."""
        self._others_bytes = size_bytes
        self._shrink()

    def _shrink(self) -> None:
        """Drop what was not used for longest until the limit holds."""
        room_bytes = self.max_bytes - self._others_bytes
        while self.size_bytes > room_bytes and len(self._by_use) > 1:
            self._forget(next(iter(self._by_use)))

    def drop(self, log: PartitionLog) -> None:
        """Forget everything about a log."""
        for key in [key for key in self._rows if key.log is log]:
            for cached in list(self._rows[key].chunks):
                self._forget(cached)

    def _row(self, key: ChunkKey) -> _Row | None:
        row = self._rows.get(key)
        if row is not None and row.replacements != key.log.replacements:
            self.drop(key.log)
            return None
        return row

    def _forget(self, cached: CachedChunk) -> None:
        row = self._rows[cached.key]
        i = bisect_right(row.first_offsets, cached.first_offset) - 1
        del row.first_offsets[i], row.chunks[i]
        if not row.chunks:
            del self._rows[cached.key]
        del self._by_use[cached]
        self.size_bytes -= cached.chunk.size_bytes
