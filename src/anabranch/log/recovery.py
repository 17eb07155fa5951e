"""Opening a log: finishing what a crash interrupted, and trusting only what is proved.

After an orderly stop the indexes and the producer snapshot are complete, and only the tail of the
newest segment is walked to find the log's end. Otherwise every batch from the recovery point's
segment on is checked (header, CRC-32C, rising offsets). The first one that fails ends the log: the
file is cut there. At the end of the newest segment that is a torn tail, which was never
acknowledged; before later segments, before the recovery point or after an orderly stop it is
damage, and what is cut off is set aside as `.cut` files. Segments below the recovery point were
synced to disk and are taken as they are.

Leftover files, as in Kafka: `.deleted`, `.cleaned` and `.tmp` are removed. A `.swap` segment is
complete, and replaces the segments whose offsets it covers, unless a `.cleaned` file at or below
its offset shows that not all segments of that cleaning were ready.
"""

import logging
import math
import mmap
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from crc32c import crc32c

from anabranch.log import checkpoints
from anabranch.log.indexes import load_offset_index, load_time_index
from anabranch.log.leader_epochs import LeaderEpochs
from anabranch.log.log_config import LogConfig
from anabranch.log.producer_state import (
    SNAPSHOT_SUFFIX,
    ProducerStates,
    load_snapshot,
    snapshot_path,
    write_snapshot,
)
from anabranch.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SLOTS_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)
from anabranch.log.transactions import (
    TRANSACTION_INDEX_SUFFIX,
    AbortedTransaction,
    Transactions,
    read_transaction_index,
    write_transaction_index,
)
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.control_records import read_marker
from anabranch.wire.record_batch import HEADER_SIZE, BatchHeader

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
# What recovery cut off although the disk had it; nothing reads it, and nothing removes it.
CUT_SUFFIX = ".cut"

_LOG = logging.getLogger(__name__)
_unpack_header = Struct(">qiibIhiqqqhii").unpack_from
_RELATIVE_OFFSET_MAX = 2**31 - 1
_RECALL_BYTES = 5 * 1024 * 1024
_RECALL_ENTRIES = 32
_RECALL_SEGMENTS = 8
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SLOTS_SUFFIX, TRANSACTION_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """What `load_log` found; the last segment is open for appending."""

    segments: list[Segment]
    producer_states: ProducerStates
    leader_epochs: LeaderEpochs
    log_start_offset: int
    recovery_point: int
    unsynced_files: list[Path]
    """Files that were written without a sync and go with the first flush."""
    has_snapshot: bool
    """Whether a snapshot of the producers at the log's end is there."""


def load_log(
    folder: Path,
    *,
    topic_id: bytes,
    config: LogConfig,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
) -> LoadedLog:
    """Bring the folder into order and load it; a folder that is not there is made."""
    unsynced_files = _prepare_folder(folder, topic_id)
    finish_interrupted(folder)
    epochs = LeaderEpochs(folder)
    segments = _find_segments(folder, config, now_ms)
    end_offset = 0
    # An orderly stop, like a recovery point, says that the disk has everything before it.
    safe_offset = math.inf if clean else recovery_point
    # Below it files beside the segments are what they were when the segments were closed.
    trusted_offset: float = math.inf
    aborted: list[AbortedTransaction] = []
    if segments:
        if clean:
            recovery_point = segments[-1].base_offset
            clean = _load_active(segments[-1])
        first_checked = len(segments) - 1 if clean else _floor(segments, recovery_point)
        damaged = _rebuild_missing_indexes(segments[:first_checked])
        aborted, unknown = _read_aborted(segments[: None if clean else first_checked])
        if unknown is not None:
            damaged = unknown if damaged is None else min(damaged, unknown)
        if damaged is not None:
            clean, recovery_point = False, damaged
        if not clean:
            trusted_offset = segments[_floor(segments, recovery_point)].base_offset
            _check_segments(folder, segments, recovery_point, safe_offset, config, epochs)
        end_offset = segments[-1].next_offset
    if end_offset < log_start_offset or not segments:
        # Records up to the log's start were deleted for good, so the log cannot end before it.
        for segment in segments:
            optional = (SLOTS_SUFFIX, TRANSACTION_INDEX_SUFFIX)
            _unlink([*segment.file_paths(), *map(segment.path, optional)])
        segments = [_new_segment(folder, max(log_start_offset, 0), config, now_ms)]
        end_offset = segments[0].next_offset
    else:
        segments[-1].open_for_append(config, is_new=False)
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    epochs.truncate_end(end_offset)
    epochs.truncate_start(log_start_offset)
    producer_states, snapshot_offset = _load_producers(folder, segments, trusted_offset, now_ms)
    _complete_aborted(producer_states.transactions, aborted, segments, trusted_offset)
    return LoadedLog(
        segments=segments,
        producer_states=producer_states,
        leader_epochs=epochs,
        log_start_offset=log_start_offset,
        recovery_point=end_offset if clean else min(recovery_point, end_offset),
        unsynced_files=unsynced_files,
        has_snapshot=snapshot_offset == end_offset,
    )


def _prepare_folder(folder: Path, topic_id: bytes) -> list[Path]:
    """Make the folder, or see that it is the topic's; returns the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    found = checkpoints.read_topic_id(folder)
    if found is None:
        return [checkpoints.write_topic_id(folder, topic_id)]
    if found != topic_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{folder} belongs to another topic of this name (id {found.hex()}, not"
            f" {topic_id.hex()}); move the folder away",
        )
    return []


# Leftovers of an interrupted cleaning or removal


def finish_interrupted(folder: Path) -> None:
    """Complete a swap that had begun and remove what else a crash left behind."""
    names = sorted(os.listdir(folder))
    cleaned = [_base_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)]
    first_cleaned = min(cleaned, default=None)
    swaps: list[int] = []
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            base_offset = _base_offset(name)
            is_complete = first_cleaned is None or base_offset < first_cleaned
            if is_complete and name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                swaps.append(base_offset)
                continue
            if is_complete and name.endswith(TRANSACTION_INDEX_SUFFIX + SWAP_SUFFIX):
                continue  # it cannot be made anew from the cleaned segment
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX, checkpoints.TMP_SUFFIX)):
            os.unlink(folder / name)
    for base_offset in swaps:
        _finish_swap(folder, base_offset)


def _finish_swap(folder: Path, base_offset: int) -> None:
    """Put a cleaned segment in the place of those it was made from; its indexes are rebuilt."""
    swap = folder / f"{base_offset:020d}{LOG_SUFFIX}{SWAP_SUFFIX}"
    next_offset = _next_offset_of(swap, base_offset)
    for name in os.listdir(folder):
        if name.endswith((LOG_SUFFIX, *_INDEX_SUFFIXES)) and (
            base_offset <= _base_offset(name) < next_offset or _base_offset(name) == base_offset
        ):
            os.unlink(folder / name)
    aborted = folder / f"{base_offset:020d}{TRANSACTION_INDEX_SUFFIX}{SWAP_SUFFIX}"
    if aborted.exists():
        os.rename(aborted, aborted.with_suffix(""))
    os.rename(swap, swap.with_suffix(""))
    _LOG.info("%s: finished the interrupted cleaning of segment %d", folder.name, base_offset)


def _next_offset_of(path: Path, base_offset: int) -> int:
    """The offset after the last batch of a segment file that is known to be whole."""
    content_size = path.stat().st_size
    next_offset = base_offset
    with path.open("rb") as file:
        position = 0
        while position + HEADER_SIZE <= content_size:
            header = BatchHeader._make(_unpack_header(os.pread(file.fileno(), 61, position)))
            next_offset = header.next_offset
            position += header.size_bytes
    return next_offset


# Segments


def _find_segments(folder: Path, config: LogConfig, now_ms: int) -> list[Segment]:
    """The segments on disk, oldest first; index files without a segment are removed."""
    names = set(os.listdir(folder))
    bases = sorted(_base_offset(name) for name in names if _is_segment_file(name, LOG_SUFFIX))
    for suffix in _INDEX_SUFFIXES:
        for name in names:
            if _is_segment_file(name, suffix) and _base_offset(name) not in bases:
                os.unlink(folder / name)
    segments = []
    for i, base in enumerate(bases):
        segment = Segment(
            folder,
            base,
            size_bytes=os.stat(folder / f"{base:020d}{LOG_SUFFIX}").st_size,
            next_offset=bases[i + 1] if i + 1 < len(bases) else base,
            created_ms=now_ms,
            index_interval_bytes=config.index_interval_bytes,
        )
        segments.append(segment)
    return segments


def _rebuild_missing_indexes(segments: Iterable[Segment]) -> int | None:
    """Make index files that are not there; the base offset of a segment too damaged for that."""
    for segment in segments:
        if not all(path.exists() for path in segment.file_paths()):
            _LOG.warning(
                "%s: rebuilding the indexes of segment %d", segment.folder.name, segment.base_offset
            )
            try:
                segment.rebuild_indexes()
            except KafkaError:
                return segment.base_offset
            segment.write_indexes()
    return None


def _floor(segments: list[Segment], offset: int) -> int:
    """The index of the segment that holds `offset`; the first when all begin above it."""
    return max(bisect_right([segment.base_offset for segment in segments], offset) - 1, 0)


def _load_active(segment: Segment) -> bool:
    """Load the newest segment after an orderly stop; False when it is not what was closed."""
    offset_index = load_offset_index(segment.path(INDEX_SUFFIX), segment.size_bytes)
    time_index = load_time_index(segment.path(TIME_INDEX_SUFFIX))
    if offset_index is None or time_index is None:
        return False
    segment.next_offset = segment.base_offset
    position = offset_index.positions[-1] if offset_index.positions else 0
    bytes_since_index = segment.size_bytes - position
    try:
        if segment.size_bytes:
            segment.first_timestamp = segment.header_at(0).max_timestamp
        while position < segment.size_bytes:
            header = segment.header_at(position)
            if header.base_offset < segment.next_offset or header.magic != 2:
                return False
            segment.next_offset = header.next_offset
            position += header.size_bytes
    except KafkaError:
        return False
    finally:
        segment.close()
    segment.adopt_indexes(offset_index, time_index, bytes_since_index)
    return True


def _new_segment(folder: Path, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
    segment = Segment(
        folder,
        base_offset,
        size_bytes=0,
        next_offset=base_offset,
        created_ms=now_ms,
        index_interval_bytes=config.index_interval_bytes,
    )
    segment.open_for_append(config, is_new=True)
    return segment


def _check_segments(
    folder: Path,
    segments: list[Segment],
    recovery_point: int,
    safe_offset: float,
    config: LogConfig,
    epochs: LeaderEpochs,
) -> None:
    """Check every batch from the recovery point's segment on; cut the log at the first bad one.

    `safe_offset` is up to where the disk was told to hold the log.
    """
    first_checked = _floor(segments, recovery_point)
    # What the slot indexes were made from may not be what the disk has now.
    _unlink([segment.path(SLOTS_SUFFIX) for segment in segments[first_checked:]])
    for i in range(first_checked, len(segments)):
        segment = segments[i]
        problem = check_segment(segment, config.index_interval_bytes, epochs)
        valid_bytes = segment.size_bytes
        if problem is not None:
            file_bytes = os.stat(segment.path()).st_size
            later = segments[i + 1 :]
            _LOG.warning(
                "%s: cut segment %d at byte %d, dropping %d bytes and %d later segments: %s",
                folder.name, segment.base_offset, valid_bytes, file_bytes - valid_bytes,
                len(later), problem,
            )  # fmt: skip
            if later or segment.next_offset < safe_offset:
                _set_aside(segment, valid_bytes, later)
            _cut_file(segment.path(), valid_bytes)
            del segments[i + 1 :]
        if problem is not None or i == len(segments) - 1:
            segment.write_indexes()
            return
        segment.next_offset = segments[i + 1].base_offset
        segment.seal()


def _set_aside(segment: Segment, valid_bytes: int, later: list[Segment]) -> None:
    """Keep what is cut off where the disk had it: that is damage, not a torn tail.

    The log goes on without it, as Kafka's would, but a person may still want to look at it.
    """
    path = segment.path()
    with path.open("rb") as damaged, path.with_name(path.name + CUT_SUFFIX).open("wb") as kept:
        damaged.seek(valid_bytes)
        shutil.copyfileobj(damaged, kept)
        os.fsync(kept.fileno())
    for dropped in reversed(later):
        path = dropped.path()
        os.rename(path, path.with_name(path.name + CUT_SUFFIX))
        _unlink([index for index in dropped.file_paths() if index != path])


def check_segment(segment: Segment, index_interval_bytes: int, epochs: LeaderEpochs) -> str | None:
    """Check every batch and rebuild the indexes in memory; says what is wrong, if anything.

    `size_bytes` and `next_offset` end up at the last good batch, and `epochs` knows of every
    leader epoch there.
    """
    segment.reset_indexes()
    segment.next_offset = segment.base_offset
    file_bytes, segment.size_bytes = segment.size_bytes, 0
    if not file_bytes:
        return None
    fd = os.open(segment.path(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapped = mmap.mmap(fd, file_bytes, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
    with mapped, memoryview(mapped) as view:
        return _check_batches(segment, view, index_interval_bytes, epochs)


def _check_batches(
    segment: Segment, view: memoryview, interval_bytes: int, epochs: LeaderEpochs
) -> str | None:
    end = len(view)
    epoch = epochs.latest
    position = 0
    next_offset = segment.base_offset
    offset_max = segment.base_offset + _RELATIVE_OFFSET_MAX
    while position < end:
        if end - position < HEADER_SIZE:
            return f"{end - position} bytes are less than a batch header"
        header = _unpack_header(view, position)
        base_offset, size, last_offset = header[0], header[1] + 12, header[0] + header[6]
        if size < HEADER_SIZE or header[3] != 2:
            return "no batch begins there"
        if position + size > end:
            return f"the batch has {size} bytes, the file holds {end - position} of them"
        if not next_offset <= base_offset <= last_offset <= offset_max:
            return f"offsets {base_offset} to {last_offset} do not follow {next_offset}"
        with view[position + 21 : position + size] as covered:
            if crc32c(covered) != header[4]:
                return f"the batch at offset {base_offset} does not match its CRC-32C"
        segment.note_batch(position, size, last_offset, header[8], interval_bytes)
        if header[2] > epoch:
            epoch = header[2]
            epochs.assign(epoch, base_offset)
        position += size
        next_offset = last_offset + 1
        segment.size_bytes = position
        segment.next_offset = next_offset
    return None


# Producers


def _load_producers(
    folder: Path, segments: list[Segment], trusted_offset: float, now_ms: int
) -> tuple[ProducerStates, int]:
    """The newest snapshot that does not lie beyond the log's end, and what was written since.

    Also returned is the offset of that snapshot, or -1 without one. Snapshots are kept for the
    starts of segments; all others but the newest are strays. Those above `trusted_offset` may be
    right, but what was aborted since is only found by reading on from before it.
    """
    end_offset = segments[-1].next_offset
    names = [name for name in os.listdir(folder) if _is_segment_file(name, SNAPSHOT_SUFFIX)]
    offsets = sorted(map(_base_offset, names), reverse=True)
    bases = {segment.base_offset for segment in segments}
    states: ProducerStates | None = None
    snapshot_offset = segments[0].base_offset
    for offset in offsets:
        path = snapshot_path(folder, offset)
        if states is None and segments[0].base_offset <= offset <= min(end_offset, trusted_offset):
            states = load_snapshot(path, now_ms)
            if states is not None:
                snapshot_offset = offset
                continue
        if states is None or offset not in bases:
            _unlink([path])
    has_snapshot = states is not None
    states = states or ProducerStates()
    headers = _headers_between(segments, snapshot_offset, end_offset)
    for header, marker in headers:
        if header.base_offset in bases and header.base_offset > snapshot_offset:
            write_snapshot(folder, header.base_offset, states, is_synced=False)
        states.record_header(header, now_ms, marker)
    _recall_batches(segments, snapshot_offset, states)
    return states, snapshot_offset if has_snapshot else -1


def _headers_between(
    segments: list[Segment], start_offset: int, end_offset: int
) -> Iterable[tuple[BatchHeader, tuple[int, int]]]:
    """The headers of all batches there, of markers with what they say."""
    for segment in segments:
        if segment.next_offset > start_offset and start_offset < end_offset:
            position = segment.position_of(start_offset)
            while position < segment.size_bytes:
                header = segment.header_at(position)
                marker = (-1, -1)
                if header.is_control:
                    marker = read_marker(segment.batch_at(position))
                yield header, marker
                position += header.size_bytes


def _read_aborted(segments: Iterable[Segment]) -> tuple[list[AbortedTransaction], int | None]:
    """The aborted transactions of segments; the base offset of one whose file is damaged."""
    aborted: list[AbortedTransaction] = []
    for segment in segments:
        found = read_transaction_index(segment.path(TRANSACTION_INDEX_SUFFIX))
        if found is None:
            return aborted, segment.base_offset
        aborted += found
    return aborted, None


def _complete_aborted(
    transactions: Transactions,
    aborted: list[AbortedTransaction],
    segments: list[Segment],
    trusted_offset: float,
) -> None:
    """Put what the files say before what was found in the log, and write the files of the rest."""
    known = [one for one in aborted if one.last_offset < trusted_offset]
    found = [one for one in transactions.aborted if one.last_offset >= trusted_offset]
    transactions.aborted = known + found
    for segment in segments:
        if segment.base_offset >= trusted_offset:
            rest = transactions.aborted_in(segment.base_offset, segment.next_offset)
            path = segment.path(TRANSACTION_INDEX_SUFFIX)
            write_transaction_index(path, rest, is_synced=True)


def _recall_batches(segments: list[Segment], offset: int, states: ProducerStates) -> None:
    """Find the batches that the snapshot at `offset` does not hold: all but each producer's last.

    A client has at most five batches in flight, so the last few of the log are enough.
    """
    if not states.entries:
        return
    budget_bytes = _RECALL_BYTES
    for segment in reversed(segments):
        if segment.base_offset < offset and budget_bytes > 0:
            end = segment.position_of(offset)
            position = _recall_start(segment, end, budget_bytes)
            # Small batches cost more than their bytes: an index interval stands for many headers.
            budget_bytes -= max(end - position, _RECALL_BYTES // _RECALL_SEGMENTS)
            headers: list[BatchHeader] = []
            while position < end:
                headers.append(segment.header_at(position))
                position += headers[-1].size_bytes
            for header in reversed(headers):
                states.recall_header(header)


def _recall_start(segment: Segment, end: int, budget_bytes: int) -> int:
    """A batch start from which a bounded number of bytes and of headers lead to `end`."""
    indexed = segment.offset_index.positions
    entry = bisect_right(indexed, end)
    first_entry = max(entry - _RECALL_ENTRIES, 0)
    position = indexed[first_entry] if first_entry else 0
    return max(position, segment.offset_index.floor_edge(max(end - budget_bytes, 0)))


# Names and files


def _base_offset(name: str) -> int:
    """The offset in a file name; a name without one sorts before all."""
    digits = name.split(".", 1)[0]
    return int(digits) if digits.isdecimal() and digits.isascii() else -1


def _is_segment_file(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and len(name) == 20 + len(suffix) and _base_offset(name) >= 0


def _cut_file(path: Path, size: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
