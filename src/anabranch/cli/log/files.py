"""Reading a partition's files as they lie on disk, verifying every byte that can be verified.

Each reader yields what it finds in order and ends at the first damage, because nothing after it
can be trusted: not even where the next batch begins. Zeros up to the end of a file are space that
was reserved in advance, not damage.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Self

from anabranch.log.producer_state import ProducerDescription, decode_snapshot
from anabranch.model.errors import KafkaError
from anabranch.wire.record_batch import (
    HEADER_SIZE,
    MAGIC_V2,
    BatchHeader,
    Record,
    crc_ok,
    iter_records,
    read_header,
)

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
SNAPSHOT: Final = ".snapshot"
SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, SNAPSHOT)

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_OFFSET_NAME = re.compile(r"\d{20}")  # segment files are named after their first offset
_CHUNK_BYTES = 1024 * 1024


class Damage(NamedTuple):
    """Where a file stops making sense, and why; everything before `position` is sound."""

    position: int
    reason: str


class Batch(NamedTuple):
    """A sound batch; `records` is None unless they were asked for."""

    position: int
    header: BatchHeader
    records: tuple[Record, ...] | None


class OffsetEntry(NamedTuple):
    """An entry of an offset index."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a time index."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReservedSpace:
    """Zeros at the end of a file."""

    position: int
    size_bytes: int


Finding = Batch | OffsetEntry | TimeEntry | ProducerDescription | ReservedSpace | Damage


def partition_files(folder: Path) -> list[Path]:
    """A partition folder's files that can be read here, segment by segment."""
    return sorted(
        (
            path
            for path in folder.iterdir()
            if path.suffix in SUFFIXES and _OFFSET_NAME.fullmatch(path.stem) and path.is_file()
        ),
        key=lambda path: (path.stem, SUFFIXES.index(path.suffix)),
    )


def read_file(path: Path, *, with_records: bool) -> Iterator[Finding]:
    """Everything in the file, whatever its kind; OSError when it cannot be read."""
    if path.suffix == SNAPSHOT:
        yield from _read_snapshot(path)
        return
    if path.suffix == LOG:
        with _SegmentFile(path) as segment:
            yield from _read_log(segment, with_records)
        return
    data = path.read_bytes()
    base_offset = int(path.stem) if path.stem.isdecimal() else 0
    if path.suffix == TIME_INDEX:
        yield from _read_time_index(data, base_offset)
        return
    log_path = path.with_suffix(LOG)
    if not log_path.is_file():
        yield from _read_offset_index(data, base_offset, None)
        return
    with _SegmentFile(log_path) as segment:
        yield from _read_offset_index(data, base_offset, segment)


class _SegmentFile:
    """A segment, read piece by piece: a mapped one could vanish below us while a broker runs."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self.size_bytes = os.fstat(self._fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, position: int, size_bytes: int) -> bytes:
        return os.pread(self._fd, size_bytes, position)

    def is_zero_from(self, position: int) -> bool:
        return all(
            not any(self.read(start, _CHUNK_BYTES))
            for start in range(position, self.size_bytes, _CHUNK_BYTES)
        )


def _read_log(segment: _SegmentFile, with_records: bool) -> Iterator[Finding]:
    position = 0
    next_offset = -1
    while position < segment.size_bytes:
        found = _read_batch(segment, position, next_offset, with_records)
        if isinstance(found, Damage) and segment.is_zero_from(position):
            yield ReservedSpace(position, segment.size_bytes - position)
            return
        yield found
        if isinstance(found, Damage):
            return
        next_offset = found.header.next_offset
        position += found.header.size_bytes


def _read_batch(
    segment: _SegmentFile, position: int, next_offset: int, with_records: bool
) -> Batch | Damage:
    left_bytes = segment.size_bytes - position
    head = segment.read(position, HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return Damage(position, f"{len(head)} bytes are left, too few for a batch header")
    header = read_header(head)
    if header.magic != MAGIC_V2:
        return Damage(position, f"message format {header.magic} instead of 2")
    if header.size_bytes < HEADER_SIZE:
        return Damage(position, f"a batch length of {header.batch_length} cannot be right")
    if header.size_bytes > left_bytes:
        return Damage(
            position, f"a batch of {header.size_bytes} bytes is cut off, {left_bytes} are left"
        )
    batch = segment.read(position, header.size_bytes)
    if not crc_ok(batch, 0, header.size_bytes):
        return Damage(
            position,
            f"the batch at offset {header.base_offset} does not match its CRC-32C"
            f" {header.crc:#010x}",
        )
    if header.base_offset < next_offset:
        return Damage(
            position, f"offset {header.base_offset} follows offset {next_offset - 1}: it goes back"
        )
    if not with_records:
        return Batch(position, header, None)
    try:
        records = tuple(iter_records(batch))
    except KafkaError as error:
        reason = error.message.removesuffix("; send the batch again")
        return Damage(position, f"the batch at offset {header.base_offset}: {reason}")
    return Batch(position, header, records)


def _read_offset_index(
    data: bytes, base_offset: int, segment: _SegmentFile | None
) -> Iterator[Finding]:
    previous = OffsetEntry(-1, -1)
    for position in range(0, len(data), _OFFSET_ENTRY.size):
        if _is_reserved(data, position, _OFFSET_ENTRY.size):
            yield ReservedSpace(position, len(data) - position)
            return
        if len(data) - position < _OFFSET_ENTRY.size:
            yield _cut_entry(data, position)
            return
        relative_offset, log_position = _OFFSET_ENTRY.unpack_from(data, position)
        entry = OffsetEntry(base_offset + relative_offset, log_position)
        if relative_offset < 0 or entry.offset <= previous.offset:
            yield Damage(position, f"offset {entry.offset} does not rise")
            return
        if log_position <= previous.position:
            yield Damage(position, f"position {log_position} does not rise")
            return
        if segment is not None and not _is_batch_with(segment, entry):
            yield Damage(
                position, f"offset {entry.offset} is not in a batch at position {log_position}"
            )
            return
        yield entry
        previous = entry


def _is_batch_with(segment: _SegmentFile, entry: OffsetEntry) -> bool:
    head = segment.read(entry.position, HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return False
    header = read_header(head)
    return header.magic == MAGIC_V2 and header.base_offset <= entry.offset <= header.last_offset


def _read_time_index(data: bytes, base_offset: int) -> Iterator[Finding]:
    previous = TimeEntry(-1, -1)
    for position in range(0, len(data), _TIME_ENTRY.size):
        if _is_reserved(data, position, _TIME_ENTRY.size):
            yield ReservedSpace(position, len(data) - position)
            return
        if len(data) - position < _TIME_ENTRY.size:
            yield _cut_entry(data, position)
            return
        timestamp, relative_offset = _TIME_ENTRY.unpack_from(data, position)
        entry = TimeEntry(timestamp, base_offset + relative_offset)
        # Rolling a segment repeats the last entry, so equal ones are sound.
        if relative_offset < 0 or entry.offset < previous.offset:
            yield Damage(position, f"offset {entry.offset} goes back")
            return
        if timestamp < previous.timestamp:
            yield Damage(position, f"timestamp {timestamp} goes back")
            return
        yield entry
        previous = entry


def _read_snapshot(path: Path) -> Iterator[Finding]:
    states = decode_snapshot(path.read_bytes(), 0)
    if states is None:
        yield Damage(0, "the snapshot does not match its CRC-32C, size or version")
        return
    yield from states.describe()


def _cut_entry(data: bytes, position: int) -> Damage:
    return Damage(position, f"{len(data) - position} bytes are left, too few for an entry")


def _is_reserved(data: bytes, position: int, entry_size: int) -> bool:
    """Whether only zeros follow; a single entry may be all zeros and mean it."""
    return len(data) > entry_size and data[position] == 0 and not any(data[position:])
