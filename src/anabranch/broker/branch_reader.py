"""Reading branches: the records of one key range of a partition, found without slowing the loop.

A fetch of a branch needs the log's batches sorted by key range. One compiled pass sorts a chunk of
them into all ranges at once; `BranchCache` keeps the result for the other branches. A small chunk,
such as what was appended at the tail since it was last looked at, is sorted where it is needed, in
microseconds; anything larger, or compressed, is a job for a thread, and the fetch waits for the
job, not for time to pass.

Rules:
- offsets are those of the source; a read reports how far it looked (`covered_offset`), which may
  be beyond the last record it found, and the fetch tells the client so with a filler batch;
- a read that found nothing goes on to the log's end, at most `branch.scan.max.bytes` at a time;
- fetches that are parked on branches are woken by records of their range, and by the markers of
  transactions, which are in every branch; those of committed records by what those markers decide;
- two readers of the same chunk share one job.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from anabranch.branch.split import SplitChunk, filler_batch, split_batches
from anabranch.broker.branch_cache import BranchCache, CachedChunk, ChunkKey
from anabranch.broker.partition import BranchTail, Partition
from anabranch.log.partition_log import PartitionLog
from anabranch.log.slot_index import slot_indexes_of
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs

CHUNK_BYTES = 1024 * 1024
"""How much of a log is sorted at once: small enough to start answering soon."""

# What is sorted on the loop: one chunk that takes some 0.3 ms, which is less CPU time than handing
# it to a thread and back (0.5 ms), and is what a tail of 25 MB/s collects while it lingers. Those
# that follow in one turn may only be a third of it, so that backlogs are for the threads.
# Decompressing takes longer per byte.
_INLINE_BYTES = 768 * 1024
_INLINE_NEXT_BYTES = 256 * 1024
_INLINE_COMPRESSED_BYTES = 8 * 1024
_ATTRIBUTES_LOW_BYTE = 22
_CODEC_MASK = 0x07
_NO_BYTES = memoryview(b"")


class SplitJob:
    """A chunk that a thread is sorting, and who waits for it."""

    __slots__ = ("cached", "error", "is_done", "waiters")

    def __init__(self) -> None:
        self.is_done = False
        self.cached: CachedChunk | None = None
        self.error: KafkaError | None = None
        self.waiters: list[Callable[[], None]] = []


class Search(NamedTuple):
    """How far a fetch looked without finding anything, and through how many bytes."""

    offset: int
    scanned_bytes: int = 0


class BranchRead(NamedTuple):
    """What a branch has from an offset on, as far as it is known."""

    parts: list[memoryview]
    size_bytes: int
    next_offset: int  # after the last batch of `parts`, or the offset asked for
    covered_offset: int  # everything below it was looked at
    scanned_bytes: int
    is_exhausted: bool = False  # nothing was found in as much as one fetch may look at
    job: SplitJob | None = None  # what comes next is being sorted


class BranchReader:
    """Reads the branches of all logs; lives on the event loop."""

    def __init__(self, threads: int = 2) -> None:
        self.cache = BranchCache()
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="branch")
        self._scan_max_bytes = 0
        self._linger_s = 0.0
        self._jobs: dict[tuple[ChunkKey, int], SplitJob] = {}
        # For metrics: what readers went through, what was sent of it, and whether it was sorted.
        self.scanned_bytes = self.sent_bytes = 0
        self.hits = self.misses = 0

    def configure(self, *, cache_max_bytes: int, scan_max_bytes: int, linger_ms: int) -> None:
        """Take settings, which may change while the broker runs."""
        self.cache.set_max_bytes(cache_max_bytes)
        self._scan_max_bytes = scan_max_bytes
        self._linger_s = linger_ms / 1000

    def close(self) -> None:
        self.executor.shutdown(wait=True, cancel_futures=True)

    def forget(self, log: PartitionLog) -> None:
        """Drop what is known of a log that goes away or is not branched any more."""
        self.cache.drop(log)

    # Reading ----------------------------------------------------------------------------------

    def read(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int,
        upto: int,
        *,
        min_one_batch: bool,
        search: Search | None = None,
        held: CachedChunk | None = None,
    ) -> BranchRead:
        """Batches of a branch from `offset` on, below offset `upto`, at most `max_bytes`.

        `search` is where an earlier read of the same fetch had got to. `held` is the chunk that
        the fetch waited for: it counts even if the cache had to drop it. OFFSET_OUT_OF_RANGE
        outside of the log.
        """
        branch = partition.branch
        assert branch is not None
        log = partition.log
        _check_offset(log, offset)
        key = ChunkKey(log, branch.tail.cuts)
        parts: list[memoryview] = []
        size = 0
        next_offset = offset
        position, scanned = search or Search(offset)
        while position < upto and (size < max_bytes or (min_one_batch and not parts)):
            found = self._find(branch.tail, key, position, held, is_first=not scanned)
            if isinstance(found, SplitJob):
                # What there is leaves now; the next fetch finds this chunk sorted.
                job = None if parts else found
                return BranchRead(parts, size, next_offset, position, scanned, job=job)
            if found is None:
                break
            chunk = found.chunk
            got = chunk.read(
                branch.range_index,
                position,
                upto,
                max_bytes - size,
                min_one_batch=min_one_batch and not parts,
            )
            if got.records:
                parts.append(got.records)
                size += len(got.records)
                self.sent_bytes += len(got.records)
                next_offset = got.next_offset
            position = max(position, got.covered_offset)
            if position < chunk.next_offset:
                break
            scanned += chunk.source_bytes
            self.scanned_bytes += chunk.source_bytes
            if not parts and scanned >= self._scan_max_bytes:
                return BranchRead(parts, size, next_offset, position, scanned, is_exhausted=True)
        return BranchRead(parts, size, next_offset, position, scanned)

    def _find(
        self,
        tail: BranchTail,
        key: ChunkKey,
        offset: int,
        held: CachedChunk | None = None,
        *,
        is_first: bool,
    ) -> CachedChunk | SplitJob | None:
        """The chunk at `offset`, made on the spot or in the making; None at the log's end.

        `is_first` is whether the same turn of the loop has not looked through another one.
        """
        if held is not None and held.key == key and held.covers(offset):
            return held
        found = self.cache.find(key, offset)
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        running = self._jobs.get((key, offset))
        if running is not None:
            return running
        batches = key.log.read(
            offset, CHUNK_BYTES, min_one_batch=True, upto=self.cache.next_start(key, offset)
        )
        if not batches and self.cache.next_start(key, offset) is not None:
            batches = key.log.read(offset, CHUNK_BYTES, min_one_batch=True)
        if not batches:
            return None
        if _is_small(batches, is_first=is_first):
            try:
                chunk = split_batches(batches, key.cuts, tail.source.slot_rule)
            except ValueError as error:
                raise unreadable(key.log, error) from error
            return self._keep(tail, key, offset, chunk, key.log.replacements)
        return self._start(tail, key, offset, batches)

    def _keep(
        self, tail: BranchTail, key: ChunkKey, offset: int, chunk: SplitChunk, replacements: int
    ) -> CachedChunk:
        """Keep a chunk; the slots of its records are a by-product that is worth keeping too."""
        slot_indexes_of(key.log).note(
            tail.source.slot_rule, replacements, chunk.next_offset, chunk.index
        )
        return self.cache.add(key, offset, chunk, replacements)

    # Jobs -------------------------------------------------------------------------------------

    def _start(self, tail: BranchTail, key: ChunkKey, offset: int, batches: memoryview) -> SplitJob:
        job = SplitJob()
        self._jobs[key, offset] = job
        future = asyncio.get_running_loop().run_in_executor(
            self.executor, split_batches, batches, key.cuts, tail.source.slot_rule
        )
        replacements = key.log.replacements
        future.add_done_callback(lambda done: self._end(job, tail, key, offset, replacements, done))
        return job

    def _end(
        self,
        job: SplitJob,
        tail: BranchTail,
        key: ChunkKey,
        offset: int,
        replacements: int,
        done: "asyncio.Future[SplitChunk]",
    ) -> None:
        del self._jobs[key, offset]
        job.is_done = True
        if done.cancelled():
            job.error = unreadable(key.log, "the broker stops")
        elif (error := done.exception()) is not None:
            job.error = unreadable(key.log, error)
            logs.error("branch.split.failed", log=key.log.folder.name, reason=repr(error))
        elif tail in tail.source.branch_tails and not key.log.is_closed:
            job.cached = self._keep(tail, key, offset, done.result(), replacements)
        for waiter in job.waiters:
            waiter()

    # Waking -----------------------------------------------------------------------------------

    def appended(self, source: Partition) -> None:
        """Tell the fetches parked on branches of a partition what arrived for them, or do it soon.

        At a busy tail every append would wake every branch, and most of the cost is that of
        requests. So a tail is looked at once and then not before `branch.fetch.linger.ms` passed;
        records after a pause leave at once.
        """
        for tail in source.branch_tails:
            if tail.parked_count and not tail.is_looking and tail.timer is None:
                self._look_when_open(tail)

    def look_soon(self, partition: Partition) -> None:
        """Have a branch served, on which a fetch is parked that left something at the tail."""
        assert partition.branch is not None
        if not partition.branch.tail.is_looking:
            self._look_when_open(partition.branch.tail)

    def _look_when_open(self, tail: BranchTail) -> None:
        loop = asyncio.get_running_loop()
        rest_s = tail.opens_s - loop.time()
        if rest_s <= 0:
            self._look(tail)
        elif tail.timer is None:
            tail.timer = loop.call_later(rest_s, self._open, tail)

    def _open(self, tail: BranchTail) -> None:
        tail.timer = None
        if tail.parked_count and not tail.is_looking:
            self._look(tail)

    @staticmethod
    def is_lingering(partition: Partition, offset: int) -> bool:
        """Whether what lies at the tail from `offset` on shall wait for more."""
        assert partition.branch is not None
        tail = partition.branch.tail
        return offset >= tail.looked_offset and asyncio.get_running_loop().time() < tail.opens_s

    def _look(self, tail: BranchTail) -> None:
        """Find out for which branches there is something new, and wake who waits for it."""
        tail.is_looking = False
        log = tail.source.log
        if self._linger_s:
            tail.opens_s = asyncio.get_running_loop().time() + self._linger_s
            tail.looked_offset = log.log_end_offset
        key = ChunkKey(log, tail.cuts)
        waiting = [part for part in tail.branches if part.parked_fetches]
        position = first = min((_seen(part) for part in waiting), default=log.log_end_offset)
        while position < log.log_end_offset and not log.is_closed:
            try:
                found = self._find(tail, key, position, is_first=position == first)
            except KafkaError:
                found = None
            if isinstance(found, SplitJob):
                tail.is_looking = True
                found.waiters.append(partial(self._look_again, tail, found))
                return
            if found is None:
                break
            _wake(waiting, found.chunk)
            position = found.chunk.next_offset

    def _look_again(self, tail: BranchTail, job: SplitJob) -> None:
        if job.error is not None:
            # Whoever waits reads again and sees the error for itself.
            for part in tail.branches:
                for fetch in list(part.parked_fetches):
                    fetch.finish(is_satisfied=True)
        elif job.cached is not None:
            _wake([part for part in tail.branches if part.parked_fetches], job.cached.chunk)
        self._look(tail)


def _seen(part: Partition) -> int:
    assert part.branch is not None
    return part.branch.seen_offset


def _wake(waiting: list[Partition], chunk: SplitChunk) -> None:
    """Tell the fetches that are parked on branches what a chunk has for them."""
    for part in waiting:
        branch = part.branch
        assert branch is not None
        if branch.seen_offset < chunk.next_offset and part.parked_fetches:
            found_bytes = chunk.touched_bytes(branch.range_index, branch.seen_offset)
            branch.seen_offset = chunk.next_offset
            if found_bytes:
                for fetch in list(part.parked_fetches):
                    if fetch in part.parked_fetches:
                        fetch.count(part, found_bytes)


def join_parts(read: BranchRead, leader_epoch: int, *, with_filler: bool) -> memoryview:
    """The records of a read, and a filler if wanted and they end before what was looked at.

    A view, because the bytes of an answer are copied into one piece with what is around them.
    """
    if with_filler and read.covered_offset > read.next_offset:
        filler = filler_batch(read.covered_offset, leader_epoch)
        return memoryview(b"".join([*read.parts, filler]))
    if len(read.parts) == 1:
        return read.parts[0]
    return memoryview(b"".join(read.parts)) if read.parts else _NO_BYTES


def unreadable(log: PartitionLog, why: object) -> KafkaError:
    return KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"{log.topic}-{log.partition}: its records cannot be sorted into branches: {why}",
    )


def _check_offset(log: PartitionLog, offset: int) -> None:
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {log.topic}-{log.partition} is not in"
            f" [{log.log_start_offset}, {log.log_end_offset}]",
        )


def _is_small(batches: memoryview, *, is_first: bool) -> bool:
    size = len(batches)
    if size > (_INLINE_BYTES if is_first else _INLINE_NEXT_BYTES):
        return False
    return size <= _INLINE_COMPRESSED_BYTES or not batches[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK
