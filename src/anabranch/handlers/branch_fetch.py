"""What one fetch of branches, or of key ranges, remembers from one read to the next.

A fetch is read again when what it waited for has come: it goes on from where its last read had got
to, and uses the chunk that was sorted for it even if the cache could not keep it.
"""

from anabranch.branch.withhold import withhold
from anabranch.broker.branch_cache import CachedChunk
from anabranch.broker.branch_reader import (
    BranchRead,
    BranchReader,
    Search,
    SplitJob,
    join_parts,
)
from anabranch.broker.fetch_sessions import FetchedPartition, SessionKey
from anabranch.broker.partition import Partition
from anabranch.model.errors import KafkaError
from anabranch.model.offset_ranges import OffsetRanges

_NO_RECORDS = memoryview(b"")


class BranchReads:
    """The reads of all branches of one fetch."""

    __slots__ = (
        "_covered_offsets",
        "_held",
        "_reached_offsets",
        "_reader",
        "_refusal",
        "_searches",
        "job",
        "lingering",
        "may_linger",
    )

    def __init__(self, reader: BranchReader, *, may_linger: bool) -> None:
        self._reader = reader
        self._held: CachedChunk | None = None
        self._refusal: KafkaError | None = None
        self._searches: dict[SessionKey, Search] = {}
        self._covered_offsets: dict[SessionKey, int] = {}
        self._reached_offsets: dict[SessionKey, int] = {}
        # What must be sorted before more can be read.
        self.job: SplitJob | None = None
        # At a busy tail a first read leaves what it finds until the branches are served together.
        self.may_linger = may_linger
        self.lingering: dict[Partition, int] = {}

    def take(self, job: SplitJob) -> None:
        """What was waited for is there, or will never be."""
        self._refusal = job.error
        if job.cached is not None:
            self._held = job.cached

    def stop_lingering(self) -> None:
        """From now on what is there is read."""
        self.may_linger = False
        self.lingering = {}

    def has_read(self, wanted: FetchedPartition) -> bool:
        """Whether a partition was read at all, and not refused."""
        return (wanted.topic, wanted.index) in self._covered_offsets

    def covered_offset(self, wanted: FetchedPartition) -> int:
        """How far a partition was looked through for what was asked of it."""
        return self._covered_offsets.get((wanted.topic, wanted.index), wanted.fetch_offset)

    def reached_offset(self, wanted: FetchedPartition) -> int:
        """Where the last batch ends that was opened, whether all of it was looked through or not.

        As `covered_offset` but for batches of which much was left out.
        """
        return self._reached_offsets.get((wanted.topic, wanted.index), wanted.fetch_offset)

    def read(
        self,
        partition: Partition,
        wanted: FetchedPartition,
        room: int,
        end: int,
        *,
        done: OffsetRanges,
        is_first: bool,
        is_last: bool,
    ) -> tuple[bytes | memoryview, int]:
        """Records, and how many bytes of them count; a filler does not.

        Those at the offsets in `done` are left out.
        """
        offset = wanted.fetch_offset
        if end <= offset <= partition.log.log_end_offset:
            # Where most fetches wait. Beyond the end is who has read what is not decided yet.
            return _NO_RECORDS, 0
        if self.may_linger and self._reader.is_lingering(partition, offset):
            self.lingering[partition] = offset
            return _NO_RECORDS, 0
        key = (wanted.topic, wanted.index)
        read = self._reader.read(
            partition,
            offset,
            room,
            end,
            min_one_batch=is_first,
            search=self._searches.get(key),
            held=self._held,
        )
        self._reached_offsets[key] = read.covered_offset
        if done and read.parts:
            read = _without_done(read, done, offset, end)
        self._covered_offsets[key] = read.covered_offset
        if not read.parts:
            self._searches[key] = Search(read.covered_offset, read.scanned_bytes)
        if read.job is not None:
            if self._refusal is not None:
                raise self._refusal  # it was tried, and would be again for ever
            self.job = read.job
        is_over = read.is_exhausted or (is_last and read.job is None)
        with_filler = bool(read.parts) or is_over
        records = join_parts(read, partition.log.leader_epoch, with_filler=with_filler)
        return records, read.size_bytes


def _without_done(read: BranchRead, done: OffsetRanges, offset: int, end: int) -> BranchRead:
    """A read without the records that are done already."""
    parts: list[memoryview] = []
    next_offset, covered_offset = offset, read.covered_offset
    for part in read.parts:
        rest = withhold(part, done.below(covered_offset))
        if rest.next_offset is not None:
            parts.append(rest.records)
            next_offset = rest.next_offset
        if rest.source_bytes < len(part):
            # So much was decompressed that the rest is for another fetch.
            covered_offset = rest.covered_offset
            break
    return BranchRead(
        parts,
        sum(map(len, parts)),
        next_offset,
        covered_offset,
        read.scanned_bytes,
        # Nothing is left of it: the reader shall go on at once, not when its time is up.
        is_exhausted=not parts and covered_offset < end,
    )
