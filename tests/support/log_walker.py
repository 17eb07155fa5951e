"""Reads the files of a partition without the broker's code, and says whether they agree.

Everything is taken from Kafka's file formats: a segment is a row of batches, an offset index entry
is (relative last offset, position of the batch), a time index entry is (largest timestamp so far,
relative last offset of the batch that holds it).
"""

import itertools
import struct
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

_BATCH = struct.Struct(">qiibIhiqqqhii")
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


@dataclass(frozen=True, slots=True)
class WalkedBatch:
    """A batch in a segment file."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    base_sequence: int


@dataclass(slots=True)
class WalkedSegment:
    """A segment file and its batches; `check_partition` adds the index entries."""

    path: Path
    base_offset: int
    batches: list[WalkedBatch] = field(default_factory=list)
    index: list[tuple[int, int]] = field(default_factory=list)
    time_index: list[tuple[int, int]] = field(default_factory=list)


def segment_paths(folder: Path) -> list[Path]:
    """The segment files of a partition, oldest first."""
    return sorted(folder.glob("*.log"))


def walk_segment(path: Path) -> WalkedSegment:
    """Read one segment file; AssertionError at the first batch that is not sound."""
    segment = WalkedSegment(path, int(path.stem))
    content = memoryview(path.read_bytes())
    position = 0
    next_offset = segment.base_offset
    while position < len(content):
        left = len(content) - position
        assert left >= _BATCH.size, f"{path}: {left} bytes at {position} are no batch header"
        header = _BATCH.unpack_from(content, position)
        base_offset, size, magic, crc = header[0], header[1] + 12, header[3], header[4]
        assert magic == 2, f"{path}: magic {magic} at {position}"
        assert size <= left, f"{path}: the batch at {position} is cut off"
        assert crc32c(content[position + 21 : position + size]) == crc, f"{path}: CRC at {position}"
        assert base_offset == next_offset, f"{path}: {base_offset} follows {next_offset - 1}"
        batch = WalkedBatch(
            position=position,
            size_bytes=size,
            base_offset=base_offset,
            last_offset=base_offset + header[6],
            max_timestamp=header[8],
            producer_id=header[9],
            base_sequence=header[11],
        )
        segment.batches.append(batch)
        next_offset = batch.last_offset + 1
        position += size
    return segment


def check_partition(folder: Path) -> list[WalkedSegment]:
    """Walk a partition that was closed in order and hold its files against each other."""
    segments = [walk_segment(path) for path in segment_paths(folder)]
    assert segments, f"{folder} holds no segment"
    for previous, segment in itertools.pairwise(segments):
        end = previous.batches[-1].last_offset + 1 if previous.batches else previous.base_offset
        assert segment.base_offset == end, f"{segment.path} does not follow offset {end - 1}"
    for segment in segments:
        path = segment.path
        segment.index = list(_INDEX_ENTRY.iter_unpack(path.with_suffix(".index").read_bytes()))
        times = path.with_suffix(".timeindex").read_bytes()
        segment.time_index = list(_TIME_ENTRY.iter_unpack(times))
        _check_indexes(segment)
    last = segments[-1]
    end = last.batches[-1].last_offset + 1 if last.batches else last.base_offset
    assert (folder / f"{end:020d}.snapshot").exists(), f"{folder} has no snapshot at {end}"
    return segments


def _check_indexes(segment: WalkedSegment) -> None:
    base = segment.base_offset
    by_position = {batch.position: batch for batch in segment.batches}
    by_last_offset = {batch.last_offset: batch for batch in segment.batches}
    assert segment.index == sorted(set(segment.index)), f"{segment.path}: index out of order"
    for relative_offset, position in segment.index:
        assert position in by_position, f"{segment.path}: no batch at {position}"
        assert by_position[position].last_offset == base + relative_offset
    # An entry is due after every 4096 bytes, so a large segment has many.
    size_bytes = sum(batch.size_bytes for batch in segment.batches)
    largest = max((batch.size_bytes for batch in segment.batches), default=0)
    assert len(segment.index) >= size_bytes // (4096 + 2 * largest) - 1 if largest else True
    timestamps = [timestamp for timestamp, _ in segment.time_index]
    assert timestamps == sorted(set(timestamps)), f"{segment.path}: time index out of order"
    so_far = -1
    largest_before: dict[int, int] = {}
    for batch in segment.batches:
        so_far = max(so_far, batch.max_timestamp)
        largest_before[batch.last_offset] = so_far
    for timestamp, relative_offset in segment.time_index:
        batch = by_last_offset[base + relative_offset]
        assert batch.max_timestamp == timestamp == largest_before[batch.last_offset]
    if segment.batches:
        assert timestamps[-1] == so_far, f"{segment.path}: the last timestamp has no entry"
